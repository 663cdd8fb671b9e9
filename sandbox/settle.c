/* What is owed because of a sandbox's state: its record written, its box made or removed. One job
 * of a sandbox at a time; what fails is tried again later, by a timer of the loop. */
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

#define RETRY_FIRST_MS 1000
#define RETRY_LAST_MS 60000

enum duty { DUTY_NONE, DUTY_SAVE, DUTY_EVENTS, DUTY_MAKE, DUTY_REMOVE };

/* RET_WAIT_MS: with DUTY_NONE, when to look again; -1: not needed. */
static enum duty next_duty_locked(const struct sandbox *sandbox, int64_t *ret_wait_ms)
{
    int64_t now = clock_now_ms(), later = INT64_MAX;
    *ret_wait_ms = -1;
    if (sandbox->dirty && now >= sandbox->save_after_ms) {
        return DUTY_SAVE;
    }
    if (sandbox->history && !sandbox->dirty) { /* events follow the record that they are about */
        return DUTY_EVENTS;
    }
    if (sandbox->all->stopping) { /* the next server goes on */
        return DUTY_NONE;
    }
    if (sandbox->making) {
        return DUTY_MAKE;
    }
    if (sandbox->removing && now >= sandbox->remove_after_ms) {
        return DUTY_REMOVE;
    }
    if (sandbox->dirty) {
        later = sandbox->save_after_ms;
    }
    if (sandbox->removing && sandbox->remove_after_ms < later) {
        later = sandbox->remove_after_ms;
    }
    *ret_wait_ms = later == INT64_MAX ? -1 : later - now;
    return DUTY_NONE;
}

/* --- the duties ------------------------------------------------------------------------------ */

static int write_record(struct sandbox *sandbox, bool *ret_tombstone, struct err *err)
{
    cleanup(sandbox_row_done) struct sandbox_row row;
    record_row(sandbox, &row);
    *ret_tombstone = strcmp(row.state, sandbox_state_name(SANDBOX_GONE)) == 0;
    if (*ret_tombstone) {
        record_mask(sandbox, &row);
    }
    if (record_seal(sandbox, &row, err) < 0 ||
        store_put_sandbox(sandbox->all->store, &row, true, err) < 0) {
        return -1;
    }
    /* The host of one that this server served still says why it is gone. */
    return *ret_tombstone && !sandbox->all->config.proxied
               ? store_delete_preview(sandbox->all->store, row.uid, 0, err)
               : 0;
}

static void save(struct sandbox *sandbox)
{
    struct err err = {0};
    bool tombstone = false;
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->dirty = false;
    sandbox->saving = true;
    pthread_mutex_unlock(&sandbox->all->lock);
    int failed = write_record(sandbox, &tombstone, &err);
    if (failed) {
        log_event(LOG_LEVEL_ERROR, "record not written", "id", sandbox->id, "error", err.msg, NULL);
    } else if (tombstone) {
        sandboxes_remove(sandbox->all, sandbox); /* first: who hears of it may take the id */
    }
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->saving = false;
    sandbox->save_error = err;
    if (failed) {
        sandbox->dirty = true;
        sandbox->save_after_ms = clock_now_ms() + RETRY_FIRST_MS;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    event_fire(&sandbox->changed);
}

/* False: it is not wanted any more. */
static bool may_make(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool wanted = sandbox->state == SANDBOX_CREATING;
    sandbox->making = wanted;
    pthread_mutex_unlock(&sandbox->all->lock);
    return wanted;
}

/* False: the server stops, and the failure is of that. */
static bool made(struct sandbox *sandbox, const struct box_info *info)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool counts = info || !sandbox->all->stopping;
    sandbox->making = !counts;
    if (info && !*sandbox->box.uid) { /* else the watch was quicker and knows more */
        sandbox->box = *info;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return counts;
}

static void make(struct sandbox *sandbox)
{
    struct box_spec spec;
    struct box_info info;
    struct err err = {0};
    const struct driver *driver = sandbox->all->driver;
    if (!may_make(sandbox)) {
        return;
    }
    sandbox_box_spec(sandbox, &spec);
    int failed = driver->ops->create(driver->self, &spec, &info, &err);
    if (failed) {
        tally_one(sandbox->all->tally.driver_errors, err.code);
    }
    if (!made(sandbox, failed ? NULL : &info)) {
        return;
    }
    if (!failed) {
        sandbox_event(sandbox, "created", NULL);
        sandbox_attach(sandbox);
    } else if (err.code == ERR_ALREADY_EXISTS) {
        sandbox_give_up(sandbox, err.code, err.msg); /* that box is not ours to remove */
    } else {
        sandbox_fail(sandbox, err.code, err.msg);
    }
}

static int64_t retry_pause(size_t tries)
{
    int64_t pause = RETRY_FIRST_MS;
    for (size_t i = 0; i < tries && pause < RETRY_LAST_MS; i++) {
        pause *= 2;
    }
    return pause < RETRY_LAST_MS ? pause : RETRY_LAST_MS;
}

/* WHY NULL: it has been asked to go, and is still there. */
static void remove_later(struct sandbox *sandbox, const struct err *why)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->remove_error.code = ERR_NONE;
    if (why) {
        sandbox->remove_error = *why;
    }
    sandbox->remove_after_ms = clock_now_ms() + retry_pause(sandbox->remove_tries++);
    pthread_mutex_unlock(&sandbox->all->lock);
    event_fire(&sandbox->changed);
}

static void box_uid_of(struct sandbox *sandbox, char ret_uid[UID_LEN])
{
    pthread_mutex_lock(&sandbox->all->lock);
    memcpy(ret_uid, sandbox->box.box_uid, UID_LEN);
    pthread_mutex_unlock(&sandbox->all->lock);
}

