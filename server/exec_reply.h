#pragma once

#include "server/exec_body.h"
#include "server/request.h"

/* Starts what WISH says, once for its Idempotency-Key, and answers in the way that the request asks
 * for: the result, events, or a Location. JSON is the body. */
enum verdict exec_begin_reply(struct request *request, struct exec_wish *wish,
                              const struct json *json);
/* Prefer: wait=N (RFC 7240): seconds, after which a 202 is the better answer. -1: no such wish. */
int64_t exec_preferred_wait(const struct request *request);
/* api_exec_signals.c: ends the tree of the execution and all that it has left behind. 204, or 202
 * when that takes long. ERR_NOT_FOUND when there never was one. */
enum verdict exec_end_reply(struct request *request, int64_t number, int64_t grace_ms);
