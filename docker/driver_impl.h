#pragma once

#include <pthread.h>

#include "base/buf.h"
#include "base/pool.h"
#include "docker/attach.h"
#include "docker/container.h"
#include "docker/engine.h"

/* Between the files of this driver. */
struct docker {
    const struct docker_config *config;
    struct engine *engine;
    struct attacher *attacher;
    struct buf agent, readable_agent; /* tars; constant */
    struct box_observer observer;     /* set before the watch starts */
    pthread_t watcher;
    bool has_watcher;

    pthread_mutex_t lock;    /* all below */
    struct pool *pulls;      /* NULL: stopped */
    struct pending *pending; /* boxes whose image is being fetched */
    struct json *facts;      /* what the engine said of itself; NULL: nothing yet */
    bool has_network;        /* ours is known to be there */
    bool stopping;
};

/* --- make.c: a container, with the agent in it, started */

/* What is made of a spec, and kept while the image is fetched. */
struct making {
    char *image;
    const struct buf *agent;
    struct json *body;
    bool own_network;
    struct box_info info; /* of a box that is just starting, without a `box_uid` */
};
int making_prepare(struct docker *docker, const struct box_spec *spec, struct making *ret_making,
                   struct err *err) must_check;
void making_done(struct making *making);
/* RET_INFO as for create(). Nothing is left behind on failure. RET_MISSING: it failed because the
 * image is not there. */
int making_run(struct docker *docker, const struct making *making, struct box_info *ret_info,
               bool *ret_missing, struct err *err) must_check;
int remove_container(struct docker *docker, const char *container, struct err *err) must_check;

/* For tidying up: what cannot be removed now the sweep finds again. */
void discard_container(struct docker *docker, const char *container);

/* --- find.c: what the engine says of containers */

/* CONTAINER: an id or a name. ERR_BACKEND_NOT_FOUND, also when it does not carry our labels. */
int find_box(struct docker *docker, const char *container, struct box_info *ret_info,
             struct err *err) must_check;
/* Those of this instance, or those of others too; malloc'd. */
int find_boxes(struct docker *docker, bool foreign, struct box_info **ret_infos, size_t *ret_count,
               struct err *err) must_check;
/* The `filters` of a request for what is ours, ready for a query. KIND: "container" for events. */
char *find_filters(const struct docker *docker, bool foreign, const char *kind);

/* --- pending.c: boxes whose image is being fetched */

/* Takes MAKING; RET_INFO says that it is starting. Success, too, when it is there already. */
int pending_add(struct docker *docker, struct making *making, struct box_info *ret_info,
                struct err *err) must_check;
/* Of any life of ID when BOX_UID is "". False when there is none. */
bool pending_cancel(struct docker *docker, const char *id);
bool pending_find(struct docker *docker, const char *id, const char *uid,
                  struct box_info *ret_info);
/* Adds them to a list. */
void pending_list(struct docker *docker, struct box_info **infos, size_t *count);
void pending_stop(struct docker *docker);

/* --- watch.c: the engine's events, and all that there is after each gap */
int docker_watch_start(struct docker *docker, struct err *err) must_check;
void docker_watch_stop(struct docker *docker); /* after engine_stop() */
