/* Events of NVML: the Xids that faults.json lists, each told once to every event set. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "world.h"

typedef unsigned long long u64;
typedef struct { device *on; u64 type, data; unsigned gpu_instance, compute_instance; } event;
typedef struct {
  u64 types[MAX_DEVICES]; /* by the GPU's place among handles */
  device *devices[MAX_DEVICES];
  unsigned count;
  double told; /* the number of the last Xid */
} event_set;

static const u64 XID = 8, SINGLE_BIT_ECC = 1, DOUBLE_BIT_ECC = 2;
static const unsigned NONE = 0xFFFFFFFF;

int nvmlEventSetCreate(event_set **set) {
  int code = fault(__func__, NULL);
  if (!code) *set = calloc(1, sizeof **set);
  return code;
}

int nvmlEventSetFree(event_set *set) {
  free(set);
  return OK;
}

int nvmlDeviceGetSupportedEventTypes(device *d, u64 *types) {
  int code = fault(__func__, d);
  *types = XID | SINGLE_BIT_ECC | DOUBLE_BIT_ECC;
  return code;
}

int nvmlDeviceRegisterEvents(device *d, u64 types, event_set *set) {
  int code = fault(__func__, d);
  if (code) return code;
  if (types & ~(XID | SINGLE_BIT_ECC | DOUBLE_BIT_ECC)) return NOT_SUPPORTED;
  if (set->count == MAX_DEVICES) return INSUFFICIENT_SIZE;
  set->types[set->count] = types;
  set->devices[set->count++] = d;
  return OK;
}

static device *listening(const event_set *set, const char *uuid) {
  for (unsigned i = 0; i < set->count; i++)
    if (!strcmp(set->devices[i]->uuid, uuid) && set->types[i] & XID) return set->devices[i];
  return NULL;
}

static bool next_event(event_set *set, event *found) {
  json *faults = read_faults();
  const json *first = NULL;
  for (const json *xid = json_elements(faults, "xids"); xid; xid = xid->next) {
    double number = json_number(xid, "number", 0);
    if (number > set->told && listening(set, json_text(xid, "uuid")) &&
        (!first || number < json_number(first, "number", 0)))
      first = xid;
  }
  if (first) {
    set->told = json_number(first, "number", 0);
    u64 data = (u64)json_number(first, "xid", 0);
    *found = (event){listening(set, json_text(first, "uuid")), XID, data, NONE, NONE};
  }
  json_free(faults);
  return first != NULL;
}

/* Returns when something in the state directory may have changed, or the time is over. */
static void wait_for_change(int watch, int timeout_ms) {
  char changes[4096];
  struct pollfd ready = {watch, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) > 0 && read(watch, changes, sizeof changes) < 0) return;
}

static bool await_event(event_set *set, event *found, unsigned timeout_ms) {
  char directory[PATH_SIZE];
  place(directory, ".");
  double until = now_s() + timeout_ms * 1e-3, left;
  int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  inotify_add_watch(watch, directory, IN_MOVED_TO | IN_CLOSE_WRITE);
  bool come;
  while (!(come = next_event(set, found)) && (left = until - now_s()) > 0)
    wait_for_change(watch, (int)(left * 1e3) + 1);
  close(watch);
  return come;
}

int nvmlEventSetWait_v2(event_set *set, event *found, unsigned timeout_ms) {
  int code = fault(__func__, NULL);
  if (code) return code;
  if (next_event(set, found)) return OK;
  return timeout_ms && await_event(set, found, timeout_ms) ? OK : TIMEOUT;
}
