#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/crypto.h"
#include "base/err.h"
#include "base/json.h"
#include "driver/driver.h"
#include "net/loop.h"
#include "sandbox/handle.h"
#include "sandbox/spec.h"
#include "sandbox/tally.h"
#include "store/store.h"

/* All sandboxes of this server: the domain's front door for the HTTP routes. Thread-safe; calls
 * that ask the substrate block and belong on a worker. */
struct sandboxes;

struct sandboxes_config {
    struct policy policy;
    const char *instance;
    const char *data_dir; /* journals: <data_dir>/<uid>/<n>.out */
    int64_t exec_timeout_ms, max_exec_timeout_ms, max_output, output_quota;
    int64_t max_sandboxes, max_execs;
    int64_t tombstone_ms, reap_every_ms;
    const char *preview_domain, *preview_scheme;
    int64_t preview_port; /* in URLs; the scheme's default is left out; 0: sandboxes_listens */
    bool proxied;         /* previews are served by this server, not by the substrate */
};

struct owner_view { /* who asks */
    const char *owner;
    bool admin;
    bool failed_too; /* sandboxes_find: one that has failed is looked at, too */
};

/* What the domain stands on; outlives it. KEY is copied. */
struct sandboxes_parts {
    const struct crypto_key *key;
    const struct driver *driver;
    struct store *store;
    struct loop *loop;
};
int sandboxes_new(const struct sandboxes_config *config, const struct sandboxes_parts *parts,
                  struct sandboxes **ret_all, struct err *err) must_check;
/* Starts the driver's watch and the sweeper; adoption happens as the first list comes in. */
int sandboxes_start(struct sandboxes *all, struct err *err) must_check;
/* Sandboxes live on, their streams are closed. No handler may be running; the driver is stopped,
 * but it, the loop and the store are the caller's to free, after this. */
void sandboxes_stop(struct sandboxes *all);
/* Before the first request: the server's own port, for the URLs of previews. */
void sandboxes_listens(struct sandboxes *all, int port);
const struct sandboxes_config *sandboxes_config(const struct sandboxes *all);
struct store *sandboxes_store(const struct sandboxes *all);
/* False with WHY when the substrate does not answer, or the first list is not in yet. */
bool sandboxes_ready(struct sandboxes *all, struct err *ret_why);
int sandboxes_capabilities(struct sandboxes *all, struct json **ret_json,
                           struct err *err) must_check;

/* A living sandbox (referenced) that VIEW may see. ERR_NOT_FOUND; ERR_GONE with RET_RECORD (may be
 * NULL) set to the tombstone's record. A failed one is ERR_GONE too unless VIEW->failed_too. */
int sandboxes_find(struct sandboxes *all, const struct owner_view *view, const char *id,
                   struct sandbox **ret_sandbox, struct json **ret_record,
                   struct err *err) must_check;
/* The same as far as it is in memory, or NULL: then sandboxes_find knows more. Never blocks. */
struct sandbox *sandboxes_peek(struct sandboxes *all, const struct owner_view *view,
                               const char *id);

/* Records the intent (durable) and begins; takes what SPEC holds. When CLAIM's key was claimed
 * before with the same body, that sandbox is returned (ERR_GONE when it has gone). */
struct idempotency_claim {
    const char *key;    /* NULL: none */
    const char *digest; /* of the canonical body */
    bool found;         /* set: it was claimed before */
};
int sandbox_create(struct sandboxes *all, const struct owner_view *view, struct sandbox_spec *spec,
                   struct idempotency_claim *claim, struct sandbox **ret_sandbox,
                   struct err *err) must_check;
/* Validates with the substrate; nothing is made or recorded. */
int sandbox_dry_run(struct sandboxes *all, const struct owner_view *view,
                    const struct sandbox_spec *spec, struct err *err) must_check;

/* Pages {items, next} of records; OWNER NULL: all. Filters are checked. */
struct list_query {
    const char *owner;
    const char *state;
    struct text_map labels;
    const char *cursor;
    size_t limit;
};
int sandboxes_list(struct sandboxes *all, const struct list_query *query, struct json **ret_page,
                   struct err *err) must_check;
int sandboxes_foreign(struct sandboxes *all, struct json **ret_page, struct err *err) must_check;
const struct tally *sandboxes_tally(const struct sandboxes *all);
int sandboxes_stats(struct sandboxes *all, struct json **ret_json, struct err *err) must_check;
/* One sweep now: expired, lost, orphaned. The reply lists what was (or would be) removed and why.
 */
int sandboxes_reap(struct sandboxes *all, bool dry_run, struct json **ret_json,
                   struct err *err) must_check;
int sandbox_events(struct sandboxes *all, const char *uid, int64_t after, size_t limit,
                   struct json **ret_page, struct err *err) must_check;
