#include "tests/unit/stepper.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/pool.h"
#include "net/timers.h"

struct step {
    void (*fn)(void *arg);
    void *arg;
    bool loop;
};

struct loop {
    pthread_mutex_t lock;
    pthread_cond_t added;
    struct step *steps;
    size_t count, room;
    unsigned seed;
    void (*before)(void);
    bool background, idle;
    pthread_cond_t rests;
    pthread_t thread;
    struct timers timers; /* the stepping thread's */
};

static struct loop only = {.lock = PTHREAD_MUTEX_INITIALIZER,
                           .added = PTHREAD_COND_INITIALIZER,
                           .rests = PTHREAD_COND_INITIALIZER};

struct loop *stepper_loop(void)
{
    return &only;
}

struct loop *loop_new(struct err *err)
{
    (void)err;
    return &only;
}

void loop_stop(struct loop *loop)
{
    (void)loop;
}

bool loop_is_current(const struct loop *loop)
{
    (void)loop;
    return true;
}

void stepper_add(void (*fn)(void *arg), void *arg, bool loop)
{
    pthread_mutex_lock(&only.lock);
    if (only.count == only.room) {
        only.room = only.room ? only.room * 2 : 64;
        only.steps = xrealloc(only.steps, only.room * sizeof(*only.steps));
    }
    only.steps[only.count++] = (struct step){fn, arg, loop};
    pthread_cond_signal(&only.added);
    pthread_mutex_unlock(&only.lock);
}

void loop_post(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    (void)loop;
    stepper_add(fn, arg, true);
}

/* --- order ----------------------------------------------------------------------------------- */

void stepper_shuffle(unsigned seed)
{
    pthread_mutex_lock(&only.lock);
    only.seed = seed;
    pthread_mutex_unlock(&only.lock);
}

void stepper_watch(void (*before)(void))
{
    only.before = before;
}

static unsigned next_random(void)
{
    only.seed = only.seed * 1103515245u + 12345u;
    return only.seed >> 16;
}

/* Any job, or the first task of the loop. */
static size_t choose(void)
{
    size_t first_task = only.count;
    for (size_t i = 0; i < only.count && first_task == only.count; i++) {
        if (only.steps[i].loop) {
            first_task = i;
        }
    }
    size_t chosen = only.seed ? next_random() % only.count : 0;
    return only.steps[chosen].loop ? first_task : chosen;
}

static bool take(struct step *ret_step)
{
    pthread_mutex_lock(&only.lock);
    bool any = only.count > 0;
    if (any) {
        size_t chosen = choose();
        *ret_step = only.steps[chosen];
        only.count--;
        for (size_t i = chosen; i < only.count; i++) {
            only.steps[i] = only.steps[i + 1];
        }
    }
    pthread_mutex_unlock(&only.lock);
    return any;
}

static bool fire_due(void)
{
    struct timer *timer = timers_take_due(&only.timers, clock_now_ms());
    if (!timer) {
        return false;
    }
    timer->fire(timer);
    return true;
}

bool stepper_step(void)
{
    struct step step;
    if (only.before) {
        only.before();
    }
    if (!take(&step)) {
        return fire_due();
    }
    step.fn(step.arg);
    return true;
}

void stepper_run(void)
{
    while (stepper_step()) {
    }
}

size_t stepper_waiting(void)
{
    pthread_mutex_lock(&only.lock);
    size_t count = only.count;
    pthread_mutex_unlock(&only.lock);
    return count;
}

int64_t stepper_advance(int64_t ms)
{
    const struct timer *first = timers_first(&only.timers);
    int64_t left = first ? first->due_ms - clock_now_ms() : ms;
    int64_t by = left < 0 ? 0 : left < ms ? left : ms;
    fake_clock_advance(by);
    return by;
}

/* --- in the background ----------------------------------------------------------------------- */

static void *run_in_background(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&only.lock);
    while (only.background) {
        pthread_mutex_unlock(&only.lock);
        stepper_run();
        pthread_mutex_lock(&only.lock);
        if (only.background && only.count == 0) {
            only.idle = true;
            pthread_cond_broadcast(&only.rests);
            pthread_cond_wait(&only.added, &only.lock);
            only.idle = false;
        }
    }
    pthread_mutex_unlock(&only.lock);
    return NULL;
}

void stepper_background(void)
{
    only.background = true;
    ck_assert_int_eq(pthread_create(&only.thread, NULL, run_in_background, NULL), 0);
}

void stepper_foreground(void)
{
    pthread_mutex_lock(&only.lock);
    only.background = false;
    pthread_cond_signal(&only.added);
    pthread_mutex_unlock(&only.lock);
    ck_assert_int_eq(pthread_join(only.thread, NULL), 0);
}

void stepper_wait_idle(void)
{
    pthread_mutex_lock(&only.lock);
    while (!only.idle || only.count > 0) {
        pthread_cond_wait(&only.rests, &only.lock);
    }
    pthread_mutex_unlock(&only.lock);
}

/* --- timers ---------------------------------------------------------------------------------- */

void timer_start(struct loop *loop, struct timer *timer, int64_t after_ms)
{
    timer_stop(timer);
    timer->loop = loop;
    timers_add(&only.timers, timer, clock_now_ms() + (after_ms > 0 ? after_ms : 0));
}

void timer_stop(struct timer *timer)
{
    if (timer_is_running(timer)) {
        timers_remove(&only.timers, timer);
    }
}
