#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

/* Between the json*.c files only.
 *
 * A `struct json` is a cJSON item with one addition: a number whose value a double cannot carry has
 * its digits in `valuestring`. A string that holds NULs is a cJSON_Raw item with the printed form.
 */
static inline const cJSON *item_of(const struct json *json)
{
    return (const cJSON *)(const void *)json;
}

static inline cJSON *mutable_item(struct json *json)
{
    return (cJSON *)(void *)json;
}

static inline struct json *json_of(cJSON *item)
{
    return (struct json *)(void *)item;
}

#define EXACT_INT 9007199254740992.0 /* 2^53: up to here every integer is a double */

/* Of an integer: its exact value, if int64 can hold it. */
bool json_int_value(const cJSON *number, int64_t *ret_value);

struct json_limits {
    size_t depth;
    size_t values;
    bool lenient_text; /* \u0000 and bytes that are not UTF-8 pass */
};

/* Checks that TEXT is one JSON value and nothing else. RET_WIDE: has integers of 16 digits or more.
 */
int json_scan(const char *text, size_t len, const struct json_limits *limits, bool *ret_wide,
              struct err *err) must_check;
