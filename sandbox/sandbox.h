#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/pool.h"
#include "sandbox/exec.h"
#include "sandbox/link.h"
#include "sandbox/sandboxes.h"
#include "sandbox/scrub.h"
#include "sandbox/tally.h"

#define SANDBOX_BUCKETS 4096

/* The data of the domain, for the files of this folder. `all->lock` guards everything below that is
 * not marked otherwise; it is never held over a network or SQL call, nor while a link or channel is
 * called. Lock order: all->intents, all->lock, then an exec's or call's own, then an event's. */
struct sandboxes {
    struct sandboxes_config config;
    struct crypto_key key;
    const struct driver *driver;
    struct store *store;
    struct loop *loop;
    struct pool *work, *slow; /* short jobs (SQL, masking); those that ask the substrate */
    atomic_size_t jobs;       /* queued or running */
    atomic_size_t begun;      /* jobs and tasks of the loop, ever */
    struct event idle;        /* fires when there is no job left */
    pthread_mutex_t intents;  /* create.c: a key's claim and the intent; held over SQL */
    pthread_mutex_t lock;
    struct sandbox *table[SANDBOX_BUCKETS], *by_uid[SANDBOX_BUCKETS]; /* not the gone ones */
    size_t count;
    int64_t living;         /* of these, those that have, or may have, something in the substrate */
    struct sandbox *newest; /* of all that somebody holds still, gone ones too */
    uint64_t lists;         /* of the substrate, so far; 0: nothing is known yet */
    bool stopping;
    atomic_bool follows_stopped; /* follow.h */
    struct err outage;           /* code ERR_NONE: it answers */
    struct sweeper *sweeper;
    atomic_size_t pending_bytes; /* exec.c: argv, environments, input that no agent has taken yet */
    struct link_shared link_shared; /* loop thread only */
    struct tunnels *tunnels;        /* tunnel.c: kept for another request */
    struct preview_memory *preview_memory;
    struct tally tally;
};

struct sandbox {
    struct sandboxes *all;
    atomic_uint refs;
    /* set once */
    char id[ID_LEN], uid[UID_LEN], owner[OWNER_LEN];
    struct sandbox_spec spec; /* ttl, labels and secrets change under the lock */
    int64_t ready_deadline_ms;
    struct event changed;
    /* guarded by all->lock; times with _ms are clock_now_ms, which decide; the others are shown */
    char *public_spec;          /* JSON */
    struct shown_record *shown; /* record.c: kept while it is as it says; NULL: none yet */
    char digest[72];
    enum sandbox_state state;
    enum err_code reason;
    char message[BOX_MESSAGE_LEN]; /* secrets masked */
    int64_t created, since, ready, ended, deadline;
    int64_t deadline_ms, lifetime_ms; /* of the ttl, 0: none; of the longest lifetime */
    bool deadline_guessed;            /* from the record; its agent has not told its own yet */
    struct box_info box;              /* the last the substrate said */
    uint64_t listed;                  /* all->lists when it was in one last */
    struct scrubber *scrubber;
    uint64_t memory_limit, pids_limit, cpu_milli; /* as the agent sees them; 0: unknown */
    int64_t last_exec;
    size_t running_execs;
    struct exec *execs; /* in memory: running or not yet committed; linked through exec->next */
    bool publishing;    /* a preview is being changed */
    /* duties of lifecycle.c, guarded too */
    bool settling;            /* its job runs, or is queued */
    bool dirty, saving;       /* the record differs from the store's; it is being written */
    bool making, removing;    /* the box is to be created; to be destroyed */
    bool in_table, living;    /* living: counted in all->living */
    bool adopting;            /* found in the substrate: the agent's blob says what it is */
    bool previews_unknown;    /* adopted: what is published has not been looked up yet; on record */
    bool previews_unfinished; /* a row may be there whose publishing was cut off */
    int64_t save_after_ms, remove_after_ms;
    size_t remove_tries;
    struct err save_error, remove_error; /* of the last try; ERR_NONE: it worked, or none yet */
    int64_t waiting_since_ms;            /* for a node */
    struct history *history;             /* events.c: not in the store yet */
    /* updates the agent must acknowledge, guarded too */
    uint64_t blob_version, blob_acked; /* of what it should have (SEQ, too); of what it has */
    int64_t wanted_ms;                 /* becomes `deadline_ms` when acknowledged; 0: none wanted */
    /* loop thread only */
    struct link *link; /* NULL before it is attachable and after the end */
    size_t cuts;
    int64_t lost_at_ms; /* the last link gave up */
    struct timer ready_timer, settle_timer;
    bool settle_armed, connected; /* then it holds a reference; the link is up */
    struct timer lost_timer;      /* exec.c: the stream has been down for too long */
    struct call *calls;           /* call.c: waiting for the link */
    struct sandbox *next, *next_by_uid, *newer, *older; /* in the buckets; of all there are */
};

/* By id, referenced, or NULL. Takes the lock. */
struct sandbox *sandboxes_lookup(struct sandboxes *all, const char *id);
/* Runs FN(sandbox, ARG) on the loop thread; looks at sandbox->link, which may be NULL or down. */
void sandbox_on_loop(struct sandbox *sandbox, void (*fn)(struct sandbox *sandbox, void *arg),
                     void *arg);
/* ERR_NOT_READY or ERR_GONE unless it is running. Takes the lock. */
int sandbox_check_running(struct sandbox *sandbox, struct err *err) must_check;
/* The current scrubber, referenced. Takes the lock. */
struct scrubber *sandbox_scrubber(struct sandbox *sandbox);
/* Runs FN(ARG) on a worker of the domain, for SQL and the like. */
void sandboxes_work(struct sandboxes *all, void (*fn)(void *arg), void *arg);
/* Takes DETAIL, whose texts have been masked. */
void sandbox_event(struct sandbox *sandbox, const char *type, struct json *detail);
/* exec.c: called on the loop thread when the link is up (again) or down, or the sandbox ends. */
void execs_link_up(struct sandbox *sandbox, const struct link_hello *hello);
void execs_link_down(struct sandbox *sandbox);
void execs_sandbox_ended(struct sandbox *sandbox, const struct err *why);
void execs_release(struct sandbox *sandbox); /* the server stops: they are forgotten, and live on */
void execs_scrub(struct sandbox *sandbox);   /* secrets were added: also masks what is recorded */
/* exec.c, at start: brings the executions that the store thinks are running back into memory. */
int execs_adopt(struct sandbox *sandbox, struct err *err) must_check;
