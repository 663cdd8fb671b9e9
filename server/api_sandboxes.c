#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/event_feed.h"
#include "sandbox/sandboxes.h"
#include "server/api_list.h"
#include "server/fake_notes.h"
#include "server/idempotency.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define SETTLE_WAIT_MS 15000 /* for a failed create's leftovers to go */
#define DELETE_WAIT_MS 30000 /* then 202: it goes on */
#define UPDATE_WAIT_MS 30000 /* for the agent to acknowledge */

static struct owner_view view_of(const struct request *request)
{
    const struct caller *caller = request_caller(request);
    return (struct owner_view){.owner = caller->owner, .admin = caller->admin};
}

/* --- create ---------------------------------------------------------------------------------- */

struct create_state {
    struct sandbox *sandbox;
    int64_t settle_deadline; /* clock_now_ms; 0: it has not failed */
};

static void create_state_free(void *state)
{
    struct create_state *create = state;
    sandbox_unref(create->sandbox);
    free(create);
}

static void set_location(struct request *request, struct sandbox *sandbox)
{
    cleanup_free char *location = xasprintf("/v1/sandboxes/%s", sandbox_id(sandbox));
    reply_header(request, "Location", location);
}

static enum verdict create_failed(struct request *request, struct sandbox *sandbox)
{
    struct err why = {0};
    sandbox_why(sandbox, &why);
    if (sandbox_state(sandbox) != SANDBOX_FAILED) {
        struct err gone;
        (void)err_set(&gone, ERR_GONE, "the sandbox ended before it was ready: %s",
                      err_code_name(why.code));
        return reply_problem_with(request, &gone, "sandbox", sandbox_json(sandbox));
    }
    return reply_problem_with(request, &why, "sandbox", sandbox_json(sandbox));
}

static enum verdict create_wait(struct request *request)
{
    struct create_state *create = request_state(request);
    struct sandbox *sandbox = create->sandbox;
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    enum sandbox_state state = sandbox_state(sandbox);
    if (request_client_gone(request)) {
        return reply_empty(request, 202); /* nobody reads it; the create goes on */
    }
    if (state == SANDBOX_CREATING) {
        return request_wait(request, changed, seen, 0, create_wait);
    }
    if (!create->settle_deadline) {
        create->settle_deadline = clock_now_ms() + SETTLE_WAIT_MS;
    }
    /* What is said to be ready is on record as that: else a crash now would make it anew. What has
     * failed is removed, unless that cannot be done now. */
    if (!sandbox_settled(sandbox) && !sandbox_lingers(sandbox) &&
        clock_now_ms() < create->settle_deadline) {
        return request_wait(request, changed, seen, create->settle_deadline, create_wait);
    }
    if (state == SANDBOX_RUNNING) {
        set_location(request, sandbox);
        return reply_json(request, 201, sandbox_json(sandbox));
    }
    return create_failed(request, sandbox);
}

