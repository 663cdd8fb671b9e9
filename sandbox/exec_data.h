#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "sandbox/exec.h"
#include "sandbox/feed.h"
#include "sandbox/journal.h"
#include "sandbox/ranges.h"
#include "sandbox/sandbox.h"

/* The data of an exec, for exec*.c. What these files do for each other is in exec_parts.h. */

#define EXEC_LOST_MS 30000      /* without a stream: waiting clients get an answer */
#define EXEC_RETRY_MS 5000      /* after an error of the journal or the store */
#define EXEC_KILL_GRACE_MS 2000 /* from TERM to KILL */
#define EXEC_ADOPTED_GRACE_MS 60000
#define EXEC_SLOW_MS 30000 /* a reader that stands still while the command waits for him */
#define EXEC_SMALL 4096    /* bytes of output that are in the page cache, and masked at once */
#define EXEC_NUMBER_MAX ((uint64_t)1 << 52)

/* What came out of stdout or stderr. The journal holds what was received without the bytes that the
 * agent had lost before (`lost`), so its offsets are lower than the stream's by what is lost below.
 */
struct exec_stream {
    struct journal *journal; /* NULL: no byte yet, or not opened yet */
    struct ranges lost;      /* offsets of the stream */
    struct ranges masks;     /* offsets of the journal: a secret stood here */
    bool fresh;              /* no file of this exec can be there yet */
    /* Masks from here on (offsets of the journal) are in the file, but not in `masks` yet. */
    uint64_t unsettled; /* while output is appended; else UINT64_MAX */
    bool scrubbing;     /* all of them: exec_scrub.c is at work */
    bool decoy_told;    /* loop thread: that it was in it */
    int64_t changed_ms; /* clock_now_ms of the last byte */
};

/* Somebody who reads the output as it comes, without loss: as far as the journal has room for what
 * he has not read, his pace is the command's. */
struct exec_reader {
    uint64_t at[2];   /* of the journals; EXEC_UNREAD: not this stream */
    int64_t moved_ms; /* clock_now_ms of his last read */
    bool slow;        /* he stood still for too long, and was left behind */
    struct exec_reader *next, *prev;
};
#define EXEC_UNREAD UINT64_MAX

struct attachment;

struct exec_facts {
    bool has_exit, timed_out, problem;
    int64_t exit_code;
    int signal; /* 0: none */
    int oom;    /* 0 no, 1 yes, else unknown */
    bool has_usage;
    int64_t wall_us, cpu_us, max_rss;
    enum err_code error; /* ERR_NONE: none */
    char *message;
    char *cwd;        /* of a text: where its shell is; NULL: unknown */
    bool shell_ended; /* of a text: and its session has */
};

struct exec {
    atomic_uint refs;
    struct sandbox *sandbox;
    int64_t number;
    struct event changed;
    struct event output; /* fires for each piece of output, too, and when it has begun */
    /* set once */
    struct json *spec; /* as shown */
    bool keep, service;
    int64_t max_output, grace_ms, created;
    enum exec_stdin stdin_kind;
    struct exec_kind kind;
    bool stored_only; /* its record is in the store; it is here for COMMIT alone */

    pthread_mutex_t lock; /* the next ones */
    bool begun;           /* the agent has answered */
    bool lost, stdin_taken, fed;
    bool counted;             /* in sandbox->running_execs; under all->lock */
    uint64_t totals[2];       /* bytes of stdout and stderr, once `facts` stands */
    struct exec_facts *facts; /* NULL while running; then they stand */
    int64_t ended;
    size_t waiters;
    struct exec_stream streams[2];
    struct exec_reader *readers;
    bool withheld;          /* the agent has no room because of a reader */
    unsigned columns, rows; /* of its terminal; 0: it has none */
    bool sized, resizing;   /* that counts, not the agent's; which is about to be told */
    struct pipe *typed;     /* what attachments write; NULL: none has, and it is no terminal */
    struct attachment *writer;
    char *cwd;        /* of a shell, as last heard; NULL: unknown */
    bool shell_ended; /* a text's result has said so; its own result comes */

    /* loop thread */
    struct channel channel;
    struct buf open;   /* the OPEN message until the agent has answered it */
    size_t pending;    /* counted in all->pending_bytes */
    struct feed *feed; /* NULL: no input */
    struct timer grace_timer, retry_timer, slow_timer;
    bool sent, started;      /* OPEN went out; was answered */
    bool may_feed;           /* on this stream: it is known where the input goes on */
    bool owed;               /* the agent keeps it until COMMIT */
    bool asked_keep;         /* an adopted one: the agent has said whether it is kept */
    bool forget;             /* the result is stored: it is only joined to say COMMIT */
    bool unsaved;            /* the store did not take the result yet */
    int64_t kill_grace_ms;   /* -1: no kill wanted */
    const char *kill_reason; /* NULL: none, or a caller's wish */

    struct exec *next, *prev; /* in sandbox->execs, under all->lock */
    bool listed;
};
