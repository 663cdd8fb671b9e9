#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process that is not (or no longer) our child. A pid alone may be another's by now: together
 * with the time it was started at it is unique until the machine starts again. */
struct process_id {
    pid_t pid;        /* 0: none */
    uint64_t started; /* clock ticks since the machine started */
};

/* What PID is at this moment; false when there is none or it has ended (a zombie). */
bool process_identify(pid_t pid, struct process_id *ret_id);
/* A pidfd of that very process, or -1 when it has ended. */
int process_open(const struct process_id *id);
bool process_has_ended(int pidfd); /* -1: yes */
void process_signal(int pidfd, int signal_number);
/* Stops it, and waits until it has stopped, so that it starts no more children. */
void process_stop(const struct process_id *id, int pidfd);
/* Waits for the end, at most that long. */
bool process_wait(int pidfd, int timeout_ms);
/* The first child of PARENT; false when it has none. Slow: looks at every process. */
bool process_child(pid_t parent, struct process_id *ret_child);
/* A process that LEADER has left in its session; as slow. */
bool process_in_session(const struct process_id *leader, struct process_id *ret_id);
