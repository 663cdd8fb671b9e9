#include "server/suspended.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"

enum { TAG_STOP = 1, TAG_TIMER = 2, TAG_FIRST_WATCH = 16 };

struct slot { /* by descriptor */
    struct watch *watch;
    uint32_t generation; /* tells an event of the descriptor's former life */
};

struct suspended {
    pthread_t thread;
    int epoll_fd;
    int timer_fd;
    int stop_fd;

    pthread_mutex_t lock; /* everything of the parks */
    struct park **heap;   /* by deadline, the earliest first; heap[0] is not used */
    size_t heap_len, heap_cap;
    int64_t armed_ms; /* what timer_fd is set to; 0: off */
    struct park *parks;
    bool broken;

    pthread_mutex_t watch_lock;
    struct slot *slots;
    size_t slot_count;
};

/* --- the heap of deadlines ---------------------------------------------------------------------
 */

static void heap_put(struct suspended *s, size_t slot, struct park *park)
{
    s->heap[slot] = park;
    park->heap_slot = slot;
}

static void heap_up(struct suspended *s, size_t slot)
{
    struct park *park = s->heap[slot];

    while (slot > 1 && s->heap[slot / 2]->deadline_ms > park->deadline_ms) {
        heap_put(s, slot, s->heap[slot / 2]);
        slot /= 2;
    }
    heap_put(s, slot, park);
}

static void heap_down(struct suspended *s, size_t slot)
{
    struct park *park = s->heap[slot];

    for (;;) {
        size_t child = slot * 2;

        if (child > s->heap_len)
            break;
        if (child < s->heap_len && s->heap[child + 1]->deadline_ms < s->heap[child]->deadline_ms)
            child++;
        if (s->heap[child]->deadline_ms >= park->deadline_ms)
            break;
        heap_put(s, slot, s->heap[child]);
        slot = child;
    }
    heap_put(s, slot, park);
}

static void heap_add(struct suspended *s, struct park *park)
{
    if (s->heap_len + 2 > s->heap_cap) {
        s->heap_cap = s->heap_cap ? s->heap_cap * 2 : 64;
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): pointers are what it holds */
        s->heap = xrealloc(s->heap, s->heap_cap * sizeof(*s->heap));
    }
    heap_put(s, ++s->heap_len, park);
    heap_up(s, s->heap_len);
}

static void heap_remove(struct suspended *s, struct park *park)
{
    size_t slot = park->heap_slot;

    if (!slot)
        return;
    park->heap_slot = 0;
    struct park *last = s->heap[s->heap_len--];
    if (last == park)
        return;
    heap_put(s, slot, last);
    heap_up(s, slot);
    heap_down(s, last->heap_slot);
}

/* The timer is only moved when the earliest deadline comes nearer: one that was taken away leaves a
 * wake for nothing, which costs less than a system call per wait. */
static void arm_timer(struct suspended *s)
{
    int64_t first = s->heap_len ? s->heap[1]->deadline_ms : 0;

    if (!first || (s->armed_ms && s->armed_ms <= first))
        return;
    s->armed_ms = first;
    if (first < 1)
        first = 1;
    const struct itimerspec spec = {
        .it_value = {.tv_sec = first / 1000, .tv_nsec = first % 1000 * 1000000}};
    (void)timerfd_settime(s->timer_fd, TFD_TIMER_ABSTIME, &spec,
                          NULL); /* its arguments are valid */
}

/* --- parks -------------------------------------------------------------------------------------
 */

static void list_add(struct suspended *s, struct park *park)
{
    park->prev = NULL;
    park->next = s->parks;
    if (s->parks)
        s->parks->prev = park;
    s->parks = park;
    park->parked = true;
}

static void list_remove(struct suspended *s, struct park *park)
{
    if (park->prev)
        park->prev->next = park->next;
    else
        s->parks = park->next;
    if (park->next)
        park->next->prev = park->prev;
    park->parked = false;
    heap_remove(s, park);
}

static void event_moved(struct waiter *waiter)
{
    struct park *park = container_of(waiter, struct park, waiter);

    park->wake(park);
}

bool suspended_park(struct suspended *s, struct park *park, struct event *event, uint64_t seen,
                    int64_t deadline_ms)
{
    bool waits = false;

    pthread_mutex_lock(&s->lock);
    park->timed_out = false;
    if (s->broken || park->interrupt) {
        park->interrupt = false;
        goto out;
    }
    if (deadline_ms && deadline_ms <= clock_now_ms() && (!event || event_count(event) == seen)) {
        park->timed_out = true;
        goto out;
    }
    park->event = event;
    park->deadline_ms = deadline_ms;
    park->waiter.wake = event_moved;
    list_add(s, park);
    if (deadline_ms)
        heap_add(s, park);
    waits = !event || event_wait(event, seen, &park->waiter);
    if (waits)
        arm_timer(s);
    else
        list_remove(s, park);
out:
    pthread_mutex_unlock(&s->lock);
    return waits;
}

bool suspended_settle(struct suspended *s, struct park *park)
{
    pthread_mutex_lock(&s->lock);
    if (park->parked) {
        /* Whoever resumed it by another way may have left the waiter where it was. */
        if (park->event)
            (void)event_cancel(park->event, &park->waiter);
        list_remove(s, park);
    }
    park->event = NULL;
    bool timed_out = park->timed_out;
    pthread_mutex_unlock(&s->lock);
    return timed_out;
}

/* Under the lock. The event's own wake may have been faster: then that one counts. */
static bool wake_now(struct suspended *s, struct park *park)
{
    if (!park->parked)
        return false;
    bool ours = !park->event || event_cancel(park->event, &park->waiter);
    list_remove(s, park);
    return ours;
}

