#pragma once

#include "agent/shell.h"
#include "agent/supervisor_parts.h"

/* What the files of a session's supervisor do for each other: shell.c is its loop, shell_text.c
 * talks with the shell and runs the texts. */

enum phase { PHASE_STARTING, PHASE_IDLE, PHASE_RUNNING };

struct run {
    int fds[RUN_FDS]; /* -1: none */
    char nonce[17];
    pid_t *spared; /* what ran before it */
    int64_t started_us;
    int64_t timeout_at, next_at, kill_at, give_up_at; /* now_ms(); 0: never */
    int64_t again_at; /* its end may have been asked for in vain; 0: not known to */
    int interrupts;
    uint64_t cpu_before;
    bool begun, ended, stopping; /* ended: the shell is back; `status` stands */
    int status;
    bool has_status;
    struct supervisor_report report;
};

struct host {
    struct supervisor base;
    int script, reports[2]; /* lines to the shell; from it */
    int input;              /* of a shell that reads the script as a file: its own; else -1 */
    int script_end;         /* what that file is */
    char line[128];         /* of a report, so far */
    size_t line_len;
    enum phase phase;
    int64_t phase_until; /* now_ms(); 0: never */
    int64_t idle_ms;
    struct run run;
};

/* Asks the shell whether it is there: PHASE_IDLE, and STARTED, when it answers. */
void shell_greet(struct host *host, bool bash);
void shell_listen(struct host *host); /* to what it has to say */
void shell_close(int *fd);            /* -1 then */

/* Takes FDS. Refuses it unless the shell is idle. */
void text_begin(struct host *host, const struct supervisor_order *order, const int fds[RUN_FDS]);
/* Of what it has started, the shell excepted; returns how many there are. */
size_t text_signal(const struct host *host, int signal);
/* As Ctrl-C does: to all of it and to the shell, which gives the whole text up; ALSO, if it is not
 * 0, to all of it after that. */
void text_interrupt(struct host *host, int also);
void text_stop(struct host *host, int64_t grace_ms);
void text_stop_on(struct host *host); /* at run.next_at */
/* For its end, at run.again_at and after an interrupt, which may have taken the line. */
void text_ask_again(struct host *host);
void text_finish(struct host *host); /* tells PID 1 */
