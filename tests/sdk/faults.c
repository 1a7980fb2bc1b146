/* Loaded before libc: counts what a process does to the files of its disk, and lets one of these calls go wrong.

   faults_arm(number, how): the `number`th call from now on, from 1, dies (SIGKILL) before it does anything (CRASH), or, if
   it writes, after half of that (TORN); fails with EIO (BROKEN); or it and all later ones that need room fail with ENOSPC,
   again after half of what is to be written (FULL). 0 disarms. faults_seen() is how many there were since then.
   Nothing is ever synced to the disk, which is slow and which no killed process needs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CRASH, TORN, BROKEN, FULL };

static long armed, seen;
static int mode;

void faults_arm(long number, int how) { armed = number; seen = 0; mode = how; }
long faults_seen(void) { return seen; }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Whether this call goes wrong: 0, or the error to fail with. `torn` writes the half of it. */
static int fault(int needs_room, void (*torn)(void *), void *what)
{
    seen++;
    if (!armed || seen < armed)
        return 0;
    switch (mode) {
    case TORN:
        if (seen == armed && torn)
            torn(what);
        /* fall through */
    case CRASH:
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    case BROKEN:
        return seen == armed ? EIO : 0;
    default:
        if (needs_room && torn && seen == armed)
            torn(what);
        return needs_room ? ENOSPC : 0;
    }
}

static int is_file(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

#define FAIL_IF(needs_room, torn, what) \
    do { int error = fault(needs_room, torn, what); if (error) { errno = error; return -1; } } while (0)

struct piece { int descriptor; const void *data; size_t size; off64_t at; };

static void write_half(void *what)
{
    struct piece *piece = what;
    if (piece->size / 2 && NEXT(write)(piece->descriptor, piece->data, piece->size / 2) < 0)
        perror("faults.c: write");
}

static void pwrite_half(void *what)
{
    struct piece *piece = what;
    if (piece->size / 2 && NEXT(pwrite64)(piece->descriptor, piece->data, piece->size / 2, piece->at) < 0)
        perror("faults.c: pwrite");
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    struct piece piece = {descriptor, data, size, 0};
    if (is_file(descriptor))
        FAIL_IF(1, write_half, &piece);
    return NEXT(write)(descriptor, data, size);
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count)
{
    struct piece piece = {descriptor, pieces[0].iov_base, pieces[0].iov_len, 0};
    if (is_file(descriptor))
        FAIL_IF(1, write_half, &piece);
    return NEXT(writev)(descriptor, pieces, count);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at)
{
    struct piece piece = {descriptor, data, size, at};
    if (is_file(descriptor))
        FAIL_IF(1, pwrite_half, &piece);
    return NEXT(pwrite64)(descriptor, data, size, at);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count)
{
    if (is_file(to))
        FAIL_IF(1, NULL, NULL);
    return ((ssize_t(*)(int, int, off64_t *, size_t))dlsym(RTLD_NEXT, "sendfile64"))(to, from, offset, count);
}

static int open_as(const char *name, int directory, const char *path, int flags, mode_t permissions)
{
    if (flags & (O_CREAT | O_TRUNC))
        FAIL_IF(flags & O_CREAT, NULL, NULL);
    return ((int (*)(int, const char *, int, mode_t))dlsym(RTLD_NEXT, name))(directory, path, flags, permissions);
}

#define OPENED(flags) \
    mode_t permissions = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); permissions = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { OPENED(flags) return open_as("openat", AT_FDCWD, path, flags, permissions); }
int open64(const char *path, int flags, ...) { OPENED(flags) return open_as("openat64", AT_FDCWD, path, flags, permissions); }
int openat(int at, const char *path, int flags, ...) { OPENED(flags) return open_as("openat", at, path, flags, permissions); }
int openat64(int at, const char *path, int flags, ...) { OPENED(flags) return open_as("openat64", at, path, flags, permissions); }

/* What std::ofstream opens its files with; its stream is then written to by write and writev. */
FILE *fopen64(const char *path, const char *how)
{
    if (how[0] != 'r') {
        int error = fault(1, NULL, NULL);
        if (error) { errno = error; return NULL; }
    }
    return NEXT(fopen64)(path, how);
}

int ftruncate64(int descriptor, off64_t size) { FAIL_IF(0, NULL, NULL); return NEXT(ftruncate64)(descriptor, size); }
int fsync(int descriptor) { (void)descriptor; FAIL_IF(0, NULL, NULL); return 0; }
int fdatasync(int descriptor) { (void)descriptor; FAIL_IF(0, NULL, NULL); return 0; }
int rename(const char *from, const char *to) { FAIL_IF(0, NULL, NULL); return NEXT(rename)(from, to); }
int mkdir(const char *path, mode_t bits) { FAIL_IF(1, NULL, NULL); return NEXT(mkdir)(path, bits); }
int rmdir(const char *path) { FAIL_IF(0, NULL, NULL); return NEXT(rmdir)(path); }
int unlink(const char *path) { FAIL_IF(0, NULL, NULL); return NEXT(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { FAIL_IF(0, NULL, NULL); return NEXT(unlinkat)(at, path, flags); }
int renameat(int a, const char *from, int b, const char *to) { FAIL_IF(0, NULL, NULL); return NEXT(renameat)(a, from, b, to); }
