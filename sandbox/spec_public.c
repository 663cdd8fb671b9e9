/* The public part of a spec as JSON: what records show, what the store keeps, and what an agent's
 * sealed blob carries. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "sandbox/spec.h"

struct json *sandbox_spec_public(const struct sandbox_spec *spec)
{
    struct json *json = json_new_object();
    json_set_text(json, "image", spec->image);
    json_set_text(json, "image_pull_policy", spec->pull_policy);
    json_set_text(json, "workdir", spec->workdir);
    struct json *resources = json_set_object(json, "resources");
    json_set_text(resources, "cpu", spec->cpu);
    json_set_text(resources, "cpu_request", spec->cpu_request);
    json_set_text(resources, "memory", spec->memory);
    json_set_text(resources, "memory_request", spec->memory_request);
    json_set_text(resources, "storage", spec->storage);
    json_set_text(json, "runtime_class", spec->runtime_class);
    json_set_text(json, "network", spec->network);
    if (spec->decoy_env) {
        struct json *decoy = json_set_object(json, "decoy");
        json_set_text(decoy, "env", spec->decoy_env);
        json_set_int(decoy, "seen", spec->decoy_seen);
        json_set_text(decoy, "seen_at", spec->decoy_seen_at);
    }
    json_set_text(json, "profile", spec->profile);
    if (strcmp(spec->profile, PROFILE_COMPAT) == 0) { /* the image's own, which is not known */
        json_set_null(json, "run_as_user");
        json_set_null(json, "run_as_group");
    } else {
        json_set_int(json, "run_as_user", spec->run_as_user);
        json_set_int(json, "run_as_group", spec->run_as_group);
    }
    json_set_bool(json, "read_only_root", spec->read_only_root);
    struct json *mounts = json_set_array(json, "writable_mounts");
    for (size_t i = 0; i < spec->writable_mounts.count; i++) {
        json_add_text(mounts, spec->writable_mounts.items[i]);
    }
    json_set_number(json, "ttl", (double)spec->ttl_ms / 1000.0);
    json_set_number(json, "ready_timeout", (double)spec->ready_timeout_ms / 1000.0);
    return json;
}

static char *text_copy(const struct json *json, const char *name)
{
    const char *text = json_get_text(json, name);
    return text ? xstrdup(text) : NULL;
}

static int64_t seconds(const struct json *json, const char *name)
{
    return (int64_t)(json_get_number(json, name, 0) * 1000.0 + 0.5); /* 1.001 is a little less */
}

void sandbox_spec_restore(const struct json *json, struct sandbox_spec *ret_spec)
{
    const struct json *resources = json_get(json, "resources");
    const char *profile = json_get_text(json, "profile"); /* older records have none */
    const struct json *decoy = json_get(json, "decoy");
    *ret_spec = (struct sandbox_spec){
        .image = text_copy(json, "image"),
        .pull_policy = text_copy(json, "image_pull_policy"),
        .workdir = text_copy(json, "workdir"),
        .cpu = text_copy(resources, "cpu"),
        .cpu_request = text_copy(resources, "cpu_request"),
        .memory = text_copy(resources, "memory"),
        .memory_request = text_copy(resources, "memory_request"),
        .storage = text_copy(resources, "storage"),
        .runtime_class = text_copy(json, "runtime_class"),
        .network = text_copy(json, "network"),
        .profile = xstrdup(profile ? profile : PROFILE_HARDENED),
        .decoy_env = text_copy(decoy, "env"),
        .decoy_seen = json_get_int(decoy, "seen", 0),
        .decoy_seen_at = text_copy(decoy, "seen_at"),
        .run_as_user = json_get_int(json, "run_as_user", 0),
        .run_as_group = json_get_int(json, "run_as_group", 0),
        .read_only_root = json_get_bool(json, "read_only_root", true),
        .ttl_ms = seconds(json, "ttl"),
        .ready_timeout_ms = seconds(json, "ready_timeout"),
    };
    const struct json *mounts = json_get(json, "writable_mounts");
    for (const struct json *item = json_first(mounts); item; item = json_next(item)) {
        if (json_text(item)) {
            text_list_add(&ret_spec->writable_mounts, json_text(item));
        }
    }
}
