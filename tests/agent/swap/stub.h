/* One world for both stubs, in the directory that EBB_STUB_DIR names:
 *
 *   gpus           a line per GPU: uuid total-bytes
 *   driver         the driver's version, such as 580.65.06
 *   processes/PID  state bytes uuid mps    (state as in CUprocessState; bytes -1: not available)
 *   faults         a line per fault: call code     (code -1: the call never returns)
 *
 * A process that is CHECKPOINTED (2) or FAILED (3) holds nothing.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { MAX = 16 };

typedef struct {
  int pid, state, mps;
  long long bytes;
  char uuid[80];
} process_t;

static char *place(const char *name) {
  static char path[512];
  const char *dir = getenv("EBB_STUB_DIR");
  snprintf(path, sizeof path, "%s/%s", dir ? dir : "/nonexistent", name);
  return path;
}

static inline int read_process(int pid, process_t *p) {
  char name[64];
  snprintf(name, sizeof name, "processes/%d", pid);
  FILE *file = fopen(place(name), "r");
  if (!file) return 0;
  p->pid = pid;
  int n = fscanf(file, "%d %lld %79s %d", &p->state, &p->bytes, p->uuid, &p->mps);
  fclose(file);
  return n == 4;
}

static inline int read_processes(process_t *found) {
  DIR *dir = opendir(place("processes"));
  int count = 0;
  for (struct dirent *e; dir && (e = readdir(dir)) && count < MAX;)
    if (atoi(e->d_name) && read_process(atoi(e->d_name), &found[count]) && found[count].state < CHECKPOINTED) count++;
  if (dir) closedir(dir);
  return count;
}

static inline int read_gpus(char uuids[MAX][80], unsigned long long totals[MAX]) {
  FILE *file = fopen(place("gpus"), "r");
  int count = 0;
  while (file && count < MAX && fscanf(file, "%79s %llu", uuids[count], &totals[count]) == 2) count++;
  if (file) fclose(file);
  return count;
}

static inline unsigned long long used_bytes(const char *uuid) {
  process_t found[MAX];
  unsigned long long sum = 0;
  for (int i = read_processes(found) - 1; i >= 0; i--)
    if (!strcmp(found[i].uuid, uuid) && found[i].bytes > 0) sum += found[i].bytes;
  return sum;
}

/* The code with which the call is to fail, 0 if it is not. */
static inline int fault(const char *call) {
  char name[32];
  int code, found = 0;
  FILE *file = fopen(place("faults"), "r");
  while (file && fscanf(file, "%31s %d", name, &code) == 2)
    if (!strcmp(name, call)) found = code;
  if (file) fclose(file);
  while (found == -1) pause();
  return found;
}
