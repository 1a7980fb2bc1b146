/* The state directory of fake GPUs, which EBB_STUB_NVML names and ebbtide_agent/gpu/fake.py describes.
 *
 * Two faults are this library's own: "crash": [function], and "upgraded_to": the driver that has been loaded meanwhile.
 * Who was there before has a library that does not match it any more; who starts now has the right one. So is a GPU's
 * "device": its device's path. Whoever may not open that does not get the GPU, as in a job whose devices are constrained.
 */
#ifndef WORLD_H
#define WORLD_H

#include <stdbool.h>

#include "json.h"

enum { MAX_DEVICES = 512, MAX_HELD = 4096, PATH_SIZE = 4096 };

/* NVML's codes that are used here. */
enum {
  OK = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NO_PERMISSION = 4,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  TIMEOUT = 10,
  GPU_IS_LOST = 15,
  LIB_RM_VERSION_MISMATCH = 18,
  VERSION_MISMATCH = 25,
  UNKNOWN = 999
};

/* A GPU, or a MIG slice of one. A handle of NVML is the address of one. */
typedef struct device {
  const char *uuid;
  const struct device *parent; /* what this slice is cut from; NULL: it is whole */
  const json *facts;
  /* The utilisation's window. */
  double looked_at_s, cpu_s;
  unsigned percent;
} device;

/* What one process holds of one GPU; `bytes` below zero: nobody can tell. */
typedef struct {
  int pid;
  unsigned long long starttime;
  const device *on;
  double bytes;
  bool mps, registered, alive;
  double missed_at_s; /* when it was first seen not to be there any more; 0: it is */
} held;

typedef struct {
  double held, late; /* bytes of processes, and of what has ended and is not released yet */
  double cpu_s;
} usage;

double now_s(void); /* of the monotonic clock */
void place(char path[PATH_SIZE], const char *name); /* of a file of the directory */

/* Read gpus.json; the code of an error if it cannot be read. */
int world_open(void);
void world_close(void);
const json *world(void); /* gpus.json; NULL before world_open and after world_close */

device *device_at(unsigned index);                       /* in the driver's order, slices left out; NULL: none */
device *device_named(const char *uuid);                  /* a slice as well; NULL: none */
device *slice_of(const device *whole, unsigned index);   /* NULL: none */
unsigned device_count(void);                             /* slices left out */
bool has_mig(const device *d);                           /* whether it is cut into slices */
bool is_forbidden(const device *d);                      /* whether this process may not open its device */

/* What is to go wrong with this call: hang, crash, or the code of an error. `on` may be NULL. */
int fault(const char *call, const device *on);
bool any_lost(void);
/* faults.json, which the caller frees; NULL if there is none. */
json *read_faults(void);

/* Who holds this GPU now: at most `room` of them are copied; returns how many there are. */
unsigned holders(const device *on, bool mps, held *found, unsigned room);
void forget_holders(void); /* those that were seen before, too */
usage usage_of(const device *on, double release_after_s);

#endif
