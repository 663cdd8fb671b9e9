#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* "Something changed": a counter with a list of waiters. To wait without losing a change, read the
 * count first, look at the state, then wait for the count to differ:
 *
 *     uint64_t seen = event_count(&exec->changed);
 *     if (exec_done(exec)) …
 *     else wait for (&exec->changed, seen)
 *
 * An event lives inside an object that outlives its waiters. */
struct waiter {
    void (*wake)(
        struct waiter *waiter); /* called once, on the firing thread, no lock held but the
                                   event's own: only hand over (queue, post, write eventfd) */
    struct waiter *next, *prev; /* the event's */
    struct event *event;        /* the event's; NULL while not waiting */
};

struct event {
    pthread_mutex_t lock;
    uint64_t count;
    struct waiter *waiters;
};

void event_init(struct event *event);
void event_done(struct event *event); /* no waiter may be left */

uint64_t event_count(struct event *event);

/* Wakes every waiter and forgets it. The caller holds the object that the event is in: a waiter may
 * let go of its own hold as soon as it has been woken. */
void event_fire(struct event *event);

/* Adds WAITER (its `wake` set) unless the count is no longer SEEN: then returns false and has not
 * added it. */
bool event_wait(struct event *event, uint64_t seen, struct waiter *waiter);

/* Takes WAITER off if it is still waiting; returns whether it was. When it returns false, `wake`
 * has been called or is just being called (it will have returned when event_cancel does). */
bool event_cancel(struct event *event, struct waiter *waiter);

/* Blocks the calling thread until the count differs from SEEN or DEADLINE_MS (clock_now_ms) passes;
 * for threads that may block (tests, start-up). Returns false on the deadline. */
bool event_block(struct event *event, uint64_t seen, int64_t deadline_ms);
