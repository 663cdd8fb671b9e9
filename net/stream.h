#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A byte stream on the loop thread: to an agent through a Kubernetes exec WebSocket, a Docker exec,
 * a Unix socket, or in memory. Whoever opens it gives the handler; every call and callback is on
 * the loop thread. */
struct stream;

struct stream_handler {
    void (*opened)(void *arg);
    void (*received)(void *arg, const uint8_t *data, size_t len);
    void (*writable)(void *arg); /* after stream_write took less than it was given */
    /* Last callback: the stream is gone and frees itself; WHY says what happened (ERR_NONE: a plain
     * end from the other side). Not called after stream_close(). */
    void (*closed)(void *arg, const struct err *why);
};

struct stream_ops {
    size_t (*write)(struct stream *stream, const void *data, size_t len);
    void (*pause)(struct stream *stream, int paused);
    void (*close)(struct stream *stream);
};

/* First member of every implementation's own struct. */
struct stream {
    const struct stream_ops *ops;
    const struct stream_handler *handler;
    void *arg;
};

/* Copies what fits into the send buffer (up to about 256 KiB) and returns how much; if less than
 * LEN, `writable` follows. Works only after `opened`. */
static inline size_t stream_write(struct stream *stream, const void *data, size_t len)
{
    return stream->ops->write(stream, data, len);
}

/* While paused nothing is received (back-pressure). */
static inline void stream_pause(struct stream *stream, int paused)
{
    stream->ops->pause(stream, paused);
}

/* Ends the stream and frees it; no callback follows. */
static inline void stream_close(struct stream *stream)
{
    stream->ops->close(stream);
}
