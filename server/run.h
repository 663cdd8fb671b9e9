#pragma once

#include "server/exchange.h"

/* Runs the handler: on the calling thread or the pool, as the route says. */
void run_begin(struct request *request);
/* Of a ROUTE_INLINE route, after run_wake: the next step, on libmicrohttpd's thread. */
void run_step(struct request *request);
/* On the pool, when the connection is no longer there to do it. */
void run_on_pool(struct request *request);
/* Its wait ends now, or its next one at once. */
void run_interrupt(struct request *request);
void run_wake(struct park *park); /* of request->wait */