static enum verdict dry_run(struct request *request, const struct sandbox_spec *spec)
{
    struct err err = {0};
    const struct owner_view view = view_of(request);
    if (sandbox_dry_run(request_sandboxes(request), &view, spec, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct json *json = json_new_object();
    json_set_bool(json, "dry_run", true);
    json_set_text(json, "id", spec->id);
    json_set(json, "spec", sandbox_spec_public(spec));
    return reply_json(request, 200, json);
}

static enum verdict begin_create(struct request *request, struct sandbox_spec *spec,
                                 struct idempotency_claim *claim)
{
    struct err err = {0};
    const struct owner_view view = view_of(request);
    struct create_state *create = xcalloc(1, sizeof(*create));
    bool wait = spec->wait;
    request_keep(request, create, create_state_free);
    if (sandbox_create(request_sandboxes(request), &view, spec, claim, &create->sandbox, &err) <
        0) {
        return reply_problem(request, &err);
    }
    if (claim->found) {
        reply_header(request, "Idempotent-Replayed", "true");
    }
    if (!wait) {
        set_location(request, create->sandbox);
        return reply_json(request, 202, sandbox_json(create->sandbox));
    }
    return create_wait(request);
}

static void use_prepared_id(struct request *request, struct sandbox_spec *spec)
{
    char *id = take_prepared_id(request);
    if (id) {
        free(spec->id);
        spec->id = id;
    }
}

static enum verdict post_sandbox(struct request *request)
{
    struct err err = {0};
    const struct json *body = NULL;
    struct idempotency idempotency;
    bool dry = false;
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    const struct sandboxes_config *config = sandboxes_config(request_sandboxes(request));
    if (request_query_bool(request, "dry_run", &dry, &err) < 0 ||
        request_json(request, true, &body, &err) < 0 ||
        idempotency_of(request, body, &idempotency, &err) < 0 ||
        sandbox_spec_parse(body, &config->policy, &spec, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct idempotency_claim claim = {.key = idempotency.key, .digest = idempotency.digest};
    if (dry) {
        return dry_run(request, &spec);
    }
    if (!json_text(json_get(body, "id"))) {
        use_prepared_id(request, &spec);
    }
    return begin_create(request, &spec, &claim);
}

/* --- list, show ------------------------------------------------------------------------------ */

/* label=NAME=VALUE, several separated by commas. */
static int labels_of(struct str text, struct text_map *labels, struct err *err)
{
    const char *at = text.ptr, *end = text.ptr + text.len;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        const char *equals = memchr(at, '=', (size_t)(stop - at));
        if (!equals || equals == at || labels->count >= CAP_LABELS) {
            return err_set(
                err, ERR_INVALID_FIELD,
                "query parameter 'label' must be NAME=VALUE, several separated by commas");
        }
        cleanup_free char *name = xstrndup(at, (size_t)(equals - at));
        cleanup_free char *value = xstrndup(equals + 1, (size_t)(stop - equals - 1));
        text_map_set(labels, name, value);
        at = stop + 1;
    }
    return 0;
}

static char *query_text(const struct request *request, const char *name)
{
    struct str value;
    return request_query(request, name, &value) ? xstrndup(value.ptr, value.len) : NULL;
}

enum verdict list_sandboxes(struct request *request, const char *owner)
{
    struct err err = {0};
    cleanup_free char *state = query_text(request, "state");
    cleanup_free char *cursor = query_text(request, "cursor");
    cleanup(text_map_done) struct text_map labels = {0};
    int64_t limit = 100;
    struct str label;
    if (request_query_int(request, "limit", 1, CAP_LIST_LIMIT, &limit, &err) < 0 ||
        (request_query(request, "label", &label) && labels_of(label, &labels, &err) < 0)) {
        return reply_problem(request, &err);
    }
    struct json *page = NULL;
    const struct list_query query = {
        .owner = owner, .state = state, .labels = labels, .cursor = cursor, .limit = (size_t)limit};
    if (sandboxes_list(request_sandboxes(request), &query, &page, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, page);
}

static enum verdict get_sandboxes(struct request *request)
{
    const struct caller *caller = request_caller(request);
    cleanup_free char *owner = query_text(request, "owner");
    if (!caller->admin && owner && strcmp(owner, caller->owner) != 0) {
        struct err err;
        (void)err_set(&err, ERR_FORBIDDEN, "only an admin may ask for another owner's sandboxes");
        return reply_problem(request, &err);
    }
    return list_sandboxes(request, owner ? owner : (caller->admin ? NULL : caller->owner));
}

static enum verdict get_sandbox(struct request *request)
{
    struct sandbox *sandbox = request_sandbox(request);
    cleanup_buf struct buf text = BUF_INIT(CAP_REPLY);
    if (!sandbox) {
        return reply_gone(request);
    }
    bool fits = sandbox_record_text(sandbox, &text);
    return reply_json_text(request, 200, fits, &text);
}

/* --- change ---------------------------------------------------------------------------------- */

struct patch_body {
    int64_t ttl_ms;
    struct text_map labels;
};

static const struct json_field patch_fields[] = {
    {.name = "ttl",
     .decode = json_decode_seconds,
     .offset = offsetof(struct patch_body, ttl_ms),
     .min = 1000,
     .max = INT64_C(366) * 86400 * 1000},
    {.name = "labels",
     .decode = json_decode_text_map,
     .offset = offsetof(struct patch_body, labels),
     .max = CAP_LABELS},
    JSON_FIELDS_END,
};

struct secrets_body {
    struct text_list values;
};

static const struct json_field secrets_fields[] = {
    {.name = "values",
     .decode = json_decode_text_list,
     .offset = offsetof(struct secrets_body, values),
     .required = true,
     .max = CAP_SECRETS},
    JSON_FIELDS_END,
};

struct update_state {
    uint64_t seq;
    int64_t deadline;
    bool secrets;
};

static enum verdict update_wait(struct request *request)
{
    struct update_state *update = request_state(request);
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (!sandbox_update_done(sandbox, update->seq, &err)) {
        if (request_client_gone(request)) {
            return reply_empty(request, 202);
        }
        if (clock_now_ms() < update->deadline) {
            return request_wait(request, changed, seen, update->deadline, update_wait);
        }
        (void)err_set(&err, ERR_STREAM_LOST,
                      "the agent has not acknowledged the change; it may still do so");
    }
    if (err.code) {
        return reply_problem(request, &err);
    }
    return update->secrets ? reply_empty(request, 204)
                           : reply_json(request, 200, sandbox_json(sandbox));
}

static enum verdict begin_update(struct request *request, const struct sandbox_update *change)
{
    struct err err = {0};
    struct update_state *update = xcalloc(1, sizeof(*update));
    update->deadline = clock_now_ms() + UPDATE_WAIT_MS;
    update->secrets = change->secrets != NULL;
    request_keep(request, update, free);
    if (sandbox_update(request_sandbox(request), change, &update->seq, &err) < 0) {
        return reply_problem(request, &err);
    }
    return update_wait(request);
}

static void patch_body_done(struct patch_body *body)
{
    text_map_done(&body->labels);
}

static enum verdict patch_sandbox(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    cleanup(patch_body_done) struct patch_body body = {.ttl_ms = -1};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, patch_fields, "", &body, &err) < 0 ||
        labels_check(&body.labels, "labels", &err) < 0) {
        return reply_problem(request, &err);
    }
    bool labels = json_is_object(json_get(json, "labels"));
    const struct sandbox_update change = {.ttl_ms = body.ttl_ms,
                                          .labels = labels ? &body.labels : NULL};
    return begin_update(request, &change);
}

static void secrets_body_done(struct secrets_body *body)
{
    text_list_done(&body->values);
}

static enum verdict post_secrets(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    cleanup(secrets_body_done) struct secrets_body body = {0};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, secrets_fields, "", &body, &err) < 0) {
        return reply_problem(request, &err);
    }
    const struct sandbox_update change = {.ttl_ms = -1, .secrets = &body.values};
    note_secrets(request, body.values.count);
    return begin_update(request, &change);
}

