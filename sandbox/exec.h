#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/event.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pipe.h"
#include "base/text.h"
#include "sandbox/exec_kind.h"

/* One command in a sandbox, as a resource with a number and a journal. It outlives its client, the
 * stream, and the server: what the agent has not been told COMMIT for is there still. Reference-
 * counted; thread-safe. */
struct exec;
struct sandbox;

enum exec_stdin {
    EXEC_STDIN_NONE,  /* /dev/null */
    EXEC_STDIN_BYTES, /* given with the request */
    EXEC_STDIN_PIPE,  /* comes by PUT …/stdin */
};

struct exec_spec {
    struct text_list cmd;
    struct text_map env;
    char *workdir; /* NULL: the sandbox's */
    int64_t timeout_ms;
    int64_t max_output; /* bytes of a stream in a reply */
    enum exec_stdin stdin_kind;
    struct buf stdin_bytes;
    bool keep;                   /* on_disconnect: keep */
    int64_t disconnect_grace_ms; /* 10 s */
    unsigned columns, rows;      /* of its terminal; 0: none. Its input is typed (attachment.h) */
    bool service;   /* a preview's command: no timeout, not counted, kept, hidden from nothing */
    int64_t number; /* of exec_reserve(); 0: the next one */
    struct exec_kind kind;
};
void exec_spec_done(struct exec_spec *spec);

/* Takes what SPEC holds (empties it), also on failure. The record is stored before the agent hears
 * of it. ERR_GONE, ERR_NOT_READY, ERR_BUSY (too many), ERR_ARGUMENT_TOO_LONG. KEY (may be NULL) is
 * the claimed idempotency key's holder: its number is filled by the caller. */
int exec_start(struct sandbox *sandbox, struct exec_spec *spec, struct exec **ret_exec,
               struct err *err) must_check;
/* A number for exec_spec, so that it can be on record before its execution begins. */
int64_t exec_reserve(struct sandbox *sandbox);
struct exec *exec_ref(struct exec *exec);
void exec_unref(struct exec *exec);

int64_t exec_number(const struct exec *exec);
struct event *exec_changed(struct exec *exec);
/* Whoever waits is to be answered: the result is known, or the agent has been out of reach for 30 s
 * (then the record says stream_lost, and the true result may still come). */
bool exec_done(struct exec *exec);
bool exec_ended(struct exec *exec);    /* the result is known, for good */
bool exec_is_small(struct exec *exec); /* it has ended and wrote little: its record takes no time */
/* The agent has answered, or exec_done: whether there is a problem instead of a result is known.
 * `exec_output_event` fires then, and with each piece of output. */
bool exec_begun(struct exec *exec);
struct event *exec_output_event(struct exec *exec);
/* Workdir missing and the like, where the answer is a problem and not a result. False: none. */
bool exec_problem(struct exec *exec, struct err *ret_err);
/* What the result says went wrong (program missing, timed out). False: nothing, or none yet. */
bool exec_error(struct exec *exec, struct err *ret_err);

/* Whoever waits for the result says so; when the last waiter leaves, the disconnect grace runs. */
void exec_join(struct exec *exec);
void exec_leave(struct exec *exec);

/* Feeds a EXEC_STDIN_PIPE exec (takes its own reference of PIPE); once. ERR_CONFLICT when it takes
 * none (any more). `exec_changed` fires when exec_stdin_done: all was taken, or the exec ended. A
 * pipe that fails kills the exec: half of an input must not look like all of it. */
int exec_feed(struct exec *exec, struct pipe *pipe, struct err *err) must_check;
bool exec_stdin_done(struct exec *exec);

/* TERM, then KILL after GRACE_MS, to the whole tree; the result follows by itself. */
void exec_kill(struct exec *exec, int64_t grace_ms);

/* --- by number, running or not ------------------------------------------------------------- */
/* The one in memory, or NULL when it has been stored and left memory. */
struct exec *exec_find(struct sandbox *sandbox, int64_t number);
/* Members of the record (id, state, cmd, workdir, times…) and, when WITH_OUTPUT, of stdout and
 * stderr up to their max_output, scrubbed. From the store when it is no longer in memory; UID names
 * the sandbox, also a gone one. */
struct sandboxes;
int exec_json(struct sandboxes *all, const char *uid, int64_t number, bool with_output,
              struct json **ret_json, struct err *err) must_check;
/* The same of one that the caller holds: cheaper, and true also while the store fails. */
int exec_record(struct exec *exec, bool with_output, struct json **ret_json,
                struct err *err) must_check;
int exec_list_json(struct sandboxes *all, const char *uid, int64_t before, size_t limit,
                   struct json **ret_page, struct err *err) must_check;
/* Raw output, masked. Looks beyond both ends, so that a secret across them is masked too. A range
 * that begins where bytes were dropped or lost is ERR_RANGE_NOT_SATISFIABLE; one that runs into
 * such a place ends before it. */
struct exec_key {
    const char *uid; /* of the sandbox */
    int64_t number;
};
struct exec_range {
    int stream; /* 1 or 2 */
    uint64_t offset;
    int64_t length; /* at most; -1: to the end */
};
struct exec_reading {
    uint64_t total; /* received so far */
    size_t scrubbed;
};
int exec_output(struct sandboxes *all, const struct exec_key *key, const struct exec_range *range,
                struct buf *out, struct exec_reading *ret_reading, struct err *err) must_check;
/* The same as a stream of pieces into PIPE, up to what was received when it began, or to where the
 * middle was dropped. `scrubbed` counts the first 64 KiB. */
int exec_output_pipe(struct sandboxes *all, const struct exec_key *key,
                     const struct exec_range *range, struct pipe *pipe,
                     struct exec_reading *ret_reading, struct err *err) must_check;
/* Removes the journals of a sandbox whose tombstone was forgotten. */
void execs_forget(struct sandboxes *all, const char *uid);
