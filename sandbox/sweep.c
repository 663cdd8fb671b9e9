/* The sweep: what has expired ends, what is owed is tried again, what has no right to live goes,
 * and old tombstones are forgotten. It runs every `reap_every_ms`, after each list of the substrate
 * and each outage, and on POST /v1/admin/reap. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/exec.h"
#include "sandbox/lifecycle.h"
#include "sandbox/previews.h"
#include "sandbox/tunnel.h"

#define PURGE_BATCH 200
#define FAILED_MAX 1000 /* records in memory; the oldest become tombstones */

struct sweeper {
    struct sandboxes *all;
    pthread_mutex_t sweeping; /* one sweep at a time; held over SQL and the driver's calls */
    bool queued;              /* under all->lock */
    struct timer timer;       /* the loop's */
};

struct sweep {
    struct sandboxes *all;
    bool dry_run;
    struct json *items; /* of the report */
};

static void report(struct sweep *sweep, const char *kind, const char *name, const char *id,
                   const char *reason)
{
    struct json *item = json_new_object();
    json_set_text(item, "kind", kind);
    json_set_text(item, "name", name);
    json_set_text(item, "id", id);
    json_set_text(item, "reason", reason);
    json_add(sweep->items, item);
    if (!sweep->dry_run) {
        atomic_fetch_add(&sweep->all->tally.reaped, 1);
    }
    log_event(LOG_LEVEL_INFO, sweep->dry_run ? "would reap" : "reaping", "kind", kind, "name", name,
              "id", id, "reason", reason, NULL);
}

/* --- sandboxes in memory --------------------------------------------------------------------- */

static void sweep_sandbox(struct sweep *sweep, struct sandbox *sandbox)
{
    enum err_code expired = sandbox_expire(sandbox, sweep->dry_run);
    if (expired) {
        report(sweep, "sandbox", sandbox->id, sandbox->id, err_code_name(expired));
    }
    if (!sweep->dry_run) {
        sandbox_settle(sandbox); /* what failed before */
    }
}

struct failed {
    struct sandbox *sandbox;
    int64_t ended;
};

static int by_end(const void *a, const void *b)
{
    const struct failed *x = a, *y = b;
    return x->ended < y->ended ? -1 : x->ended > y->ended;
}

