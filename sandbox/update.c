/* Changes that the agent must acknowledge: the deadline, labels, secrets to scrub. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/lifecycle.h"

#define SECRETS_TOTAL_MAX (128 * KIB) /* as for a create: they fit into the blob */

static int check_times_locked(const struct sandbox *sandbox, int64_t ttl_ms, struct err *err)
{
    if (ttl_ms >= 0 && clock_now_ms() + ttl_ms > sandbox->lifetime_ms) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'ttl': the sandbox would be older than the maximum lifetime of %lld "
                       "seconds",
                       (long long)(sandbox->all->config.policy.max_lifetime_ms / 1000));
    }
    return 0;
}

static int check_state_locked(const struct sandbox *sandbox, struct err *err)
{
    if (!sandbox_state_lives(sandbox->state)) {
        return sandbox_dead_error_locked(sandbox, err);
    }
    if (sandbox->state == SANDBOX_CREATING) {
        return err_set(err, ERR_NOT_READY, "sandbox '%s' is still being created", sandbox->id);
    }
    return 0;
}

/* --- secrets --------------------------------------------------------------------------------- */

/* What there would be with MORE; made without the lock, since a scrubber of many takes a while. */
struct addition {
    struct text_list secrets;
    struct scrubber *scrubber;
    uint64_t version; /* of the state that it is made from */
};

static void wipe_list(struct text_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        explicit_bzero(list->items[i], strlen(list->items[i]));
    }
    text_list_done(list);
}

static void addition_done(struct addition *addition)
{
    wipe_list(&addition->secrets);
    scrubber_unref(addition->scrubber);
    *addition = (struct addition){0};
}

static int check_secrets(const struct text_list *secrets, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < secrets->count; i++) {
        size_t len = strlen(secrets->items[i]);
        total += len;
        if (len > CAP_SECRET) {
            return err_set(err, ERR_INVALID_FIELD,
                           "field 'values' has a value that is longer than 64 KiB");
        }
    }
    if (secrets->count > CAP_SECRETS || total > SECRETS_TOTAL_MAX) {
        return err_set(err, ERR_TOO_LARGE,
                       "field 'values': at most %d secrets and 128 KiB together", CAP_SECRETS);
    }
    return 0;
}

static int prepare(struct sandbox *sandbox, const struct text_list *more, struct addition *addition,
                   struct err *err)
{
    addition_done(addition);
    pthread_mutex_lock(&sandbox->all->lock);
    text_list_copy(&addition->secrets, &sandbox->spec.secrets);
    addition->version = sandbox->blob_version;
    const char *decoy = sandbox->spec.decoy; /* it stays as long as the sandbox */
    pthread_mutex_unlock(&sandbox->all->lock);
    for (size_t i = 0; i < more->count; i++) {
        if (*more->items[i] && !text_list_has(&addition->secrets, more->items[i])) {
            text_list_add(&addition->secrets, more->items[i]);
        }
    }
    if (check_secrets(&addition->secrets, err) < 0) {
        return -1;
    }
    addition->scrubber = scrubber_new_with_decoy(&addition->secrets, decoy);
    return 0;
}

static void take_secrets_locked(struct sandbox *sandbox, struct addition *addition)
{
    struct text_list before = sandbox->spec.secrets;
    struct scrubber *scrubber = sandbox->scrubber;
    sandbox->spec.secrets = addition->secrets;
    sandbox->scrubber = addition->scrubber;
    addition->secrets = before;
    addition->scrubber = scrubber;
}

void sandbox_describe_locked(struct sandbox *sandbox)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_JSON_BODY);
    cleanup_json struct json *public = sandbox_spec_public(&sandbox->spec);
    (void)json_print_canonical(public, &text); /* of checked fields: it fits */
    free(sandbox->public_spec);
    sandbox->public_spec = buf_take(&text, NULL);
}

static void set_ttl_locked(struct sandbox *sandbox, int64_t ttl_ms)
{
    sandbox->wanted_ms = clock_now_ms() + ttl_ms;
    sandbox->spec.ttl_ms = ttl_ms;
    sandbox_describe_locked(sandbox);
}

/* --- the change ------------------------------------------------------------------------------ */

enum applied { APPLIED, APPLY_AGAIN, APPLY_FAILED };

static enum applied apply(struct sandbox *sandbox, const struct sandbox_update *update,
                          struct addition *addition, uint64_t *ret_seq, struct err *err)
{
    enum applied applied = APPLIED;
    pthread_mutex_lock(&sandbox->all->lock);
    if (check_state_locked(sandbox, err) < 0 ||
        check_times_locked(sandbox, update->ttl_ms, err) < 0) {
        applied = APPLY_FAILED;
    } else if (update->secrets && addition->version != sandbox->blob_version) {
        applied = APPLY_AGAIN; /* another change was quicker */
    } else {
        if (update->ttl_ms >= 0) {
            set_ttl_locked(sandbox, update->ttl_ms);
        }
        if (update->labels) {
            text_map_done(&sandbox->spec.labels);
            sandbox->spec.labels = *update->labels;
            *update->labels = (struct text_map){0};
        }
        if (update->secrets) {
            take_secrets_locked(sandbox, addition);
        }
        *ret_seq = ++sandbox->blob_version;
        sandbox->dirty = true;
        sandbox->save_after_ms = 0; /* whatever failed before: try again */
        sandbox->save_error.code = ERR_NONE;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return applied;
}

int sandbox_update(struct sandbox *sandbox, const struct sandbox_update *update, uint64_t *ret_seq,
                   struct err *err)
{
    cleanup(addition_done) struct addition addition = {0};
    enum applied applied;
    do {
        if (update->secrets && prepare(sandbox, update->secrets, &addition, err) < 0) {
            return -1;
        }
        applied = apply(sandbox, update, &addition, ret_seq, err);
    } while (applied == APPLY_AGAIN);
    if (applied == APPLY_FAILED) {
        return -1;
    }
    if (update->secrets) {
        execs_scrub(sandbox);
    }
    sandbox_settle(sandbox);
    sandbox_configure(sandbox);
    return 0;
}

bool sandbox_update_done(struct sandbox *sandbox, uint64_t seq, struct err *ret_err)
{
    ret_err->code = ERR_NONE;
    pthread_mutex_lock(&sandbox->all->lock);
    bool done = true;
    if (!sandbox_state_lives(sandbox->state)) {
        (void)sandbox_dead_error_locked(sandbox, ret_err);
    } else {
        bool acked = sandbox->blob_acked >= seq, failed = sandbox->save_error.code != ERR_NONE;
        done = acked && !sandbox->saving && (!sandbox->dirty || failed);
        if (done && sandbox->dirty) {
            *ret_err = sandbox->save_error;
            (void)err_wrap(ret_err, "the change is in effect, but not on record yet");
        }
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return done;
}
