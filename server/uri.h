#pragma once

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#define URI_PARAMS 16

/* Query parameters, decoded; any bytes but NUL. */
struct uri_param {
    char *name;
    char *value;
    size_t len;
};

struct uri_query {
    struct uri_param params[URI_PARAMS];
    size_t count;
};

/* The request target as it came: must be a path, without blanks, control characters or a fragment.
 */
int uri_check(const char *raw_uri, struct err *err) must_check;
/* RAW is what follows the `?` (NULL: none). ALLOWED: space-separated names, or NULL. An unknown or
 * repeated name is an error that names it. */
int uri_query_parse(const char *raw, const char *allowed, struct uri_query *ret_query,
                    struct err *err) must_check;
void uri_query_done(struct uri_query *query);
/* NULL when absent. */
const struct uri_param *uri_query_get(const struct uri_query *query, const char *name);
