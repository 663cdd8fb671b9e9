#include "sandbox/lifecycle.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* An agent ends its sandbox by itself, at about that time: the server is the second to look. */
#define DUE_SLACK_MS 1000
#define EXPIRY_SLACK_MS 2000

bool sandbox_state_lives(enum sandbox_state state)
{
    return state == SANDBOX_CREATING || state == SANDBOX_RUNNING;
}

static void set_state_locked(struct sandbox *sandbox, enum sandbox_state state)
{
    sandbox->state = state;
    sandboxes_recount_locked(sandbox);
    sandbox->since = clock_wall_ms();
    sandbox->dirty = true;
    if (!sandbox_state_lives(state) && !sandbox->ended) {
        sandbox->ended = sandbox->since;
    }
}

static void set_removing_locked(struct sandbox *sandbox, bool removing)
{
    sandbox->removing = removing;
    sandboxes_recount_locked(sandbox);
}

static void set_reason_locked(struct sandbox *sandbox, enum err_code reason, const char *message)
{
    sandbox->reason = reason;
    sandbox_mask_locked(sandbox, message ? message : "", sandbox->message,
                        sizeof(sandbox->message));
}

static void tell_state(struct sandbox *sandbox, const char *event)
{
    struct err why = {0};
    sandbox_why(sandbox, &why);
    struct json *detail = json_new_object();
    if (why.code) {
        json_set_text(detail, "reason", err_code_name(why.code));
        json_set_text(detail, "message", why.msg);
    }
    log_event(LOG_LEVEL_INFO, "sandbox state", "id", sandbox->id, "state", event, "reason",
              why.code ? err_code_name(why.code) : "", NULL);
    sandbox_event(sandbox, event, detail);
    event_fire(&sandbox->changed);
    sandbox_settle(sandbox);
}

/* What waits for this sandbox learns that it ended; the stream is closed. */
static void tell_end(struct sandbox *sandbox)
{
    struct err why;
    pthread_mutex_lock(&sandbox->all->lock);
    (void)sandbox_dead_error_locked(sandbox, &why);
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_detach(sandbox, &why);
}

int sandbox_dead_error_locked(const struct sandbox *sandbox, struct err *err)
{
    const char *reason = sandbox->reason ? err_code_name(sandbox->reason) : "unknown";
    return err_set(err, ERR_GONE, "sandbox '%s' is %s: %s%s%s", sandbox->id,
                   sandbox->state == SANDBOX_DELETING ? "being deleted"
                   : sandbox->state == SANDBOX_FAILED ? "failed"
                                                      : "gone",
                   reason, *sandbox->message ? ": " : "", sandbox->message);
}

/* --- running, failed ------------------------------------------------------------------------- */

void sandbox_made_running(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool now = sandbox->state == SANDBOX_CREATING;
    if (now) {
        set_state_locked(sandbox, SANDBOX_RUNNING);
        set_reason_locked(sandbox, ERR_NONE, NULL);
        sandbox->ready = sandbox->ready ? sandbox->ready : sandbox->since;
        if (!sandbox->adopting) {
            histogram_add(&sandbox->all->tally.create, 1000 * (sandbox->since - sandbox->created));
        }
        sandbox->adopting = false;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (now) {
        tell_state(sandbox, "running");
    }
}

static void fail(struct sandbox *sandbox, enum err_code reason, const char *message, bool remove)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool now = sandbox_state_lives(sandbox->state);
    if (now) {
        set_state_locked(sandbox, SANDBOX_FAILED);
        set_reason_locked(sandbox, reason, message);
        set_removing_locked(sandbox, remove);
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (now) {
        tally_one(sandbox->all->tally.failed, reason);
        tell_state(sandbox, "failed");
        tell_end(sandbox);
    }
}

void sandbox_fail(struct sandbox *sandbox, enum err_code reason, const char *message)
{
    fail(sandbox, reason, message, true);
}

void sandbox_give_up(struct sandbox *sandbox, enum err_code reason, const char *message)
{
    fail(sandbox, reason, message, false);
}

/* --- deleting, gone -------------------------------------------------------------------------- */

static bool begin_delete_locked(struct sandbox *sandbox, enum err_code reason)
{
    bool failed = sandbox->state == SANDBOX_FAILED;
    sandbox->remove_after_ms = 0; /* asked again: try again */
    sandbox->remove_error.code = ERR_NONE;
    if (!sandbox_state_lives(sandbox->state) && !failed) {
        return false;
    }
    set_state_locked(sandbox, SANDBOX_DELETING);
    if (!failed) { /* a failed one keeps why it failed */
        set_reason_locked(sandbox, reason, NULL);
    }
    set_removing_locked(sandbox, true);
    return true;
}

static void tell_deleting(struct sandbox *sandbox, bool now)
{
    if (now) {
        tell_state(sandbox, "deleting");
        tell_end(sandbox);
    } else {
        sandbox_settle(sandbox);
    }
}

void sandbox_delete(struct sandbox *sandbox, enum err_code reason)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool now = begin_delete_locked(sandbox, reason);
    pthread_mutex_unlock(&sandbox->all->lock);
    tell_deleting(sandbox, now);
}

