/* Listings over all sandboxes: records, foreign boxes, counts, events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

static struct json *new_page(struct json **ret_items)
{
    struct json *page = json_new_object();
    *ret_items = json_set_array(page, "items");
    return page;
}

/* Memory knows more than the row, while the sandbox is there. */
static struct json *item_json(struct sandboxes *all, const struct sandbox_row *row)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = sandboxes_lookup(all, row->id);
    if (sandbox && strcmp(sandbox->uid, row->uid) == 0) {
        return sandbox_json(sandbox);
    }
    return record_row_json(all, row);
}

int sandboxes_list(struct sandboxes *all, const struct list_query *query, struct json **ret_page,
                   struct err *err)
{
    enum sandbox_state state;
    if (query->state && strcmp(query->state, "all") != 0 &&
        !sandbox_state_from_name(query->state, &state)) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'state' must be creating, running, deleting, failed, gone or all");
    }
    cleanup_free const char **names = xcalloc(query->labels.count + 1, sizeof(*names));
    cleanup_free const char **values = xcalloc(query->labels.count + 1, sizeof(*values));
    for (size_t i = 0; i < query->labels.count; i++) {
        names[i] = query->labels.items[i].name;
        values[i] = query->labels.items[i].value;
    }
    struct sandbox_filter filter = {
        .owner = query->owner,
        .state = query->state,
        .label_names = names,
        .label_values = values,
        .labels = query->labels.count,
        .cursor = query->cursor,
        .limit = query->limit,
    };
    struct sandbox_row *rows = NULL;
    size_t count = 0;
    cleanup_free char *next = NULL;
    if (store_list_sandboxes(all->store, &filter, &rows, &count, &next, err) < 0) {
        return -1;
    }
    struct json *items = NULL;
    *ret_page = new_page(&items);
    for (size_t i = 0; i < count; i++) {
        json_add(items, item_json(all, &rows[i]));
    }
    json_set_text(*ret_page, "next", next);
    sandbox_rows_free(rows, count);
    return 0;
}

static struct json *foreign_json(const struct sandboxes *all, const struct box_info *box)
{
    static const char *const states[] = {
        [BOX_STARTING] = "starting",
        [BOX_ATTACHABLE] = "running",
        [BOX_FAILED] = "failed",
        [BOX_GONE] = "gone",
    };
    struct json *json = json_new_object();
    json_set_text(json, "id", box->id);
    json_set_text(json, "state", states[box->state]);
    json_set_text(json, "reason", box->reason ? err_code_name(box->reason) : NULL);
    json_set_text(json, "message", *box->message ? box->message : NULL);
    json_set_text(json, "image", box->image);
    json_set_time(json, "created", box->created_ms);
    json_set_number(json, "age", (double)(clock_wall_ms() - box->created_ms) / 1000.0);
    json_set_bool(json, "foreign", true);
    struct json *backend = json_set_object(json, "backend");
    json_set_text(backend, "driver", all->driver->ops->name);
    json_set_text(backend, "name", box->name);
    json_set_text(backend, "uid", box->box_uid);
    json_set_text(backend, "node", *box->node ? box->node : NULL);
    return json;
}

int sandboxes_foreign(struct sandboxes *all, struct json **ret_page, struct err *err)
{
    struct box_info *boxes = NULL;
    size_t count = 0;
    if (all->driver->ops->list(all->driver->self, true, &boxes, &count, err) < 0) {
        return -1;
    }
    struct json *items = NULL;
    *ret_page = new_page(&items);
    for (size_t i = 0; i < count; i++) {
        if (boxes[i].foreign) {
            json_add(items, foreign_json(all, &boxes[i]));
        }
    }
    json_set_null(*ret_page, "next");
    free(boxes);
    return 0;
}

