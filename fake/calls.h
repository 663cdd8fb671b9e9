#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/str.h"

/* What was asked of the sandboxes, in its order: bounded, the oldest go first. Thread-safe. */
struct calls;

struct calls *calls_new(void);
void calls_free(struct calls *calls);

/* Takes FIELDS, an object. The number of the call, above 0. SANDBOX and TYPE are copied. */
int64_t calls_add(struct calls *calls, const char *sandbox, const char *type, struct json *fields);
/* More members of a call that is there still. Takes FIELDS; names that are there already are left.
 */
void calls_amend(struct calls *calls, int64_t number, struct json *fields);

struct calls_query {
    const char *sandbox, *type; /* NULL: any */
    int64_t after;
    size_t limit;
};
/* {items, next, dropped} */
struct json *calls_list(struct calls *calls, const struct calls_query *query);
void calls_clear(struct calls *calls);

/* BYTES, or the beginning of many, as members NAME and NAME_encoding; TOTAL as NAME_bytes. */
void calls_put_bytes(struct json *object, const char *name, struct str bytes, uint64_t total);
