#pragma once

#include "net/loop.h"

/* The I/O loop on the test's own thread, with a clock that only the test moves: defines all of
 * net/loop.h, so a program that has it takes nothing of podsandbox_net. */
struct loop *fake_loop_new(void);
void fake_loop_free(struct loop *loop);
/* Runs what was posted, also by what runs, and timers due now. */
void fake_loop_run(struct loop *loop);
/* Moves the clock on, firing timers in their order. */
void fake_loop_advance(struct loop *loop, int64_t ms);
int64_t fake_loop_now(const struct loop *loop);
/* When the next timer is due, from now; -1: none. */
int64_t fake_loop_next(const struct loop *loop);
