#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

struct text_field { /* name and value of a header */
    char *name;
    char *value;
};

/* Refuses what two HTTP implementations could frame differently, since libmicrohttpd 0.9.75 lets it
 * through (request smuggling): Content-Length twice, malformed, or beside Transfer-Encoding; a
 * Transfer-Encoding that is not exactly "chunked", or with HTTP/1.0; a header name that is no token
 * (also with a blank before the colon); a folded Transfer-Encoding or Content-Length; no Host, or
 * two. Bare LF line ends of headers and chunks cannot be seen through libmicrohttpd 0.9.75.
 * RET_BODY_LENGTH: -1 for chunked. */
int framing_check(const char *version, const struct text_field *headers, size_t count,
                  int64_t *ret_body_length, struct err *err) must_check;
/* The value of the first header of that name, or NULL. */
const char *framing_header(const struct text_field *headers, size_t count, const char *name);
/* The next element of a comma list, without blanks around it; moves LIST on. False at the end. */
bool framing_element(const char **list, struct str *ret_element);
