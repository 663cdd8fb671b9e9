#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "net/loop.h"

/* Lets the test wait for something on the loop thread. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int opened;
};
#define GATE_INIT ((struct gate){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0})

static void gate_open(void *arg)
{
    struct gate *gate = arg;
    pthread_mutex_lock(&gate->lock);
    gate->opened++;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_wait(struct gate *gate, int count)
{
    pthread_mutex_lock(&gate->lock);
    while (gate->opened < count)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static struct loop *start(void)
{
    struct err err;
    struct loop *loop = loop_new(&err);
    ck_assert_msg(loop != NULL, "%s", err.msg);
    return loop;
}

struct numbers {
    struct loop *loop;
    struct gate gate;
    int count;
    int values[64];
};

static void add_number(struct numbers *numbers, int value)
{
    numbers->values[numbers->count++] = value;
    gate_open(&numbers->gate);
}

struct post {
    struct numbers *numbers;
    int value;
};

static void post_number(void *arg)
{
    struct post *post = arg;
    ck_assert(loop_is_current(post->numbers->loop));
    add_number(post->numbers, post->value);
}

START_TEST(test_posts_run_in_order)
{
    struct numbers numbers = {.loop = start(), .gate = GATE_INIT};
    struct post posts[50];
    ck_assert(!loop_is_current(numbers.loop));
    for (int i = 0; i < 50; i++) {
        posts[i] = (struct post){&numbers, i};
        loop_post(numbers.loop, post_number, &posts[i]);
    }
    gate_wait(&numbers.gate, 50);
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(numbers.values[i], i);
    loop_stop(numbers.loop);
}
END_TEST

struct nested {
    struct loop *loop;
    struct gate gate;
    int depth;
};

static void post_again(void *arg)
{
    struct nested *nested = arg;
    if (++nested->depth < 1000)
        loop_post(nested->loop, post_again, nested);
    else
        gate_open(&nested->gate);
}

START_TEST(test_task_posts_task)
{
    struct nested nested = {.loop = start(), .gate = GATE_INIT};
    loop_post(nested.loop, post_again, &nested);
    gate_wait(&nested.gate, 1);
    ck_assert_int_eq(nested.depth, 1000);
    loop_stop(nested.loop);
}
END_TEST

START_TEST(test_stop_runs_what_was_posted)
{
    struct nested nested = {.loop = start(), .gate = GATE_INIT};
    loop_post(nested.loop, post_again, &nested);
    loop_stop(nested.loop);
    ck_assert_int_eq(nested.depth, 1000);
    loop_stop(NULL);
}
END_TEST

#define POSTERS 4
#define POSTS 2000

struct poster {
    struct loop *loop;
    int *sum; /* the loop thread's */
};

static void add_one(void *arg)
{
    ++*(int *)arg;
}

static void *post_many(void *arg)
{
    struct poster *poster = arg;
    for (int i = 0; i < POSTS; i++)
        loop_post(poster->loop, add_one, poster->sum);
    return NULL;
}

START_TEST(test_posts_from_many_threads)
{
    int sum = 0;
    struct poster poster = {start(), &sum};
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++)
        pthread_create(&threads[i], NULL, post_many, &poster);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    loop_stop(poster.loop);
    ck_assert_int_eq(sum, POSTERS * POSTS);
}
END_TEST

struct alarm {
    struct timer timer;
    struct numbers *numbers;
    int value;
    struct alarm *stops;     /* when it fires */
    int64_t again_ms, after; /* restarts itself once */
    int64_t due_ms;          /* not before */
};

static void alarm_fired(struct timer *timer)
{
    struct alarm *alarm = container_of(timer, struct alarm, timer);
    ck_assert(loop_is_current(alarm->numbers->loop));
    ck_assert_int_ge(clock_now_ms(), alarm->due_ms);
    if (alarm->stops)
        timer_stop(&alarm->stops->timer);
    if (alarm->again_ms > 0) {
        timer_start(alarm->numbers->loop, &alarm->timer, alarm->again_ms);
        alarm->again_ms = 0;
    }
    add_number(alarm->numbers, alarm->value);
}

