/* Who holds memory, and who did until a moment ago. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

/* How long an ended process is remembered for the sake of a late release. */
static const double LONGEST_RELEASE_S = 60;
/* A file system's clock ticks: what changed so recently may change again without showing. */
static const double UNSETTLED_S = 0.1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* events are waited for on another thread */
static held rows[MAX_HELD];
static unsigned count;
static struct timespec settled; /* when the directory had last changed as it was read; 0: read it again */

typedef struct {
  char state;
  double cpu_s;
  unsigned long long starttime;
} stat_line;

static bool read_stat(int pid, stat_line *stat) {
  char path[64], line[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "re");
  size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
  if (file) fclose(file);
  line[got] = 0;
  /* The command may hold blanks and parentheses itself, so the fields are counted from its last one. */
  const char *tail = strrchr(line, ')');
  static const char fields_of[] = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu"
                                  " %*s %*s %*s %*s %*s %*s %llu";
  unsigned long long user, system;
  int fields = tail ? sscanf(tail + 1, fields_of, &stat->state, &user, &system, &stat->starttime) : 0;
  if (fields == 4) stat->cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
  return fields == 4;
}

static held *row_of(int pid, unsigned long long starttime, const device *on) {
  for (unsigned i = 0; i < count; i++)
    if (rows[i].pid == pid && rows[i].starttime == starttime && rows[i].on == on) return &rows[i];
  if (count == MAX_HELD) return NULL;
  rows[count] = (held){.pid = pid, .starttime = starttime, .on = on};
  return &rows[count++];
}

static bool lives(int pid, unsigned long long starttime) {
  stat_line stat;
  return read_stat(pid, &stat) && !strchr("ZX", stat.state) && stat.starttime == starttime;
}

/* What a process no longer holds of a GPU while it lives is free at once. */
static void let_go(int pid, unsigned long long starttime) {
  for (unsigned i = 0; i < count; i++)
    if (rows[i].pid == pid && rows[i].starttime == starttime) rows[i].bytes = 0;
}

static void take_note(const json *process) {
  int pid = (int)json_number(process, "pid", 0);
  unsigned long long starttime = (unsigned long long)json_number(process, "starttime", 0);
  const json *gpus = json_get(process, "gpus");
  if (lives(pid, starttime)) let_go(pid, starttime);
  for (const json *gpu = gpus && gpus->kind == JSON_OBJECT ? gpus->first : NULL; gpu; gpu = gpu->next) {
    const device *on = device_named(gpu->name);
    held *row = on ? row_of(pid, starttime, on) : NULL;
    if (!row) continue;
    row->bytes = gpu->kind == JSON_NUMBER ? gpu->number : -1;
    row->mps = json_number(process, "mps", 0) != 0;
    row->registered = true;
  }
}

static void read_registered(const char *path) {
  DIR *directory = opendir(path);
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    char file[PATH_SIZE + 300];
    size_t length = strlen(entry->d_name);
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || length < 6 || strcmp(entry->d_name + length - 5, ".json"))
      continue;
    snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
    json *process;
    /* Removed since it was listed, or not written whole: either way it registers nobody. */
    if (json_read(file, &process) == JSON_OK) take_note(process);
    json_free(process);
  }
  if (directory) closedir(directory);
}

/* Read the directory if it has changed, or may have: whatever is put into it is renamed to its place. */
static void learn_registered(void) {
  char path[PATH_SIZE];
  struct stat at;
  struct timespec now;
  place(path, "processes");
  bool there = !stat(path, &at);
  if (there && at.st_mtim.tv_sec == settled.tv_sec && at.st_mtim.tv_nsec == settled.tv_nsec) return;
  for (unsigned i = 0; i < count; i++) rows[i].registered = false;
  clock_gettime(CLOCK_REALTIME, &now);
  read_registered(path);
  double age = (double)(now.tv_sec - at.st_mtim.tv_sec) + (double)(now.tv_nsec - at.st_mtim.tv_nsec) * 1e-9;
  settled = there && age > UNSETTLED_S ? at.st_mtim : (struct timespec){0};
}

/* Take note of who lives on this GPU, and of when those that do not were first missed. */
static void look(const device *on) {
  double now = now_s();
  learn_registered();
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    held *row = &rows[i];
    if (row->on == on) {
      row->alive = row->registered && lives(row->pid, row->starttime);
      row->missed_at_s = row->alive ? 0 : row->missed_at_s ? row->missed_at_s : now;
    }
    bool over = !row->registered && row->missed_at_s && now - row->missed_at_s > LONGEST_RELEASE_S;
    if (!over) rows[kept++] = *row;
  }
  count = kept;
}

void forget_holders(void) {
  pthread_mutex_lock(&lock);
  count = 0;
  settled = (struct timespec){0};
  pthread_mutex_unlock(&lock);
}

unsigned holders(const device *on, bool mps, held *found, unsigned room) {
  unsigned n = 0;
  pthread_mutex_lock(&lock);
  look(on);
  for (unsigned i = 0; i < count; i++) {
    if (!rows[i].alive || rows[i].on != on || rows[i].mps != mps) continue;
    if (n < room) found[n] = rows[i];
    n++;
  }
  pthread_mutex_unlock(&lock);
  return n;
}

usage usage_of(const device *on, double release_after_s) {
  usage sum = {0};
  stat_line stat;
  pthread_mutex_lock(&lock);
  look(on);
  double now = now_s();
  for (unsigned i = 0; i < count; i++) {
    if (rows[i].on != on) continue;
    double bytes = rows[i].bytes > 0 ? rows[i].bytes : 0;
    if (rows[i].alive)
      sum.held += bytes;
    else if (now < rows[i].missed_at_s + release_after_s)
      sum.late += bytes;
    if (rows[i].alive && read_stat(rows[i].pid, &stat)) sum.cpu_s += stat.cpu_s;
  }
  pthread_mutex_unlock(&lock);
  return sum;
}