void suspended_interrupt(struct suspended *s, struct park *park)
{
    pthread_mutex_lock(&s->lock);
    if (wake_now(s, park))
        park->wake(park);
    else
        park->interrupt = true;
    pthread_mutex_unlock(&s->lock);
}

void suspended_break_all(struct suspended *s)
{
    pthread_mutex_lock(&s->lock);
    s->broken = true;
    while (s->parks) {
        struct park *park = s->parks;

        if (wake_now(s, park))
            park->wake(park);
    }
    pthread_mutex_unlock(&s->lock);
}

static void expire(struct suspended *s)
{
    uint64_t expirations;

    (void)!read(s->timer_fd, &expirations, sizeof(expirations)); /* only clears it */
    pthread_mutex_lock(&s->lock);
    s->armed_ms = 0;
    int64_t now = clock_now_ms();
    while (s->heap_len && s->heap[1]->deadline_ms <= now) {
        struct park *park = s->heap[1];

        if (wake_now(s, park)) {
            park->timed_out = true;
            park->wake(park);
        }
    }
    arm_timer(s);
    pthread_mutex_unlock(&s->lock);
}

/* --- sockets -----------------------------------------------------------------------------------
 */

static struct epoll_event watch_event(const struct suspended *s, const struct watch *watch)
{
    uint64_t generation = s->slots[watch->fd].generation;

    return (struct epoll_event){
        .events = (watch->half ? (uint32_t)EPOLLRDHUP : 0) | EPOLLONESHOT,
        .data.u64 = generation << 32 | (uint32_t)(watch->fd + TAG_FIRST_WATCH),
    };
}

void suspended_watch(struct suspended *s, struct watch *watch, int fd, bool half)
{
    pthread_mutex_lock(&s->watch_lock);
    if (watch->watched && watch->armed && watch->half == half) {
        pthread_mutex_unlock(&s->watch_lock);
        return;
    }
    if ((size_t)fd >= s->slot_count) {
        size_t count = (size_t)fd * 2 + 64;

        s->slots = xrealloc(s->slots, count * sizeof(*s->slots));
        for (size_t i = s->slot_count; i < count; i++)
            s->slots[i] = (struct slot){0};
        s->slot_count = count;
    }
    int operation = watch->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    watch->fd = fd;
    watch->half = half;
    watch->watched = true;
    watch->armed = true;
    s->slots[fd].watch = watch;
    s->slots[fd].generation++;
    struct epoll_event event = watch_event(s, watch);
    /* Fails only for lack of kernel memory; then this client's leaving is noticed when it is
     * answered. */
    (void)epoll_ctl(s->epoll_fd, operation, fd, &event);
    pthread_mutex_unlock(&s->watch_lock);
}

void suspended_unwatch(struct suspended *s, struct watch *watch)
{
    pthread_mutex_lock(&s->watch_lock);
    if (watch->watched) {
        watch->watched = false;
        s->slots[watch->fd].watch = NULL;
        s->slots[watch->fd].generation++;
        (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL); /* it is there */
    }
    pthread_mutex_unlock(&s->watch_lock);
}

static void socket_gone(struct suspended *s, uint64_t tag, uint32_t events)
{
    size_t fd = (size_t)(tag & UINT32_MAX) - TAG_FIRST_WATCH;
    struct watch *watch = NULL;

    pthread_mutex_lock(&s->watch_lock);
    if (fd < s->slot_count && s->slots[fd].generation == (uint32_t)(tag >> 32))
        watch = s->slots[fd].watch;
    if (watch) {
        watch->armed = false;
        watch->ref(watch);
    }
    pthread_mutex_unlock(&s->watch_lock);
    if (!watch)
        return;
    watch->gone(watch, (events & (EPOLLERR | EPOLLHUP)) != 0);
    watch->unref(watch);
}

static void *suspended_loop(void *arg)
{
    struct suspended *s = arg;
    struct epoll_event events[64];

    for (;;) {
        int count = epoll_wait(s->epoll_fd, events, ARRAY_LEN(events), -1);

        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == TAG_STOP)
                return NULL;
            if (events[i].data.u64 == TAG_TIMER)
                expire(s);
            else
                socket_gone(s, events[i].data.u64, events[i].events);
        }
    }
}

static int add_own(struct suspended *s, int fd, uint64_t tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag};

    return fd < 0 ? -1 : epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void suspended_free(struct suspended *s)
{
    if (s->epoll_fd >= 0)
        (void)close(s->epoll_fd);
    if (s->timer_fd >= 0)
        (void)close(s->timer_fd);
    if (s->stop_fd >= 0)
        (void)close(s->stop_fd);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->watch_lock);
    free(s->heap);
    free(s->slots);
    free(s);
}

int suspended_start(struct suspended **ret_suspended, struct err *err)
{
    struct suspended *s = xcalloc(1, sizeof(*s));

    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_mutex_init(&s->watch_lock, NULL);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (s->epoll_fd < 0 || add_own(s, s->timer_fd, TAG_TIMER) || add_own(s, s->stop_fd, TAG_STOP)) {
        int errnum = errno;

        suspended_free(s);
        return err_errno(err, ERR_INTERNAL, errnum, "set up epoll");
    }
    int errnum = pthread_create(&s->thread, NULL, suspended_loop, s);
    if (errnum) {
        suspended_free(s);
        return err_errno(err, ERR_INTERNAL, errnum, "start a thread");
    }
    *ret_suspended = s;
    return 0;
}

void suspended_stop(struct suspended *s)
{
    const uint64_t one = 1;

    if (!s)
        return;
    (void)!write(s->stop_fd, &one, sizeof(one)); /* a fresh eventfd takes it */
    (void)pthread_join(s->thread, NULL);
    suspended_free(s);
}
