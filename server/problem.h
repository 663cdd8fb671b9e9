#pragma once

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

/* What a code means to a client, from the one table in problem.c. */
struct problem {
    int status;
    int retry_after_s; /* 0: no Retry-After */
    const char *category;
    const char *title;
    const char *remediation;
    enum log_level level;
    bool retryable;
};

const struct problem *problem_of(enum err_code code);

/* application/problem+json (RFC 9457); REQUEST_ID may be NULL. AGAIN: it is worth a retry whatever
 * its code says. */
struct json *problem_json(const struct err *err, const char *request_id, bool again);
