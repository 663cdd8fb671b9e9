#include "tests/unit/fake_loop.h"

#include <pthread.h>
#include <stdlib.h>

#include "net/timers.h"

struct task {
    void (*fn)(void *arg);
    void *arg;
    struct task *next;
};

struct loop {
    pthread_mutex_t lock;
    struct task *first, **last;
    struct timers timers;
    int64_t now;
};

struct loop *fake_loop_new(void)
{
    struct loop *loop = xcalloc(1, sizeof(*loop));
    pthread_mutex_init(&loop->lock, NULL);
    loop->last = &loop->first;
    return loop;
}

void fake_loop_free(struct loop *loop)
{
    fake_loop_run(loop);
    timers_done(&loop->timers);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

struct loop *loop_new(struct err *err)
{
    (void)err;
    return fake_loop_new();
}

void loop_stop(struct loop *loop)
{
    fake_loop_free(loop);
}

bool loop_is_current(const struct loop *loop)
{
    (void)loop;
    return true;
}

void loop_post(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct task *task = xcalloc(1, sizeof(*task));
    task->fn = fn;
    task->arg = arg;
    pthread_mutex_lock(&loop->lock);
    *loop->last = task;
    loop->last = &task->next;
    pthread_mutex_unlock(&loop->lock);
}

static struct task *take_task(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct task *task = loop->first;
    if (task) {
        loop->first = task->next;
        if (!loop->first)
            loop->last = &loop->first;
    }
    pthread_mutex_unlock(&loop->lock);
    return task;
}

static bool run_task(struct loop *loop)
{
    struct task *task = take_task(loop);
    if (!task)
        return false;
    task->fn(task->arg);
    free(task);
    return true;
}

static bool run_timer(struct loop *loop)
{
    struct timer *timer = timers_take_due(&loop->timers, loop->now);
    if (!timer)
        return false;
    timer->fire(timer);
    return true;
}

void fake_loop_run(struct loop *loop)
{
    while (run_task(loop) || run_timer(loop))
        ;
}

void fake_loop_advance(struct loop *loop, int64_t ms)
{
    int64_t end = loop->now + ms;
    fake_loop_run(loop);
    const struct timer *first;
    while ((first = timers_first(&loop->timers)) != NULL && first->due_ms <= end) {
        loop->now = first->due_ms;
        fake_loop_run(loop);
    }
    loop->now = end;
}

int64_t fake_loop_now(const struct loop *loop)
{
    return loop->now;
}

int64_t fake_loop_next(const struct loop *loop)
{
    const struct timer *first = timers_first(&loop->timers);
    return first ? first->due_ms - loop->now : -1;
}

void timer_start(struct loop *loop, struct timer *timer, int64_t after_ms)
{
    timer_stop(timer);
    timer->loop = loop;
    timers_add(&loop->timers, timer, loop->now + after_ms);
}

void timer_stop(struct timer *timer)
{
    if (timer_is_running(timer))
        timers_remove(&timer->loop->timers, timer);
}