struct plan {
    struct numbers *numbers;
    struct alarm *alarms;
    int count;
};

static void start_alarms(void *arg)
{
    struct plan *plan = arg;
    for (int i = 0; i < plan->count; i++) {
        struct alarm *alarm = &plan->alarms[i];
        alarm->numbers = plan->numbers;
        alarm->value = i;
        alarm->timer.fire = alarm_fired;
        alarm->due_ms = clock_now_ms() + alarm->after;
        timer_start(plan->numbers->loop, &alarm->timer, alarm->after);
    }
}

static void run_plan(struct numbers *numbers, struct alarm *alarms, int count, int fires)
{
    struct plan plan = {numbers, alarms, count};
    loop_post(numbers->loop, start_alarms, &plan);
    gate_wait(&numbers->gate, fires);
}

START_TEST(test_timers_fire_in_order_of_time)
{
    struct numbers numbers = {.loop = start(), .gate = GATE_INIT};
    struct alarm alarms[] = {{.after = 40}, {.after = 0},  {.after = 20},
                             {.after = -5}, {.after = 30}, {.after = 40}};
    run_plan(&numbers, alarms, 6, 6);
    static const int order[] = {1, 3, 2, 4, 0, 5};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(numbers.values[i], order[i]);
    loop_stop(numbers.loop);
}
END_TEST

START_TEST(test_timer_stops_others_and_restarts_itself)
{
    struct numbers numbers = {.loop = start(), .gate = GATE_INIT};
    struct alarm alarms[] = {{.after = 10}, {.after = 20, .again_ms = 5}, {.after = 15}};
    alarms[0].stops = &alarms[2]; /* one that waits */
    alarms[1].stops = &alarms[0]; /* one that has fired: no-op */
    run_plan(&numbers, alarms, 3, 3);
    static const int order[] = {0, 1, 1};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(numbers.values[i], order[i]);
    ck_assert_int_eq(numbers.count, 3);
    loop_stop(numbers.loop);
}
END_TEST

static void restart_alarm(void *arg)
{
    struct alarm *alarm = arg;
    timer_start(alarm->numbers->loop, &alarm->timer, 0); /* due in an hour until now */
}

START_TEST(test_restart_moves_a_timer)
{
    struct numbers numbers = {.loop = start(), .gate = GATE_INIT};
    struct alarm alarms[] = {{.after = 3600 * 1000}, {.after = 0}};
    run_plan(&numbers, alarms, 2, 1);
    alarms[0].due_ms = 0;
    loop_post(numbers.loop, restart_alarm, &alarms[0]);
    gate_wait(&numbers.gate, 2);
    ck_assert_int_eq(numbers.values[0], 1);
    ck_assert_int_eq(numbers.values[1], 0);
    loop_stop(numbers.loop);
}
END_TEST

START_TEST(test_stop_forgets_timers)
{
    struct numbers numbers = {.loop = start(), .gate = GATE_INIT};
    struct alarm alarms[] = {{.after = 3600 * 1000}, {.after = 0}};
    run_plan(&numbers, alarms, 2, 1);
    loop_stop(numbers.loop);
    ck_assert_int_eq(numbers.count, 1);
    timer_stop(&alarms[0].timer); /* not running any more */
}
END_TEST

START_TEST(test_loops_come_and_go)
{
    for (int i = 0; i < 20; i++) {
        struct loop *one = start(), *two = start();
        loop_stop(one);
        loop_stop(two);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loop");
    TCase *tcase = tcase_create("loop");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_posts_run_in_order);
    tcase_add_test(tcase, test_task_posts_task);
    tcase_add_test(tcase, test_stop_runs_what_was_posted);
    tcase_add_test(tcase, test_posts_from_many_threads);
    tcase_add_test(tcase, test_timers_fire_in_order_of_time);
    tcase_add_test(tcase, test_timer_stops_others_and_restarts_itself);
    tcase_add_test(tcase, test_restart_moves_a_timer);
    tcase_add_test(tcase, test_stop_forgets_timers);
    tcase_add_test(tcase, test_loops_come_and_go);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
