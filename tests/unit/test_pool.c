#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/mem.h"
#include "base/pool.h"

#define FAR_MS (clock_now_ms() + 60000)

static void count(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* A job that stays on its thread until it is let go. */
struct gate {
    struct event changed;
    atomic_int inside;
    atomic_bool open;
};

static void wait_for(struct event *event, bool (*done)(struct gate *gate), struct gate *gate)
{
    for (;;) {
        uint64_t seen = event_count(event);
        if (done(gate))
            return;
        ck_assert(event_block(event, seen, FAR_MS));
    }
}

static bool is_open(struct gate *gate)
{
    return atomic_load(&gate->open);
}

static bool is_inside(struct gate *gate)
{
    return atomic_load(&gate->inside) > 0;
}

static void stand_in_gate(void *arg)
{
    struct gate *gate = arg;
    atomic_fetch_add(&gate->inside, 1);
    event_fire(&gate->changed);
    wait_for(&gate->changed, is_open, gate);
}

static void open_gate(struct gate *gate)
{
    atomic_store(&gate->open, true);
    event_fire(&gate->changed);
}

START_TEST(test_stop_runs_what_is_queued)
{
    atomic_int ran = 0;
    struct pool *pool = pool_new("test", 3, 1000);
    for (int i = 0; i < 1000; i++)
        ck_assert(pool_submit(pool, count, &ran));
    pool_stop(pool);
    ck_assert_int_eq(atomic_load(&ran), 1000);
}
END_TEST

START_TEST(test_bounded)
{
    atomic_int ran = 0;
    struct gate gate = {0};
    event_init(&gate.changed);
    struct pool *pool = pool_new("a name that is far too long", 1, 2);
    ck_assert(pool_submit(pool, stand_in_gate, &gate));
    wait_for(&gate.changed, is_inside, &gate);
    ck_assert_uint_eq(pool_queued(pool), 0);
    ck_assert(pool_submit(pool, count, &ran));
    ck_assert(pool_submit(pool, count, &ran));
    ck_assert(!pool_submit(pool, count, &ran));
    ck_assert_uint_eq(pool_queued(pool), 2);
    ck_assert(pool_resume(pool, count, &ran));
    ck_assert_uint_eq(pool_queued(pool), 3);
    ck_assert_int_eq(atomic_load(&ran), 0);
    open_gate(&gate);
    pool_stop(pool);
    ck_assert_int_eq(atomic_load(&ran), 3); /* not the one that was refused */
    event_done(&gate.changed);
}
END_TEST

/* Each job that waits gets a thread of its own, up to the maximum. */
START_TEST(test_as_many_threads_as_needed)
{
    struct gate gate = {0};
    event_init(&gate.changed);
    struct pool *pool = pool_new("test", 4, 10);
    for (int i = 0; i < 6; i++)
        ck_assert(pool_submit(pool, stand_in_gate, &gate));
    for (;;) {
        uint64_t seen = event_count(&gate.changed);
        if (atomic_load(&gate.inside) == 4)
            break;
        ck_assert(event_block(&gate.changed, seen, FAR_MS));
    }
    ck_assert_uint_eq(pool_queued(pool), 2);
    open_gate(&gate);
    pool_stop(pool);
    ck_assert_int_eq(atomic_load(&gate.inside), 6);
    event_done(&gate.changed);
}
END_TEST

struct order {
    int next;
    int seen[100];
};

struct numbered {
    struct order *order;
    int number;
};

static void note_number(void *arg)
{
    struct numbered *numbered = arg;
    numbered->order->seen[numbered->order->next++] = numbered->number;
}

START_TEST(test_in_order)
{
    struct order order = {0};
    struct numbered jobs[100];
    struct pool *pool = pool_new("test", 1, 100);
    for (int i = 0; i < 100; i++) {
        jobs[i] = (struct numbered){&order, i};
        ck_assert(pool_submit(pool, note_number, &jobs[i]));
    }
    pool_stop(pool);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(order.seen[i], i);
}
END_TEST

/* A chain of jobs, each queued by the one before, while the pool is being stopped. */
struct chain {
    struct pool *pool;
    atomic_int left;
    atomic_int submitted;
};

static void next_link(void *arg)
{
    struct chain *chain = arg;
    if (atomic_fetch_sub(&chain->left, 1) > 1)
        ck_assert(pool_resume(chain->pool, next_link, chain));
    if (pool_submit(chain->pool, count, &chain->submitted))
        atomic_fetch_add(&chain->submitted, 1000);
}

START_TEST(test_stop_waits_for_what_is_resumed)
{
    for (int round = 0; round < 50; round++) {
        struct chain chain = {.pool = pool_new("test", 3, 10)};
        atomic_store(&chain.left, 100);
        ck_assert(pool_submit(chain.pool, next_link, &chain));
        pool_stop(chain.pool);
        ck_assert_int_eq(atomic_load(&chain.left), 0);
        int submitted = atomic_load(&chain.submitted);
        ck_assert_int_eq(submitted / 1000, submitted % 1000); /* what was taken has run */
    }
}
END_TEST

struct crowd {
    struct pool *pool;
    atomic_int accepted;
    atomic_int ran;
};

static void *submit_many(void *arg)
{
    struct crowd *crowd = arg;
    for (int i = 0; i < 2000; i++) {
        if (pool_submit(crowd->pool, count, &crowd->ran))
            atomic_fetch_add(&crowd->accepted, 1);
        if (i % 3 == 0 && pool_resume(crowd->pool, count, &crowd->ran))
            atomic_fetch_add(&crowd->accepted, 1);
    }
    return NULL;
}

START_TEST(test_many_submit)
{
    struct crowd crowd = {.pool = pool_new("test", 4, 8)};
    pthread_t threads[4];
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_create(&threads[i], NULL, submit_many, &crowd);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    pool_stop(crowd.pool);
    ck_assert_int_eq(atomic_load(&crowd.ran), atomic_load(&crowd.accepted));
    ck_assert_int_ge(atomic_load(&crowd.ran), 2668); /* every third is always taken */
}
END_TEST

START_TEST(test_stop_of_an_idle_pool)
{
    for (int i = 0; i < 100; i++)
        pool_stop(pool_new("idle", 4, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tcase = tcase_create("pool");
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(tcase, 110);
    tcase_add_test(tcase, test_stop_runs_what_is_queued);
    tcase_add_test(tcase, test_bounded);
    tcase_add_test(tcase, test_as_many_threads_as_needed);
    tcase_add_test(tcase, test_in_order);
    tcase_add_test(tcase, test_stop_waits_for_what_is_resumed);
    tcase_add_test(tcase, test_many_submit);
    tcase_add_test(tcase, test_stop_of_an_idle_pool);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
