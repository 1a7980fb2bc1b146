/* The calls that checkpoint another process. Its entry moves from processes/ to cuda/, and beside it stands its state:
 * cuda/PID.locked, cuda/PID.failed. What fails is as reported of drivers: a restore without room is never forgiven. */
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../c/json.h"

typedef struct { unsigned timeout_ms, reserved0; unsigned long long reserved1[7]; } lock_args;

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401 };
enum { PATH_SIZE = 4096 };

static const char *place(char path[PATH_SIZE], const char *format, int pid) {
  const char *state = getenv("EBB_STUB_NVML");
  int used = snprintf(path, PATH_SIZE, "%s/", state ? state : "/nonexistent");
  snprintf(path + used, PATH_SIZE - (size_t)used, format, pid);
  return path;
}

static bool there(const char *format, int pid) {
  char path[PATH_SIZE];
  return !access(place(path, format, pid), F_OK);
}

static int mark(const char *format, int pid) {
  char path[PATH_SIZE];
  mkdir(place(path, "cuda", 0), 0700);
  FILE *file = fopen(place(path, format, pid), "we");
  return file ? fclose(file) : OPERATING_SYSTEM;
}

static int move(const char *from, const char *to, int pid) {
  char old[PATH_SIZE], new[PATH_SIZE];
  return rename(place(old, from, pid), place(new, to, pid)) ? OPERATING_SYSTEM : SUCCESS;
}

static int state_of(int pid) {
  if (there("cuda/%d.failed", pid)) return FAILED;
  if (there("cuda/%d.json", pid)) return CHECKPOINTED;
  if (there("cuda/%d.locked", pid)) return LOCKED;
  return there("processes/%d.json", pid) ? RUNNING : -1;
}

int cuCheckpointProcessGetState(int pid, int *state) {
  *state = state_of(pid);
  return *state < 0 ? INVALID_VALUE : SUCCESS;
}

static int expect(int pid, int wanted) {
  int state = state_of(pid);
  return state < 0 ? INVALID_VALUE : state == wanted ? SUCCESS : ILLEGAL_STATE;
}

int cuCheckpointProcessLock(int pid, lock_args *args) {
  if (!args || !args->timeout_ms || args->reserved0 || args->reserved1[0]) return INVALID_VALUE;
  int code = expect(pid, RUNNING);
  return code ? code : mark("cuda/%d.locked", pid);
}

int cuCheckpointProcessCheckpoint(int pid, void *args) {
  (void)args;
  int code = expect(pid, LOCKED);
  return code ? code : move("processes/%d.json", "cuda/%d.json", pid);
}

/* What this entry holds of this GPU. */
static double held_of(const char *path, const char *uuid) {
  json *entry;
  json_read(path, &entry);
  double bytes = json_number(json_get(entry, "gpus"), uuid, 0);
  json_free(entry);
  return bytes;
}

static double held_by_all(const char *uuid) {
  char path[PATH_SIZE], file[PATH_SIZE + 300];
  double sum = 0;
  DIR *directory = opendir(place(path, "processes", 0));
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
    int pid = atoi(entry->d_name);
    if (pid && !kill(pid, 0)) sum += held_of(file, uuid);
  }
  if (directory) closedir(directory);
  return sum;
}

static bool has_room(int pid) {
  char path[PATH_SIZE];
  json *node;
  bool room = true;
  json_read(place(path, "gpus.json", 0), &node);
  place(path, "cuda/%d.json", pid);
  for (const json *gpu = json_elements(node, "gpus"); gpu; gpu = gpu->next) {
    const char *uuid = json_text(gpu, "uuid");
    double need = held_of(path, uuid);
    if (need > 0 && held_by_all(uuid) + need > json_number(gpu, "mem_bytes", 0)) room = false;
  }
  json_free(node);
  return room;
}

int cuCheckpointProcessRestore(int pid, void *args) {
  (void)args;
  if (state_of(pid) == FAILED) return OPERATING_SYSTEM;
  int code = expect(pid, CHECKPOINTED);
  if (code) return code;
  if (has_room(pid)) return move("cuda/%d.json", "processes/%d.json", pid);
  mark("cuda/%d.failed", pid);
  return OUT_OF_MEMORY;
}

int cuCheckpointProcessUnlock(int pid, void *args) {
  (void)args;
  char path[PATH_SIZE];
  int code = expect(pid, LOCKED);
  return code ? code : unlink(place(path, "cuda/%d.locked", pid));
}
