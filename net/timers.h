#pragma once

#include "net/loop.h"

/* Running timers, the one that is due first on top: a binary heap, each timer knowing its place in
 * it. What is due at the same time keeps the order of its start. One thread. Zero-initialise. */
struct timers {
    struct timer **heap;
    size_t count, room;
    uint64_t starts; /* so far */
};

/* TIMER does not run. */
void timers_add(struct timers *timers, struct timer *timer, int64_t due_ms);
/* TIMER runs, and does not afterwards. */
void timers_remove(struct timers *timers, struct timer *timer);
/* NULL: none runs. */
struct timer *timers_first(const struct timers *timers);
/* Takes the first one out if it is due by NOW_MS, else NULL. */
struct timer *timers_take_due(struct timers *timers, int64_t now_ms);
/* None runs any more; frees what is held. */
void timers_done(struct timers *timers);