void sandbox_never_was(struct sandbox *sandbox)
{
    sandboxes_remove(sandbox->all, sandbox);
    pthread_mutex_lock(&sandbox->all->lock);
    set_state_locked(sandbox, SANDBOX_GONE);
    sandbox->making = sandbox->removing = sandbox->dirty = false;
    pthread_mutex_unlock(&sandbox->all->lock);
    event_fire(&sandbox->changed);
}

/* Lost, but its box is there: it may matter to someone, and its agent keeps its own deadline. */
static bool is_kept_locked(const struct sandbox *sandbox)
{
    return sandbox->state == SANDBOX_FAILED && sandbox->reason == ERR_LOST && !sandbox->removing &&
           *sandbox->box.box_uid && sandbox->box.state != BOX_GONE;
}

static bool is_due_locked(const struct sandbox *sandbox)
{
    if (sandbox->deadline_guessed) {
        return sandbox->deadline && clock_wall_ms() >= sandbox->deadline - DUE_SLACK_MS;
    }
    return sandbox->deadline_ms && clock_now_ms() >= sandbox->deadline_ms - DUE_SLACK_MS;
}

static enum err_code why_expired_locked(const struct sandbox *sandbox)
{
    int64_t now = clock_now_ms();
    bool lives = sandbox_state_lives(sandbox->state), kept = is_kept_locked(sandbox);
    if ((lives || kept) && now > sandbox->lifetime_ms + EXPIRY_SLACK_MS) {
        return ERR_MAX_LIFETIME;
    }
    if (lives) {
        bool renewing = sandbox->wanted_ms > now && sandbox->blob_acked < sandbox->blob_version;
        bool over = sandbox->deadline_ms && now > sandbox->deadline_ms + EXPIRY_SLACK_MS;
        return over && !renewing ? ERR_TTL : ERR_NONE;
    }
    bool forgettable = sandbox->state == SANDBOX_FAILED && !sandbox->removing && !kept &&
                       clock_wall_ms() > sandbox->ended + sandbox->all->config.tombstone_ms;
    return forgettable ? sandbox->reason : ERR_NONE;
}

/* Looked at and ended under one lock: a renewal comes before it, and counts, or after, and learns
 * that it is too late. */
enum err_code sandbox_expire(struct sandbox *sandbox, bool dry)
{
    pthread_mutex_lock(&sandbox->all->lock);
    enum err_code why = why_expired_locked(sandbox);
    bool now = why && !dry && begin_delete_locked(sandbox, why);
    pthread_mutex_unlock(&sandbox->all->lock);
    if (now) {
        tell_deleting(sandbox, true);
    }
    return why;
}

bool sandbox_due(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool due = is_due_locked(sandbox);
    pthread_mutex_unlock(&sandbox->all->lock);
    return due;
}

static enum err_code why_gone_locked(const struct sandbox *sandbox)
{
    if (is_due_locked(sandbox)) {
        return ERR_TTL;
    }
    if (clock_now_ms() >= sandbox->lifetime_ms) {
        return ERR_MAX_LIFETIME;
    }
    return *sandbox->box.uid ? ERR_REMOVED_EXTERNALLY : ERR_LOST; /* this server never saw it */
}

void sandbox_box_gone(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool removing = sandbox->removing;
    sandbox->box.state = BOX_GONE;
    if (removing) {
        sandbox->remove_after_ms = 0;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (removing) {
        sandbox_settle(sandbox);
    } else {
        sandbox_removed(sandbox);
    }
}

void sandbox_removed(struct sandbox *sandbox)
{
    bool gone = false, lived = false;
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->box.state = BOX_GONE;
    set_removing_locked(sandbox, false);
    sandbox->remove_error.code = ERR_NONE;
    if (sandbox_state_lives(sandbox->state) && !sandbox->making) {
        lived = gone = true;
        set_state_locked(sandbox, SANDBOX_GONE);
        set_reason_locked(sandbox, why_gone_locked(sandbox), NULL);
    } else if (sandbox->state == SANDBOX_DELETING) {
        gone = true;
        set_state_locked(sandbox, SANDBOX_GONE);
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (gone) {
        tell_state(sandbox, "gone");
    } else {
        event_fire(&sandbox->changed);
    }
    if (lived) {
        tell_end(sandbox);
    }
}

bool sandbox_bury(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool now = sandbox->state == SANDBOX_FAILED && !sandbox->removing && !sandbox->making &&
               !is_kept_locked(sandbox);
    if (now) {
        set_state_locked(sandbox, SANDBOX_GONE);
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (now) {
        tell_state(sandbox, "gone");
    }
    return now;
}
