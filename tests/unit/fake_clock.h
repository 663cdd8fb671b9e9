#pragma once

#include <stdint.h>

#include "base/clock.h"

/* base/clock.h with clocks that only the test moves: a program that has it takes nothing of
 * base/clock.c. They stand still otherwise. */

/* Time passes, on all clocks. */
void fake_clock_advance(int64_t ms);
/* Somebody sets the wall clock: MS later than it was (negative: earlier). */
void fake_clock_shift_wall(int64_t ms);
