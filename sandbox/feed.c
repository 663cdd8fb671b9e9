#include "sandbox/feed.h"

#include "base/caps.h"

#define CHUNK (64 * KIB)

void feed_init(struct feed *feed, const struct feed_owner_ops *ops, void *owner, struct loop *loop,
               bool keep)
{
    *feed = (struct feed){.ops = ops, .owner = owner, .loop = loop, .keep = keep};
    /* What is kept is at most half of the buffer: see forget(). */
    buf_init(&feed->bytes, 2 * (CAP_WINDOW_MAX + CHUNK));
}

void feed_give(struct feed *feed, struct buf *bytes)
{
    feed->bytes = *bytes;
    *bytes = BUF_INIT(bytes->max);
    feed->ended = true;
}

void feed_pipe(struct feed *feed, struct pipe *pipe)
{
    feed->pipe = pipe;
}

static size_t kept(const struct feed *feed)
{
    return feed->bytes.len - feed->start;
}

static void forget(struct feed *feed, uint64_t below)
{
    if (below <= feed->base)
        return;
    feed->start += (size_t)(below - feed->base);
    feed->base = below;
    if (feed->start == feed->bytes.len) {
        buf_reset(&feed->bytes);
        feed->start = 0;
    } else if (feed->start > feed->bytes.len / 2) {
        buf_consume(&feed->bytes, feed->start);
        feed->start = 0;
    }
}

/* --- waiting for the pipe ---------------------------------------------------------------- */

static void on_loop(void *arg)
{
    struct feed *feed = arg;
    void *owner = feed->owner;
    const struct feed_owner_ops *ops = feed->ops;
    feed->waiting = false;
    ops->ready(owner);
    ops->drop(owner);
}

static void wake(struct waiter *waiter)
{
    struct feed *feed = container_of(waiter, struct feed, waiter);
    loop_post(feed->loop, on_loop, feed);
}

/* False when something has come in since SEEN. */
static bool wait_for_source(struct feed *feed, uint64_t seen)
{
    if (feed->waiting)
        return true;
    feed->waiter.wake = wake;
    feed->waiting = true;
    feed->ops->hold(feed->owner);
    if (event_wait(pipe_readable(feed->pipe), seen, &feed->waiter))
        return true;
    feed->waiting = false;
    feed->ops->drop(feed->owner);
    return false;
}

static void wait_no_more(struct feed *feed)
{
    if (feed->waiting && event_cancel(pipe_readable(feed->pipe), &feed->waiter)) {
        feed->waiting = false;
        feed->ops->drop(feed->owner);
    }
}

/* --- pumping ----------------------------------------------------------------------------- */

enum source { SOURCE_MORE, SOURCE_LATER, SOURCE_FAILED };

static enum source read_source(struct feed *feed, struct err *err)
{
    uint64_t seen = event_count(pipe_readable(feed->pipe));
    size_t max = feed->keep ? CAP_WINDOW_MAX : CHUNK;
    size_t room = kept(feed) < max ? max - kept(feed) : 0;
    if (room > CHUNK)
        room = CHUNK;
    if (room == 0)
        return SOURCE_LATER; /* the agent's next credit makes room */
    char *at = buf_reserve(&feed->bytes, room);
    size_t len = at ? pipe_read(feed->pipe, at, room) : 0;
    if (len > 0) {
        buf_grew(&feed->bytes, len);
        return SOURCE_MORE;
    }
    switch (pipe_state(feed->pipe, err)) {
    case PIPE_ENDED:
        feed->ended = true;
        return SOURCE_MORE;
    case PIPE_FAILED:
        return SOURCE_FAILED;
    default:
        return wait_for_source(feed, seen) ? SOURCE_LATER : SOURCE_MORE;
    }
}

int feed_pump(struct feed *feed, struct channel *channel, struct err *err)
{
    while (channel_is_open(channel)) {
        size_t at = feed->start + (size_t)(feed->sent - feed->base);
        size_t left = feed->bytes.len - at;
        if (left > 0) {
            size_t sent = channel_send(channel, feed->sent, feed->bytes.ptr + at, left);
            feed->sent += sent;
            if (!feed->keep)
                forget(feed, feed->sent);
            if (sent < left)
                return 0;
        }
        if (feed->ended) {
            if (!feed->end_sent) {
                feed->end_sent = true;
                channel_send_end(channel, feed->sent);
            }
            return 0;
        }
        if (!feed->pipe)
            return 0;
        enum source source = read_source(feed, err);
        if (source == SOURCE_FAILED)
            return -1;
        if (source == SOURCE_LATER)
            return 0;
    }
    return 0;
}

void feed_stored(struct feed *feed, uint64_t done)
{
    if (done <= feed->sent)
        forget(feed, done);
}

bool feed_resume(struct feed *feed, uint64_t done)
{
    if (feed->anywhere) {
        feed->anywhere = false;
        feed->base = feed->sent = done;
    }
    if (done < feed->base || done > feed->base + kept(feed))
        return false;
    forget(feed, done);
    feed->sent = done;
    feed->end_sent = false;
    return true;
}

bool feed_all_sent(const struct feed *feed)
{
    return feed->end_sent;
}

void feed_stop(struct feed *feed, const struct err *why)
{
    if (!feed->pipe)
        return;
    wait_no_more(feed);
    pipe_abandon(feed->pipe, why);
}

void feed_done(struct feed *feed)
{
    feed_stop(feed, NULL);
    pipe_unref(feed->pipe);
    feed->pipe = NULL;
    buf_wipe(&feed->bytes);
}
