#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/mem.h"

#define FAR_MS (clock_now_ms() + 60000)

struct counted {
    struct waiter waiter;
    int woken; /* not atomic on purpose: event_cancel has to order it */
};

static void count_wake(struct waiter *waiter)
{
    container_of(waiter, struct counted, waiter)->woken++;
}

START_TEST(test_fire_wakes_each_once)
{
    struct event event;
    struct counted waiters[3] = {0};
    event_init(&event);
    uint64_t seen = event_count(&event);
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++) {
        waiters[i].waiter.wake = count_wake;
        ck_assert(event_wait(&event, seen, &waiters[i].waiter));
        ck_assert_ptr_eq(waiters[i].waiter.event, &event);
    }
    event_fire(&event);
    event_fire(&event);
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++) {
        ck_assert_int_eq(waiters[i].woken, 1);
        ck_assert_ptr_null(waiters[i].waiter.event);
        ck_assert(!event_cancel(&event, &waiters[i].waiter));
    }
    ck_assert_uint_eq(event_count(&event), seen + 2);
    event_done(&event);
}
END_TEST

START_TEST(test_wait_for_what_has_happened)
{
    struct event event;
    struct counted waiter = {.waiter = {.wake = count_wake}};
    event_init(&event);
    uint64_t seen = event_count(&event);
    event_fire(&event);
    ck_assert(!event_wait(&event, seen, &waiter.waiter));
    event_fire(&event);
    ck_assert_int_eq(waiter.woken, 0);
    ck_assert(event_block(&event, seen, 0));
    event_done(&event);
}
END_TEST

/* Takes them off in every order: first, middle, last of the list. */
START_TEST(test_cancel)
{
    static const size_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}};
    struct event event;
    event_init(&event);
    for (size_t o = 0; o < ARRAY_LEN(orders); o++) {
        struct counted waiters[3] = {0};
        for (size_t i = 0; i < 3; i++) {
            waiters[i].waiter.wake = count_wake;
            ck_assert(event_wait(&event, event_count(&event), &waiters[i].waiter));
        }
        ck_assert(event_cancel(&event, &waiters[orders[o][0]].waiter));
        ck_assert(!event_cancel(&event, &waiters[orders[o][0]].waiter));
        ck_assert(event_cancel(&event, &waiters[orders[o][1]].waiter));
        event_fire(&event);
        ck_assert_int_eq(waiters[orders[o][0]].woken, 0);
        ck_assert_int_eq(waiters[orders[o][1]].woken, 0);
        ck_assert_int_eq(waiters[orders[o][2]].woken, 1);
    }
    event_done(&event);
}
END_TEST

START_TEST(test_block_deadline)
{
    struct event event;
    event_init(&event);
    int64_t deadline = clock_now_ms() + 20;
    ck_assert(!event_block(&event, event_count(&event), deadline));
    ck_assert_int_ge(clock_now_ms(), deadline);
    ck_assert(!event_block(&event, event_count(&event), 0));
    event_done(&event);
}
END_TEST

/* Two threads that take turns: one lost wake-up and they stand still. */
struct turns {
    struct event event;
    atomic_int turn;
    int rounds;
};

static void take_turns(struct turns *turns, int mine)
{
    for (int done = 0; done < turns->rounds;) {
        uint64_t seen = event_count(&turns->event);
        if (atomic_load(&turns->turn) % 2 == mine) {
            atomic_fetch_add(&turns->turn, 1);
            event_fire(&turns->event);
            done++;
        } else if (!event_block(&turns->event, seen, FAR_MS)) {
            ck_abort_msg("a wake-up was lost in round %d", done);
        }
    }
}

static void *take_second(void *arg)
{
    take_turns(arg, 1);
    return NULL;
}

START_TEST(test_no_wake_up_is_lost)
{
    struct turns turns = {.rounds = 5000};
    pthread_t thread;
    event_init(&turns.event);
    pthread_create(&thread, NULL, take_second, &turns);
    take_turns(&turns, 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(atomic_load(&turns.turn), 10000);
    event_done(&turns.event);
}
END_TEST

/* Waiters on the stack that come and go while others fire. When event_cancel returns, `wake` is
 * over: else it would write into a frame that is in use again, which the sanitizers and `woken`
 * show. */
struct storm {
    struct event event;
    atomic_bool stop;
    atomic_int cancelled, woken;
};

static void *fire_on(void *arg)
{
    struct storm *storm = arg;
    while (!atomic_load(&storm->stop))
        event_fire(&storm->event);
    return NULL;
}

static void wait_once(struct storm *storm, int spin)
{
    struct counted own = {.waiter = {.wake = count_wake}};
    if (!event_wait(&storm->event, event_count(&storm->event), &own.waiter))
        return;
    for (int i = 0; i < spin; i++)
        (void)event_count(&storm->event);
    bool cancelled = event_cancel(&storm->event, &own.waiter);
    if (own.woken != (cancelled ? 0 : 1))
        ck_abort_msg("woken %d times, cancelled: %d", own.woken, cancelled);
    own.woken = -1000;
    atomic_fetch_add(cancelled ? &storm->cancelled : &storm->woken, 1);
}

static void *wait_often(void *arg)
{
    for (int i = 0; i < 20000; i++)
        wait_once(arg, i % 4);
    return NULL;
}

START_TEST(test_cancel_against_fire)
{
    struct storm storm = {0};
    pthread_t firing[2], waiting[3];
    event_init(&storm.event);
    for (size_t i = 0; i < ARRAY_LEN(firing); i++)
        pthread_create(&firing[i], NULL, fire_on, &storm);
    for (size_t i = 0; i < ARRAY_LEN(waiting); i++)
        pthread_create(&waiting[i], NULL, wait_often, &storm);
    for (size_t i = 0; i < ARRAY_LEN(waiting); i++)
        pthread_join(waiting[i], NULL);
    atomic_store(&storm.stop, true);
    for (size_t i = 0; i < ARRAY_LEN(firing); i++)
        pthread_join(firing[i], NULL);
    ck_assert_int_gt(atomic_load(&storm.woken) + atomic_load(&storm.cancelled), 0);
    event_done(&storm.event);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("event");
    TCase *tcase = tcase_create("event");
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(tcase, 110);
    tcase_add_test(tcase, test_fire_wakes_each_once);
    tcase_add_test(tcase, test_wait_for_what_has_happened);
    tcase_add_test(tcase, test_cancel);
    tcase_add_test(tcase, test_block_deadline);
    tcase_add_test(tcase, test_no_wake_up_is_lost);
    tcase_add_test(tcase, test_cancel_against_fire);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
