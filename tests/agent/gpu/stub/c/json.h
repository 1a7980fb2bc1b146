/* A reader of small JSON files: as strict as Python's, and it refuses besides what no C string can hold. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_kind;

/* A value, its name if it is a member of an object, and the value after it in an array or object. */
typedef struct json {
  json_kind kind;
  double number; /* a bool's 0 or 1 as well */
  char *text;
  char *name;
  struct json *first, *next;
} json;

typedef enum { JSON_OK, JSON_NO_FILE, JSON_BROKEN } json_result;

/* The file's value, which the caller frees; NULL unless the result is JSON_OK. */
json_result json_read(const char *path, json **value);
void json_free(json *value);

/* All of these take NULL, and answer NULL, "" or the other value if there is nothing of that kind. */
const json *json_get(const json *object, const char *name); /* the last of that name, as Python's dict has it */
const json *json_elements(const json *value, const char *name);
const char *json_text(const json *object, const char *name);
double json_number(const json *object, const char *name, double otherwise);
bool json_holds(const json *array, const char *text);

#endif