int sandboxes_stats(struct sandboxes *all, struct json **ret_json, struct err *err)
{
    struct state_count counts[8];
    size_t count = 0, execs = 0;
    if (store_counts(all->store, counts, ARRAY_LEN(counts), &count, err) < 0) {
        return -1;
    }
    struct json *json = json_new_object();
    struct json *states = json_set_object(json, "sandboxes");
    for (size_t i = 0; i < count; i++) {
        json_set_int(states, counts[i].state, counts[i].count);
    }
    struct err why = {0};
    bool ready = sandboxes_ready(all, &why);
    size_t have = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(all, &have);
    pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < have; i++) {
        execs += sandboxes[i]->running_execs;
    }
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; i < have; i++) {
        sandbox_unref(sandboxes[i]);
    }
    free(sandboxes);
    json_set_int(json, "in_memory", (int64_t)have);
    json_set_int(json, "running_execs", (int64_t)execs);
    json_set_int(json, "max_sandboxes", all->config.max_sandboxes);
    struct json *backend = json_set_object(json, "backend");
    json_set_text(backend, "driver", all->driver->ops->name);
    json_set_text(backend, "instance", all->config.instance);
    json_set_bool(backend, "ready", ready);
    json_set_text(backend, "message", ready ? NULL : why.msg);
    *ret_json = json;
    return 0;
}

/* Those that a sandbox may name. */
static void set_networks(struct json *json, const struct policy *policy)
{
    struct json *networks = json_set_array(json, "networks");
    json_add_text(networks, policy->network);
    if (policy->allow_no_network && strcmp(policy->network, "none") != 0) {
        json_add_text(networks, "none");
    }
    if (policy->allow_host_network && strcmp(policy->network, "host") != 0) {
        json_add_text(networks, "host");
    }
}

static void set_profiles(struct json *json, const struct policy *policy)
{
    struct json *profiles = json_set_array(json, "profiles");
    json_add_text(profiles, PROFILE_HARDENED);
    if (policy->allow_profiles && *policy->allow_profiles) {
        json_add_text(profiles, PROFILE_COMPAT); /* the only one that may be allowed */
    }
}

static void set_features(struct json *features, const struct sandboxes *all)
{
    static const char *const have[] = {"exec",        "stdin",    "detach", "stream",  "signal",
                                       "files",       "archive",  "tree",   "secrets", "events",
                                       "idempotency", "previews", "tty",    "attach",  "sessions"};
    static const char *const lack[] = {"network_policy"};
    for (size_t i = 0; i < ARRAY_LEN(have); i++) {
        json_set_bool(features, have[i], true);
    }
    for (size_t i = 0; i < ARRAY_LEN(lack); i++) {
        json_set_bool(features, lack[i], false);
    }
    json_set_bool(features, "ps", all->driver->ops->promises.programs);
    json_set_bool(features, "watch", all->driver->ops->promises.programs);
    json_set_bool(features, "changes", all->driver->ops->promises.programs);
    json_set_bool(features, "private_previews", all->config.proxied);
}

static void set_promises(struct json *json, const struct driver_promises *promises)
{
    json_set_bool(json, "programs", promises->programs);
    json_set_bool(json, "posix_files", promises->posix_files);
    json_set_bool(json, "images", promises->images);
    json_set_bool(json, "previews", promises->previews);
    json_set_bool(json, "runtime_classes", promises->runtime_classes);
    json_set_bool(json, "adoption", promises->adoption);
}

int sandboxes_capabilities(struct sandboxes *all, struct json **ret_json, struct err *err)
{
    (void)err;
    const struct policy *policy = &all->config.policy;
    struct json *json = json_new_object();
    json_set_text(json, "driver", all->driver->ops->name);
    json_set_text(json, "instance", all->config.instance);
    struct json *limits = json_set_object(json, "limits");
    json_set_number(limits, "max_lifetime", (double)policy->max_lifetime_ms / 1000.0);
    json_set_number(limits, "max_ready_timeout", (double)policy->max_ready_timeout_ms / 1000.0);
    json_set_number(limits, "max_exec_timeout", (double)all->config.max_exec_timeout_ms / 1000.0);
    json_set_text(limits, "max_cpu", policy->max_cpu);
    json_set_text(limits, "max_memory", policy->max_memory);
    json_set_int(limits, "max_sandboxes", all->config.max_sandboxes);
    json_set_int(limits, "max_execs", all->config.max_execs);
    json_set_int(limits, "max_json_output", CAP_JSON_OUTPUT);
    json_set_int(limits, "max_json_stdin", CAP_JSON_STDIN);
    set_features(json_set_object(json, "features"), all);
    set_networks(json, policy);
    set_profiles(json, policy);
    set_promises(json_set_object(json, "promises"), &all->driver->ops->promises);
    all->driver->ops->capabilities(all->driver->self, json);
    *ret_json = json;
    return 0;
}
