#pragma once

#include "net/loop.h"
#include "net/stream.h"

/* A byte stream over a connected socket of this machine, such as a Unix socket. Loop thread only.
 */

/* Takes FD, also when it fails. `opened` follows from the loop, never before this returns; NULL
 * only when the loop stops. */
struct stream *socket_stream_new(struct loop *loop, int fd, const struct stream_handler *handler,
                                 void *arg);

/* A stream that cannot be opened: `closed` with WHY follows from the loop. */
struct stream *socket_stream_refused(struct loop *loop, const struct err *why,
                                     const struct stream_handler *handler, void *arg);
