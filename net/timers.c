#include "net/timers.h"

#include <stdlib.h>

#define FIRST_ROOM 64

static bool is_before(const struct timer *a, const struct timer *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->order < b->order;
}

/* Places count from 1; 0 is that of a timer which does not run. */
static void put(struct timers *timers, size_t place, struct timer *timer)
{
    timers->heap[place - 1] = timer;
    timer->place = place;
}

static struct timer *at(const struct timers *timers, size_t place)
{
    return timers->heap[place - 1];
}

static void move_up(struct timers *timers, struct timer *timer, size_t place)
{
    while (place > 1 && is_before(timer, at(timers, place / 2))) {
        put(timers, place, at(timers, place / 2));
        place /= 2;
    }
    put(timers, place, timer);
}

static void move_down(struct timers *timers, struct timer *timer, size_t place)
{
    for (;;) {
        size_t child = place * 2;
        if (child < timers->count && is_before(at(timers, child + 1), at(timers, child)))
            child++;
        if (child > timers->count || !is_before(at(timers, child), timer))
            break;
        put(timers, place, at(timers, child));
        place = child;
    }
    put(timers, place, timer);
}

void timers_add(struct timers *timers, struct timer *timer, int64_t due_ms)
{
    if (timers->count == timers->room) {
        timers->room = timers->room ? 2 * timers->room : FIRST_ROOM;
        timers->heap = xrealloc(timers->heap, timers->room * sizeof(struct timer *));
    }
    timer->due_ms = due_ms;
    timer->order = timers->starts++;
    move_up(timers, timer, ++timers->count);
}

void timers_remove(struct timers *timers, struct timer *timer)
{
    size_t place = timer->place;
    struct timer *last = at(timers, timers->count--);
    timer->place = 0;
    if (last == timer)
        return;
    if (place > 1 && is_before(last, at(timers, place / 2)))
        move_up(timers, last, place);
    else
        move_down(timers, last, place);
}

struct timer *timers_first(const struct timers *timers)
{
    return timers->count > 0 ? timers->heap[0] : NULL;
}

struct timer *timers_take_due(struct timers *timers, int64_t now_ms)
{
    struct timer *timer = timers_first(timers);
    if (!timer || timer->due_ms > now_ms)
        return NULL;
    timers_remove(timers, timer);
    return timer;
}

void timers_done(struct timers *timers)
{
    for (size_t i = 0; i < timers->count; i++)
        timers->heap[i]->place = 0;
    free(timers->heap);
    *timers = (struct timers){.heap = NULL};
}
