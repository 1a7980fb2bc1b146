/* Who holds memory, and who did until a moment ago. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "world.h"

/* How long an ended process is remembered for the sake of a late release. */
static const double LONGEST_RELEASE_S = 60;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* events are waited for on another thread */
static held rows[MAX_HELD];
static unsigned count, looks;

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

/* What a process no longer holds of a GPU while it lives is free at once. */
static void let_go(int pid, unsigned long long starttime) {
  for (unsigned i = 0; i < count; i++)
    if (rows[i].pid == pid && rows[i].starttime == starttime) rows[i].bytes = 0, rows[i].alive = false;
}

static void take_note(const json *process) {
  int pid = (int)json_number(process, "pid", 0);
  double starttime = json_number(process, "starttime", -1);
  const json *gpus = json_get(process, "gpus");
  stat_line stat;
  bool alive = pid > 0 && read_stat(pid, &stat) && !strchr("ZX", stat.state) && (double)stat.starttime == starttime;
  if (alive) let_go(pid, stat.starttime);
  for (const json *gpu = gpus && gpus->kind == JSON_OBJECT ? gpus->first : NULL; gpu; gpu = gpu->next) {
    const device *on = device_named(gpu->name);
    held *row = on ? row_of(pid, (unsigned long long)starttime, on) : NULL;
    if (!row) continue;
    row->bytes = gpu->kind == JSON_NUMBER ? gpu->number : -1;
    row->mps = json_number(process, "mps", 0) != 0;
    row->alive = alive;
    row->look = looks;
  }
}

static void read_registered(void) {
  char path[PATH_SIZE];
  place(path, "processes");
  DIR *directory = opendir(path);
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    char name[300], file[PATH_SIZE];
    size_t length = strlen(entry->d_name);
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || length < 6 || strcmp(entry->d_name + length - 5, ".json"))
      continue;
    snprintf(name, sizeof name, "processes/%s", entry->d_name);
    place(file, name);
    json *process;
    /* Removed since it was listed, or not written whole: either way it registers nobody. */
    if (json_read(file, &process) == JSON_OK) take_note(process);
    json_free(process);
  }
  if (directory) closedir(directory);
}

/* Take note of who lives, and of when those that do not were first missed. */
static void look(void) {
  double now = now_s();
  looks++;
  read_registered();
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    held *row = &rows[i];
    if (row->look != looks) row->alive = false;
    if (row->alive)
      row->missed_at_s = 0;
    else if (!row->missed_at_s)
      row->missed_at_s = now;
    bool over = row->look != looks && now - row->missed_at_s > LONGEST_RELEASE_S;
    if (!over) rows[kept++] = *row;
  }
  count = kept;
}

void forget_holders(void) {
  pthread_mutex_lock(&lock);
  count = 0;
  pthread_mutex_unlock(&lock);
}

unsigned holders(const device *on, bool mps, held *found, unsigned room) {
  unsigned n = 0;
  pthread_mutex_lock(&lock);
  look();
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
  look();
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
