#include "sandbox/spec.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/crypto.h"
#include "base/str.h"
#include "sandbox/decoy.h"

/* All secrets must fit into the sealed blob that the agent keeps. */
#define SECRETS_TOTAL_MAX (128 * KIB)
#define LABELS_TOTAL_MAX (32 * KIB)
#define ENV_TOTAL_MAX (1 * MIB)
#define MOUNTS_MAX 16
#define PATH_LEN_MAX 255

struct resources_body {
    char *cpu, *memory, *storage, *cpu_request, *memory_request;
};

struct spec_body {
    struct sandbox_spec spec;
    struct resources_body resources;
    struct text_map mounts;
};

#define RESOURCE(key, member)                                                                      \
    {                                                                                              \
        .name = (key), .decode = json_decode_quantity,                                             \
        .offset = offsetof(struct resources_body, member)                                          \
    }
static const struct json_field resource_fields[] = {
    RESOURCE("cpu", cpu),
    RESOURCE("memory", memory),
    RESOURCE("storage", storage),
    RESOURCE("cpu_request", cpu_request),
    RESOURCE("memory_request", memory_request),
    JSON_FIELDS_END,
};

#define SPEC(member) offsetof(struct spec_body, spec.member)
static const struct json_field decoy_fields[] = {
    {.name = "env",
     .decode = json_decode_text,
     .offset = SPEC(decoy_env),
     .required = true,
     .min = 1,
     .max = 255},
    JSON_FIELDS_END,
};

static const struct json_field spec_fields[] = {
    {.name = "id", .decode = json_decode_text, .offset = SPEC(id), .min = 1, .max = 40},
    {.name = "image", .decode = json_decode_text, .offset = SPEC(image), .min = 1, .max = 500},
    {.name = "image_pull_policy",
     .decode = json_decode_text,
     .offset = SPEC(pull_policy),
     .max = 20},
    {.name = "env", .decode = json_decode_text_map, .offset = SPEC(env), .max = CAP_ENV},
    {.name = "labels", .decode = json_decode_text_map, .offset = SPEC(labels), .max = CAP_LABELS},
    {.name = "secrets",
     .decode = json_decode_text_list,
     .offset = SPEC(secrets),
     .max = CAP_SECRETS},
    {.name = "decoy", .decode = json_decode_object, .extra = decoy_fields},
    {.name = "workdir", .decode = json_decode_text, .offset = SPEC(workdir), .min = 1, .max = 255},
    {.name = "resources",
     .decode = json_decode_object,
     .offset = offsetof(struct spec_body, resources),
     .extra = resource_fields},
    {.name = "runtime_class", .decode = json_decode_text, .offset = SPEC(runtime_class), .max = 63},
    {.name = "writable_mounts",
     .decode = json_decode_text_map,
     .offset = offsetof(struct spec_body, mounts),
     .max = MOUNTS_MAX},
    {.name = "network", .decode = json_decode_text, .offset = SPEC(network), .max = 32},
    {.name = "profile", .decode = json_decode_text, .offset = SPEC(profile), .max = 32},
    {.name = "run_as_user",
     .decode = json_decode_int,
     .offset = SPEC(run_as_user),
     .min = 1,
     .max = INT32_MAX},
    {.name = "run_as_group",
     .decode = json_decode_int,
     .offset = SPEC(run_as_group),
     .min = 1,
     .max = INT32_MAX},
    {.name = "read_only_root", .decode = json_decode_bool, .offset = SPEC(read_only_root)},
    {.name = "ttl",
     .decode = json_decode_seconds,
     .offset = SPEC(ttl_ms),
     .min = 1000,
     .max = INT64_C(366) * 86400 * 1000},
    {.name = "ready_timeout",
     .decode = json_decode_seconds,
     .offset = SPEC(ready_timeout_ms),
     .min = 1000,
     .max = INT64_C(86400) * 1000},
    {.name = "wait", .decode = json_decode_bool, .offset = SPEC(wait)},
    JSON_FIELDS_END,
};

