#pragma once

#include "net/http_client.h"
#include "net/loop.h"
#include "net/stream.h"

/* A request after whose answer the connection is a byte stream in both directions, as of a Docker
 * exec. Not a byte behind the answer's head is read before the stream is (B16). */
struct upgraded;

/* Blocks, at most for the request's timeout. 0 with RET_UPGRADED when the answer is 101, or a 200
 * without a framing of its own; 0 with RET_UPGRADED NULL when it is another: RET_REPLY then has its
 * status and body. Otherwise as http_call. */
int http_upgrade(struct http_client *client, const struct http_request *request,
                 struct upgraded **ret_upgraded, struct http_reply *ret_reply,
                 struct err *err) must_check;
void upgraded_free(struct upgraded *upgraded);

/* Takes UPGRADED, also when it fails; as socket_stream_new. Loop thread only. */
struct stream *upgraded_stream(struct loop *loop, struct upgraded *upgraded,
                               const struct stream_handler *handler, void *arg);
