#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/conn.h"
#include "agent/exec_input.h"
#include "agent/loop.h"
#include "agent/ring.h"
#include "agent/supervisor.h"
#include "agent/terminal.h"

/* PID 1's side of the executions. Each is known by its id from the first OPEN until COMMIT, and
 * followed by at most one channel of the present stream. */
struct exec_output { /* stream 1 or 2 */
    struct exec *exec;
    uint8_t id;
    struct watch watch;
    struct ring ring; /* start: what the server has stored; end: what was read */
    uint64_t sent;    /* on the present stream */
    uint64_t limit;   /* the server takes up to here */
    size_t must_read; /* in the pipe when the main process ended: its own output */
    uint64_t late;    /* bytes that came after that */
    bool ended;       /* ring.end is the total; what still comes is thrown away */
    bool end_sent;
    struct timer silence;
};

struct exec {
    struct agent *agent;
    struct exec *next;
    char id[PROTO_EXEC_ID_MAX + 1];
    bool keep;
    int64_t grace_ms;

    struct conn *conn; /* who follows it, NULL: nobody */
    uint32_t channel;
    struct source source;
    bool started_sent, joined, result_sent, err_first;

    struct watch control;  /* the supervisor's socket */
    pid_t supervisor, pid; /* supervisor: of a text none of its own, but an id below 0 */
    struct exec_shell shell;
    bool started, exited; /* the main process; a failed start is `exited` alone */
    bool ended;           /* and its output: the result stands */
    bool forgotten;       /* committed: waits in agent->lingering for the tree to end */
    bool alone;           /* no other exec ran at the same time */
    int64_t cut_at_ms;    /* background children may keep on writing: the end, at the latest */

    struct exec_output out[2];
    struct exec_input in;
    struct terminal terminal; /* then our end is read by out[0], out[1] is nothing */

    struct supervisor_report report;
    const char *error;               /* NULL: none */
    char message[256], program[160]; /* the program: "exec" when its name is too long */
    int exit_code;                   /* for a failed start; -1: none */
    bool oom_readable;
    uint64_t oom_before, oom; /* oom: as in the RESULT */
};

/* exec.c: the table and the frames */
void exec_open(struct conn *conn, uint32_t channel, const struct message *message);
bool exec_message(struct conn *conn, uint32_t channel, uint8_t type, const struct message *message);
bool exec_frame(struct conn *conn, const struct frame *frame, bool *ret_broken);
void exec_stream_lost(struct conn *conn);
void exec_list(const struct agent *agent, struct field_writer *fields);
void exec_list_supervisors(const struct agent *agent, struct field_writer *fields); /* and PID */
void exec_kill_all_unkept(struct agent *agent);
/* The exec has something to send, if anyone follows it. */
void exec_wake(struct exec *exec);
/* For a forgotten exec: frees it once its tree and its pipes are gone. */
void exec_release(struct exec *exec);

/* exec_start.c */
/* Takes the exec into the table and starts it; what goes wrong with the start itself becomes its
 * result. NULL when MESSAGE asks for something impossible: then nothing is kept, and RET_PROBLEM is
 * the code. */
struct exec *exec_start(struct agent *agent, const char *id, const struct message *message,
                        const char **ret_problem);
void exec_order(struct exec *exec, int signal, enum proto_scope scope, int64_t grace_ms);
/* True when PID, which has just been waited for, was a supervisor. */
bool exec_supervisor_reaped(struct agent *agent, pid_t pid);

/* exec_result.c: the end, and what the RESULT says of it */
void exec_count_oom(struct exec *exec);
void exec_failed(struct exec *exec, const struct supervisor_report *report);
void exec_exited(struct exec *exec, const struct supervisor_report *report);
void exec_lost(struct exec *exec, const char *why);
void exec_put_result(const struct exec *exec, struct reply *reply);

/* exec_output.c */
void output_open(struct exec_output *output, int fd);
/* Reads on, or stops reading, by what is allowed now. */
void output_update(struct exec_output *output);
void output_update_all(struct agent *agent);
void output_credit(struct exec_output *output, uint64_t done, uint64_t limit);
void output_follow(struct exec_output *output, uint64_t offset);
/* Sends one DATA or END; false when there is nothing to send. */
bool output_send(struct exec_output *output);
/* The main process has ended: only what it has written itself is waited for. */
void output_main_ended(struct exec_output *output);
void output_end(struct exec_output *output);
void output_free(struct exec_output *output);
