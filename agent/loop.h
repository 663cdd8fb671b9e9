#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/* The event loop of PID 1 (and of a forwarder): descriptors and timers, one thread. */
struct watch {
    int fd; /* -1: none; owned by whoever embeds the watch */
    bool added;
    void (*ready)(struct watch *watch, uint32_t events);
};

struct timer {
    int64_t at_ms;
    struct timer *next;
    bool armed;
    void (*fire)(struct timer *timer);
};

struct loop {
    int epoll_fd;
    struct timer *timers; /* soonest first */
    struct epoll_event batch[16];
    int batch_len;
};

int loop_init(struct loop *loop); /* -1 with errno */

/* Sets what WATCH waits for; 0 takes it off (an idle descriptor would still report hang-ups). */
int loop_watch(struct loop *loop, struct watch *watch, uint32_t events);
/* Takes WATCH off and closes its descriptor. Its events that are already at hand are dropped, so
 * the object around it may be freed. */
void loop_close(struct loop *loop, struct watch *watch);

void timer_set(struct loop *loop, struct timer *timer, int64_t at_ms);
void timer_clear(struct loop *loop, struct timer *timer);

/* Waits for the next events, at most until the next timer, and calls what is ready. */
void loop_turn(struct loop *loop);

int64_t now_ms(void); /* CLOCK_BOOTTIME */
int64_t now_us(void); /* CLOCK_MONOTONIC */
