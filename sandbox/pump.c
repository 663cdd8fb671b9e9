#include "sandbox/pump.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/caps.h"
#include "sandbox/sandbox.h"

#define PIECE (64 * KIB)
#define PIECES 16 /* in a row, then others get the worker */

enum turn {
    TURN_IDLE,   /* waits for its sides */
    TURN_QUEUED, /* its job is on the way */
    TURN_ACTIVE, /* its job runs */
    TURN_AGAIN,  /* it runs, and was woken meanwhile */
};

struct pump {
    struct sandboxes *all;
    const struct pump_source *source;
    void *arg;
    struct scrub_stream *scrub; /* NULL: nothing to mask */
    uint64_t skip;              /* decided bytes still to be left out */
    int64_t left;               /* decided bytes still to be given; -1: all */
    struct buf ready;           /* decided, not yet in the pipe */
    bool ended;                 /* the source */
    struct pipe *out;
    /* It waits for both sides at once: a source that says nothing must not keep it from seeing that
     * nobody reads any more. */
    struct waiter on_data, on_space;
    atomic_int turn; /* enum turn */
};

static void pump_job(void *arg);

static void wake(struct pump *pump)
{
    int turn = atomic_load(&pump->turn);
    int next;
    do {
        if (turn != TURN_IDLE && turn != TURN_ACTIVE) {
            return;
        }
        next = turn == TURN_IDLE ? TURN_QUEUED : TURN_AGAIN;
    } while (!atomic_compare_exchange_weak(&pump->turn, &turn, next));
    if (next == TURN_QUEUED) {
        sandboxes_work(pump->all, pump_job, pump);
    }
}

static void wake_by_data(struct waiter *waiter)
{
    wake(container_of(waiter, struct pump, on_data));
}

static void wake_by_space(struct waiter *waiter)
{
    wake(container_of(waiter, struct pump, on_space));
}

static void pump_free(struct pump *pump)
{
    pump->source->free(pump->arg);
    scrub_stream_free(pump->scrub);
    buf_wipe(&pump->ready);
    pipe_unref(pump->out);
    free(pump);
}

/* Cuts the range out of what is decided. */
static void apply_range(struct pump *pump)
{
    size_t drop = pump->skip < pump->ready.len ? (size_t)pump->skip : pump->ready.len;
    buf_consume(&pump->ready, drop);
    pump->skip -= drop;
    if (pump->left >= 0 && pump->ready.len >= (uint64_t)pump->left) {
        pump->ready.len = (size_t)pump->left;
        pump->ended = true;
    }
}

/* What needs no masking nor cutting goes into the pipe at once, as far as it fits. */
static bool take(struct pump *pump, const char *piece, size_t len)
{
    if (pump->scrub) {
        return scrub_stream_push(pump->scrub, piece, len, &pump->ready, pump->ended);
    }
    size_t took = 0;
    if (pump->skip == 0 && pump->left < 0 && pump->ready.len == 0) {
        took = pipe_write(pump->out, piece, len);
    }
    return took == len || buf_append(&pump->ready, piece + took, len - took);
}

/* One piece of the source; false: not now. */
static bool fill(struct pump *pump, struct err *err)
{
    char piece[PIECE];
    ssize_t got = pump->source->read(pump->arg, piece, PIECE, err);
    if (got == PUMP_WAIT) {
        return false;
    }
    if (got == PUMP_AGAIN) {
        return true;
    }
    if (got < 0) {
        if (err->code == ERR_NONE) {
            (void)err_set(err, ERR_CANCELLED, "the source broke off");
        }
        return true;
    }
    pump->ended = got == 0;
    if (!take(pump, piece, (size_t)got)) {
        (void)err_set(err, ERR_INTERNAL, "a piece of output does not fit");
    }
    return true;
}

static bool drain(struct pump *pump)
{
    while (pump->ready.len > 0) {
        size_t took = pipe_write(pump->out, pump->ready.ptr, pump->ready.len);
        if (took == 0) {
            return false;
        }
        buf_consume(&pump->ready, took);
        if (pump->left >= 0) {
            pump->left -= (int64_t)took;
        }
    }
    return true;
}

