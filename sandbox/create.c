/* POST /v1/sandboxes: the id and the key are claimed, the intent is on disk, and then it goes on by
 * itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/decoy.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

#define CREATE_ROUTE "POST /v1/sandboxes"
#define BURIAL_MS 5000 /* for a tombstone to be written */

static void make_uid(char ret_uid[UID_LEN])
{
    uint8_t b[16];
    crypto_random(b, sizeof(b));
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    snprintf(ret_uid, UID_LEN,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

void sandbox_box_spec(const struct sandbox *sandbox, struct box_spec *ret_spec)
{
    const struct sandbox_spec *spec = &sandbox->spec;
    *ret_spec = (struct box_spec){
        .id = sandbox->id,
        .uid = sandbox->uid,
        .owner = sandbox->owner,
        .created_ms = sandbox->created,
        .digest = sandbox->digest,
        .image = spec->image,
        .pull_policy = spec->pull_policy,
        .run_as_user = spec->run_as_user,
        .run_as_group = spec->run_as_group,
        .read_only_root = spec->read_only_root,
        .workdir = spec->workdir,
        .writable_mounts = &spec->writable_mounts,
        .cpu_limit = spec->cpu,
        .cpu_request = spec->cpu_request,
        .memory_limit = spec->memory,
        .memory_request = spec->memory_request,
        .storage_limit = spec->storage,
        .runtime_class = spec->runtime_class,
        .network = spec->network,
        .profile = spec->profile,
        .max_lifetime_ms = sandbox->all->config.policy.max_lifetime_ms,
        .secrets = spec->secrets.count,
    };
}

/* Canonical, so that the digest is of what it says. */
static void describe(struct sandbox *sandbox)
{
    cleanup_json struct json *public = sandbox_spec_public(&sandbox->spec);
    cleanup_buf struct buf text = BUF_INIT(CAP_JSON_BODY);
    cleanup_buf struct buf digest = BUF_INIT(sizeof(sandbox->digest));
    uint8_t hash[CRYPTO_HASH_LEN];
    (void)json_print_canonical(public, &text); /* of checked fields: it fits */
    crypto_digest(buf_text(&text), text.len, hash);
    (void)hex_encode(&digest, hash, sizeof(hash));
    snprintf(sandbox->digest, sizeof(sandbox->digest), "%s", buf_text(&digest));
    sandbox->public_spec = buf_take(&text, NULL);
}

static struct sandbox *new_from_spec(struct sandboxes *all, const char *owner,
                                     struct sandbox_spec *spec)
{
    char uid[UID_LEN];
    int64_t now = clock_now_ms();
    make_uid(uid);
    struct sandbox *sandbox = sandbox_new(all, spec->id, uid, owner);
    sandbox->spec = *spec;
    *spec = (struct sandbox_spec){0};
    decoy_make(&sandbox->spec);
    describe(sandbox);
    scrubber_unref(sandbox->scrubber);
    sandbox->scrubber = scrubber_new_with_decoy(&sandbox->spec.secrets, sandbox->spec.decoy);
    sandbox->created = clock_wall_ms();
    sandbox->since = sandbox->created;
    sandbox->deadline = sandbox->created + sandbox->spec.ttl_ms;
    sandbox->deadline_ms = sandbox->wanted_ms = now + sandbox->spec.ttl_ms;
    sandbox->lifetime_ms = now + all->config.policy.max_lifetime_ms;
    sandbox->ready_deadline_ms = now + sandbox->spec.ready_timeout_ms;
    sandbox->blob_version = 1;
    sandbox->making = true;
    return sandbox;
}

/* --- the id ---------------------------------------------------------------------------------- */

static int take_id_locked(struct sandboxes *all, struct sandbox *sandbox, struct err *err)
{
    const struct sandbox *holder = sandboxes_find_locked(all, sandbox->id);
    if (holder && strcmp(holder->owner, sandbox->owner) != 0) {
        return err_set(err, ERR_ALREADY_EXISTS, "the id '%s' is taken", sandbox->id);
    }
    if (holder) {
        return err_set(err, ERR_ALREADY_EXISTS, "a sandbox '%s' exists and is %s", sandbox->id,
                       sandbox_state_name(holder->state));
    }
    if (all->living >= all->config.max_sandboxes) {
        return err_set(err, ERR_BUSY, "this server has its maximum of %lld sandboxes",
                       (long long)all->config.max_sandboxes);
    }
    sandboxes_insert_locked(all, sandbox);
    return 0;
}

/* A failed one that has nothing left in the substrate gives its id up to its owner, and one that is
 * gone has done so as soon as its tombstone is written. */
static void make_room(struct sandboxes *all, const struct sandbox *sandbox)
{
    cleanup(sandbox_unrefp) struct sandbox *holder = sandboxes_lookup(all, sandbox->id);
    int64_t until = clock_now_ms() + BURIAL_MS;
    if (!holder) {
        return;
    }
    if (strcmp(holder->owner, sandbox->owner) == 0) {
        (void)sandbox_bury(holder); /* false: it is not a failed one */
    }
    for (;;) {
        uint64_t seen = event_count(&holder->changed);
        if (sandbox_state(holder) != SANDBOX_GONE || sandbox_settled(holder) ||
            !event_block(&holder->changed, seen, until)) {
            return;
        }
    }
}

/* In memory at once, so that nobody else can have it, then durably. It may be deleted meanwhile:
 * what that owes waits for settle_from_now(), or this record would be written over the tombstone.
 */
static int record_intent(struct sandboxes *all, struct sandbox *sandbox, struct err *err)
{
    cleanup(sandbox_row_done) struct sandbox_row row = {.uid = NULL};
    make_room(all, sandbox);
    sandbox->settling = true; /* nobody else knows it yet */
    pthread_mutex_lock(&all->lock);
    int result = take_id_locked(all, sandbox, err);
    pthread_mutex_unlock(&all->lock);
    if (result < 0) {
        return -1;
    }
    record_row(sandbox, &row);
    if (record_seal(sandbox, &row, err) < 0 || store_put_sandbox(all->store, &row, true, err) < 0) {
        sandbox_never_was(sandbox);
        return -1;
    }
    return 0;
}

/* --- the key --------------------------------------------------------------------------------- */

/* Did it work, or may it still? A create that failed does not hold its key: it may be tried again.
 */
static bool holds_key(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool holds = sandbox->ready || sandbox->state == SANDBOX_CREATING;
    pthread_mutex_unlock(&sandbox->all->lock);
    return holds;
}

/* What the claim of before made: 1, *RET_SANDBOX; 0: nothing that counts; -1: ERR. */
static int made_before(struct sandboxes *all, const char *uid, struct sandbox **ret_sandbox,
                       struct err *err)
{
    cleanup(sandbox_unrefp) struct sandbox *before = sandboxes_lookup_uid(all, uid);
    cleanup(sandbox_row_done) struct sandbox_row row = {.uid = NULL};
    struct err why = {0};
    if (before) {
        if (!holds_key(before)) {
            return 0;
        }
        *ret_sandbox = TAKE_PTR(before);
        return 1;
    }
    if (store_get_sandbox_uid(all->store, uid, &row, &why) < 0) {
        return why.code == ERR_NOT_FOUND ? 0 : err_set(err, why.code, "%s", why.msg);
    }
    return row.ready ? err_set(err, ERR_GONE, "the sandbox that this key made is gone") : 0;
}

/* 1: the key was claimed before and *RET_SANDBOX is what it made; 0: claimed for UID now. */
static int claim_key(struct sandboxes *all, struct idempotency_row *row, const char *uid,
                     struct sandbox **ret_sandbox, struct err *err)
{
    for (int tries = 0; tries < 2; tries++) {
        int found = 0;
        snprintf(row->uid, sizeof(row->uid), "%s", uid);
        if (store_claim_key(all->store, row, &found, err) < 0) {
            return -1;
        }
        if (!found) {
            return 0;
        }
        int made = made_before(all, row->uid, ret_sandbox, err);
        if (made != 0) {
            return made;
        }
        if (store_release_key(all->store, row, err) < 0) {
            return -1;
        }
    }
    return err_set(err, ERR_BUSY, "this key is being used by other requests");
}

/* One at a time, since who finds the key must find the intent too. */
static int claim_both(struct sandboxes *all, struct sandbox *sandbox, struct idempotency_row *key,
                      struct sandbox **ret_before, struct err *err)
{
    pthread_mutex_lock(&all->intents);
    int result = claim_key(all, key, sandbox->uid, ret_before, err);
    if (result == 0) {
        result = record_intent(all, sandbox, err);
        struct err why = {0};
        if (result < 0 && store_release_key(all->store, key, &why) < 0) {
            log_event(LOG_LEVEL_WARN, "key not released", "error", why.msg, NULL);
        }
    }
    pthread_mutex_unlock(&all->intents);
    return result;
}

static void settle_from_now(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->settling = false;
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_settle(sandbox);
}

/* --- the front door -------------------------------------------------------------------------- */

int sandbox_create(struct sandboxes *all, const struct owner_view *view, struct sandbox_spec *spec,
                   struct idempotency_claim *claim, struct sandbox **ret_sandbox, struct err *err)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = new_from_spec(all, view->owner, spec);
    struct idempotency_row key = {
        .owner = view->owner, .route = CREATE_ROUTE, .key = claim->key, .digest = claim->digest};
    struct err outage = {0};
    claim->found = false;
    if (!sandboxes_ready(all, &outage)) {
        return err_set(err, outage.code, "%s", outage.msg);
    }
    int result = claim->key ? claim_both(all, sandbox, &key, ret_sandbox, err)
                            : record_intent(all, sandbox, err);
    if (result != 0) {
        claim->found = result > 0;
        return claim->found ? 0 : -1;
    }
    sandbox_attach(sandbox); /* starts the ready timer */
    settle_from_now(sandbox);
    *ret_sandbox = TAKE_PTR(sandbox);
    return 0;
}

int sandbox_dry_run(struct sandboxes *all, const struct owner_view *view,
                    const struct sandbox_spec *spec, struct err *err)
{
    struct sandbox probe = {.all = all, .spec = *spec, .created = clock_wall_ms()};
    struct box_spec box;
    snprintf(probe.id, sizeof(probe.id), "%s", spec->id);
    snprintf(probe.owner, sizeof(probe.owner), "%s", view->owner);
    make_uid(probe.uid);
    sandbox_box_spec(&probe, &box);
    return all->driver->ops->check(all->driver->self, &box, err);
}