void sandbox_spec_done(struct sandbox_spec *spec)
{
    char **texts[] = {
        &spec->id,        &spec->image,         &spec->pull_policy, &spec->workdir,
        &spec->cpu,       &spec->cpu_request,   &spec->memory,      &spec->memory_request,
        &spec->storage,   &spec->runtime_class, &spec->network,     &spec->profile,
        &spec->decoy_env, &spec->decoy_seen_at};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        free(*texts[i]);
        *texts[i] = NULL;
    }
    free_secret(spec->decoy, spec->decoy ? strlen(spec->decoy) : 0);
    spec->decoy = NULL;
    for (size_t i = 0; i < spec->secrets.count; i++) {
        explicit_bzero(spec->secrets.items[i], strlen(spec->secrets.items[i]));
    }
    for (size_t i = 0; i < spec->env.count; i++) {
        explicit_bzero(spec->env.items[i].value, strlen(spec->env.items[i].value));
    }
    text_map_done(&spec->env);
    text_map_done(&spec->labels);
    text_list_done(&spec->secrets);
    text_list_done(&spec->writable_mounts);
}

static void spec_body_done(struct spec_body *body)
{
    sandbox_spec_done(&body->spec);
    char **texts[] = {&body->resources.cpu, &body->resources.memory, &body->resources.storage,
                      &body->resources.cpu_request, &body->resources.memory_request};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        cleanup_free_ptr(texts[i]);
        *texts[i] = NULL;
    }
    text_map_done(&body->mounts);
}

static int bad(struct err *err, const char *field, const char *what)
{
    return err_set(err, ERR_INVALID_FIELD, "field '%s' %s", field, what);
}

static bool is_alnum_lower(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* "<1–5 digits>-…" is kept for the hosts of further preview ports. */
static bool starts_like_port(const char *id)
{
    size_t digits = strspn(id, "0123456789");
    return digits >= 1 && digits <= 5 && id[digits] == '-';
}

bool sandbox_id_valid(const char *id)
{
    size_t len = strlen(id);
    if (len < 1 || len > 40 || starts_like_port(id)) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        bool edge = i == 0 || i == len - 1;
        if (!is_alnum_lower(id[i]) && (edge || id[i] != '-')) {
            return false;
        }
    }
    return true;
}

/* A part of a label: letters, digits, '-', '_', '.', beginning and ending with a letter or digit.
 */
static bool label_part_valid(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        bool alnum = is_alnum_lower(c) || (c >= 'A' && c <= 'Z');
        bool edge = i == 0 || i == len - 1;
        if (!alnum && (edge || !strchr("-_.", c))) {
            return false;
        }
    }
    return true;
}

static bool label_name_valid(const char *name)
{
    const char *slash = strchr(name, '/');
    const char *base = slash ? slash + 1 : name;
    size_t prefix = slash ? (size_t)(slash - name) : 0;
    if (slash && (prefix < 1 || prefix > 253 || !label_part_valid(name, prefix))) {
        return false;
    }
    size_t len = strlen(base);
    return len >= 1 && len <= 63 && !strchr(base, '/') && label_part_valid(base, len);
}

int labels_check(const struct text_map *labels, const char *field, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < labels->count; i++) {
        const char *name = labels->items[i].name;
        const char *value = labels->items[i].value;
        size_t len = strlen(value);
        if (str_starts(name, "podsandbox.dev/") || str_starts(name, "app.kubernetes.io/")) {
            return err_set(err, ERR_INVALID_FIELD,
                           "field '%s': the label '%s' has a reserved prefix", field, name);
        }
        if (!label_name_valid(name)) {
            return err_set(err, ERR_INVALID_FIELD,
                           "field '%s': '%.100s' is not a label name (letters, digits, '-', '_', "
                           "'.', at most 63, with an optional prefix/)",
                           field, name);
        }
        if (len > 63 || !label_part_valid(value, len)) {
            return err_set(err, ERR_INVALID_FIELD,
                           "field '%s.%s': the value must be at most 63 letters, digits, '-', '_' "
                           "or '.'",
                           field, name);
        }
        total += strlen(name) + len;
    }
    return total > LABELS_TOTAL_MAX ? bad(err, field, "is too large together") : 0;
}

static bool env_name_valid(const char *name)
{
    if (!*name || (*name >= '0' && *name <= '9')) {
        return false;
    }
    for (const char *c = name; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        if (!letter && !(*c >= '0' && *c <= '9') && *c != '_') {
            return false;
        }
    }
    return true;
}

int env_check(const struct text_map *env, const char *field, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < env->count; i++) {
        const char *name = env->items[i].name;
        size_t len = strlen(name) + 1 + strlen(env->items[i].value);
        if (!env_name_valid(name)) {
            return err_set(err, ERR_INVALID_FIELD,
                           "field '%s': '%.100s' is not a variable name (letters, digits and '_', "
                           "not beginning with a digit)",
                           field, name);
        }
        if (len > CAP_ARG) {
            return err_set(err, ERR_ARGUMENT_TOO_LONG,
                           "field '%s.%s' is longer than the %d bytes that Linux allows", field,
                           name, CAP_ARG);
        }
        total += len;
    }
    return total > ENV_TOTAL_MAX
               ? err_set(err, ERR_ARGUMENT_TOO_LONG, "field '%s' is too large together", field)
               : 0;
}

