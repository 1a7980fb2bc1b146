/* The part of NVML that is asked, as the real pynvml calls it, over the state directory of fake GPUs.
 *
 * Layouts, versions and codes are those of nvml.h; a driver's habits that callers must bear are kept: memory of the
 * first kind counts what is reserved as used, lists are asked for twice, MIG slices answer few questions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "world.h"

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, sensor; int temperature; } temperature_v1;
typedef struct {
  unsigned field, scope;
  long long at, latency_us;
  unsigned type;
  int code;
  u64 value; /* of a union: an unsigned number is its lower half */
} field_value;
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } pci_info;

static const unsigned MEMORY_V2 = 0x02000028, TEMPERATURE_V1 = 0x0100000C, NONE = 0xFFFFFFFF;
static const u64 NOT_AVAILABLE = ~0ULL;
static const double WINDOW_S = 0.5; /* of utilisation: a shorter one would show only the jitter of CPU accounting */

enum {
  TOPOLOGY_INTERNAL = 0,
  TOPOLOGY_SINGLE = 10,
  TOPOLOGY_HOSTBRIDGE = 30,
  TOPOLOGY_SYSTEM = 50
};
enum { RECOVERY_ACTION = 230, AN_UNSIGNED_INT = 1 };
enum { P2P_NVLINK = 2, P2P_NOT_SUPPORTED = 5 };

static unsigned users;

/* Every call begins with this: what is to go wrong goes wrong before anything else. */
#define CALL(on)                                  \
  do {                                            \
    if (!users) return UNINITIALIZED;             \
    int code = fault(__func__, (on));             \
    if (code) return code;                        \
  } while (0)
#define WHOLE(d) \
  if ((d)->parent) return NOT_SUPPORTED

static int give_text(char *to, unsigned size, const char *text) {
  if (strlen(text) >= size) return INSUFFICIENT_SIZE;
  strcpy(to, text);
  return *text ? OK : NOT_SUPPORTED;
}

static int give_handle(device *found, device **handle) {
  *handle = found;
  return found ? OK : NOT_FOUND;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int code = fault(__func__, NULL);
  if (!code && !users) code = world_open();
  users += !code;
  return code;
}

int nvmlShutdown(void) {
  CALL(NULL);
  if (!--users) world_close();
  return OK;
}

const char *nvmlErrorString(int code) {
  switch (code) {
    case VERSION_MISMATCH: return "Argument Version Mismatch";
    case 28: return "GPU not found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  CALL(NULL);
  return give_text(text, size, json_text(world(), "driver"));
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  CALL(NULL);
  int major, minor;
  if (sscanf(json_text(world(), "cuda"), "%d.%d", &major, &minor) != 2) return NOT_SUPPORTED;
  *version = major * 1000 + minor * 10;
  return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* The first word of its command line, as the driver has it. */
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size) {
  CALL(NULL);
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) return NOT_FOUND;
  size_t got = fread(text, 1, size - 1, file);
  text[got] = 0;
  fclose(file);
  return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  CALL(NULL);
  *count = device_count();
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
  device *found = users ? device_at(index) : NULL;
  CALL(found);
  if (found && is_forbidden(found)) return NO_PERMISSION; /* it is counted, though */
  *handle = found;
  return found ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
  device *found = users ? device_named(uuid) : NULL;
  CALL(found);
  if (found && is_forbidden(found)) return NO_PERMISSION;
  if (found && any_lost()) return GPU_IS_LOST; /* the driver comes by other GPUs on its way */
  return give_handle(found, handle);
}

int nvmlDeviceGetUUID(device *d, char *text, unsigned size) {
  CALL(d);
  return give_text(text, size, d->uuid);
}

int nvmlDeviceGetName(device *d, char *text, unsigned size) {
  CALL(d);
  return give_text(text, size, json_text(d->facts, "model"));
}

static memory_v2 memory_of(const device *d) {
  json *faults = read_faults();
  usage sum = usage_of(d, json_number(json_get(faults, "release_after_s"), d->uuid, 0));
  json_free(faults);
  double total = json_number(d->facts, "mem_bytes", 0), reserved = json_number(d->facts, "reserved_bytes", 0);
  double used = json_number(d->facts, "idle_bytes", 0) + sum.held + sum.late;
  if (used > total - reserved) used = total - reserved;
  return (memory_v2){MEMORY_V2, (u64)total, (u64)reserved, (u64)(total - reserved - used), (u64)used};
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *memory) {
  CALL(d);
  if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
  *memory = memory_of(d);
  return OK;
}

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *memory) {
  CALL(d);
  memory_v2 now = memory_of(d);
  *memory = (memory_v1){now.total, now.free, now.used + now.reserved};
  return OK;
}

static bool tells_memory(const device *d) {
  json *faults = read_faults();
  bool told = !json_holds(json_get(faults, "no_memory"), d->uuid);
  json_free(faults);
  return told;
}

static int list(const device *d, bool mps, unsigned *size, process_info *infos) {
  static __thread held found[MAX_HELD];
  unsigned room = infos ? *size : 0, n = holders(d, mps, found, MAX_HELD);
  *size = n;
  if (n > room) return INSUFFICIENT_SIZE;
  double most = json_number(d->facts, "mem_bytes", 0) - json_number(d->facts, "idle_bytes", 0);
  bool told = tells_memory(d);
  for (unsigned i = 0; i < n; i++) {
    double bytes = found[i].bytes < most ? found[i].bytes : most;
    infos[i] = (process_info){(unsigned)found[i].pid, told && bytes >= 0 ? (u64)bytes : NOT_AVAILABLE, NONE, NONE};
  }
  return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *size, process_info *infos) {
  CALL(d);
  return list(d, false, size, infos);
}