/* --- delete ---------------------------------------------------------------------------------- */

static enum verdict delete_wait(struct request *request)
{
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    int64_t *deadline = request_state(request);
    struct err err = {0};
    if (sandbox_state(sandbox) == SANDBOX_GONE && sandbox_settled(sandbox)) {
        return reply_empty(request, 204);
    }
    if (sandbox_delete_error(sandbox, &err)) {
        reply_header(request, "Retry-After", "5"); /* and it goes on by itself */
        return reply_problem_with(request, &err, "sandbox", sandbox_json(sandbox));
    }
    if (request_client_gone(request) || clock_now_ms() >= *deadline) {
        return reply_json(request, 202, sandbox_json(sandbox));
    }
    return request_wait(request, changed, seen, *deadline, delete_wait);
}

static enum verdict delete_sandbox(struct request *request)
{
    struct sandbox *sandbox = request_sandbox(request);
    if (!sandbox) {
        return reply_empty(request, 204); /* gone already */
    }
    int64_t *deadline = xmalloc(sizeof(*deadline));
    *deadline = clock_now_ms() + DELETE_WAIT_MS;
    request_keep(request, deadline, free);
    sandbox_delete(sandbox, ERR_DELETED);
    return delete_wait(request);
}

/* --- events ---------------------------------------------------------------------------------- */

#define EVENTS_PIPE (32 * KIB)

/* A page where nothing else is asked for. */
static const char *const event_types[] = {"application/json", "application/x-ndjson",
                                          "text/event-stream", NULL};

/* Behind `after`, or behind the last one that a client saw before it was cut off. */
static enum verdict reply_feed(struct request *request, size_t type, const char *uid, int64_t after)
{
    const char *last = request_header(request, "Last-Event-ID");
    struct err err = {0};
    uint64_t behind = 0;
    if (last && !str_to_u64(str_of(last), INT64_MAX, &behind)) {
        err_set(&err, ERR_INVALID_FIELD,
                "the header Last-Event-ID must be the id of an event of this sandbox");
        return reply_problem(request, &err);
    }
    struct pipe *pipe = pipe_new(EVENTS_PIPE);
    event_feed_start(request_sandboxes(request), request_sandbox(request), uid,
                     last ? (int64_t)behind : after, type == 2 ? FOLLOW_SSE : FOLLOW_NDJSON, pipe);
    reply_header(request, "X-Accel-Buffering", "no"); /* proxies that would collect it */
    return reply_pipe(request, 200, event_types[type], pipe, -1);
}

static enum verdict get_events(struct request *request)
{
    size_t type = request_accepts(request, event_types);
    struct err err = {0};
    cleanup_free char *uid = NULL;
    int64_t limit = 0, after = 0;
    struct json *page = NULL;
    if (query_page(request, "after", &limit, &after, &err) < 0 ||
        subject_uid(request, &uid, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (type > 0) {
        return reply_feed(request, type, uid, after);
    }
    if (sandbox_events(request_sandboxes(request), uid, after, (size_t)limit, &page, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, page);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes", post_sandbox, ROUTE_JSON_BODY, "dry_run"},
    {"GET", "/v1/sandboxes", get_sandboxes, 0, "state label limit cursor owner"},
    {"GET", "/v1/sandboxes/{id}", get_sandbox, ROUTE_SANDBOX | ROUTE_GONE_TOO | ROUTE_QUICK, NULL},
    {"PATCH", "/v1/sandboxes/{id}", patch_sandbox, ROUTE_SANDBOX | ROUTE_JSON_BODY, NULL},
    {"DELETE", "/v1/sandboxes/{id}", delete_sandbox, ROUTE_SANDBOX | ROUTE_GONE_TOO, NULL},
    {"POST", "/v1/sandboxes/{id}/secrets", post_secrets, ROUTE_SANDBOX | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/sandboxes/{id}/events", get_events, ROUTE_SANDBOX | ROUTE_GONE_TOO, "after limit"},
};

const struct route_table sandbox_routes = {routes, ARRAY_LEN(routes)};
