#include "net/timers.h"
#include "tests/unit/suite.h"

#define MANY 100000

/* Timers that note in which order they fire; the number of each is its place in `all`. */
static struct timers timers;
static struct timer *all;
static int64_t now_ms;
static size_t *fired, fired_count;

static void note(struct timer *timer)
{
    ck_assert_uint_eq(timer->place, 0);
    ck_assert_int_le(timer->due_ms, now_ms);
    fired[fired_count++] = (size_t)(timer - all);
}

static void setup(void)
{
    all = xcalloc(MANY, sizeof(*all));
    fired = xcalloc(2 * MANY, sizeof(*fired));
    fired_count = 0;
    now_ms = 0;
    for (size_t i = 0; i < MANY; i++)
        all[i].fire = note;
}

static void teardown(void)
{
    timers_done(&timers);
    free(all);
    free(fired);
}

static void run_until(int64_t until_ms)
{
    struct timer *timer;
    now_ms = until_ms;
    while ((timer = timers_take_due(&timers, now_ms)) != NULL)
        timer->fire(timer);
}

/* A linear congruential generator: the same numbers in every run. */
static uint32_t next_random(void)
{
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

START_TEST(test_nothing_runs_at_first)
{
    ck_assert_ptr_null(timers_first(&timers));
    ck_assert_ptr_null(timers_take_due(&timers, INT64_MAX));
}
END_TEST

START_TEST(test_they_fire_by_time_and_then_by_start)
{
    static const int64_t due[] = {40, 0, 20, 0, 30, 40, 41};
    static const size_t order[] = {1, 3, 2, 4, 0, 5};
    for (size_t i = 0; i < ARRAY_LEN(due); i++)
        timers_add(&timers, &all[i], due[i]);
    run_until(40);
    ck_assert_uint_eq(fired_count, ARRAY_LEN(order));
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        ck_assert_uint_eq(fired[i], order[i]);
    ck_assert_ptr_eq(timers_first(&timers), &all[6]);
}
END_TEST

/* Every third is stopped, every seventh moved, in no order; whether the rest fires in that of time
 * and start is then seen from one to the next. */
START_TEST(test_a_hundred_thousand)
{
    size_t expected = 0;
    for (size_t i = 0; i < MANY; i++)
        timers_add(&timers, &all[i], next_random() % 5000);
    for (size_t i = 0; i < MANY; i += 3)
        timers_remove(&timers, &all[i]);
    for (size_t i = 0; i < MANY; i += 7) {
        if (all[i].place > 0)
            timers_remove(&timers, &all[i]);
        timers_add(&timers, &all[i], next_random() % 5000);
    }
    for (size_t i = 0; i < MANY; i++)
        expected += i % 3 != 0 || i % 7 == 0;
    ck_assert_uint_eq(timers.count, expected);
    run_until(2500);
    ck_assert_int_gt(timers_first(&timers)->due_ms, 2500);
    run_until(5000);
    ck_assert_uint_eq(fired_count, expected);
    for (size_t i = 1; i < fired_count; i++) {
        const struct timer *before = &all[fired[i - 1]], *timer = &all[fired[i]];
        ck_assert(before->due_ms < timer->due_ms ||
                  (before->due_ms == timer->due_ms && before->order < timer->order));
    }
}
END_TEST

static void stop_the_others(struct timer *timer)
{
    note(timer);
    for (size_t i = 0; i < 100; i++) {
        if (all[i].place > 0)
            timers_remove(&timers, &all[i]);
    }
}

START_TEST(test_one_stops_the_others_when_it_fires)
{
    for (size_t i = 0; i < 101; i++)
        timers_add(&timers, &all[i], i == 37 ? 1 : 2);
    all[37].fire = stop_the_others;
    run_until(2);
    ck_assert_uint_eq(fired_count, 2);
    ck_assert_uint_eq(fired[0], 37);
    ck_assert_uint_eq(fired[1], 100);
}
END_TEST

static void again_in_ten(struct timer *timer)
{
    note(timer);
    timers_add(&timers, timer, timer->due_ms + 10);
}

START_TEST(test_one_restarts_itself_when_it_fires)
{
    all[0].fire = again_in_ten;
    timers_add(&timers, &all[0], 5);
    timers_add(&timers, &all[1], 15);
    run_until(25);
    static const size_t order[] = {0, 1, 0, 0}; /* at 5, 15, 15, 25 */
    ck_assert_uint_eq(fired_count, ARRAY_LEN(order));
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        ck_assert_uint_eq(fired[i], order[i]);
    ck_assert_int_eq(timers_first(&timers)->due_ms, 35);
}
END_TEST

START_TEST(test_done_forgets_all)
{
    for (size_t i = 0; i < 1000; i++)
        timers_add(&timers, &all[i], (int64_t)i);
    timers_done(&timers);
    for (size_t i = 0; i < 1000; i++)
        ck_assert_uint_eq(all[i].place, 0);
    ck_assert_ptr_null(timers_first(&timers));
    timers_add(&timers, &all[0], 1);
    ck_assert_ptr_eq(timers_first(&timers), &all[0]);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_nothing_runs_at_first,
                                  test_they_fire_by_time_and_then_by_start,
                                  test_a_hundred_thousand,
                                  test_one_stops_the_others_when_it_fires,
                                  test_one_restarts_itself_when_it_fires,
                                  test_done_forgets_all,
                                  NULL};
    return run_suite("timers", tests, setup, teardown);
}
