#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/event.h"
#include "base/json.h"
#include "base/pipe.h"

/* What a handler sees of one HTTP request, and how it answers. Handlers know neither libmicrohttpd
 * nor threads: a handler is straight code on a worker that sets a reply and returns DONE, or
 * returns request_wait(…), after which its resume function runs on a worker again, and may wait
 * again. Waiting costs no thread. One handler of a request runs at a time. */
struct request;
struct sandbox;
struct app;

enum verdict { DONE, WAIT, ON_WORKER };
typedef enum verdict (*handler_fn)(struct request *request);

struct caller {
    const char *owner; /* "local" without keys */
    bool admin;
};

/* --- what came in ------------------------------------------------------------------------------
 */
struct app *request_app(const struct request *request);
const struct caller *request_caller(const struct request *request);
const char *request_id(const struct request *request); /* X-Request-ID, ours or the caller's */
const char *request_method(const struct request *request);
/* A decoded path segment by its name in the route's pattern, e.g. "id". */
const char *request_param(const struct request *request, const char *name);
/* A segment that is a number (execs/{n}, previews/{port}); ERR_NOT_FOUND when it is not. */
int request_param_number(const struct request *request, const char *name, int64_t *ret_value,
                         struct err *err) must_check;
/* The sandbox of {id}; set (referenced, owner checked) by the router for ROUTE_SANDBOX routes. */
struct sandbox *request_sandbox(const struct request *request);

/* Query parameters, decoded from the raw URI. Unknown or repeated ones have been refused already.
 */
bool request_query(const struct request *request, const char *name, struct str *ret_value);
int request_query_int(const struct request *request, const char *name, int64_t min, int64_t max,
                      int64_t *value, struct err *err) must_check; /* absent: VALUE stays */
int request_query_bool(const struct request *request, const char *name, bool *value,
                       struct err *err) must_check;
int request_query_seconds(const struct request *request, const char *name, int64_t max_ms,
                          int64_t *value_ms, struct err *err) must_check;
const char *request_header(const struct request *request, const char *name); /* or NULL */
bool request_accepts_json(const struct request *request); /* Accept names application/json */
/* The first of TYPES (ended by NULL) that Accept names, in the caller's order; else the first. */
size_t request_accepts(const struct request *request, const char *const *types);

/* The whole body of a route without ROUTE_STREAM_BODY. */
struct str request_body(const struct request *request);
/* The body as strict JSON object; 415 unless Content-Type is application/json. Borrowed. An empty
 * body is an empty object where OPTIONAL. */
int request_json(struct request *request, bool optional, const struct json **ret_json,
                 struct err *err) must_check;
/* The body as it comes, of a ROUTE_STREAM_BODY route (borrowed; pipe_ref to keep). Its end is
 * checked: a body that is cut short ends the pipe with an error. */
struct pipe *request_body_pipe(struct request *request);
int64_t request_body_length(const struct request *request); /* Content-Length; -1: chunked */

/* --- the answer --------------------------------------------------------------------------------
 */
void reply_header(struct request *request, const char *name, const char *value); /* copied */
/* Takes JSON. All return DONE, for `return reply_json(…)`. */
enum verdict reply_json(struct request *request, int status, struct json *json);
/* Takes what is in TEXT, which is JSON; unless FITS, it was cut short. */
enum verdict reply_json_text(struct request *request, int status, bool fits, struct buf *text);
/* Retryable by its code, or by a Retry-After that has been set. */
enum verdict reply_problem(struct request *request, const struct err *err);
/* Like reply_problem with a member more (taken), e.g. "sandbox": the record of a gone one. */
enum verdict reply_problem_with(struct request *request, const struct err *err, const char *name,
                                struct json *json);
enum verdict reply_empty(struct request *request, int status);
enum verdict reply_bytes(struct request *request, int status, const char *type, const void *data,
                         size_t len); /* copied */
/* A body from PIPE (takes the reference), LENGTH bytes (-1: unknown, chunked). A pipe that fails,
 * or ends early, aborts the connection so that the client cannot take the body for whole. */
enum verdict reply_pipe(struct request *request, int status, const char *type, struct pipe *pipe,
                        int64_t length);

/* --- waiting -----------------------------------------------------------------------------------
 */
/* Resumes when EVENT's count is no longer SEEN, at DEADLINE_MS (clock_now_ms; 0: none), or when the
 * client goes away. EVENT must stay valid: keep a reference in the state (request_keep). */
enum verdict request_wait(struct request *request, struct event *event, uint64_t seen,
                          int64_t deadline_ms, handler_fn resume);
/* Goes on with NEXT on a worker, which may block: for a handler that does not know where it is. */
enum verdict request_on_worker(struct request *request, handler_fn next);
bool request_timed_out(const struct request *request); /* the last wait ended at its deadline */
bool request_client_gone(const struct request *request);
/* The handler's own state, freed by FREE_FN after the reply was sent (or the client left). */
void request_keep(struct request *request, void *state, void (*free_fn)(void *state));
void *request_state(const struct request *request);
