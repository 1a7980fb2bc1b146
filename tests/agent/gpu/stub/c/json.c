#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64 };

typedef struct {
  const char *at, *end;
  int depth;
} reader;

static json *read_value(reader *r);

static void skip_blanks(reader *r) {
  while (r->at < r->end && strchr(" \t\n\r", *r->at) && *r->at) r->at++;
}

static bool take(reader *r, const char *word) {
  size_t length = strlen(word);
  if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length)) return false;
  r->at += length;
  return true;
}

static json *make(json_kind kind) {
  json *value = calloc(1, sizeof *value);
  if (!value) abort();
  value->kind = kind;
  return value;
}

void json_free(json *value) {
  while (value) {
    json *next = value->next;
    json_free(value->first);
    free(value->text);
    free(value->name);
    free(value);
    value = next;
  }
}

static int read_hex(reader *r) {
  int code = 0;
  for (int digit = 0; digit < 4; digit++, r->at++) {
    if (r->at >= r->end || !isxdigit((unsigned char)*r->at)) return -1;
    code = code * 16 + (isdigit((unsigned char)*r->at) ? *r->at - '0' : (*r->at | 32) - 'a' + 10);
  }
  return code;
}

static char *put_utf8(char *out, int code) {
  if (code < 0x80) return *out++ = (char)code, out;
  int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static const int heads[] = {0, 0xC0, 0xE0, 0xF0};
  *out++ = (char)(heads[more] | code >> 6 * more);
  while (more--) *out++ = (char)(0x80 | (code >> 6 * more & 0x3F));
  return out;
}

/* What stands after a backslash, as UTF-8; NULL if nothing may stand there like that. */
static char *read_escape(reader *r, char *out) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  const char *found = r->at < r->end && *r->at ? strchr(names, *r->at) : NULL;
  if (found) return r->at++, *out++ = meanings[found - names], out;
  if (!take(r, "u")) return NULL;
  int code = read_hex(r);
  if (code >= 0xD800 && code < 0xDC00 && take(r, "\\u")) {
    int low = read_hex(r);
    code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : -1;
  }
  bool half = code >= 0xD800 && code < 0xE000; /* of a pair whose other half is not there */
  return code <= 0 || half ? NULL : put_utf8(out, code); /* a C string holds no NUL */
}

/* A string, whose opening quote has been taken. An escape is never shorter than what it stands for. */
static char *read_string(reader *r) {
  char *text = malloc((size_t)(r->end - r->at) + 1), *out = text;
  if (!text) abort();
  while (r->at < r->end && (unsigned char)*r->at >= 0x20) {
    if (take(r, "\"")) return *out = 0, text;
    if (!take(r, "\\"))
      *out++ = *r->at++;
    else if (!(out = read_escape(r, out)))
      break;
  }
  free(text);
  return NULL;
}

static const char *skip_digits(const char *at) {
  while (isdigit((unsigned char)*at)) at++;
  return at;
}

/* Narrower than strtod, which takes "0x1", ".5", "01" and "nan" as well. */
static json *read_number(reader *r) {
  const char *at = r->at + (*r->at == '-'), *whole = at;
  at = skip_digits(at);
  if (at == whole || (*whole == '0' && at > whole + 1)) return NULL;
  if (*at == '.' && isdigit((unsigned char)at[1])) at = skip_digits(at + 1);
  if (*at == 'e' || *at == 'E') {
    const char *power = at + 1 + (at[1] == '+' || at[1] == '-');
    if (isdigit((unsigned char)*power)) at = skip_digits(power);
  }
  json *value = make(JSON_NUMBER);
  value->number = strtod(r->at, NULL);
  r->at = at;
  return value;
}

static json *read_member(reader *r) {
  skip_blanks(r);
  char *name = take(r, "\"") ? read_string(r) : NULL;
  if (!name) return NULL;
  skip_blanks(r);
  json *value = take(r, ":") ? read_value(r) : NULL;
  if (value)
    value->name = name;
  else
    free(name);
  return value;
}

/* What an array or object holds, whose opening bracket has been taken. */
static json *read_container(reader *r, json_kind kind, const char *close) {
  json *container = make(kind), **last = &container->first;
  bool good = ++r->depth <= DEEPEST;
  skip_blanks(r);
  bool over = good && take(r, close);
  while (good && !over) {
    json *value = kind == JSON_OBJECT ? read_member(r) : read_value(r);
    good = value != NULL;
    if (!good) break;
    *last = value;
    last = &value->next;
    skip_blanks(r);
    over = take(r, close);
    good = over || take(r, ",");
  }
  r->depth--;
  if (good) return container;
  json_free(container);
  return NULL;
}

static json *read_value(reader *r) {
  skip_blanks(r);
  if (r->at >= r->end) return NULL;
  if (take(r, "{")) return read_container(r, JSON_OBJECT, "}");
  if (take(r, "[")) return read_container(r, JSON_ARRAY, "]");
  if (take(r, "null")) return make(JSON_NULL);
  bool yes = take(r, "true");
  if (yes || take(r, "false")) {
    json *value = make(JSON_BOOL);
    value->number = yes;
    return value;
  }
  if (!take(r, "\"")) return read_number(r);
  char *text = read_string(r);
  if (!text) return NULL;
  json *value = make(JSON_STRING);
  value->text = text;
  return value;
}

static json_result slurp(const char *path, char **text, size_t *length) {
  FILE *file = fopen(path, "re");
  if (!file) return errno == ENOENT ? JSON_NO_FILE : JSON_BROKEN;
  size_t room = 4096, got;
  *text = malloc(room);
  *length = 0;
  while (*text && (got = fread(*text + *length, 1, room - *length - 1, file)) > 0)
    if ((*length += got) == room - 1) *text = realloc(*text, room *= 2);
  fclose(file);
  if (!*text) abort();
  (*text)[*length] = 0;
  return JSON_OK;
}

json_result json_read(const char *path, json **value) {
  char *text;
  size_t length;
  *value = NULL;
  json_result result = slurp(path, &text, &length);
  if (result != JSON_OK) return result;
  reader r = {text, text + length, 0};
  *value = read_value(&r);
  skip_blanks(&r);
  if (*value && r.at != r.end) json_free(*value), *value = NULL;
  free(text);
  return *value ? JSON_OK : JSON_BROKEN;
}

const json *json_get(const json *object, const char *name) {
  const json *found = NULL;
  for (const json *member = object && object->kind == JSON_OBJECT ? object->first : NULL; member; member = member->next)
    if (!strcmp(member->name, name)) found = member;
  return found;
}

const json *json_elements(const json *value, const char *name) {
  const json *array = json_get(value, name);
  return array && array->kind == JSON_ARRAY ? array->first : NULL;
}

const char *json_text(const json *object, const char *name) {
  const json *value = json_get(object, name);
  return value && value->kind == JSON_STRING ? value->text : "";
}

double json_number(const json *object, const char *name, double otherwise) {
  const json *value = json_get(object, name);
  return value && (value->kind == JSON_NUMBER || value->kind == JSON_BOOL) ? value->number : otherwise;
}

bool json_holds(const json *array, const char *text) {
  for (const json *element = array && array->kind == JSON_ARRAY ? array->first : NULL; element; element = element->next)
    if (element->kind == JSON_STRING && !strcmp(element->text, text)) return true;
  return false;
}
