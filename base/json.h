#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

/* JSON over cJSON, which no other folder sees. A `struct json` tree is owned by whoever parsed or
 * built its root; what json_get() and json_at() return is borrowed from it. */
struct json;

void json_free(struct json *json);
void json_freep(struct json **json);
#define cleanup_json cleanup(json_freep)

/* Both refuse (ERR_INVALID_JSON) whatever RFC 8259 does not allow, numbers beyond a double, and
 * more nesting or values than base/caps.h allows. */
enum json_strictness {
    JSON_STRICT, /* our API: duplicate keys, \u0000 and bad UTF-8 are errors too */
    JSON_LENIENT /* from Kubernetes or Docker: the first of duplicate keys wins */
};
int json_parse(const char *text, size_t len, enum json_strictness strictness,
               struct json **ret_json, struct err *err) must_check;

/* Reading. All accept NULL and the wrong type, and then give NULL, 0 or the fallback. */
const struct json *json_get(const struct json *object, const char *name);
const struct json *json_path(const struct json *object, const char *dotted); /* "status.phase" */
const struct json *json_at(const struct json *array, size_t index);
size_t json_count(const struct json *container);
const struct json *json_first(const struct json *container); /* then json_next: a walk */
const struct json *json_next(const struct json *item);
const char *json_key(const struct json *item);   /* of an object's member */
const char *json_text(const struct json *value); /* a string's text, else NULL */
const char *json_get_text(const struct json *object, const char *name);
bool json_get_bool(const struct json *object, const char *name, bool fallback);
/* An integer, exact for all of int64; the fallback for anything else. */
int64_t json_get_int(const struct json *object, const char *name, int64_t fallback);
double json_get_number(const struct json *object, const char *name, double fallback);
bool json_is_object(const struct json *value);
bool json_is_array(const struct json *value);
bool json_is_string(const struct json *value);
bool json_is_null(const struct json *value);

/* Building. Adders return the added child where one is useful; the tree owns it. A name is set once
 * in an object. */
struct json *json_new_object(void);
struct json *json_new_array(void);
void json_set_text(struct json *object, const char *name, const char *text); /* NULL gives null */
/* May hold NULs, which are printed (as \u0000) but not given back by json_text(). */
void json_set_textn(struct json *object, const char *name, const char *text, size_t len);
void json_set_bool(struct json *object, const char *name, bool value);
void json_set_int(struct json *object, const char *name, int64_t value);   /* exact, any size */
void json_set_number(struct json *object, const char *name, double value); /* null if not finite */
void json_set_seconds(struct json *object, const char *name, int64_t ms);  /* exact: "1.250" */
void json_set_null(struct json *object, const char *name);
struct json *json_set_object(struct json *object, const char *name);
struct json *json_set_array(struct json *object, const char *name);
void json_set(struct json *object, const char *name, struct json *value);   /* takes VALUE */
void json_set_time(struct json *object, const char *name, int64_t wall_ms); /* 0 gives null */
void json_add(struct json *array, struct json *value);                      /* takes VALUE */
void json_add_text(struct json *array, const char *text);
struct json *json_copy(const struct json *json);
/* Compact. Strings that are not UTF-8 have the bad bytes replaced by U+FFFD, so that the result is
 * always JSON. False when OUT is full. */
bool json_print(const struct json *json, struct buf *out);
/* Keys sorted, compact: for digests. */
bool json_print_canonical(const struct json *json, struct buf *out);

/* One JSON string with its quotes; bad bytes as above. */
bool json_print_text(const char *text, size_t len, struct buf *out);

/* Strict decoding of a request object into a plain struct by a table of fields. Every error is
 * ERR_INVALID_FIELD with the dotted name of the field in the message. Unknown keys are errors. */
struct json_field;

/* Stores VALUE (not null) at OUT. PATH is the field's dotted name for messages. */
typedef int json_decoder(const struct json *value, const struct json_field *field, const char *path,
                         void *out, struct err *err);

struct json_field {
    const char *name;
    json_decoder *decode;
    size_t offset;     /* of the member in the struct */
    bool required;     /* absent or null is an error; else absent and null leave the member alone */
    int64_t min, max;  /* of a number; of a string's or list's length; max 0: see the decoder */
    const void *extra; /* the decoder's own: a sub-table, a list of words */
};
/* clang-format off */
#define JSON_FIELDS_END {.name = NULL}
/* clang-format on */

/* PATH is the dotted name of OBJECT itself, "" for the whole body. What was stored before an error
 * stays in OUT, which the caller had initialised and frees either way. */
int json_decode(const struct json *object, const struct json_field *fields, const char *path,
                void *out, struct err *err) must_check;

/* char *: malloc'd, the old one freed; printable UTF-8 of min…max bytes, max 0 being CAP_SMALL
 * (json_decode_text_any: any UTF-8 text). */
json_decoder json_decode_text, json_decode_text_any;
/* int64_t: an integer in min…max, max 0 being INT64_MAX when min is not negative. */
json_decoder json_decode_int;
/* int64_t milliseconds from seconds, fractions allowed; min and max in milliseconds as above. */
json_decoder json_decode_seconds;
/* bool. */
json_decoder json_decode_bool;
/* struct text_list: strings of any UTF-8 without NUL; min…max items, max 0 being CAP_ARGS. */
json_decoder json_decode_text_list;
/* struct text_map: at most max entries (0: CAP_ENV), no empty name, any UTF-8 values. */
json_decoder json_decode_text_map;
/* char *: a number or a string such as "250m" kept as text; the caller checks the quantity. */
json_decoder json_decode_quantity;
/* int: the index of the word in `extra` (const char *const [], NULL at the end). */
json_decoder json_decode_word;
/* A nested struct by the sub-table in `extra` (const struct json_field *). */
json_decoder json_decode_object;