/* True when the substrate says that it is not there (any more, or another is). */
static bool is_gone(struct sandbox *sandbox, const char *box_uid, struct box_info *ret_info,
                    struct err *err)
{
    const struct driver *driver = sandbox->all->driver;
    if (driver->ops->inspect(driver->self, sandbox->id, ret_info, err) < 0) {
        return err->code == ERR_BACKEND_NOT_FOUND;
    }
    return *box_uid ? strcmp(ret_info->box_uid, box_uid) != 0
                    : strcmp(ret_info->uid, sandbox->uid) != 0;
}

static void remove_box(struct sandbox *sandbox)
{
    char box_uid[UID_LEN];
    struct box_info info;
    struct err err = {0};
    const struct driver *driver = sandbox->all->driver;
    box_uid_of(sandbox, box_uid);
    if (driver->ops->destroy(driver->self, sandbox->id, box_uid, &err) < 0) {
        tally_one(sandbox->all->tally.driver_errors, err.code);
        log_event(LOG_LEVEL_WARN, "box not removed yet", "id", sandbox->id, "error", err.msg, NULL);
        remove_later(sandbox, &err);
        return;
    }
    if (is_gone(sandbox, box_uid, &info, &err)) {
        sandbox_removed(sandbox);
    } else {
        remove_later(sandbox, NULL); /* the watch will tell, or the next try */
    }
}

/* --- the job --------------------------------------------------------------------------------- */

static void fired(struct timer *timer)
{
    struct sandbox *sandbox = container_of(timer, struct sandbox, settle_timer);
    sandbox->settle_armed = false;
    sandbox_settle(sandbox);
    sandbox_unref(sandbox);
}

static void arm(struct sandbox *sandbox, void *arg)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool stopping = sandbox->all->stopping;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (stopping) {
        return;
    }
    if (!sandbox->settle_armed) {
        sandbox->settle_armed = true;
        sandbox_ref(sandbox);
    }
    sandbox->settle_timer.fire = fired;
    timer_start(sandbox->all->loop, &sandbox->settle_timer, (int64_t)(intptr_t)arg);
}

static bool asks_substrate(enum duty duty)
{
    return duty == DUTY_MAKE || duty == DUTY_REMOVE;
}

static void settle_work(void *arg);
static void settle_slow(void *arg);

/* Takes the job's reference, hands it to the next, or ends the job. */
static void go_on(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    int64_t wait_ms = -1;
    pthread_mutex_lock(&all->lock);
    enum duty duty = next_duty_locked(sandbox, &wait_ms);
    sandbox->settling = duty != DUTY_NONE;
    pthread_mutex_unlock(&all->lock);
    if (asks_substrate(duty)) {
        sandboxes_ask(all, settle_slow, sandbox);
    } else if (duty != DUTY_NONE) {
        sandboxes_work(all, settle_work, sandbox);
    } else {
        if (wait_ms >= 0) {
            sandbox_on_loop(sandbox, arm, (void *)(intptr_t)wait_ms);
        }
        sandbox_unref(sandbox);
    }
}

/* SLOW: this worker is one of those that may ask the substrate. */
static void settle(struct sandbox *sandbox, bool slow)
{
    int64_t wait_ms = -1;
    pthread_mutex_lock(&sandbox->all->lock);
    enum duty duty = next_duty_locked(sandbox, &wait_ms);
    pthread_mutex_unlock(&sandbox->all->lock);
    if (asks_substrate(duty) && !slow) {
        duty = DUTY_NONE; /* it has changed meanwhile: go_on() sends it there */
    }
    switch (duty) {
    case DUTY_SAVE:
        save(sandbox);
        break;
    case DUTY_EVENTS:
        sandbox_write_events(sandbox);
        break;
    case DUTY_MAKE:
        make(sandbox);
        break;
    case DUTY_REMOVE:
        remove_box(sandbox);
        break;
    case DUTY_NONE:
        break;
    }
    go_on(sandbox);
}

static void settle_work(void *arg)
{
    settle(arg, false);
}

static void settle_slow(void *arg)
{
    settle(arg, true);
}

void sandbox_settle(struct sandbox *sandbox)
{
    int64_t wait_ms = -1;
    pthread_mutex_lock(&sandbox->all->lock);
    bool begin = !sandbox->settling && next_duty_locked(sandbox, &wait_ms) != DUTY_NONE;
    sandbox->settling = sandbox->settling || begin;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (begin) {
        go_on(sandbox_ref(sandbox));
    }
}

void sandbox_save(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->dirty = true;
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_settle(sandbox);
}

void sandbox_retry(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->remove_after_ms = sandbox->save_after_ms = 0;
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_settle(sandbox);
}

/* --- asking the substrate -------------------------------------------------------------------- */

static void verify_job(void *arg)
{
    struct sandbox *sandbox = arg;
    char box_uid[UID_LEN];
    struct box_info info;
    struct err err = {0};
    pthread_mutex_lock(&sandbox->all->lock);
    bool made_before = !sandbox->making; /* else it may come to be while we ask */
    pthread_mutex_unlock(&sandbox->all->lock);
    box_uid_of(sandbox, box_uid);
    if (!made_before) {
        sandbox_unref(sandbox);
        return;
    }
    if (is_gone(sandbox, box_uid, &info, &err)) {
        sandbox_box_gone(sandbox);
    } else if (err.code == ERR_NONE) {
        sandboxes_observe(sandbox->all, &info);
    } else {
        log_event(LOG_LEVEL_DEBUG, "box not inspected", "id", sandbox->id, "error", err.msg, NULL);
    }
    sandbox_unref(sandbox);
}

void sandbox_verify(struct sandbox *sandbox)
{
    sandboxes_ask(sandbox->all, verify_job, sandbox_ref(sandbox));
}
