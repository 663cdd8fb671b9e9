#pragma once

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "fake/reply.h"

/* Asking a URL how a command ends, on threads of their own. */
struct callbacks;
struct callback;
struct loop;

struct callbacks *callbacks_new(struct loop *loop, struct err *err) must_check;
void callbacks_stop(struct callbacks *callbacks); /* waits for those under way, and frees */

/* Loop thread. DONE gets the answer there, later, and lets go of it; a call that gets none is a
 * failure of the command. Takes CALL. */
struct callback *callback_start(struct callbacks *callbacks, const char *url, struct json *call,
                                void (*done)(void *arg, struct fake_reply *reply), void *arg);
/* Loop thread: DONE is not called any more. */
void callback_cancel(struct callback *callback);
