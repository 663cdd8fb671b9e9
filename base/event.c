#include "base/event.h"

#include <assert.h>
#include <stddef.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

void event_init(struct event *event)
{
    *event = (struct event){0};
    pthread_mutex_init(&event->lock, NULL);
}

void event_done(struct event *event)
{
    assert(!event->waiters);
    pthread_mutex_destroy(&event->lock);
}

uint64_t event_count(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    uint64_t count = event->count;
    pthread_mutex_unlock(&event->lock);
    return count;
}

static void unlink_waiter(struct event *event, struct waiter *waiter)
{
    if (waiter->next)
        waiter->next->prev = waiter->prev;
    if (waiter->prev)
        waiter->prev->next = waiter->next;
    else
        event->waiters = waiter->next;
    waiter->next = waiter->prev = NULL;
    waiter->event = NULL;
}

void event_fire(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    event->count++;
    while (event->waiters) {
        struct waiter *waiter = event->waiters;
        unlink_waiter(event, waiter);
        waiter->wake(waiter); /* from here on WAITER may be gone or in use again */
    }
    pthread_mutex_unlock(&event->lock);
}

bool event_wait(struct event *event, uint64_t seen, struct waiter *waiter)
{
    pthread_mutex_lock(&event->lock);
    bool same = event->count == seen;
    if (same) {
        waiter->event = event;
        waiter->prev = NULL;
        waiter->next = event->waiters;
        if (waiter->next)
            waiter->next->prev = waiter;
        event->waiters = waiter;
    }
    pthread_mutex_unlock(&event->lock);
    return same;
}

bool event_cancel(struct event *event, struct waiter *waiter)
{
    pthread_mutex_lock(&event->lock);
    bool waiting = waiter->event == event;
    if (waiting)
        unlink_waiter(event, waiter);
    pthread_mutex_unlock(&event->lock);
    return waiting;
}

struct blocker {
    struct waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool woken;
};

static void wake_blocker(struct waiter *waiter)
{
    struct blocker *blocker = container_of(waiter, struct blocker, waiter);
    pthread_mutex_lock(&blocker->lock);
    blocker->woken = true;
    pthread_cond_signal(&blocker->cond);
    pthread_mutex_unlock(&blocker->lock);
}

/* A condition cannot wait on CLOCK_BOOTTIME, so the rest of the time is taken on the monotonic
 * clock, again and again until it is over on the right one. */
static void wait_until(struct blocker *blocker, int64_t deadline_ms)
{
    pthread_mutex_lock(&blocker->lock);
    int64_t left_ms;
    while (!blocker->woken && (left_ms = deadline_ms - clock_now_ms()) > 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        left_ms = left_ms < 3600000 ? left_ms : 3600000;
        until.tv_sec += (time_t)(left_ms / 1000);
        until.tv_nsec += (long)(left_ms % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&blocker->cond, &blocker->lock, &until);
    }
    pthread_mutex_unlock(&blocker->lock);
}

bool event_block(struct event *event, uint64_t seen, int64_t deadline_ms)
{
    struct blocker blocker = {.waiter = {.wake = wake_blocker}};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&blocker.lock, NULL);
    pthread_cond_init(&blocker.cond, &attr);
    pthread_condattr_destroy(&attr);
    bool changed = true;
    if (event_wait(event, seen, &blocker.waiter)) {
        wait_until(&blocker, deadline_ms);
        /* Also makes sure that wake_blocker has returned before its blocker goes. */
        changed = !event_cancel(event, &blocker.waiter);
    }
    pthread_cond_destroy(&blocker.cond);
    pthread_mutex_destroy(&blocker.lock);
    return changed;
}