/* Absolute, printable, no empty, "." or ".." component, no ':' (which container runtimes split at).
 */
static bool path_plain(const char *path)
{
    size_t length = strlen(path);
    if (path[0] != '/' || strchr(path, ':') || length > PATH_LEN_MAX ||
        !str_is_printable(path, length)) {
        return false;
    }
    for (const char *part = path + 1;; part++) {
        size_t len = strcspn(part, "/");
        bool dots = (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.');
        if (dots || (len == 0 && !(part == path + 1 && !*part))) {
            return false;
        }
        part += len;
        if (!*part) {
            return true;
        }
    }
}

static bool path_within(const char *path, const char *base)
{
    size_t len = strlen(base);
    return strncmp(path, base, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static int mount_path_check(const char *path, const char *field, struct err *err)
{
    static const char *const reserved[] = {"/proc",           "/sys",           "/dev", "/etc",
                                           "/opt/podsandbox", "/run/podsandbox"};
    if (!path_plain(path) || path[1] == '\0') {
        return err_set(err, ERR_INVALID_FIELD,
                       "field '%s' must be an absolute path of at most 255 bytes without '.', "
                       "'..', '//' or ':'",
                       field);
    }
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++) {
        if (path_within(path, reserved[i])) {
            return err_set(err, ERR_INVALID_FIELD, "field '%s': %s is reserved", field,
                           reserved[i]);
        }
    }
    return 0;
}

/* Names of mounts that every sandbox has. /tmp is one of them and may be asked for by any name. */
static bool mount_name_reserved(const char *name, const char *path)
{
    static const char *const reserved[] = {"workspace", "tmp", "home", "agent"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++) {
        if (strcmp(name, reserved[i]) == 0) {
            return strcmp(path, "/tmp") != 0;
        }
    }
    return false;
}

/* The caller names each mount, as the Python library did; only the paths matter further down. */
static int mounts_take(struct spec_body *body, struct err *err)
{
    for (size_t i = 0; i < body->mounts.count; i++) {
        const char *name = body->mounts.items[i].name;
        const char *path = body->mounts.items[i].value;
        char field[96];
        snprintf(field, sizeof(field), "writable_mounts.%.63s", name);
        if (!sandbox_id_valid(name)) {
            return bad(err, field, "must have a name of lower-case letters, digits and '-'");
        }
        if (mount_name_reserved(name, path)) {
            return bad(err, field, "has a reserved name");
        }
        if (mount_path_check(path, field, err) < 0) {
            return -1;
        }
        if (!text_list_has(&body->spec.writable_mounts, path)) {
            text_list_add(&body->spec.writable_mounts, path);
        }
    }
    return 0;
}

static int secrets_check(const struct text_list *secrets, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < secrets->count; i++) {
        size_t len = strlen(secrets->items[i]);
        if (len > CAP_SECRET) {
            return bad(err, "secrets", "has a value that is longer than 64 KiB");
        }
        total += len;
    }
    return total > SECRETS_TOTAL_MAX ? bad(err, "secrets", "is longer than 128 KiB together") : 0;
}

static bool list_allows(const char *list, const char *value)
{
    if (!list) {
        return true;
    }
    for (const char *item = list; *item;) {
        size_t len = strcspn(item, ",");
        cleanup_free char *pattern = xstrndup(item, len);
        if (fnmatch(pattern, value, 0) == 0) {
            return true;
        }
        item += len + (item[len] == ',');
    }
    return false;
}

/* The image's own user and a writable root are what the profile is; none of it is for the asking.
 */
static int profile_check(struct sandbox_spec *spec, const struct policy *policy, struct err *err)
{
    if (strcmp(spec->profile, PROFILE_HARDENED) == 0) {
        return 0;
    }
    if (strcmp(spec->profile, PROFILE_COMPAT) != 0) {
        return bad(err, "profile", "must be " PROFILE_HARDENED " or " PROFILE_COMPAT);
    }
    if (!policy->allow_profiles || !list_allows(policy->allow_profiles, spec->profile)) {
        return err_set(err, ERR_POLICY,
                       "field 'profile': this server does not allow the profile '%s'",
                       spec->profile);
    }
    if (spec->run_as_user != policy->run_as_user || spec->run_as_group != policy->run_as_group) {
        return bad(err, "run_as_user", "does not go with the profile " PROFILE_COMPAT);
    }
    spec->read_only_root = false;
    return 0;
}

static int policy_check(const struct sandbox_spec *spec, const struct policy *policy,
                        struct err *err)
{
    char user[32];
    snprintf(user, sizeof(user), "%lld", (long long)spec->run_as_user);
    bool own_image = !policy->image || strcmp(spec->image, policy->image) != 0;
    if (own_image && !list_allows(policy->allow_images, spec->image)) {
        return err_set(err, ERR_POLICY,
                       "field 'image': '%s' is not among the images that this server allows",
                       spec->image);
    }
    static const char *const pulls[] = {"Always", "IfNotPresent", "Never"};
    bool known = false;
    for (size_t i = 0; i < ARRAY_LEN(pulls); i++) {
        known = known || strcmp(pulls[i], spec->pull_policy) == 0;
    }
    if (!known) {
        return bad(err, "image_pull_policy", "must be Always, IfNotPresent or Never");
    }
    if (strcmp(spec->pull_policy, policy->pull_policy) != 0 &&
        !list_allows(policy->allow_pull_policies, spec->pull_policy)) {
        return err_set(err, ERR_POLICY, "field 'image_pull_policy': this server does not allow %s",
                       spec->pull_policy);
    }
    bool own_user =
        spec->run_as_user != policy->run_as_user || spec->run_as_group != policy->run_as_group;
    if (own_user && (!policy->allow_users || !list_allows(policy->allow_users, user))) {
        return err_set(err, ERR_POLICY, "field 'run_as_user': this server does not allow user %s",
                       user);
    }
    bool compat = strcmp(spec->profile, PROFILE_COMPAT) == 0;
    if (!compat && !spec->read_only_root && policy->read_only_root &&
        !policy->allow_writable_root) {
        return err_set(err, ERR_POLICY,
                       "field 'read_only_root': this server does not allow a writable root");
    }
    return 0;
}

static int quantity_check(const char *field, const char *value, const char *ceiling, bool cpu,
                          struct err *err)
{
    uint64_t amount = 0, most = 0;
    bool (*parse)(const char *, uint64_t *) = cpu ? str_to_milli : str_to_bytes;
    if (!parse(value, &amount) || amount == 0) {
        return err_set(err, ERR_INVALID_FIELD, "field '%s' must be a quantity such as %s", field,
                       cpu ? "2 or 250m" : "2Gi or 512Mi");
    }
    if (ceiling && parse(ceiling, &most) && amount > most) {
        return err_set(err, ERR_POLICY, "field '%s': at most %s on this server", field, ceiling);
    }
    return 0;
}

/* A request above its limit is lowered to it where it came from the operator's default only. */
static int request_check(const char *field, char **request, bool given, const char *limit, bool cpu,
                         struct err *err)
{
    uint64_t want = 0, most = 0;
    bool (*parse)(const char *, uint64_t *) = cpu ? str_to_milli : str_to_bytes;
    if (quantity_check(field, *request, NULL, cpu, err) < 0) {
        return -1;
    }
    if (parse(*request, &want) && parse(limit, &most) && want > most) {
        if (given) {
            return err_set(err, ERR_INVALID_FIELD, "field '%s' must not be above the limit %s",
                           field, limit);
        }
        cleanup_free_ptr(request);
        *request = xstrdup(limit);
    }
    return 0;
}

static int resources_check(struct spec_body *body, const struct policy *policy, struct err *err)
{
    struct sandbox_spec *spec = &body->spec;
    struct resources_body *asked = &body->resources;
    bool cpu_given = asked->cpu_request, memory_given = asked->memory_request;
    spec->cpu = asked->cpu ? TAKE_PTR(asked->cpu) : xstrdup(policy->cpu);
    spec->memory = asked->memory ? TAKE_PTR(asked->memory) : xstrdup(policy->memory);
    spec->storage = asked->storage ? TAKE_PTR(asked->storage) : xstrdup(policy->storage);
    const char *cpu_request = policy->cpu_request ? policy->cpu_request : spec->cpu;
    const char *memory_request = policy->memory_request ? policy->memory_request : spec->memory;
    spec->cpu_request = cpu_given ? TAKE_PTR(asked->cpu_request) : xstrdup(cpu_request);
    spec->memory_request = memory_given ? TAKE_PTR(asked->memory_request) : xstrdup(memory_request);
    if (quantity_check("resources.cpu", spec->cpu, policy->max_cpu, true, err) < 0 ||
        quantity_check("resources.memory", spec->memory, policy->max_memory, false, err) < 0 ||
        quantity_check("resources.storage", spec->storage, policy->max_storage, false, err) < 0 ||
        request_check("resources.cpu_request", &spec->cpu_request, cpu_given, spec->cpu, true,
                      err) < 0) {
        return -1;
    }
    return request_check("resources.memory_request", &spec->memory_request, memory_given,
                         spec->memory, false, err);
}

static void fill(char **member, const char *value)
{
    if (!*member && value && *value) {
        *member = xstrdup(value);
    }
}

static void defaults_fill(struct sandbox_spec *spec, const struct policy *policy)
{
    if (!spec->id) {
        uint8_t bytes[6];
        crypto_random(bytes, sizeof(bytes));
        spec->id = xasprintf("run-%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3],
                             bytes[4], bytes[5]);
    }
    fill(&spec->image, policy->image);
    fill(&spec->pull_policy, policy->pull_policy);
    fill(&spec->workdir, policy->workdir);
    fill(&spec->runtime_class, policy->runtime_class);
    fill(&spec->network, policy->network);
    fill(&spec->profile, PROFILE_HARDENED);
}

static int times_check(const struct sandbox_spec *spec, const struct policy *policy,
                       struct err *err)
{
    if (spec->ttl_ms > policy->max_lifetime_ms) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'ttl': at most %lld seconds, the maximum lifetime on this server",
                       (long long)(policy->max_lifetime_ms / 1000));
    }
    if (spec->ready_timeout_ms > policy->max_ready_timeout_ms) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'ready_timeout': at most %lld seconds on this server",
                       (long long)(policy->max_ready_timeout_ms / 1000));
    }
    return 0;
}

