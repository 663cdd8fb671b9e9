/* A box whose image has to be fetched first: its create returns at once, the pull is the work of
 * threads of its own, and the observer hears how it goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "docker/driver_impl.h"
#include "docker/pull.h"

#define PULLS 4 /* at the same time */
#define PENDING_MAX 4096

struct pending {
    struct pending *next;
    struct docker *docker;
    struct making making; /* `info` under the lock */
    _Atomic bool cancelled;
};

static struct pending *find_locked(struct docker *docker, const char *id, const char *uid)
{
    struct pending *pending = docker->pending;

    while (pending && (pending->cancelled || strcmp(pending->making.info.id, id) != 0 ||
                       (uid && strcmp(pending->making.info.uid, uid) != 0)))
        pending = pending->next;
    return pending;
}

static void forget(struct pending *pending)
{
    struct docker *docker = pending->docker;

    pthread_mutex_lock(&docker->lock);
    struct pending **at = &docker->pending;
    while (*at != pending)
        at = &(*at)->next;
    *at = pending->next;
    pthread_mutex_unlock(&docker->lock);
}

static void pending_free(struct pending *pending)
{
    making_done(&pending->making);
    free(pending);
}

/* --- the work -----------------------------------------------------------------------------------
 */

static void report(struct docker *docker, const struct box_info *info)
{
    pthread_mutex_lock(&docker->lock);
    bool tell = !docker->stopping && docker->observer.changed;
    pthread_mutex_unlock(&docker->lock);
    if (tell)
        docker->observer.changed(docker->observer.arg, info);
}

static void told(void *arg, const char *text)
{
    struct pending *pending = arg;
    struct box_info info;

    pthread_mutex_lock(&pending->docker->lock);
    struct box_info *its = &pending->making.info;
    its->waiting = true;
    (void)snprintf(its->message, sizeof(its->message), "%s", text);
    info = *its;
    pthread_mutex_unlock(&pending->docker->lock);
    if (!pending->cancelled)
        report(pending->docker, &info);
}

static int make(struct pending *pending, struct box_info *ret_info, struct err *err)
{
    struct docker *docker = pending->docker;
    struct pull_progress progress = {
        .told = told, .arg = pending, .cancelled = &pending->cancelled};
    bool missing = false;

    if (pull_image(docker->engine, pending->making.image, &progress, err) < 0)
        return -1;
    if (pending->cancelled)
        return err_set(err, ERR_CANCELLED, "it is not wanted any more");
    return making_run(docker, &pending->making, ret_info, &missing, err);
}

/* What was made although it is not wanted any more goes again. */
static void run(void *arg)
{
    struct pending *pending = arg;
    struct docker *docker = pending->docker;
    struct box_info info;
    struct err why = {.code = ERR_NONE};
    bool made = make(pending, &info, &why) == 0;

    forget(pending);
    if (made && pending->cancelled) {
        discard_container(docker, info.container_id);
    } else if (made) {
        report(docker, &info);
    } else if (!pending->cancelled && why.code != ERR_STOPPING) {
        info = pending->making.info;
        info.state = BOX_FAILED;
        info.waiting = false;
        info.reason = why.code;
        (void)snprintf(info.message, sizeof(info.message), "%.*s", BOX_MESSAGE_LEN - 1, why.msg);
        report(docker, &info);
    }
    pending_free(pending);
}

/* ------------------------------------------------------------------------------------------------
 */

static bool submit_locked(struct docker *docker, struct pending *pending)
{
    if (docker->stopping)
        return false;
    if (!docker->pulls)
        docker->pulls = pool_new("docker-pull", PULLS, PENDING_MAX);
    if (!docker->pulls || !pool_submit(docker->pulls, run, pending))
        return false;
    pending->next = docker->pending;
    docker->pending = pending;
    return true;
}

int pending_add(struct docker *docker, struct making *making, struct box_info *ret_info,
                struct err *err)
{
    struct pending *pending = xcalloc(1, sizeof(*pending));

    pending->docker = docker;
    pending->making = *making;
    *making = (struct making){.image = NULL};
    pending->making.info.waiting = true;
    (void)snprintf(pending->making.info.message, sizeof(pending->making.info.message),
                   "pulling the image");
    pthread_mutex_lock(&docker->lock);
    const struct pending *same =
        find_locked(docker, pending->making.info.id, pending->making.info.uid);
    *ret_info = same ? same->making.info : pending->making.info;
    bool taken = !same && submit_locked(docker, pending);
    bool stopping = docker->stopping;
    pthread_mutex_unlock(&docker->lock);
    if (taken)
        return 0;
    pending_free(pending);
    if (same)
        return 0;
    return err_set(err, stopping ? ERR_STOPPING : ERR_BUSY, "no more images can be pulled now");
}

bool pending_cancel(struct docker *docker, const char *id)
{
    pthread_mutex_lock(&docker->lock);
    struct pending *pending = find_locked(docker, id, NULL);
    if (pending)
        pending->cancelled = true;
    pthread_mutex_unlock(&docker->lock);
    return pending != NULL;
}

bool pending_find(struct docker *docker, const char *id, const char *uid, struct box_info *ret_info)
{
    pthread_mutex_lock(&docker->lock);
    const struct pending *pending = find_locked(docker, id, uid);
    if (pending)
        *ret_info = pending->making.info;
    pthread_mutex_unlock(&docker->lock);
    return pending != NULL;
}

void pending_list(struct docker *docker, struct box_info **infos, size_t *count)
{
    size_t more = 0;

    pthread_mutex_lock(&docker->lock);
    for (const struct pending *at = docker->pending; at; at = at->next)
        more++;
    *infos = xrealloc(*infos, (*count + more + 1) * sizeof(**infos));
    for (const struct pending *at = docker->pending; at; at = at->next) {
        if (!at->cancelled)
            (*infos)[(*count)++] = at->making.info;
    }
    pthread_mutex_unlock(&docker->lock);
}

void pending_stop(struct docker *docker)
{
    pthread_mutex_lock(&docker->lock);
    docker->stopping = true;
    struct pool *pool = TAKE_PTR(docker->pulls);
    pthread_mutex_unlock(&docker->lock);
    if (pool)
        pool_stop(pool);
}