enum moved { MOVED_ALL /* or ERR */, MOVED_SOME, MOVED_NOW /* as far as it goes now */ };

/* Moves what can be moved now, or a part of it. */
static enum moved move(struct pump *pump, struct err *err)
{
    for (int pieces = 0; pieces < PIECES; pieces++) {
        if (pipe_state(pump->out, NULL) == PIPE_ABANDONED) {
            return MOVED_ALL;
        }
        if (!drain(pump)) {
            return pipe_state(pump->out, NULL) == PIPE_ABANDONED ? MOVED_ALL : MOVED_NOW;
        }
        if (pump->ended) {
            return MOVED_ALL;
        }
        if (!fill(pump, err)) {
            return MOVED_NOW;
        }
        if (err->code) {
            return MOVED_ALL;
        }
        apply_range(pump);
    }
    return MOVED_SOME;
}

/* Waits for both sides. False: one of them has moved on already. */
static bool arm(struct pump *pump, uint64_t data_seen, uint64_t space_seen)
{
    bool full = pump->ready.len > 0; /* then what the source has can wait */
    if (!event_wait(pipe_writable(pump->out), space_seen, &pump->on_space) ||
        (!full && !event_wait(pump->source->readable(pump->arg), data_seen, &pump->on_data))) {
        return false;
    }
    int active = TURN_ACTIVE;
    return atomic_compare_exchange_strong(&pump->turn, &active, TURN_IDLE);
}

static void pump_job(void *arg)
{
    struct pump *pump = arg;
    struct event *readable = pump->source->readable(pump->arg);
    struct event *writable = pipe_writable(pump->out);
    struct err err = {0};
    uint64_t data_seen, space_seen;
    do {
        (void)event_cancel(readable, &pump->on_data);
        (void)event_cancel(writable, &pump->on_space);
        atomic_store(&pump->turn, TURN_ACTIVE);
        data_seen = event_count(readable);
        space_seen = event_count(writable);
        switch (move(pump, &err)) {
        case MOVED_ALL:
            pipe_finish(pump->out, err.code ? &err : NULL);
            pump_free(pump);
            return;
        case MOVED_SOME:
            atomic_store(&pump->turn, TURN_QUEUED);
            sandboxes_work(pump->all, pump_job, pump);
            return;
        case MOVED_NOW:
            break;
        }
    } while (!arm(pump, data_seen, space_seen)); /* armed, it may be gone */
}

void pump_start(struct sandboxes *all, const struct pump_source *source, void *arg,
                const struct scrubber *scrubber, const struct pump_range *range, struct pipe *out)
{
    struct pump *pump = xcalloc(1, sizeof(*pump));
    pump->all = all;
    pump->source = source;
    pump->arg = arg;
    pump->scrub = scrubber && !scrubber_empty(scrubber) ? scrub_stream_new(scrubber) : NULL;
    pump->skip = range->lead;
    pump->left = range->length;
    size_t held = scrubber ? scrubber_longest(scrubber) : 0;
    buf_init(&pump->ready, held + 2 * PIECE);
    pump->out = pipe_ref(out);
    pump->on_data.wake = wake_by_data;
    pump->on_space.wake = wake_by_space;
    atomic_init(&pump->turn, TURN_IDLE);
    wake(pump);
}

/* --- a pipe as the source -------------------------------------------------------------------- */

static ssize_t read_pipe(void *arg, void *data, size_t len, struct err *err)
{
    struct pipe *pipe = arg;
    size_t got = pipe_read(pipe, data, len);
    if (got > 0) {
        return (ssize_t)got;
    }
    switch (pipe_state(pipe, err)) {
    case PIPE_OPEN:
        return PUMP_WAIT;
    case PIPE_ENDED:
        return 0;
    case PIPE_FAILED:
    case PIPE_ABANDONED:
        break;
    }
    return -1;
}

static struct event *pipe_source_event(void *arg)
{
    return pipe_readable(arg);
}

static void pipe_source_free(void *arg)
{
    pipe_abandon(arg, NULL);
    pipe_unref(arg);
}

const struct pump_source pump_pipe_source = {
    .read = read_pipe,
    .readable = pipe_source_event,
    .free = pipe_source_free,
};
