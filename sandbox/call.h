#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/frame.h"
#include "agent/proto.h"
#include "base/err.h"
#include "base/event.h"
#include "base/mem.h"
#include "base/pipe.h"

/* One request to an agent other than an exec: a file read or written, a listing, a port to wait
 * for. Made and started on a worker; the loop thread carries it; whoever waits looks at its state
 * when `call_changed` fires. Reference-counted. It fails when the stream breaks (ERR_STREAM_LOST):
 * the caller may ask again. */
struct call;
struct sandbox;

enum call_state { CALL_WAITING, CALL_STARTED, CALL_DONE, CALL_FAILED };

struct call *call_new(enum proto_op op);
struct call *call_ref(struct call *call);
void call_unref(struct call *call); /* NULL is allowed */
/* Fields of the request, before call_start. A value that makes the request too long is told by it.
 */
void call_put(struct call *call, uint16_t tag, const void *data, size_t len);
void call_put_text(struct call *call, uint16_t tag, const char *text);
void call_put_u64(struct call *call, uint16_t tag, uint64_t value);
/* Stream 0 from PIPE; stream 1 to PIPE, whose capacity is at least PROTO_WINDOW and bounds what is
 * under way. Each takes its own reference, before call_start. A pipe that fails cancels the call;
 * an abandoned download too. A call that ends badly abandons and finishes them with its error. */
void call_upload(struct call *call, struct pipe *pipe);
void call_download(struct call *call, struct pipe *pipe);

/* ERR_GONE, ERR_NOT_READY or ERR_ARGUMENT_TOO_LONG when it cannot be sent. While the link is down
 * it waits up to 30 s for it. */
int call_start(struct sandbox *sandbox, struct call *call, struct err *err) must_check;
void call_cancel(struct call *call); /* it fails with ERR_CANCELLED, unless it has ended */

struct event *call_changed(struct call *call);
/* RET_ERR (may be NULL) is set for CALL_FAILED; its message is scrubbed. */
enum call_state call_state(struct call *call, struct err *ret_err);
/* Fields of STARTED and RESULT (also of one that says why it failed); valid while the reference is
 * held, once the state is reached. */
struct field_reader call_started(struct call *call);
struct field_reader call_result(struct call *call);
bool call_result_u64(struct call *call, uint16_t tag, uint64_t *ret_value);
char *call_result_text(struct call *call, uint16_t tag); /* malloc'd, or NULL */

/* Called on the loop thread when the link is up (again), or the sandbox ends. */
void calls_link_up(struct sandbox *sandbox);
void calls_sandbox_ended(struct sandbox *sandbox, const struct err *why);
/* The server stops: every OP_WATCH of the sandbox fails with ERR_STOPPING. */
void calls_stop_watches(struct sandbox *sandbox);
