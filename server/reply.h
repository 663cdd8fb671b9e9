#pragma once

#include "server/exchange.h"

/* Hands the reply to libmicrohttpd; on its thread, in a callback. */
enum MHD_Result reply_queue(struct request *request, struct MHD_Connection *connection);
/* The connection is through with it: WHOLE, or cut. */
void reply_abandon(struct request *request, bool whole);
void reply_done(struct reply *reply);
/* What the program behind a preview answered. Takes UPSTREAM, whose body is read when it is wanted,
 * or at once when it is small and there. */
enum verdict reply_upstream(struct request *request, struct upstream *upstream);
/* 101, and the connection goes on as SESSION, which it takes. The headers have been set. */
enum verdict reply_switched(struct request *request, struct session *session);
