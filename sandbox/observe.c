/* What the substrate says of boxes, matched with the records; boxes without one are adopted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

#define ADOPT_PATIENCE_MS 60000

/* --- a box of a sandbox in memory ------------------------------------------------------------ */

static void box_failed(struct sandbox *sandbox, const struct box_info *info)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool lives = sandbox_state_lives(sandbox->state); /* else it may be us who remove the box */
    bool running = sandbox->state == SANDBOX_RUNNING;
    bool lost = sandbox->state == SANDBOX_FAILED && sandbox->reason == ERR_LOST;
    pthread_mutex_unlock(&sandbox->all->lock);
    bool by_itself = info->ended_well || info->reason == ERR_CONTAINER_EXITED;
    if (lost) {
        sandbox_delete(sandbox, ERR_LOST); /* it was kept for as long as it would live */
    } else if (!lives) {
        return;
    } else if (info->reason == ERR_TTL || (by_itself && sandbox_due(sandbox))) {
        sandbox_delete(sandbox, ERR_TTL);
    } else if (info->reason == ERR_MAX_LIFETIME || info->reason == ERR_REMOVED_EXTERNALLY) {
        sandbox_delete(sandbox, info->reason);
    } else if (info->ended_well && running) {
        sandbox_delete(sandbox, ERR_REMOVED_EXTERNALLY); /* somebody told it to end */
    } else {
        sandbox_fail(sandbox, info->reason ? info->reason : ERR_CONTAINER_EXITED, info->message);
    }
}

static void note_waiting_locked(struct sandbox *sandbox, const struct box_info *info)
{
    bool for_node = info->waiting && info->reason == ERR_UNSCHEDULABLE;
    if (!for_node) {
        sandbox->waiting_since_ms = 0;
    } else if (!sandbox->waiting_since_ms) {
        sandbox->waiting_since_ms = clock_now_ms();
    }
}

static void observe(struct sandbox *sandbox, const struct box_info *info)
{
    if (info->state == BOX_GONE) {
        sandbox_box_gone(sandbox);
        return;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    bool moved = strcmp(sandbox->box.node, info->node) != 0 ||
                 strcmp(sandbox->box.container_id, info->container_id) != 0 ||
                 strcmp(sandbox->box.box_uid, info->box_uid) != 0;
    sandbox->box = *info;
    sandbox->dirty = sandbox->dirty || (moved && sandbox->state != SANDBOX_GONE);
    note_waiting_locked(sandbox, info);
    pthread_mutex_unlock(&sandbox->all->lock);
    if (info->state == BOX_FAILED) {
        box_failed(sandbox, info);
    } else {
        sandbox_attach(sandbox);
    }
    if (moved) {
        sandbox_settle(sandbox);
    }
    event_fire(&sandbox->changed);
}

/* --- adoption -------------------------------------------------------------------------------- */

static struct sandbox *new_from_box(struct sandboxes *all, const struct box_info *info)
{
    struct sandbox *sandbox = sandbox_new(all, info->id, info->uid, info->owner);
    const struct policy *policy = &all->config.policy;
    int64_t age = clock_wall_ms() - info->created_ms;
    sandbox->box = *info;
    sandbox->adopting = true;
    sandbox->previews_unknown = true;
    sandbox->created = info->created_ms;
    sandbox->since = info->created_ms;
    sandbox->ready_deadline_ms = clock_now_ms() + ADOPT_PATIENCE_MS;
    sandbox->lifetime_ms = clock_now_ms() + policy->max_lifetime_ms - (age > 0 ? age : 0);
    if (sandbox->lifetime_ms < sandbox->ready_deadline_ms) {
        sandbox->lifetime_ms = sandbox->ready_deadline_ms; /* its agent knows its true age */
    }
    sandbox->spec.id = xstrdup(info->id);
    sandbox->spec.image = xstrdup(info->image);
    sandbox->spec.workdir = xstrdup(*info->workdir ? info->workdir : policy->workdir);
    sandbox->public_spec = xstrdup("{}");
    snprintf(sandbox->digest, sizeof(sandbox->digest), "%s", info->digest);
    return sandbox;
}

static bool insert_new(struct sandboxes *all, struct sandbox *sandbox)
{
    pthread_mutex_lock(&all->lock);
    bool free_id = !all->stopping && !sandboxes_find_locked(all, sandbox->id);
    if (free_id) {
        sandboxes_insert_locked(all, sandbox);
    }
    pthread_mutex_unlock(&all->lock);
    return free_id;
}

/* The record comes first: what is found in it, and what its agent has run, hangs on that. */
static enum adoption begin_adoption(struct sandboxes *all, const struct box_info *info)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = new_from_box(all, info);
    cleanup(sandbox_row_done) struct sandbox_row row = {.uid = NULL};
    struct err err = {0};
    if (!insert_new(all, sandbox)) {
        return ADOPTION_LATER;
    }
    record_row(sandbox, &row);
    if (store_put_sandbox(all->store, &row, false, &err) < 0) {
        log_event(LOG_LEVEL_ERROR, "record not written", "id", info->id, "error", err.msg, NULL);
        sandboxes_remove(all, sandbox);
        return ADOPTION_LATER;
    }
    log_event(LOG_LEVEL_INFO, "sandbox found in the substrate", "id", info->id, NULL);
    observe(sandbox, info);
    return ADOPTION_BEGUN;
}

