#pragma once

#include "base/err.h"
#include "base/histogram.h"

/* What /metrics says of the domain. Any thread may add; nothing is ever taken away. */
struct tally {
    struct histogram create; /* from the intent to `running` */
    struct histogram exec;   /* from the start of a command to its end, as its agent measured it */
    atomic_uint_fast64_t failed[ERR_COUNT];        /* sandboxes, by reason */
    atomic_uint_fast64_t driver_errors[ERR_COUNT]; /* requests to the substrate, by code */
    atomic_uint_fast64_t reaped;                   /* expired or orphaned, by sweeps */
};

static inline void tally_one(atomic_uint_fast64_t *counts, enum err_code code)
{
    atomic_fetch_add_explicit(&counts[code], 1, memory_order_relaxed);
}
