#include "sandbox/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/lifecycle.h"

#define PATIENCE_MS 30000 /* for an agent after a start of the server */

static const char *const state_names[] = {
    [SANDBOX_CREATING] = "creating", [SANDBOX_RUNNING] = "running", [SANDBOX_DELETING] = "deleting",
    [SANDBOX_FAILED] = "failed",     [SANDBOX_GONE] = "gone",
};

const char *sandbox_state_name(enum sandbox_state state)
{
    return state_names[state];
}

bool sandbox_state_from_name(const char *name, enum sandbox_state *ret_state)
{
    for (size_t i = 0; name && i < ARRAY_LEN(state_names); i++) {
        if (strcmp(state_names[i], name) == 0) {
            *ret_state = (enum sandbox_state)i;
            return true;
        }
    }
    return false;
}

struct json *text_map_json(const struct text_map *map)
{
    struct json *json = json_new_object();
    for (size_t i = 0; i < map->count; i++) {
        json_set_text(json, map->items[i].name, map->items[i].value);
    }
    return json;
}

void text_map_restore(const struct json *json, struct text_map *map)
{
    for (const struct json *item = json_first(json); item; item = json_next(item)) {
        if (json_text(item)) {
            text_map_set(map, json_key(item), json_text(item));
        }
    }
}

static struct json *list_json(const struct text_list *list)
{
    struct json *json = json_new_array();
    for (size_t i = 0; i < list->count; i++) {
        json_add_text(json, list->items[i]);
    }
    return json;
}

