#pragma once

#include "base/buf.h"
#include "base/pipe.h"
#include "sandbox/link.h"

/* Feeds stream 0 of a channel: from bytes that are there, or from a pipe as they come. A feed that
 * keeps can go on over another stream from where the agent's store ends. Loop thread only. */
struct feed_owner_ops {
    void (*hold)(void *owner); /* a reference, until `ready` has run or the wait is taken back */
    void (*drop)(void *owner);
    void (*ready)(void *owner); /* loop thread: call feed_pump */
};

struct feed {
    const struct feed_owner_ops *ops;
    void *owner;
    struct loop *loop;
    struct pipe *pipe; /* NULL: all bytes are there, or there is no source (yet) */
    bool keep;
    bool ended;    /* the source's end is known */
    bool end_sent; /* on this stream */
    bool anywhere; /* where it begins, the agent says */
    uint64_t base; /* offset of the first byte kept */
    uint64_t sent;
    size_t start; /* where `base` lies in `bytes` */
    struct buf bytes;
    struct waiter waiter;
    bool waiting; /* `waiter` is armed, or `ready` is posted */
};

void feed_init(struct feed *feed, const struct feed_owner_ops *ops, void *owner, struct loop *loop,
               bool keep);
/* Everything there is; taken (BYTES is empty then). */
void feed_give(struct feed *feed, struct buf *bytes);
void feed_pipe(struct feed *feed, struct pipe *pipe); /* takes the reference */
/* Sends what may be sent; asks to be called again when there is more. -1 when the pipe failed. */
int feed_pump(struct feed *feed, struct channel *channel, struct err *err) must_check;
/* The agent has stored everything below DONE. */
void feed_stored(struct feed *feed, uint64_t done);
/* On a new stream: the agent has everything below DONE. False when that is not what was sent. */
bool feed_resume(struct feed *feed, uint64_t done);
bool feed_all_sent(const struct feed *feed);
/* Wants no more from the source; WHY as in pipe_abandon. */
void feed_stop(struct feed *feed, const struct err *why);
void feed_done(struct feed *feed); /* stops, wipes; no `ready` follows */
