/* The part of NVML that a swap asks, as the real pynvml calls it. */
#include "stub.h"

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } info;
enum { OK, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static char uuids[MAX][80];
static unsigned long long totals[MAX];

int nvmlInitWithFlags(unsigned flags) { return fault("nvml"); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = read_gpus(uuids, totals), OK; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  FILE *file = fopen(place("driver"), "r");
  int found = file && fgets(text, size, file);
  if (file) fclose(file);
  return found ? OK : NOT_FOUND;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= (unsigned)read_gpus(uuids, totals)) return INVALID_ARGUMENT;
  return *device = &uuids[index], OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  for (int i = read_gpus(uuids, totals) - 1; i >= 0; i--)
    if (!strcmp(uuids[i], uuid)) return *device = &uuids[i], OK;
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { return snprintf(text, size, "%s", (char *)device), OK; }

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
  if (memory->version != 0x02000028) return INVALID_ARGUMENT;
  memory->total = totals[(char(*)[80])device - uuids];
  memory->reserved = 0;
  memory->used = used_bytes(device);
  memory->free = memory->total - memory->used;
  return OK;
}

static int list(void *device, unsigned *count, info *infos, int mps) {
  process_t found[MAX];
  unsigned n = 0, room = *count;
  for (int i = read_processes(found) - 1; i >= 0; i--) {
    if (strcmp(found[i].uuid, device) || found[i].mps != mps) continue;
    if (infos && n < room) infos[n] = (info){found[i].pid, (unsigned long long)found[i].bytes, ~0u, ~0u};
    n++;
  }
  *count = n;
  return n > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, info *infos) { return list(d, count, infos, 0); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *d, unsigned *count, info *infos) { return list(d, count, infos, 1); }
