#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

#define HISTOGRAM_BOUNDS 16

/* Times by their length, as Prometheus counts them. All zero is empty; any thread may add. */
struct histogram {
    atomic_uint_fast64_t counts[HISTOGRAM_BOUNDS + 1]; /* up to each bound and above the one below;
                                                          the last: above all */
    atomic_uint_fast64_t sum_us;
};

/* Microseconds; below 0 is taken for 0. */
void histogram_add(struct histogram *histogram, int64_t us);
/* Appends NAME (which ends in _seconds by custom) in the text format, with HELP. */
void histogram_print(const struct histogram *histogram, const char *name, const char *help,
                     struct buf *out);