static void list_restore(const struct json *json, struct text_list *list)
{
    for (const struct json *item = json_first(json); item; item = json_next(item)) {
        if (json_text(item)) {
            text_list_add(list, json_text(item));
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------ */

static char *json_to_text(struct json *json)
{
    cleanup_json struct json *owned = json;
    cleanup_buf struct buf text = BUF_INIT(CAP_REPLY);
    if (!json_print(owned, &text)) {
        return xstrdup("{}");
    }
    return buf_take(&text, NULL);
}

/* What is secret of a sandbox, and what only the next server needs to know. */
static struct json *sealed_json_locked(const struct sandbox *sandbox)
{
    struct json *json = json_new_object();
    json_set_bool(json, "previews_unknown", sandbox->previews_unknown);
    json_set(json, "env", text_map_json(&sandbox->spec.env));
    json_set(json, "secrets", list_json(&sandbox->spec.secrets));
    json_set_text(json, "decoy", sandbox->spec.decoy);
    return json;
}

int record_seal(struct sandbox *sandbox, struct sandbox_row *row, struct err *err)
{
    cleanup(buf_wipe) struct buf plain = BUF_INIT(CAP_REPLY);
    cleanup_buf struct buf sealed = BUF_INIT(CAP_REPLY);
    if (strcmp(row->state, sandbox_state_name(SANDBOX_GONE)) == 0) {
        return 0;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    cleanup_json struct json *json = sealed_json_locked(sandbox);
    pthread_mutex_unlock(&sandbox->all->lock);
    if (!json_print(json, &plain)) {
        return err_set(err, ERR_TOO_LARGE, "environment and secrets are too large to keep");
    }
    if (crypto_seal(&sandbox->all->key, "row", str_of(sandbox->uid),
                    (struct str){plain.ptr, plain.len}, &sealed, err) < 0) {
        return -1;
    }
    row->sealed = buf_take(&sealed, &row->sealed_len);
    return 0;
}

static int open_secrets(struct sandbox *sandbox, const struct sandbox_row *row, struct err *err)
{
    cleanup(buf_wipe) struct buf plain = BUF_INIT(CAP_REPLY);
    cleanup_json struct json *json = NULL;
    if (!row->sealed) {
        return 0;
    }
    if (crypto_open(&sandbox->all->key, "row", str_of(sandbox->uid),
                    (struct str){row->sealed, row->sealed_len}, &plain, err) < 0 ||
        json_parse(buf_text(&plain), plain.len, JSON_LENIENT, &json, err) < 0) {
        return -1;
    }
    text_map_restore(json_get(json, "env"), &sandbox->spec.env);
    list_restore(json_get(json, "secrets"), &sandbox->spec.secrets);
    const char *decoy = json_get_text(json, "decoy");
    sandbox->spec.decoy = decoy ? xstrdup(decoy) : NULL;
    sandbox->previews_unknown = json_get_bool(json, "previews_unknown", false);
    return 0;
}

static void text_fill(char *ret_text, size_t size, const char *text)
{
    snprintf(ret_text, size, "%s", text ? text : "");
}

static char *text_or_null(const char *text)
{
    return *text ? xstrdup(text) : NULL;
}

static void row_locked(const struct sandbox *sandbox, struct sandbox_row *ret_row)
{
    *ret_row = (struct sandbox_row){
        .uid = xstrdup(sandbox->uid),
        .id = xstrdup(sandbox->id),
        .owner = xstrdup(sandbox->owner),
        .state = xstrdup(sandbox_state_name(sandbox->state)),
        .reason = sandbox->reason ? xstrdup(err_code_name(sandbox->reason)) : NULL,
        .message = text_or_null(sandbox->message),
        .image = xstrdup(sandbox->spec.image ? sandbox->spec.image : ""),
        .spec = xstrdup(sandbox->public_spec),
        .labels = json_to_text(text_map_json(&sandbox->spec.labels)),
        .sealed_version = (int64_t)sandbox->blob_version,
        .digest = xstrdup(sandbox->digest),
        .box_uid = text_or_null(sandbox->box.box_uid),
        .node = text_or_null(sandbox->box.node),
        .container_id = text_or_null(sandbox->box.container_id),
        .created = sandbox->created,
        .since = sandbox->since,
        .ready = sandbox->ready,
        .ended = sandbox->ended,
        .deadline = sandbox->deadline,
        .last_exec = sandbox->last_exec,
    };
}

void record_row(struct sandbox *sandbox, struct sandbox_row *ret_row)
{
    pthread_mutex_lock(&sandbox->all->lock);
    row_locked(sandbox, ret_row);
    pthread_mutex_unlock(&sandbox->all->lock);
}

static void mask_json(const struct scrubber *scrubber, char **text)
{
    struct json *json = NULL;
    if (json_parse(*text, strlen(*text), JSON_LENIENT, &json, NULL) < 0) {
        return;
    }
    free(*text);
    *text = json_to_text(scrub_json(scrubber, json));
    json_free(json);
}

static void mask_row(const struct scrubber *scrubber, struct sandbox_row *row)
{
    if (!scrubber_empty(scrubber)) {
        char *image = scrub_copy(scrubber, row->image);
        free(row->image);
        row->image = image;
        mask_json(scrubber, &row->spec);
        mask_json(scrubber, &row->labels);
    }
}

void record_mask(struct sandbox *sandbox, struct sandbox_row *row)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    mask_row(scrubber, row);
    scrubber_unref(scrubber);
}

static void load_spec(struct sandbox *sandbox, const struct sandbox_row *row)
{
    cleanup_json struct json *spec = NULL;
    cleanup_json struct json *labels = NULL;
    if (json_parse(row->spec, strlen(row->spec), JSON_LENIENT, &spec, NULL) == 0) {
        sandbox_spec_restore(spec, &sandbox->spec);
    }
    if (row->labels &&
        json_parse(row->labels, strlen(row->labels), JSON_LENIENT, &labels, NULL) == 0) {
        text_map_restore(labels, &sandbox->spec.labels);
    }
    sandbox->spec.id = xstrdup(row->id);
    if (!sandbox->spec.image) { /* an adopted one that was not read yet */
        sandbox->spec.image = xstrdup(row->image ? row->image : "");
    }
    if (!sandbox->spec.workdir) {
        sandbox->spec.workdir = xstrdup(sandbox->all->config.policy.workdir);
    }
    sandbox->public_spec = xstrdup(row->spec);
    text_fill(sandbox->digest, sizeof(sandbox->digest), row->digest);
}

/* The wall clock may have been set since: what was over meanwhile gets some time in which its agent
 * can say that it is not. */
static int64_t time_left(int64_t end, int64_t least)
{
    int64_t left = end - clock_wall_ms();
    return left > least ? left : least;
}

static void load_times(struct sandbox *sandbox, const struct sandbox_row *row)
{
    int64_t now = clock_now_ms();
    sandbox->created = row->created;
    sandbox->since = row->since;
    sandbox->ready = row->ready;
    sandbox->ended = row->ended;
    sandbox->deadline = row->deadline;
    sandbox->deadline_guessed = row->deadline != 0;
    sandbox->deadline_ms = row->deadline ? now + time_left(row->deadline, PATIENCE_MS) : 0;
    sandbox->lifetime_ms =
        now + time_left(row->created + sandbox->all->config.policy.max_lifetime_ms, PATIENCE_MS);
    sandbox->ready_deadline_ms = now + time_left(row->created + sandbox->spec.ready_timeout_ms, 0);
}

/* What was owed when the last server ended. */
static void load_duties(struct sandbox *sandbox)
{
    bool creating = sandbox->state == SANDBOX_CREATING;
    bool leftover = sandbox->state == SANDBOX_FAILED && sandbox->reason != ERR_LOST &&
                    sandbox->reason != ERR_ALREADY_EXISTS;
    sandbox->adopting = creating && sandbox->blob_version == 0;
    sandbox->previews_unknown = sandbox->previews_unknown || sandbox->adopting;
    sandbox->previews_unfinished = true;
    sandbox->making = creating && !sandbox->adopting;
    sandbox->removing = sandbox->state == SANDBOX_DELETING || leftover;
    if (sandbox->making && sandbox->deadline) {
        sandbox->wanted_ms = clock_now_ms() + time_left(sandbox->deadline, 1);
    }
    if (sandbox->adopting) {
        sandbox->ready_deadline_ms = clock_now_ms() + PATIENCE_MS;
    }
}

struct sandbox *record_load(struct sandboxes *all, const struct sandbox_row *row)
{
    struct sandbox *sandbox = sandbox_new(all, row->id, row->uid, row->owner);
    struct err err = {0};
    load_spec(sandbox, row);
    bool readable = open_secrets(sandbox, row, &err) == 0;
    scrubber_unref(sandbox->scrubber);
    sandbox->scrubber = scrubber_new_with_decoy(&sandbox->spec.secrets, sandbox->spec.decoy);
    (void)sandbox_state_from_name(row->state, &sandbox->state);
    sandbox->reason = row->reason ? err_code_from_name(row->reason) : ERR_NONE;
    text_fill(sandbox->message, sizeof(sandbox->message), row->message);
    text_fill(sandbox->box.box_uid, sizeof(sandbox->box.box_uid), row->box_uid);
    text_fill(sandbox->box.node, sizeof(sandbox->box.node), row->node);
    text_fill(sandbox->box.container_id, sizeof(sandbox->box.container_id), row->container_id);
    sandbox->last_exec = row->last_exec;
    sandbox->blob_version = sandbox->blob_acked = (uint64_t)row->sealed_version;
    load_times(sandbox, row);
    if (!readable && sandbox_state_lives(sandbox->state)) {
        log_event(LOG_LEVEL_ERROR, "secrets not opened", "id", row->id, "error", err.msg, NULL);
        sandbox->state =
            SANDBOX_FAILED; /* what it says could not be masked; the row stays as it is */
        sandbox->reason = ERR_LOST;
        text_fill(sandbox->message, sizeof(sandbox->message),
                  "its secrets cannot be opened: was the key file replaced?");
        sandbox->since = sandbox->ended = clock_wall_ms();
    }
    load_duties(sandbox);
    return sandbox;
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void limit_json(struct json *limits, const char *name, uint64_t value, bool number_is_milli)
{
    struct json *limit = json_set_object(limits, name);
    if (!value) {
        json_set_null(limit, "value");
    } else if (number_is_milli) {
        json_set_number(limit, "value", (double)value / 1000.0);
    } else {
        json_set_int(limit, "value", (int64_t)value);
    }
    json_set_bool(limit, "enforced", value != 0);
}

static void backend_json(const struct sandboxes *all, const struct box_info *box, struct json *json)
{
    struct json *backend = json_set_object(json, "backend");
    json_set_text(backend, "driver", all->driver->ops->name);
    json_set_text(backend, "name", *box->name ? box->name : NULL);
    json_set_text(backend, "uid", *box->box_uid ? box->box_uid : NULL);
    json_set_text(backend, "node", *box->node ? box->node : NULL);
    json_set_text(backend, "container_id", *box->container_id ? box->container_id : NULL);
}

static struct json *parsed_or_empty(const char *text)
{
    struct json *json = NULL;
    if (!text || json_parse(text, strlen(text), JSON_LENIENT, &json, NULL) < 0) {
        return json_new_object();
    }
    return json;
}

static void set_age(struct json *json, int64_t created, int64_t ended)
{
    int64_t end = ended ? ended : clock_wall_ms();
    json_set_seconds(json, "age", end - created);
}

/* Without its age. */
static struct json *row_json(const struct sandbox_row *row)
{
    struct json *json = json_new_object();
    json_set_text(json, "id", row->id);
    json_set_text(json, "uid", row->uid);
    json_set_text(json, "owner", row->owner);
    json_set_text(json, "state", row->state);
    json_set_text(json, "reason", row->reason);
    json_set_text(json, "message", row->message);
    json_set_time(json, "since", row->since);
    json_set_time(json, "created", row->created);
    json_set_time(json, "ready", row->ready);
    json_set_time(json, "ended", row->ended);
    json_set_time(json, "expires", row->deadline);
    json_set(json, "labels", parsed_or_empty(row->labels));
    cleanup_json struct json *spec = parsed_or_empty(row->spec);
    for (const struct json *item = json_first(spec); item; item = json_next(item)) {
        json_set(json, json_key(item), json_copy(item));
    }
    return json;
}

struct json *record_row_json(const struct sandboxes *all, const struct sandbox_row *row)
{
    struct json *json = row_json(row);
    struct box_info box = {0};
    text_fill(box.box_uid, sizeof(box.box_uid), row->box_uid);
    text_fill(box.node, sizeof(box.node), row->node);
    text_fill(box.container_id, sizeof(box.container_id), row->container_id);
    backend_json(all, &box, json);
    set_age(json, row->created, row->ended);
    return json;
}

/* While it is not decided yet, the reason is what the substrate waits for. */
static void waiting_reason_locked(const struct sandbox *sandbox, struct sandbox_row *row)
{
    if (!row->reason && sandbox->state == SANDBOX_CREATING && sandbox->box.waiting) {
        char message[BOX_MESSAGE_LEN];
        sandbox_mask_locked(sandbox, sandbox->box.message, message, sizeof(message));
        free(row->message);
        row->reason = xstrdup(err_code_name(sandbox->box.reason));
        row->message = xstrdup(message);
    }
}

/* Without its age. */
static struct json *json_locked(const struct sandbox *sandbox)
{
    struct sandbox_row row;
    row_locked(sandbox, &row);
    mask_row(sandbox->scrubber, &row);
    waiting_reason_locked(sandbox, &row);
    struct json *json = row_json(&row);
    sandbox_row_done(&row);
    backend_json(sandbox->all, &sandbox->box, json);
    struct json *limits = json_set_object(json, "limits");
    limit_json(limits, "cpu", sandbox->cpu_milli, true);
    limit_json(limits, "memory", sandbox->memory_limit, false);
    limit_json(limits, "pids", sandbox->pids_limit ? sandbox->pids_limit : sandbox->box.pids_limit,
               false);
    limit_json(limits, "storage", sandbox->box.storage_limit, false);
    json_set_int(json, "running_execs", (int64_t)sandbox->running_execs);
    return json;
}

struct json *sandbox_json(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct json *json = json_locked(sandbox);
    set_age(json, sandbox->created, sandbox->ended);
    pthread_mutex_unlock(&sandbox->all->lock);
    return json;
}

/* --- the record as text, kept ------------------------------------------------------------------
 */

/* All that a record shows of a running sandbox, but for what never changes. Compared as a whole: no
 * padding. */
struct shown_facts {
    uint64_t version;        /* of labels, secrets and ttl */
    const char *public_spec; /* only compared */
    int64_t created, since, ready, deadline;
    uint64_t memory_limit, pids_limit, cpu_milli, box_pids_limit, storage_limit;
    size_t running_execs;
    char box_uid[UID_LEN], name[64], node[256], container_id[128];
};

struct shown_record {
    struct shown_facts facts;
    struct buf text; /* without the age, which is its last member, and the closing brace */
};

static void facts_locked(const struct sandbox *sandbox, struct shown_facts *ret_facts)
{
    const struct box_info *box = &sandbox->box;
    memset(ret_facts, 0, sizeof(*ret_facts)); /* it is compared as a whole */
    ret_facts->version = sandbox->blob_version;
    ret_facts->public_spec = sandbox->public_spec;
    ret_facts->created = sandbox->created;
    ret_facts->since = sandbox->since;
    ret_facts->ready = sandbox->ready;
    ret_facts->deadline = sandbox->deadline;
    ret_facts->memory_limit = sandbox->memory_limit;
    ret_facts->pids_limit = sandbox->pids_limit;
    ret_facts->cpu_milli = sandbox->cpu_milli;
    ret_facts->box_pids_limit = box->pids_limit;
    ret_facts->storage_limit = box->storage_limit;
    ret_facts->running_execs = sandbox->running_execs;
    text_fill(ret_facts->box_uid, sizeof(ret_facts->box_uid), box->box_uid);
    text_fill(ret_facts->name, sizeof(ret_facts->name), box->name);
    text_fill(ret_facts->node, sizeof(ret_facts->node), box->node);
    text_fill(ret_facts->container_id, sizeof(ret_facts->container_id), box->container_id);
}

/* The text of a tree, with room for another member. */
static bool print_open(const struct json *json, struct buf *out)
{
    if (!json_print(json, out)) {
        return false;
    }
    out->ptr[out->len - 1] = ',';
    return true;
}

void shown_record_free(struct shown_record *shown)
{
    if (shown) {
        buf_done(&shown->text);
        free(shown);
    }
}

static struct shown_record *shown_locked(struct sandbox *sandbox)
{
    struct shown_facts facts;
    facts_locked(sandbox, &facts);
    struct shown_record *shown = sandbox->shown;
    if (shown && memcmp(&shown->facts, &facts, sizeof(facts)) == 0) {
        return shown;
    }
    cleanup_json struct json *json = json_locked(sandbox);
    shown_record_free(TAKE_PTR(sandbox->shown));
    shown = xcalloc(1, sizeof(*shown));
    shown->facts = facts;
    buf_init(&shown->text, CAP_REPLY);
    if (!print_open(json, &shown->text)) {
        shown_record_free(shown);
        return NULL;
    }
    sandbox->shown = shown;
    return shown;
}

bool sandbox_record_text(struct sandbox *sandbox, struct buf *out)
{
    cleanup_json struct json *age = json_new_object();
    cleanup_buf struct buf end = BUF_INIT(CAP_SMALL);
    pthread_mutex_lock(&sandbox->all->lock);
    /* One in another state is on its way to the next. */
    bool keeps = sandbox->state == SANDBOX_RUNNING && !sandbox->reason && !*sandbox->message;
    struct shown_record *shown = keeps ? shown_locked(sandbox) : NULL;
    bool fits = shown && buf_append(out, shown->text.ptr, shown->text.len);
    if (!keeps) {
        cleanup_json struct json *json = json_locked(sandbox);
        fits = print_open(json, out);
    }
    set_age(age, sandbox->created, sandbox->ended);
    pthread_mutex_unlock(&sandbox->all->lock);
    return fits && json_print(age, &end) && buf_append(out, end.ptr + 1, end.len - 1);
}
