#pragma once

#include "agent/supervisor.h"

/* What a supervisor consists of, for supervisor.c and for shell.c, which has more to look after. */
struct supervisor {
    int control, signals; /* descriptors: to PID 1; SIGCHLD */
    pid_t main_pid;
    bool main_ended, childless, reported;
    int64_t started_us, ended_us;
    int64_t timeout_at, kill_at, give_up_at; /* now_ms(); 0: never */
    int64_t grace_ms;
    bool terminal;
    int killing;                     /* enum killing of supervisor.c */
    struct supervisor_report report; /* what is known of the end */
};

/* In the forked process: lets go of all that is PID 1's. SPEC->standard becomes 0, 1 and 2. */
void supervisor_settle(struct supervisor *self, struct agent *agent, struct exec_spec *spec);
/* Starts the command with what 0, 1 and 2 are; a failure is reported, and is the end. */
void supervisor_spawn(struct supervisor *self, const struct agent *agent,
                      const struct exec_spec *spec);
void supervisor_report(struct supervisor *self, const struct supervisor_report *report);
_Noreturn void supervisor_fail(struct supervisor *self, enum spawn_stage stage, int errnum,
                               bool interpreter);
void supervisor_obey(struct supervisor *self, const struct supervisor_order *order);
void supervisor_kill(struct supervisor *self, int64_t grace_ms);

/* After each event, in this order. */
void supervisor_reap(struct supervisor *self);
void supervisor_on_time(struct supervisor *self);
void supervisor_report_end(struct supervisor *self);
int supervisor_wait_ms(const struct supervisor *self); /* until the next is due; -1: none is */
