#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "agent/cgroup.h"
#include "agent/loop.h"
#include "agent/proto.h"

/* The state of PID 1. One thread; everything hangs off this. */
struct conn;
struct exec;
struct task;
struct dial;
struct ending;

#define DIAL_BUCKETS 64 /* a power of two */

struct options {
    int listen_fd;                 /* -1: the abstract socket, with the peer check */
    const char *uid;               /* of the sandbox; NULL: any hello's */
    int64_t first_hello_ms;        /* without a hello by then: exit */
    int64_t without_server_ms;     /* without a stream for so long: execs without KEEP are killed */
    int64_t end_without_server_ms; /* and then all ends; 0: it does not */
};

struct helper { /* the zygote that file and port requests are forked from */
    struct watch watch;
    pid_t pid;
};

struct agent {
    struct options options;
    struct loop loop;
    int64_t started_ms;

    struct watch listener;
    struct watch signals;
    struct conn *conn;    /* the attached stream, NULL without one */
    struct conn *pending; /* accepted, no valid hello yet */
    size_t pending_count;

    uint8_t token[PROTO_TOKEN_LEN];
    bool has_token;
    char *const *image_environment;
    char *
        *environment; /* from CONFIGURE, malloc'd as one block per entry; NULL-terminated or NULL */
    char *workdir;    /* NULL: where the agent was started */
    const char *info_path; /* of the file that tells programs of the sandbox; NULL: none */
    uint64_t cpus;         /* the limit as of the last hello, rounded up; 0: none */
    uint8_t *blob;
    size_t blob_len;
    uint64_t blob_version;
    bool configured;
    int64_t deadline_ms; /* 0: none */

    struct timer deadline, first_hello, without_server, end_without_server, listen_again;

    struct exec *execs; /* known by their id */
    size_t exec_count, running;
    pid_t last_text;        /* exec->supervisor of the last text */
    struct exec *lingering; /* committed, but with children or pipes open */
    size_t lingering_count;
    struct ending *endings; /* exec_kill.c */
    size_t ending_count;
    size_t stored; /* bytes in all output rings */

    struct task *tasks;
    size_t task_count, task_queued; /* how many; bytes that wait for workers */
    struct helper helper;
    struct dial *dials[DIAL_BUCKETS]; /* by channel */
    size_t dial_count;
    uint64_t dial_windows; /* granted beyond their first windows */

    struct cgroup cgroup;
    struct rlimit files_limit; /* as it was given, for children */
    rlim_t files_max;          /* descriptors that we may have */
    int oom_fd;                /* our own oom_score_adj, or -1 */
    int oom_score;
};

/* serve.c */
int serve(const struct options *options, char *const *environment);
/* BYE with that code to the server, then everything is killed and PID 1 exits with STATUS. */
_Noreturn void agent_end(struct agent *agent, int status, const char *code, const char *why);
/* fork() for what a command will descend from: the kernel takes it before the agent when memory is
 * short. */
pid_t agent_fork_for_command(const struct agent *agent);
/* Whether FD is so high that too few would be left for a stream; -1 counts as that too. */
bool agent_is_crowded(const struct agent *agent, int fd);
/* In a process forked from PID 1: zeroes what is secret from the sandbox's programs. */
void agent_wipe_secrets(struct agent *agent);

/* listen.c */
int listener_open(struct agent *agent);

/* control.c: the frames of channel 0 */
struct message;
void control_message(struct conn *conn, uint8_t type, const struct message *message);
void agent_set_deadline(struct agent *agent, int64_t left_ms);

/* reap.c */
int reaper_open(struct agent *agent);
/* Kills, with all below them, the children of PID 1 that nobody looks after: what a supervisor that
 * was killed has left behind. */
void reap_strays(struct agent *agent);
