#pragma once

#include <pthread.h>

#include "local/cgroup.h"
#include "local/filter.h"
#include "local/image.h"
#include "local/local.h"
#include "local/place.h"
#include "local/record.h"
#include "local/uids.h"

/* The data of this driver, for the files of this folder. */

enum phase {
    PHASE_MAKING, /* create() is at it */
    PHASE_LIVE,
    PHASE_ENDED, /* no process of it is left; its directory is */
    PHASE_GOING, /* to be removed; told to end if it has not */
};

struct box {
    struct box_record record;
    enum phase phase;
    struct image image; /* held; `root` NULL: the machine's own */
    int bwrap, agent;   /* pidfds; -1: that process has ended */
    int64_t kill_at_ms; /* clock_now_ms: no more patience; 0: none is needed */
    bool ended_early;   /* while it was being made */
    bool ended_well;    /* the rest: PHASE_ENDED */
    enum err_code reason;
    char message[512];
    struct box *next;
};

struct local {
    const struct local_config *config;
    struct loop *loop;
    char *bwrap, *agent; /* paths of the programs */
    char boot[40];
    struct place place;
    struct filters filters;
    struct cgroups cgroups;
    struct image_store *images; /* NULL: only `host` */
    struct uids uids;
    struct box_observer observer;
    pthread_t watcher;
    bool watching;
    int epoll, wakeup; /* the watcher's */

    pthread_mutex_t lock; /* the rest */
    struct box *boxes;
    bool stopping;
};

/* boxes.c: with the lock held. */
struct box *boxes_find_locked(struct local *local, const char *id);
void boxes_remove_locked(struct local *local, struct box *box);
void box_describe_locked(const struct local *local, const struct box *box,
                         struct box_info *ret_info);

/* make.c: everything from the directory to the running agent. BOX is in PHASE_MAKING; on failure
 * nothing of it is left but BOX itself. */
int box_make(struct local *local, struct box *box, const struct box_spec *spec,
             struct err *err) must_check;

/* make.c: removes all that BOX has outside its processes, which have ended; false: not yet. */
bool box_clear(const struct local *local, const struct box_record *record);
/* The same with some patience, for where there is no later. */
void box_clear_soon(const struct local *local, const struct box_record *record);

/* find.c: ends the bubblewrap of a record that does not know its agent yet, and what it started. */
void box_end_half_made(const struct box_record *record);
/* Boxes that earlier servers have made, into local->boxes; what is half made is removed. */
void boxes_load(struct local *local);

/* All that have been made, malloc'd; takes the lock. Until then a box is nobody's but create()'s:
 * who heard of it earlier would wait for news that never come. */
struct box_info *boxes_describe(struct local *local, bool foreign, size_t *ret_count);
void box_free(struct local *local, struct box *box); /* not in the list any more */

/* programs.c: fills in `bwrap` and `agent`. */
int programs_find(struct local *local, struct err *err) must_check;

/* ends.c */
int ends_start(struct local *local, struct err *err) must_check;
void ends_stop(struct local *local);
int ends_add(struct local *local, struct box *box, struct err *err) must_check;
void ends_wake(struct local *local); /* a box is in PHASE_GOING */
/* Says in BOX why it ended, from what is left of it. */
void ends_explain(struct local *local, struct box *box);
