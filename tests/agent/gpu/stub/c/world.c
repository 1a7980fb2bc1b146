#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static json *node;
static device devices[MAX_DEVICES];
static unsigned total;
static char driver[64]; /* the one that was there when this library was opened */

double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void place(char path[PATH_SIZE], const char *name) {
  const char *directory = getenv("EBB_STUB_NVML");
  snprintf(path, PATH_SIZE, "%s/%s", directory ? directory : "/nonexistent", name);
}

static json_result read_state(const char *name, json **value) {
  char path[PATH_SIZE];
  place(path, name);
  return json_read(path, value);
}

static bool is_upgraded(const json *faults) {
  return strncmp(json_text(faults, "upgraded_to"), driver, sizeof driver - 1);
}

static void note_driver(void) {
  json *faults = read_faults();
  snprintf(driver, sizeof driver, "%s", json_text(faults, "upgraded_to"));
  json_free(faults);
}

int world_open(void) {
  world_close();
  note_driver();
  json_result result = read_state("gpus.json", &node);
  if (result != JSON_OK) return result == JSON_NO_FILE ? DRIVER_NOT_LOADED : UNKNOWN;
  for (const json *gpu = json_elements(node, "gpus"); gpu && total < MAX_DEVICES; gpu = gpu->next)
    devices[total++] = (device){.uuid = json_text(gpu, "uuid"), .facts = gpu};
  for (unsigned i = 0; i < total; i++) {
    const char *parent = json_text(devices[i].facts, "parent");
    devices[i].parent = *parent ? device_named(parent) : NULL;
  }
  return OK;
}

void world_close(void) {
  json_free(node);
  node = NULL;
  total = 0;
  forget_holders();
}

const json *world(void) { return node; }

device *device_named(const char *uuid) {
  for (unsigned i = 0; i < total; i++)
    if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
  return NULL;
}

device *slice_of(const device *whole, unsigned index) {
  for (unsigned i = 0; i < total; i++)
    if (devices[i].parent == whole && index-- == 0) return &devices[i];
  return NULL;
}

unsigned device_count(void) {
  unsigned count = 0;
  for (unsigned i = 0; i < total; i++) count += !devices[i].parent;
  return count;
}

/* Faults name an order of their own for the first GPUs; the others follow as they are in gpus.json. */
device *device_at(unsigned index) {
  json *faults = read_faults();
  device *found = NULL;
  const json *order = json_get(faults, "order");
  for (const json *uuid = json_elements(faults, "order"); uuid && !found; uuid = uuid->next) {
    device *next = uuid->kind == JSON_STRING ? device_named(uuid->text) : NULL;
    if (next && !next->parent && index-- == 0) found = next;
  }
  for (unsigned i = 0; i < total && !found; i++)
    if (!devices[i].parent && !json_holds(order, devices[i].uuid) && index-- == 0) found = &devices[i];
  json_free(faults);
  return found;
}

bool has_mig(const device *d) { return json_number(d->facts, "mig", 0) != 0; }

bool is_forbidden(const device *d) {
  const char *path = json_text((d->parent ? d->parent : d)->facts, "device");
  if (!*path) return false;
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file >= 0) close(file);
  return file < 0 && (errno == EPERM || errno == EACCES); /* another error is that of a device without a driver */
}

json *read_faults(void) {
  json *faults;
  read_state("faults.json", &faults);
  return faults;
}

/* A fault is told by a function's name as it is in C, or without its version: "nvmlInit" is "nvmlInitWithFlags" too. */
static bool names(const char *fault, const char *call) {
  size_t length = strlen(fault);
  if (strncmp(call, fault, length)) return false;
  return !call[length] || !strncmp(call + length, "_v", 2) || !strcmp(call + length, "WithFlags");
}

static bool any_names(const json *list, const char *call) {
  for (; list; list = list->next)
    if (list->kind == JSON_STRING && names(list->text, call)) return true;
  return false;
}

static int error_of(const json *errors, const char *uuid, const char *call) {
  const json *of_device = json_get(errors, uuid);
  for (const json *error = of_device && of_device->kind == JSON_OBJECT ? of_device->first : NULL; error;
       error = error->next)
    if (error->kind == JSON_NUMBER && names(error->name, call)) return (int)error->number;
  return OK;
}

static bool is_lost(const json *faults, const device *d) {
  const json *lost = json_get(faults, "lost");
  return json_holds(lost, d->uuid) || (d->parent && json_holds(lost, d->parent->uuid));
}

bool any_lost(void) {
  json *faults = read_faults();
  bool lost = false;
  for (unsigned i = 0; i < total; i++) lost |= is_lost(faults, &devices[i]);
  json_free(faults);
  return lost;
}

int fault(const char *call, const device *on) {
  json *faults;
  json_result result = read_state("faults.json", &faults);
  if (result != JSON_OK) return result == JSON_NO_FILE ? OK : UNKNOWN;
  if (any_names(json_elements(faults, "hang"), call))
    for (;;) pause();
  if (any_names(json_elements(faults, "crash"), call)) raise(SIGSEGV);
  const json *errors = json_get(faults, "errors");
  int code = on ? error_of(errors, on->uuid, call) : OK;
  if (!code) code = error_of(errors, "*", call);
  if (!code && node && is_upgraded(faults)) code = LIB_RM_VERSION_MISMATCH;
  if (!code && on && is_lost(faults, on)) code = GPU_IS_LOST;
  json_free(faults);
  return code;
}
