#pragma once

/* Error codes are the API's `code` values: `err_code_name()` gives the string that clients see, and
 * server/problem.c maps each to a status, a category and a remedy. Add a code in base/err_codes.h.
 */
enum err_code {
#define X(id, name) ERR_##id,
#include "base/err_codes.h"
#undef X
    ERR_COUNT,
};

/* Lives on the caller's stack; nothing to free. Success never touches it. */
struct err {
    enum err_code code;
    char msg[2048]; /* UTF-8, without a trailing newline; cut at a character border */
};

const char *err_code_name(enum err_code code);

/* The code of that name, or ERR_NONE. */
enum err_code err_code_from_name(const char *name);

/* Both return -1, for `return err_set(…)`. ERR may be NULL where the caller does not want to know.
 */
int err_set(struct err *err, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "WHAT: " before the message that is there; the code stays. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* err_set with ": " and the text of errno value ERRNUM behind the message. */
int err_errno(struct err *err, enum err_code code, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
