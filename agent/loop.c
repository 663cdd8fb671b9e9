#include "agent/loop.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* epoll sleeps on a clock that stands still while the machine is suspended, the timers do not:
 * after a resume they are at most this late. */
#define LONGEST_SLEEP_MS 10000

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int loop_init(struct loop *loop)
{
    *loop = (struct loop){.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    return loop->epoll_fd < 0 ? -1 : 0;
}

int loop_watch(struct loop *loop, struct watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (events == 0) {
        if (watch->added)
            (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
        watch->added = false;
        return 0;
    }
    int operation = watch->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll_fd, operation, watch->fd, &event) < 0)
        return -1;
    watch->added = true;
    return 0;
}

void loop_close(struct loop *loop, struct watch *watch)
{
    if (watch->fd < 0)
        return;
    (void)loop_watch(loop, watch, 0);
    for (int i = 0; i < loop->batch_len; i++) {
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
    }
    close(watch->fd);
    watch->fd = -1;
}

void timer_clear(struct loop *loop, struct timer *timer)
{
    if (!timer->armed)
        return;
    struct timer **link = &loop->timers;
    while (*link != timer)
        link = &(*link)->next;
    *link = timer->next;
    timer->armed = false;
}

void timer_set(struct loop *loop, struct timer *timer, int64_t at_ms)
{
    timer_clear(loop, timer);
    timer->at_ms = at_ms;
    struct timer **link = &loop->timers;
    while (*link != NULL && (*link)->at_ms <= at_ms)
        link = &(*link)->next;
    timer->next = *link;
    *link = timer;
    timer->armed = true;
}

static int sleep_ms(const struct loop *loop)
{
    if (loop->timers == NULL)
        return -1;
    int64_t left = loop->timers->at_ms - now_ms();
    if (left < 0)
        return 0;
    return left > LONGEST_SLEEP_MS ? LONGEST_SLEEP_MS : (int)left;
}

void loop_turn(struct loop *loop)
{
    int capacity = (int)(sizeof(loop->batch) / sizeof(loop->batch[0]));
    int count = epoll_wait(loop->epoll_fd, loop->batch, capacity, sleep_ms(loop));
    loop->batch_len = count > 0 ? count : 0;
    for (int i = 0; i < loop->batch_len; i++) {
        struct watch *watch = loop->batch[i].data.ptr;
        if (watch != NULL)
            watch->ready(watch, loop->batch[i].events);
    }
    loop->batch_len = 0;
    int64_t now = loop->timers != NULL ? now_ms() : 0;
    while (loop->timers != NULL && loop->timers->at_ms <= now) {
        struct timer *timer = loop->timers;
        timer_clear(loop, timer);
        timer->fire(timer);
    }
}