enum adoption sandboxes_adopt(struct sandboxes *all, const struct box_info *info, bool dry_run)
{
    if (!*info->uid || !*info->owner) {
        return ADOPTION_ORPHAN; /* our labels without our annotations: nobody can know it */
    }
    cleanup(sandbox_unrefp) struct sandbox *known = sandboxes_lookup(all, info->id);
    if (known) { /* perhaps an earlier life of that id */
        return strcmp(known->uid, info->uid) == 0 ? ADOPTION_KNOWN : ADOPTION_ORPHAN;
    }
    struct sandbox_row row;
    struct err err = {0};
    if (store_get_sandbox_uid(all->store, info->uid, &row, &err) == 0) {
        bool dead = strcmp(row.state, sandbox_state_name(SANDBOX_GONE)) == 0;
        sandbox_row_done(&row);
        return dead ? ADOPTION_ORPHAN : ADOPTION_LATER; /* just being loaded or forgotten */
    }
    if (err.code != ERR_NOT_FOUND) {
        return ADOPTION_LATER;
    }
    if (info->state == BOX_FAILED || info->state == BOX_GONE) {
        return ADOPTION_ORPHAN;
    }
    return dry_run ? ADOPTION_BEGUN : begin_adoption(all, info);
}

struct unknown_box {
    struct sandboxes *all;
    struct box_info info;
};

static void unknown_job(void *arg)
{
    struct unknown_box *unknown = arg;
    const struct driver *driver = unknown->all->driver;
    const struct box_info *info = &unknown->info;
    struct err err = {0};
    if (sandboxes_adopt(unknown->all, info, false) == ADOPTION_ORPHAN && *info->box_uid &&
        driver->ops->destroy(driver->self, info->id, info->box_uid, &err) < 0) {
        log_event(LOG_LEVEL_WARN, "orphan not removed yet", "id", info->id, "error", err.msg, NULL);
    }
    free(unknown);
}

void sandboxes_observe(struct sandboxes *all, const struct box_info *info)
{
    if (info->foreign) {
        return;
    }
    cleanup(sandbox_unrefp) struct sandbox *sandbox = sandboxes_lookup(all, info->id);
    if (sandbox && strcmp(sandbox->uid, info->uid) == 0) {
        observe(sandbox, info);
    } else if (info->state != BOX_GONE) {
        struct unknown_box *unknown = xmalloc(sizeof(*unknown));
        *unknown = (struct unknown_box){.all = all, .info = *info};
        sandboxes_ask(all, unknown_job, unknown);
    }
}

/* --- whole lists ----------------------------------------------------------------------------- */

static void mark(struct sandboxes *all, const struct box_info *info, uint64_t list)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandboxes_find_locked(all, info->id);
    if (sandbox && strcmp(sandbox->uid, info->uid) == 0) {
        sandbox->listed = list;
    }
    pthread_mutex_unlock(&all->lock);
}

static bool is_missing(struct sandbox *sandbox, uint64_t list)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool missing = sandbox->listed < list && sandbox->box.state != BOX_GONE && !sandbox->making &&
                   !sandbox->removing;
    pthread_mutex_unlock(&sandbox->all->lock);
    return missing;
}

void sandboxes_compare(struct sandboxes *all, const struct box_info *infos, size_t count)
{
    pthread_mutex_lock(&all->lock);
    uint64_t list = ++all->lists;
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; i < count; i++) {
        mark(all, &infos[i], list);
    }
    size_t have = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(all, &have);
    for (size_t i = 0; i < have; i++) {
        if (is_missing(sandboxes[i], list)) {
            sandbox_verify(sandboxes[i]); /* gone, or made after the list was taken */
        }
        sandbox_unref(sandboxes[i]);
    }
    free(sandboxes);
}

/* --- the driver's callbacks ------------------------------------------------------------------ */

static void box_changed(void *arg, const struct box_info *info)
{
    sandboxes_observe(arg, info);
}

/* Adopts at once (that asks only the store), so that whoever asks after the first list finds all.
 */
static void boxes_listed(void *arg, const struct box_info *infos, size_t count)
{
    struct sandboxes *all = arg;
    for (size_t i = 0; i < count; i++) {
        if (infos[i].foreign || sandboxes_adopt(all, &infos[i], false) != ADOPTION_BEGUN) {
            sandboxes_observe(all, &infos[i]);
        }
    }
    sandboxes_compare(all, infos, count);
    sweeper_wake(all);
}

static void retry_all(struct sandboxes *all)
{
    size_t count = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(all, &count);
    for (size_t i = 0; i < count; i++) {
        sandbox_retry(sandboxes[i]);
        sandbox_unref(sandboxes[i]);
    }
    free(sandboxes);
}

static void substrate_health(void *arg, const struct err *why)
{
    struct sandboxes *all = arg;
    pthread_mutex_lock(&all->lock);
    bool was_out = all->outage.code != ERR_NONE;
    if (why) {
        all->outage = *why;
    } else {
        all->outage.code = ERR_NONE;
    }
    pthread_mutex_unlock(&all->lock);
    if (why && !was_out) {
        log_event(LOG_LEVEL_WARN, "the substrate does not answer", "error", why->msg, NULL);
    } else if (!why && was_out) {
        log_event(LOG_LEVEL_INFO, "the substrate answers again", NULL);
        retry_all(all);
        sweeper_wake(all);
    }
}

const struct box_observer sandboxes_observer = {
    .changed = box_changed,
    .listed = boxes_listed,
    .health = substrate_health,
};
