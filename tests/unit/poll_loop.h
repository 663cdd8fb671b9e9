#pragma once

#include "net/loop.h"
#include "net/stream.h"

/* The I/O loop as a thread over poll(), with streams on sockets: defines all of net/loop.h, for
 * tests that want real threads and a real peer but no libwebsockets. */

/* Loop thread: a stream over the connected socket FD (taken). */
struct stream *poll_stream_new(struct loop *loop, int fd, const struct stream_handler *handler,
                               void *arg);
/* Any thread: every open stream breaks. */
void poll_streams_cut(struct loop *loop);
/* Runs FN(ARG) on the loop thread and waits for its end. */
void poll_loop_call(struct loop *loop, void (*fn)(void *arg), void *arg);
