#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/loop.h"
#include "tests/unit/fake_clock.h"

/* The I/O loop as a queue that the test empties step by step, on its own thread or, while it must
 * block itself, on one in the background. Defines all of net/loop.h; with stepper_pool.c, all of
 * base/pool.h too, whose jobs are steps of the same queue: then everything happens in an order that
 * the test decides. Timers go by the fake clock. */
struct loop *stepper_loop(void);

/* From now on steps are taken in an order that depends on SEED (0: as they came). Tasks of the loop
 * keep theirs. */
void stepper_shuffle(unsigned seed);
/* One step; false: there is none. Timers that are due count. */
bool stepper_step(void);
void stepper_run(void); /* until there is none */
size_t stepper_waiting(void);
/* Moves the clock to the next timer, at most MS; returns how far. */
int64_t stepper_advance(int64_t ms);
/* Called before each step. */
void stepper_watch(void (*before)(void));
/* Steps are taken by another thread until the second call. */
void stepper_background(void);
void stepper_foreground(void);
/* Until the background thread has nothing to do at this moment. */
void stepper_wait_idle(void);

/* For stepper_pool.c. */
void stepper_add(void (*fn)(void *arg), void *arg, bool loop);