int nvmlDeviceGetComputeRunningProcesses_v2(device *d, unsigned *size, process_info *infos) {
  CALL(d);
  return list(d, false, size, infos);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, unsigned *size, process_info *infos) {
  CALL(d);
  return list(d, true, size, infos);
}

int nvmlDeviceGetUtilizationRates(device *d, utilization *rates) {
  CALL(d);
  if (d->parent || has_mig(d)) return NOT_SUPPORTED;
  double now = now_s(), elapsed = now - d->looked_at_s, cpu_s = usage_of(d, 0).cpu_s;
  if (elapsed >= WINDOW_S) {
    double percent = d->looked_at_s ? 100 * (cpu_s - d->cpu_s) / elapsed : 0;
    d->percent = percent < 0 ? 0 : percent > 100 ? 100 : (unsigned)(percent + 0.5);
    d->looked_at_s = now;
    d->cpu_s = cpu_s;
  }
  *rates = (utilization){d->percent, 0};
  return OK;
}

static int degrees(const device *d) { return 35 + (int)(d->percent / 2); }

int nvmlDeviceGetTemperature(device *d, unsigned sensor, unsigned *celsius) {
  CALL(d);
  WHOLE(d);
  *celsius = (unsigned)degrees(d);
  return sensor ? INVALID_ARGUMENT : OK;
}

int nvmlDeviceGetTemperatureV(device *d, temperature_v1 *temperature) {
  CALL(d);
  WHOLE(d);
  if (temperature->version != TEMPERATURE_V1) return VERSION_MISMATCH;
  temperature->temperature = degrees(d);
  return temperature->sensor ? INVALID_ARGUMENT : OK;
}

int nvmlDeviceGetPowerUsage(device *d, unsigned *milliwatts) {
  CALL(d);
  WHOLE(d);
  *milliwatts = 25000 + 3000 * d->percent;
  return OK;
}

int nvmlDeviceGetPciInfo_v3(device *d, pci_info *info) {
  CALL(d);
  WHOLE(d);
  unsigned domain, bus, slot;
  if (sscanf(json_text(d->facts, "pci_bus_id"), "%x:%x:%x.", &domain, &bus, &slot) != 3) return NOT_SUPPORTED;
  *info = (pci_info){.domain = domain, .bus = bus, .device = slot};
  snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF, slot & 0xFF);
  snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.0", domain, bus & 0xFF, slot & 0xFF);
  return OK;
}

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
  CALL(d);
  return sscanf(json_text(d->facts, "compute_capability"), "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMinorNumber(device *d, unsigned *minor) {
  CALL(d);
  WHOLE(d);
  double number = json_number(d->facts, "minor", -1);
  *minor = (unsigned)(number < 0 ? 0 : number);
  return number < 0 ? NOT_SUPPORTED : OK;
}

static int give_setting(const device *d, const char *name, unsigned *value) {
  double number = json_number(d->facts, name, -1); /* null: not told */
  *value = (unsigned)(number < 0 ? 0 : number);
  return number < 0 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetPersistenceMode(device *d, unsigned *on) {
  CALL(d);
  WHOLE(d);
  return give_setting(d, "persistence", on);
}

int nvmlDeviceGetComputeMode(device *d, unsigned *mode) {
  CALL(d);
  WHOLE(d);
  return give_setting(d, "compute_mode", mode);
}

int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *pending) {
  CALL(d);
  WHOLE(d);
  int code = give_setting(d, "mig", now);
  *pending = *now;
  return code;
}

/* Of the many fields only what a GPU needs to be well again. */
int nvmlDeviceGetFieldValues(device *d, int count, field_value *values) {
  CALL(d);
  json *faults = read_faults();
  double action = json_number(json_get(faults, "recovery"), d->uuid, -1);
  json_free(faults);
  for (int i = 0; i < count; i++) {
    bool known = values[i].field == RECOVERY_ACTION && action >= 0;
    values[i].code = known ? OK : NOT_SUPPORTED;
    values[i].type = AN_UNSIGNED_INT;
    values[i].value = known ? (u64)action : 0;
  }
  return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) {
  CALL(d);
  *count = has_mig(d) ? 7 : 0;
  return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **slice) {
  CALL(d);
  return give_handle(has_mig(d) ? slice_of(d, index) : NULL, slice);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **whole) {
  CALL(d);
  *whole = d->parent ? device_named(d->parent->uuid) : NULL;
  return *whole ? OK : INVALID_ARGUMENT;
}

static bool together(const char *groups, const device *one, const device *other) {
  for (const json *group = json_elements(world(), groups); group; group = group->next)
    if (json_holds(group, one->uuid) && json_holds(group, other->uuid)) return true;
  return false;
}

int nvmlDeviceGetTopologyCommonAncestor(device *one, device *other, unsigned *level) {
  CALL(one);
  WHOLE(one);
  WHOLE(other);
  double numa = json_number(one->facts, "numa_node", -1), far = json_number(other->facts, "numa_node", -1);
  *level = one == other                           ? TOPOLOGY_INTERNAL
           : together("switches", one, other)     ? TOPOLOGY_SINGLE
           : numa >= 0 && far >= 0 && numa != far ? TOPOLOGY_SYSTEM
                                                  : TOPOLOGY_HOSTBRIDGE;
  return OK;
}

int nvmlDeviceGetP2PStatus(device *one, device *other, unsigned index, unsigned *status) {
  CALL(one);
  WHOLE(one);
  if (one == other || index > 5) return INVALID_ARGUMENT;
  *status = index == P2P_NVLINK && together("nvlinks", one, other) ? OK : P2P_NOT_SUPPORTED;
  return OK;
}
