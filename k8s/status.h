#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* What was asked, for messages that the server leaves bare. */
struct status_request {
    const char *verb;     /* "create" */
    const char *resource; /* "pods" */
    const char *name;     /* may be NULL */
};

/* The one place where an answer of the API server that is not a success becomes an error: from the
 * HTTP status and the body (a metav1.Status, or whatever a proxy says). Always returns -1. */
int status_error(const struct status_request *request, int http_status, const char *body,
                 size_t len, struct err *err);

/* How an exec ended, from what came on its error channel. */
enum exec_end {
    EXEC_END_UNKNOWN, /* not (yet) a whole status */
    EXEC_END_EXITED,  /* RET_CODE is its exit code */
    EXEC_END_FAILED,  /* it did not start, or the runtime lost it: RET_MESSAGE says why */
};
enum exec_end status_of_exec(const char *text, size_t len, int *ret_code, char *ret_message,
                             size_t message_size);
