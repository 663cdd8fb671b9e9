#pragma once

#include "base/mem.h"
#include "server/request.h"

/* The header Idempotency-Key, and what it is compared by. */
struct idempotency {
    const char *key; /* NULL: none */
    char digest[65]; /* of the canonical body */
};
int idempotency_of(struct request *request, const struct json *body,
                   struct idempotency *ret_idempotency, struct err *err) must_check;
