#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A channel of a link: one execution or request on the stream to an agent. Loop thread only. */
struct link;
struct client;
struct channel_flow;

/* Embedded in its owner, which must close it (or have had `result` or `lost`) before it goes.
 * Zero-initialise it, set `handler`. */
struct channel {
    const struct channel_handler *handler; /* absent functions are skipped */
    uint32_t number;                       /* kept after `result`, for channel_commit */
    uint32_t window_max;                   /* of streams 1 and 2; 0: CAP_WINDOW_MAX */
    uint64_t stream_id;                    /* the stream that the number belongs to */
    struct channel_flow *flow;             /* the client's own; NULL while not open */
    struct client *client;                 /* NULL unless open or waiting for room */
    struct channel *next, *prev;
    bool waiting;
};

struct channel_handler {
    void (*started)(struct channel *channel, const void *fields, size_t len);
    /* Bytes of a stream out of the sandbox, in order, none repeated. An OFFSET beyond the end of
     * what came before: the bytes between are lost. */
    void (*data)(struct channel *channel, int stream, uint64_t offset, const void *data,
                 size_t len);
    void (*end)(struct channel *channel, int stream, uint64_t total);
    /* The agent stored everything below DONE of stream 0; more may be sent up to LIMIT. */
    void (*credit)(struct channel *channel, uint64_t done, uint64_t limit);
    void (*result)(struct channel *channel, const void *fields, size_t len); /* closed after it */
    void (*lost)(struct channel *channel, const struct err *why);            /* closed after it */
    /* After channel_send took less than it might have, or channel_open found no room: there is room
     * again. */
    void (*writable)(struct channel *channel);
};

/* OPEN with FIELDS (TAG_OP included). OUT_OFFSET: where streams 1 and 2 go on (0, or what was
 * received before). False when the link is down, or when its send queue is full: then `writable`
 * follows, or `lost`. */
bool channel_open(struct link *link, struct channel *channel, const void *fields, size_t len,
                  const uint64_t out_offset[2]);
/* Stream 0: sends what the window and the link take, returns how much. OFFSET goes on from where
 * the last send ended; the first one says where the stream begins (what the agent had before). */
size_t channel_send(struct channel *channel, uint64_t offset, const void *data, size_t len);
void channel_send_end(struct channel *channel, uint64_t total);
/* Streams 1 and 2: everything below DONE is stored; the window is opened accordingly. */
void channel_credit(struct channel *channel, int stream, uint64_t done);
void channel_cancel(struct channel *channel);
void channel_signal(struct channel *channel, const void *fields, size_t len);
void channel_resize(struct channel *channel, const void *fields, size_t len);
/* After `result`: the agent may forget it. False, and nothing is sent, when the link is down or the
 * stream is another one by now. */
bool channel_commit(struct link *link, const struct channel *channel);
bool channel_is_open(const struct channel *channel);
void channel_close(struct channel *channel); /* forgets it; no callback follows */
