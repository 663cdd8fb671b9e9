#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"

#define PROFILE_HARDENED "hardened"
#define PROFILE_COMPAT "compat" /* writable root, the image's own user */

/* What a caller asks for in `POST /v1/sandboxes`, checked against the operator's policy and with
 * every default filled in. */
struct sandbox_spec {
    char *id; /* given or generated */
    char *image, *pull_policy;
    struct text_map env;
    struct text_map labels;
    struct text_list secrets;
    char *decoy, *decoy_env; /* a value made for this sandbox, and its variable; NULL: none */
    int64_t decoy_seen;      /* outputs that had it */
    char *decoy_seen_at;     /* RFC 3339; NULL: never */
    char *workdir;
    struct text_list writable_mounts;
    char *cpu, *cpu_request, *memory, *memory_request, *storage;
    char *runtime_class; /* NULL: none */
    char *network;
    char *profile; /* PROFILE_HARDENED, or a looser shape that the operator allows */
    int64_t run_as_user, run_as_group;
    bool read_only_root;
    int64_t ttl_ms, ready_timeout_ms;
    bool wait;
};
void sandbox_spec_done(struct sandbox_spec *spec);

/* The operator's defaults and ceilings; borrowed texts, from the options. */
struct policy {
    const char *image, *allow_images, *allow_pull_policies, *allow_users, *allow_profiles;
    bool allow_writable_root;
    const char *pull_policy;
    int64_t run_as_user, run_as_group;
    bool read_only_root;
    const char *workdir, *cpu, *cpu_request, *memory, *memory_request, *storage;
    const char *max_cpu, *max_memory, *max_storage;
    const char *runtime_class, *network;
    bool allow_host_network, allow_no_network; /* beside `network` */
    int64_t ready_timeout_ms, max_ready_timeout_ms, ttl_ms, max_lifetime_ms;
    int64_t unschedulable_after_ms; /* how long to hope for a node */
};

/* ERR_INVALID_FIELD naming the field, ERR_NOT_SUPPORTED, ERR_POLICY. */
int sandbox_spec_parse(const struct json *request, const struct policy *policy,
                       struct sandbox_spec *ret_spec, struct err *err) must_check;
/* The public part (no env values, no secrets), as records show it. */
struct json *sandbox_spec_public(const struct sandbox_spec *spec);
/* The other way round; what is missing stays empty. */
void sandbox_spec_restore(const struct json *json, struct sandbox_spec *ret_spec);

bool sandbox_id_valid(const char *id);
/* Labels of callers: no podsandbox.dev/ or app.kubernetes.io/ prefix, Kubernetes syntax. */
int labels_check(const struct text_map *labels, const char *field, struct err *err) must_check;
/* Names as the kernel takes them, no NUL, no '='; values any. */
int env_check(const struct text_map *env, const char *field, struct err *err) must_check;
