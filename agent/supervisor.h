#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/proto.h"

struct agent;

/* One process per exec, between PID 1 and the command: starts it, adopts what it leaves behind,
 * ends the whole tree when it must. Lives until nothing of the tree is left, or PID 1 closes the
 * control socket. */
struct exec_spec {
    char *const *args;
    char *const *environment; /* the exec's own; may be NULL */
    const char *workdir;      /* "": the sandbox's */
    int64_t timeout_ms;       /* 0: none */
    int64_t grace_ms;         /* between TERM and KILL at the timeout */
    int standard[3];          /* what becomes 0, 1 and 2 of the command */
    bool terminal;            /* they are one; it becomes the controlling terminal */
    int control;              /* a packet socket to PID 1 */
    bool shell;               /* for shell_run() */
};

enum supervisor_report_kind {
    REPORT_STARTED = 1, /* pid */
    REPORT_FAILED,      /* the command was not started: stage, errnum */
    REPORT_EXITED,      /* status and what follows */
};

enum spawn_stage {
    SPAWN_FORK = 1,
    SPAWN_TERMINAL,
    SPAWN_SETUP,
    SPAWN_WORKDIR,
    SPAWN_EXEC,
    SPAWN_SHELL,   /* it did not become ready */
    SPAWN_SESSION, /* the shell has ended before it took the text */
};

/* Those of shells and of texts are followed by the shell's directory, without a NUL. */
struct supervisor_report {
    enum supervisor_report_kind kind;
    pid_t pid;
    enum spawn_stage stage;
    int errnum;
    bool interpreter; /* the program is there; what it names as its interpreter is not */
    int status;       /* as of wait4 */
    bool timed_out;
    bool tree_killed;
    bool shell_ended; /* of a text: and the session with it */
    uint64_t wall_us, cpu_us, max_rss;
};

/* One to run a text comes with the descriptors of agent/shell.h. */
struct supervisor_order {
    int signal; /* > 0: to `scope` */
    enum proto_scope scope;
    int64_t grace_ms;   /* else: TERM to all, and after this KILL */
    int64_t timeout_ms; /* of a text; 0: none */
};

/* PID 1's own record of a session or a text. */
struct exec_shell {
    bool kept;       /* it is a session */
    pid_t host;      /* of a text: its session's supervisor; else 0 */
    char *directory; /* where the shell was last; malloc'd or NULL */
};

/* Runs in the forked process. */
_Noreturn void supervisor_run(struct agent *agent, const struct exec_spec *spec);
