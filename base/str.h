#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

/* A borrowed slice, not NUL-terminated. */
struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
struct str str_of(const char *text); /* NULL gives an empty slice */
bool str_eq(struct str a, struct str b);
bool str_is(struct str a, const char *text);
bool str_starts(const char *text, const char *prefix);
bool str_ends(const char *text, const char *suffix);

/* Decimal digits only, the whole slice, at most MAX. */
bool str_to_u64(struct str text, uint64_t max, uint64_t *ret_value);

/* A Kubernetes quantity or plain number ("2", "250m", "2Gi", "1.5"): in thousandths for
 * `str_to_milli`, in bytes for `str_to_bytes`, rounded up. False when malformed, signed, of more
 * than 18 digits, or when the result passes INT64_MAX. */
bool str_to_milli(const char *text, uint64_t *ret_milli);
bool str_to_bytes(const char *text, uint64_t *ret_bytes);

bool utf8_valid(const char *data, size_t len);

/* The length in bytes of the character that DATA begins with; 0 when it is empty, not UTF-8 or not
 * complete. */
size_t utf8_width(const char *data, size_t len);

/* How many bytes at the end of DATA begin a character that is not complete (0 to 3). */
size_t utf8_partial_tail(const char *data, size_t len);

/* True when DATA is valid UTF-8 without control characters (tab and newline included). */
bool str_is_printable(const char *data, size_t len);

/* True for what may be an HTTP method or header name: RFC 9110 token characters, not empty. */
bool str_is_token(const char *text);
