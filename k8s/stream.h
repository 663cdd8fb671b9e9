#pragma once

#include "driver/driver.h"
#include "k8s/object.h"
#include "k8s/tracker.h"
#include "net/loop.h"

/* Byte streams to agents: `podsandbox-agent attach` over the exec WebSocket of a pod. */
struct streams;

struct streams *streams_new(struct loop *loop, const struct space *space, struct tracker *tracker);
/* After every stream has been closed, and api_stop(). */
void streams_free(struct streams *streams);

/* As driver_ops.open; loop thread. */
struct stream *streams_open(struct streams *streams, const char *id, const char *box_uid,
                            const struct stream_handler *handler, void *arg);

/* The path and query of the exec request; malloc'd. */
char *stream_exec_path(const struct space *space, const char *id, const char *agent);

/* A handshake that was answered with HTTP_STATUS (0: not at all) and, asked again, with PROBED:
 * what that means for who wants the stream. CONTAINER_RAN as in channels_why(). */
void stream_refusal(int http_status, const struct err *probed, bool container_ran,
                    struct err *ret_why);
