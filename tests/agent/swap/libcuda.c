/* The part of libcuda that checkpoints processes. Its arguments are laid out as in cuda.h of CUDA 13. */
#include "stub.h"

typedef struct { unsigned timeoutMs, reserved0; unsigned long long reserved1[7]; } lock_args;
enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401, NOT_READY = 600 };

static int initialised;

static int write_process(process_t *p) {
  char name[64], draft[512];
  strcpy(draft, place("draft"));
  snprintf(name, sizeof name, "processes/%d", p->pid);
  FILE *file = fopen(draft, "w");
  fprintf(file, "%d %lld %s %d\n", p->state, p->bytes, p->uuid, p->mps);
  fclose(file);
  return rename(draft, place(name));
}

static int move(int pid, const char *call, int from, int to) {
  process_t p;
  if (!read_process(pid, &p)) return INVALID_VALUE;
  if (p.state != from) return ILLEGAL_STATE;
  int code = fault(call);
  if (code && (from == CHECKPOINTED || to == CHECKPOINTED)) p.state = FAILED, write_process(&p);
  if (code) return code;
  p.state = to;
  return write_process(&p);
}

int cuInit(unsigned flags) {
  initialised = 1;
  return fault("init");
}

int cuCheckpointProcessGetState(int pid, int *state) {
  process_t p;
  int code = fault("state");
  if (!code && !read_process(pid, &p)) return INVALID_VALUE;
  if (!code) *state = p.state;
  return code;
}

int cuCheckpointProcessLock(int pid, lock_args *args) {
  if (!args || args->reserved0 || args->reserved1[0] || args->reserved1[6]) return INVALID_VALUE;
  if (fault("lock") == NOT_READY) usleep(args->timeoutMs * 1000);
  return move(pid, "lock", RUNNING, LOCKED);
}

int cuCheckpointProcessCheckpoint(int pid, void *args) { return move(pid, "checkpoint", LOCKED, CHECKPOINTED); }

int cuCheckpointProcessRestore(int pid, void *args) {
  char uuids[MAX][80];
  unsigned long long totals[MAX];
  process_t p;
  if (!initialised) return NOT_INITIALIZED;
  if (!read_process(pid, &p)) return INVALID_VALUE;
  if (p.state == FAILED) return OPERATING_SYSTEM;
  int full = fault("room") != 0;
  for (int i = read_gpus(uuids, totals) - 1; i >= 0; i--)
    full |= !strcmp(uuids[i], p.uuid) && used_bytes(p.uuid) + p.bytes > totals[i];
  if (!full) return move(pid, "restore", CHECKPOINTED, LOCKED);
  p.state = FAILED;
  write_process(&p);
  return OUT_OF_MEMORY;
}

int cuCheckpointProcessUnlock(int pid, void *args) { return move(pid, "unlock", LOCKED, RUNNING); }