static int names_check(const struct sandbox_spec *spec, const struct policy *policy,
                       struct err *err)
{
    if (!sandbox_id_valid(spec->id)) {
        return bad(err, "id",
                   "must be 1 to 40 lower-case letters, digits and '-', beginning and ending with "
                   "a letter or digit, and not look like '<port>-…'");
    }
    if (!spec->image) {
        return bad(err, "image", "is required: this server has no default image");
    }
    if (strpbrk(spec->image, " \t") || spec->image[0] == '-') {
        return bad(err, "image", "must be an image reference without spaces");
    }
    if (spec->runtime_class &&
        (!label_part_valid(spec->runtime_class, strlen(spec->runtime_class)) ||
         !*spec->runtime_class)) {
        return bad(err, "runtime_class", "must be the name of a RuntimeClass");
    }
    bool host = policy->allow_host_network && strcmp(spec->network, "host") == 0;
    bool none = policy->allow_no_network && strcmp(spec->network, "none") == 0;
    if (strcmp(spec->network, policy->network) != 0 && !host && !none) {
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'network': only '%s' is supported by this server%s", policy->network,
                       strcmp(spec->network, "host") == 0
                           ? ", unless it is started with --allow-host-network"
                           : "");
    }
    return mount_path_check(spec->workdir, "workdir", err);
}

