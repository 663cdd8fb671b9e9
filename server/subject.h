#pragma once

#include "base/mem.h"
#include "server/request.h"

/* What the routes below /v1/sandboxes/{id} share: whose sandbox a request is about. */

/* For ROUTE_GONE_TOO routes when request_sandbox() is NULL: 410 with the tombstone's record. */
enum verdict reply_gone(struct request *request);
/* The uid of the sandbox or its tombstone, malloc'd. */
int subject_uid(struct request *request, char **ret_uid, struct err *err) must_check;
/* A problem whose words may come from inside the sandbox: its secrets are masked first. */
enum verdict reply_masked_problem(struct request *request, struct err *err);
/* Query parameters `limit` (1 to CAP_LIST_LIMIT, default 100) and a numeric cursor by NAME. */
int query_page(const struct request *request, const char *name, int64_t *ret_limit,
               int64_t *ret_cursor, struct err *err) must_check;
struct sandboxes *request_sandboxes(const struct request *request);
