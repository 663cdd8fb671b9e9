#pragma once

#include <sys/types.h>

#include "net/loop.h"
#include "net/stream.h"

/* A byte stream over a connected socket of this machine, such as a Unix socket. Loop thread only.
 */

/* Takes FD, also when it fails. `opened` follows from the loop, never before this returns; NULL
 * only when the loop stops. */
struct stream *socket_stream_new(struct loop *loop, int fd, const struct stream_handler *handler,
                                 void *arg);

/* How bytes pass when that is not by send() and recv() on the descriptor itself: results and errno
 * as theirs, never blocking. */
struct socket_io {
    ssize_t (*send)(void *arg, const void *data, size_t len);
    ssize_t (*recv)(void *arg, void *data, size_t len);
    void (*free)(void *arg); /* with the stream */
    void *arg;
};

/* The same with FD only to wait for; IO NULL: its own send and recv. Takes what IO holds, too. */
struct stream *socket_stream_new_over(struct loop *loop, int fd, const struct socket_io *io,
                                      const struct stream_handler *handler, void *arg);

/* A stream that cannot be opened: `closed` with WHY follows from the loop. */
struct stream *socket_stream_refused(struct loop *loop, const struct err *why,
                                     const struct stream_handler *handler, void *arg);
