#pragma once

#include "server/exchange.h"

/* libmicrohttpd's callbacks for requests. */
void *connection_uri(void *cls, const char *uri, struct MHD_Connection *connection);
enum MHD_Result connection_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context);
void connection_completed(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode code);

/* After the answer 101: the request is over, its connection goes on. libmicrohttpd reports the end
 * of that with its own locks held, when nothing may be left that needs one of ours. */
void connection_upgraded(struct request *request, struct MHD_Connection *connection);

/* Suspends until EVENT moves on from SEEN, or the client goes, or DEADLINE_MS (clock_now_ms; 0:
 * none) passes; libmicrohttpd's thread, in a callback. */
void connection_suspend_for(struct request *request, struct event *event, uint64_t seen,
                            int64_t deadline_ms);
/* As if the client had left; any thread. */
void connection_interrupt(struct request *request);
/* Has libmicrohttpd's thread call run_step(), when the body has come; any thread. False: it has no
 * longer to do with the request. */
bool connection_wake(struct request *request);
/* Resumes if suspended; any thread. */
void connection_resume(struct request *request);
/* How long what was sent may stay without the client's acknowledgement (0: the kernel's default).
 */
void connection_patience(struct request *request, unsigned ms);
/* Watches the socket for the client's leaving; any thread. */
void connection_watch(struct request *request);
