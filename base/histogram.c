#include "base/histogram.h"

#include <stddef.h>

/* From a file's read to a slow pod. */
static const int64_t bounds_us[HISTOGRAM_BOUNDS] = {
    500,    1000,   2500,    5000,    10000,   25000,    50000,    100000,
    250000, 500000, 1000000, 2500000, 5000000, 10000000, 60000000, 600000000,
};

void histogram_add(struct histogram *histogram, int64_t us)
{
    size_t at = 0;

    us = us > 0 ? us : 0;
    while (at < HISTOGRAM_BOUNDS && us > bounds_us[at])
        at++;
    atomic_fetch_add_explicit(&histogram->counts[at], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_us, (uint64_t)us, memory_order_relaxed);
}

void histogram_print(const struct histogram *histogram, const char *name, const char *help,
                     struct buf *out)
{
    unsigned long long count = 0;

    (void)buf_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (size_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        count += atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
        (void)buf_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds_us[i] / 1e6,
                         count);
    }
    count += atomic_load_explicit(&histogram->counts[HISTOGRAM_BOUNDS], memory_order_relaxed);
    (void)buf_printf(
        out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.6f\n%s_count %llu\n", name, count, name,
        (double)atomic_load_explicit(&histogram->sum_us, memory_order_relaxed) / 1e6, name, count);
}
