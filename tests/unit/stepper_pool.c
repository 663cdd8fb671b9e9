/* base/pool.h on the stepper's queue: a job is a step. */
#include <check.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/pool.h"
#include "tests/unit/stepper.h"

struct pool {
    size_t threads;
};

struct pool *pool_new(const char *name, size_t threads, size_t queue_max)
{
    struct pool *pool = xcalloc(1, sizeof(*pool));
    (void)name;
    (void)queue_max;
    pool->threads = threads;
    return pool;
}

bool pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg)
{
    return pool_resume(pool, fn, arg);
}

bool pool_resume(struct pool *pool, void (*fn)(void *arg), void *arg)
{
    ck_assert_uint_gt(pool->threads, 0);
    stepper_add(fn, arg, false);
    return true;
}

size_t pool_queued(struct pool *pool)
{
    (void)pool;
    return stepper_waiting();
}

void pool_stop(struct pool *pool)
{
    ck_assert_uint_eq(stepper_waiting(), 0); /* whoever stops it has waited for its jobs */
    free(pool);
}
