#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/event.h"
#include "base/mem.h"

/* What waits without a thread: one thread of ours keeps the deadlines of all parks in a heap, and
 * an epoll of suspended sockets, since libmicrohttpd 0.9.75 sees neither a reset nor its own
 * timeout while a connection is suspended. */
struct suspended;

/* One wait for an event. Embedded in its owner; zeroed at first, with `wake` set. */
struct park {
    struct waiter waiter;
    void (*wake)(struct park *park); /* called once per wait; only hands over */
    /* suspended.c's, under its lock */
    struct event *event;
    int64_t deadline_ms;
    size_t heap_slot; /* 1-based; 0: no deadline */
    struct park *next, *prev;
    bool parked;
    bool interrupt; /* the next park returns at once */
    bool timed_out;
};

int suspended_start(struct suspended **ret_suspended, struct err *err) must_check;
void suspended_stop(struct suspended *suspended); /* nothing may be parked or watched any more */

/* Waits until EVENT (NULL: none) is no longer at SEEN, or DEADLINE_MS (0: none), or an interrupt,
 * or suspended_break_all. False: there is nothing to wait for. True: `wake` is called once, perhaps
 * on another thread before this returns, so the caller touches nothing of the owner any more. */
bool suspended_park(struct suspended *suspended, struct park *park, struct event *event,
                    uint64_t seen, int64_t deadline_ms);
/* Ends PARK; whoever was woken calls it before it goes on. Returns whether the deadline did it. */
bool suspended_settle(struct suspended *suspended, struct park *park);
/* Wakes PARK now, or makes its next wait return at once. */
void suspended_interrupt(struct suspended *suspended, struct park *park);
/* Wakes all; no park waits from now on. */
void suspended_break_all(struct suspended *suspended);

/* A socket whose peer may go away unseen. `gone` is called on the thread of suspended.c, without
 * locks, once for each time it was armed; the owner is kept by `ref` and `unref` around it. */
struct watch {
    void (*gone)(struct watch *watch, bool reset); /* RESET: not just a FIN */
    void (*ref)(struct watch *watch);
    void (*unref)(struct watch *watch);
    /* suspended.c's */
    int fd;
    bool watched; /* known to epoll */
    bool armed;
    bool half;
};

/* Arms it, unless it is. HALF: for a FIN, too. */
void suspended_watch(struct suspended *suspended, struct watch *watch, int fd, bool half);
void suspended_unwatch(struct suspended *suspended, struct watch *watch);
