#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"

#define METRICS_STATUSES 600

/* What /metrics shows of the HTTP side; counted by http.c's files. */
struct metrics {
    atomic_uint_fast64_t replies[METRICS_STATUSES]; /* by status; 0: the client left before one */
    atomic_uint_fast64_t request_us;                /* the sum of their times */
    atomic_int_fast64_t running;                    /* requests in progress */
    struct histogram queue; /* how long each waited for a thread, those that needed one */
};

static inline void metrics_count(struct metrics *metrics, int status, int64_t took_us)
{
    size_t index = status > 0 && status < METRICS_STATUSES ? (size_t)status : 0;

    atomic_fetch_add_explicit(&metrics->replies[index], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->request_us, (uint64_t)took_us, memory_order_relaxed);
}