int sandbox_spec_parse(const struct json *request, const struct policy *policy,
                       struct sandbox_spec *ret_spec, struct err *err)
{
    cleanup(spec_body_done) struct spec_body body = {
        .spec = {.run_as_user = policy->run_as_user,
                 .run_as_group = policy->run_as_group,
                 .read_only_root = policy->read_only_root,
                 .ttl_ms = policy->ttl_ms,
                 .ready_timeout_ms = policy->ready_timeout_ms,
                 .wait = true},
    };
    if (json_decode(request, spec_fields, "", &body, err) < 0) {
        return -1;
    }
    defaults_fill(&body.spec, policy);
    if (names_check(&body.spec, policy, err) < 0 || mounts_take(&body, err) < 0 ||
        env_check(&body.spec.env, "env", err) < 0 || decoy_check(&body.spec, err) < 0 ||
        labels_check(&body.spec.labels, "labels", err) < 0 ||
        secrets_check(&body.spec.secrets, err) < 0 || times_check(&body.spec, policy, err) < 0 ||
        resources_check(&body, policy, err) < 0 || profile_check(&body.spec, policy, err) < 0 ||
        policy_check(&body.spec, policy, err) < 0) {
        return -1;
    }
    *ret_spec = body.spec;
    body.spec = (struct sandbox_spec){0};
    return 0;
}
