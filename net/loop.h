#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* The I/O thread: one libwebsockets service loop that runs every agent stream. All callbacks of
 * streams and timers run on it; only loop_post() may be called from elsewhere. Callbacks never
 * block on the network. */
struct loop;

struct loop *loop_new(struct err *err) must_check; /* starts the thread */
/* For streams without TLS: OpenSSL is not woken, which saves 1.9 MiB. */
struct loop *loop_new_plain(struct err *err) must_check;
void loop_stop(struct loop *loop); /* runs posted tasks, closes what is open, joins, frees */

/* Runs FN(ARG) on the loop thread soon, in the order posted. Thread-safe. */
void loop_post(struct loop *loop, void (*fn)(void *arg), void *arg);
bool loop_is_current(const struct loop *loop);

/* A one-shot timer, embedded in its owner; loop thread only. Zero-initialise once. */
struct timer {
    void (*fire)(struct timer *timer);
    struct loop *loop;
    /* the loop's own, see net/timers.h */
    int64_t due_ms; /* clock_now_ms */
    uint64_t order;
    size_t place;
};
void timer_start(struct loop *loop, struct timer *timer, int64_t after_ms); /* restarts */
void timer_stop(struct timer *timer); /* no-op when not running */
static inline bool timer_is_running(const struct timer *timer)
{
    return timer->place > 0;
}