static size_t failed_of(struct sandboxes *all, struct sandbox **sandboxes, size_t count,
                        struct failed *ret_failed)
{
    size_t found = 0;
    pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < count; i++) {
        if (sandboxes[i]->state == SANDBOX_FAILED && !sandboxes[i]->removing) {
            ret_failed[found++] = (struct failed){sandboxes[i], sandboxes[i]->ended};
        }
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

/* A client that fails to create all day must not fill the memory with it. */
static void bury_oldest(struct sandboxes *all, struct sandbox **sandboxes, size_t count)
{
    if (count <= FAILED_MAX) {
        return;
    }
    cleanup_free struct failed *failed = xcalloc(count, sizeof(*failed));
    size_t found = failed_of(all, sandboxes, count, failed);
    qsort(failed, found, sizeof(*failed), by_end);
    for (size_t i = 0; i + FAILED_MAX < found; i++) {
        (void)sandbox_bury(failed[i].sandbox); /* false: it has just been deleted */
    }
}

static void sweep_memory(struct sweep *sweep)
{
    size_t count = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(sweep->all, &count);
    for (size_t i = 0; i < count; i++) {
        sweep_sandbox(sweep, sandboxes[i]);
    }
    if (!sweep->dry_run) {
        bury_oldest(sweep->all, sandboxes, count);
    }
    for (size_t i = 0; i < count; i++) {
        sandbox_unref(sandboxes[i]);
    }
    free(sandboxes);
}

/* --- the substrate --------------------------------------------------------------------------- */

static void sweep_box(struct sweep *sweep, const struct box_info *box)
{
    const struct driver *driver = sweep->all->driver;
    struct err err = {0};
    if (box->foreign || !*box->box_uid ||
        sandboxes_adopt(sweep->all, box, sweep->dry_run) != ADOPTION_ORPHAN) {
        return;
    }
    report(sweep, "box", box->name, box->id, "orphan");
    if (!sweep->dry_run && driver->ops->destroy(driver->self, box->id, box->box_uid, &err) < 0) {
        tally_one(sweep->all->tally.driver_errors, err.code);
        log_event(LOG_LEVEL_WARN, "orphan not removed yet", "name", box->name, "error", err.msg,
                  NULL);
    }
}

static int sweep_boxes(struct sweep *sweep, struct err *err)
{
    const struct driver *driver = sweep->all->driver;
    cleanup_free struct box_info *boxes = NULL;
    size_t count = 0;
    if (driver->ops->list(driver->self, false, &boxes, &count, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        sweep_box(sweep, &boxes[i]);
    }
    if (!sweep->dry_run) {
        sandboxes_compare(sweep->all, boxes, count);
    }
    return 0;
}

static void restore_previews(struct sandboxes *all, const struct side_object *objects, size_t count)
{
    size_t have = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(all, &have);
    for (size_t i = 0; i < have; i++) {
        struct sandbox *sandbox = sandboxes[i];
        struct err err = {0};
        pthread_mutex_lock(&all->lock);
        bool unknown = sandbox->state == SANDBOX_RUNNING && sandbox->previews_unknown;
        pthread_mutex_unlock(&all->lock);
        if (unknown && previews_restore(sandbox, objects, count, &err) < 0) {
            log_event(LOG_LEVEL_WARN, "previews not restored yet", "id", sandbox->id, "error",
                      err.msg, NULL);
        }
        previews_finish(sandbox);
        sandbox_unref(sandbox);
    }
    free(sandboxes);
}

static bool belongs(struct sandboxes *all, const struct side_object *object)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = sandboxes_lookup(all, object->id);
    if (!sandbox) {
        return false;
    }
    pthread_mutex_lock(&all->lock);
    bool lives = sandbox_state_lives(sandbox->state);
    bool lost = sandbox->state == SANDBOX_FAILED && sandbox->box.state != BOX_GONE;
    bool undecided = lost || sandbox->adopting || sandbox->removing || sandbox->making ||
                     sandbox->previews_unknown || sandbox->publishing;
    bool same = !*object->box_uid || strcmp(object->box_uid, sandbox->box.box_uid) == 0;
    pthread_mutex_unlock(&all->lock);
    return undecided || (lives && same && previews_own(sandbox, object));
}

static int sweep_side_objects(struct sweep *sweep, struct err *err)
{
    const struct driver *driver = sweep->all->driver;
    cleanup_free struct side_object *objects = NULL;
    size_t count = 0;
    if (driver->ops->side_objects(driver->self, &objects, &count, err) < 0) {
        return -1;
    }
    if (!sweep->dry_run) {
        restore_previews(sweep->all, objects, count);
    }
    for (size_t i = 0; i < count; i++) {
        struct err why = {0};
        if (belongs(sweep->all, &objects[i])) {
            continue;
        }
        report(sweep, objects[i].kind, objects[i].name, objects[i].id, "orphan");
        if (!sweep->dry_run &&
            driver->ops->remove_side_object(driver->self, &objects[i], &why) < 0) {
            tally_one(sweep->all->tally.driver_errors, why.code);
            log_event(LOG_LEVEL_WARN, "orphan not removed yet", "name", objects[i].name, "error",
                      why.msg, NULL);
        }
    }
    return 0;
}

/* --- tombstones ------------------------------------------------------------------------------ */

static int sweep_tombstones(struct sweep *sweep, struct err *err)
{
    int64_t before = clock_wall_ms() - sweep->all->config.tombstone_ms;
    size_t count = 0;
    do {
        char **uids = NULL;
        if (store_purge(sweep->all->store, before, PURGE_BATCH, &uids, &count, err) < 0) {
            return -1;
        }
        for (size_t i = 0; i < count; i++) {
            execs_forget(sweep->all, uids[i]);
            free(uids[i]);
        }
        free(uids);
    } while (count == PURGE_BATCH);
    return 0;
}

static int sweep_all(struct sweep *sweep, struct err *err)
{
    sweep_memory(sweep);
    pthread_mutex_lock(&sweep->all->lock);
    bool listed = sweep->all->lists > 0;
    pthread_mutex_unlock(&sweep->all->lock);
    if (listed && (sweep_boxes(sweep, err) < 0 || sweep_side_objects(sweep, err) < 0)) {
        return -1;
    }
    return sweep->dry_run ? 0 : sweep_tombstones(sweep, err);
}

int sandboxes_reap(struct sandboxes *all, bool dry_run, struct json **ret_json, struct err *err)
{
    struct json *json = json_new_object();
    json_set_bool(json, "dry_run", dry_run);
    struct sweep sweep = {.all = all, .dry_run = dry_run, .items = json_set_array(json, "items")};
    pthread_mutex_lock(&all->sweeper->sweeping);
    int result = sweep_all(&sweep, err);
    pthread_mutex_unlock(&all->sweeper->sweeping);
    if (result < 0) {
        json_free(json);
        return -1;
    }
    *ret_json = json;
    return 0;
}

/* --- its turns ------------------------------------------------------------------------------- */

static void sweep_job(void *arg)
{
    struct sandboxes *all = arg;
    struct err err = {0};
    cleanup_json struct json *json = NULL;
    pthread_mutex_lock(&all->lock);
    all->sweeper->queued = false;
    bool stopping = all->stopping;
    pthread_mutex_unlock(&all->lock);
    if (!stopping && sandboxes_reap(all, false, &json, &err) < 0) {
        tally_one(all->tally.driver_errors, err.code);
        log_event(LOG_LEVEL_WARN, "sweep not finished", "error", err.msg, NULL);
    }
}

void sweeper_wake(struct sandboxes *all)
{
    pthread_mutex_lock(&all->lock);
    bool begin = !all->sweeper->queued && !all->stopping;
    all->sweeper->queued = all->sweeper->queued || begin;
    pthread_mutex_unlock(&all->lock);
    if (begin) {
        sandboxes_ask(all, sweep_job, all);
    }
}

static void turn(struct timer *timer)
{
    struct sweeper *sweeper = container_of(timer, struct sweeper, timer);
    sweeper_wake(sweeper->all);
    tunnels_sweep(sweeper->all);
    timer_start(sweeper->all->loop, timer, sweeper->all->config.reap_every_ms);
}

static void start_now(void *arg)
{
    struct sweeper *sweeper = arg;
    sweeper->timer.fire = turn;
    timer_start(sweeper->all->loop, &sweeper->timer, sweeper->all->config.reap_every_ms);
}

static void stop_now(void *arg)
{
    struct sweeper *sweeper = arg;
    timer_stop(&sweeper->timer);
}

void sweeper_new(struct sandboxes *all)
{
    all->sweeper = xcalloc(1, sizeof(*all->sweeper));
    all->sweeper->all = all;
    pthread_mutex_init(&all->sweeper->sweeping, NULL);
}

void sweeper_start(struct sandboxes *all)
{
    loop_post(all->loop, start_now, all->sweeper);
}

void sweeper_stop(struct sandboxes *all)
{
    loop_post(all->loop, stop_now, all->sweeper);
}

void sweeper_free(struct sandboxes *all)
{
    pthread_mutex_destroy(&all->sweeper->sweeping);
    free(all->sweeper);
    all->sweeper = NULL;
}
