#pragma once

#include "base/err.h"
#include "base/json.h"

/* Creates that are to fail, in their order. Thread-safe. */
struct failing;

struct failing *failing_new(void);
void failing_free(struct failing *failing);

/* Replaces all of them. */
int failing_put(struct failing *failing, const struct json *body, struct err *err) must_check;
struct json *failing_json(struct failing *failing); /* those that are left */
void failing_clear(struct failing *failing);

/* -1 with how a create of ID is to fail: by the first of that id, or of any; that one is used up.
 */
int failing_check(struct failing *failing, const char *id, struct err *err) must_check;
