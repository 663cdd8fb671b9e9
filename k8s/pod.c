#include "k8s/pod.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "k8s/object.h"

#define DEADLINE_SLACK_S 60
#define GRACE_S 1
#define AGENT_SIZE_LIMIT "64Mi"
#define STORAGE_REQUEST "64Mi"

void pod_name(const char *id, char *ret_name)
{
    (void)snprintf(ret_name, 64, "sandbox-%s", id);
}

/* --- parts --------------------------------------------------------------------------------------
 */

static void set_if(struct json *object, const char *name, const char *value)
{
    if (value != NULL && value[0] != '\0')
        json_set_text(object, name, value);
}

/* Immutable facts; SPEC NULL: of a probe. The network label is what the chart's policies go by. */
static void set_metadata(struct json *pod, const struct pod_plan *plan, const char *name,
                         const struct box_spec *spec)
{
    struct json *metadata = json_set_object(pod, "metadata");
    struct json *labels, *annotations;
    char created[TIME_TEXT_LEN];

    json_set_text(metadata, "name", name);
    json_set_text(metadata, "namespace", plan->namespace_);
    labels = json_set_object(metadata, "labels");
    json_set_text(labels, LABEL_MANAGED_BY, MANAGED_BY);
    json_set_text(labels, LABEL_INSTANCE, plan->config->instance);
    if (spec == NULL) {
        json_set_text(labels, LABEL_PROBE, "agent");
        return;
    }
    json_set_text(labels, LABEL_ID, spec->id);
    set_if(labels, LABEL_NETWORK, spec->network);
    time_format(spec->created_ms, created);
    annotations = json_set_object(metadata, "annotations");
    set_if(annotations, ANNOTATION_OWNER, spec->owner);
    set_if(annotations, ANNOTATION_UID, spec->uid);
    json_set_text(annotations, ANNOTATION_CREATED, created);
    set_if(annotations, ANNOTATION_DIGEST, spec->digest);
}

/* What PodSecurity `restricted` asks of every container, and a read-only root unless told
 * otherwise. */
static void set_container_security(struct json *container, bool read_only_root)
{
    struct json *security = json_set_object(container, "securityContext");

    json_set_bool(security, "allowPrivilegeEscalation", false);
    json_set_bool(security, "readOnlyRootFilesystem", read_only_root);
    json_add_text(json_set_array(json_set_object(security, "capabilities"), "drop"), "ALL");
}

static void set_pod_security(struct json *spec, int64_t user, int64_t group)
{
    struct json *security = json_set_object(spec, "securityContext");

    json_set_bool(security, "runAsNonRoot", true);
    json_set_int(security, "runAsUser", user);
    json_set_int(security, "runAsGroup", group);
    json_set_int(security, "fsGroup", group);
    json_set_text(json_set_object(security, "seccompProfile"), "type", "RuntimeDefault");
}

static const char *storage_request(const char *limit)
{
    uint64_t bytes, request;

    if (!str_to_bytes(limit, &bytes) || !str_to_bytes(STORAGE_REQUEST, &request))
        return limit;
    return bytes < request ? limit : STORAGE_REQUEST;
}

static void set_resources(struct json *container, const struct box_spec *spec)
{
    struct json *resources = json_set_object(container, "resources");
    struct json *limits = json_set_object(resources, "limits");
    struct json *requests = json_set_object(resources, "requests");

    set_if(limits, "cpu", spec->cpu_limit);
    set_if(limits, "memory", spec->memory_limit);
    set_if(limits, "ephemeral-storage", spec->storage_limit);
    set_if(requests, "cpu", spec->cpu_request);
    set_if(requests, "memory", spec->memory_request);
    if (spec->storage_limit != NULL)
        json_set_text(requests, "ephemeral-storage", storage_request(spec->storage_limit));
}

static void add_empty_dir(struct json *volumes, const char *name, const char *size_limit)
{
    struct json *volume = json_new_object();

    json_set_text(volume, "name", name);
    set_if(json_set_object(volume, "emptyDir"), "sizeLimit", size_limit);
    json_add(volumes, volume);
}

static void add_mount(struct json *mounts, const char *name, const char *path, bool read_only)
{
    struct json *mount = json_new_object();

    json_set_text(mount, "name", name);
    json_set_text(mount, "mountPath", path);
    if (read_only)
        json_set_bool(mount, "readOnly", true);
    json_add(mounts, mount);
}

/* --- writable places ----------------------------------------------------------------------------
 */

static bool same_path(const char *a, const char *b)
{
    size_t a_len = strlen(a), b_len = strlen(b);

    while (a_len > 1 && a[a_len - 1] == '/')
        a_len--;
    while (b_len > 1 && b[b_len - 1] == '/')
        b_len--;
    return a_len == b_len && memcmp(a, b, a_len) == 0;
}

static bool is_mounted(const struct json *mounts, const char *path)
{
    for (const struct json *mount = json_first(mounts); mount != NULL; mount = json_next(mount)) {
        if (same_path(json_get_text(mount, "mountPath"), path))
            return true;
    }
    return false;
}

static int check_path(const char *path, struct err *err)
{
    size_t len = strlen(AGENT_DIR);

    if (path[0] != '/' || same_path(path, "/") || strchr(path, ':') != NULL)
        return err_set(err, ERR_INVALID_FIELD, "'%s' cannot be a writable place", path);
    if (strncmp(path, AGENT_DIR, len) == 0 && (path[len] == '/' || path[len] == '\0'))
        return err_set(err, ERR_INVALID_FIELD, "'%s' is reserved for the agent", path);
    return 0;
}

/* The workdir, /tmp, HOME and what the spec adds; a path that is there already is not added again.
 */
static int add_writable(struct json *volumes, struct json *mounts, const struct box_spec *spec,
                        struct err *err)
{
    const struct {
        const char *name, *path;
    } fixed[] = {{"workspace", spec->workdir}, {"tmp", "/tmp"}, {"home", POD_HOME}};
    char name[32];

    for (size_t i = 0; i < ARRAY_LEN(fixed); i++) {
        if (check_path(fixed[i].path, err) < 0)
            return -1;
        if (is_mounted(mounts, fixed[i].path))
            continue;
        add_empty_dir(volumes, fixed[i].name, spec->storage_limit);
        add_mount(mounts, fixed[i].name, fixed[i].path, false);
    }
    for (size_t i = 0; spec->writable_mounts != NULL && i < spec->writable_mounts->count; i++) {
        const char *path = spec->writable_mounts->items[i];

        if (check_path(path, err) < 0)
            return -1;
        if (is_mounted(mounts, path))
            continue;
        (void)snprintf(name, sizeof(name), "mount-%zu", i + 1);
        add_empty_dir(volumes, name, spec->storage_limit);
        add_mount(mounts, name, path, false);
    }
    return 0;
}

/* --- the agent ----------------------------------------------------------------------------------
 */

static void add_image_volume(struct json *volumes, const struct pod_plan *plan)
{
    struct json *volume = json_new_object();
    struct json *image;

    json_set_text(volume, "name", AGENT_VOLUME);
    image = json_set_object(volume, "image");
    json_set_text(image, "reference", plan->config->agent_image);
    json_set_text(image, "pullPolicy", "IfNotPresent");
    json_add(volumes, volume);
}

static void add_installer(struct json *pod_spec, const struct pod_plan *plan,
                          const struct box_spec *spec)
{
    struct json *container = json_new_object();
    struct json *command;

    json_set_text(container, "name", POD_INIT_CONTAINER);
    json_set_text(container, "image", plan->config->agent_image);
    json_set_text(container, "imagePullPolicy", "IfNotPresent");
    command = json_set_array(container, "command");
    json_add_text(command, "/" AGENT_READABLE_NAME);
    json_add_text(command, "install");
    json_add_text(command, AGENT_DIR);
    add_mount(json_set_array(container, "volumeMounts"), AGENT_VOLUME, AGENT_DIR, false);
    set_resources(container, spec);
    set_container_security(container, true);
    json_add(json_set_array(pod_spec, "initContainers"), container);
}

static const char *agent_path(const struct pod_plan *plan)
{
    if (plan->delivery == DELIVERY_IMAGE_VOLUME && plan->readable_agent)
        return AGENT_DIR "/" AGENT_READABLE_NAME;
    return AGENT_DIR "/" AGENT_NAME;
}

/* --- the pod ------------------------------------------------------------------------------------
 */

/* How and where it runs: the same for sandboxes and probes. */
static void set_placement(struct json *spec, const struct pod_plan *plan)
{
    const struct k8s_config *config = plan->config;
    struct json *tolerations = NULL;

    json_set_text(spec, "restartPolicy", "Never");
    json_set_int(spec, "terminationGracePeriodSeconds", GRACE_S);
    json_set_bool(spec, "automountServiceAccountToken", false);
    json_set_bool(spec, "enableServiceLinks", false);
    set_if(spec, "runtimeClassName", plan->runtime_class);
    set_if(spec, "priorityClassName", config->priority_class);
    if (config->node_selector.count > 0) {
        struct json *selector = json_set_object(spec, "nodeSelector");

        for (size_t i = 0; i < config->node_selector.count; i++)
            json_set_text(selector, config->node_selector.items[i].name,
                          config->node_selector.items[i].value);
    }
    if (config->tolerations != NULL && config->tolerations[0] != '\0' &&
        json_parse(config->tolerations, strlen(config->tolerations), JSON_STRICT, &tolerations,
                   NULL) == 0)
        json_set(spec, "tolerations", tolerations);
    if (config->image_pull_secrets.count > 0) {
        struct json *secrets = json_set_array(spec, "imagePullSecrets");

        for (size_t i = 0; i < config->image_pull_secrets.count; i++) {
            struct json *secret = json_new_object();

            json_set_text(secret, "name", config->image_pull_secrets.items[i]);
            json_add(secrets, secret);
        }
    }
}

static int64_t active_deadline(const struct box_spec *spec)
{
    int64_t seconds = spec->max_lifetime_ms / 1000 + DEADLINE_SLACK_S;

    return seconds < INT32_MAX ? seconds : INT32_MAX;
}

static int build_container(const struct pod_plan *plan, const struct box_spec *spec,
                           struct json *pod_spec, struct err *err)
{
    struct json *container = json_new_object();
    struct json *volumes = json_set_array(pod_spec, "volumes");
    struct json *command, *mounts, *home;

    json_add(json_set_array(pod_spec, "containers"), container);
    json_set_text(container, "name", POD_CONTAINER);
    json_set_text(container, "image", spec->image);
    json_set_text(container, "imagePullPolicy",
                  spec->pull_policy != NULL ? spec->pull_policy : "IfNotPresent");
    command = json_set_array(container, "command");
    json_add_text(command, agent_path(plan));
    json_add_text(command, "serve");
    if (spec->uid != NULL && spec->uid[0] != '\0') {
        json_add_text(command, "--uid"); /* an exec by the pod's name may reach the one before */
        json_add_text(command, spec->uid);
    }
    json_set_text(container, "workingDir", spec->workdir);
    home = json_new_object(); /* uid 1000 need not be in the image's passwd */
    json_set_text(home, "name", "HOME");
    json_set_text(home, "value", POD_HOME);
    json_add(json_set_array(container, "env"), home);
    mounts = json_set_array(container, "volumeMounts");
    if (add_writable(volumes, mounts, spec, err) < 0)
        return -1;
    if (plan->delivery == DELIVERY_IMAGE_VOLUME) {
        add_image_volume(volumes, plan);
    } else {
        add_empty_dir(volumes, AGENT_VOLUME, AGENT_SIZE_LIMIT);
        add_installer(pod_spec, plan, spec);
    }
    add_mount(mounts, AGENT_VOLUME, AGENT_DIR, true);
    set_resources(container, spec);
    set_container_security(container, spec->read_only_root);
    return 0;
}

int pod_build(const struct pod_plan *plan, const struct box_spec *spec, struct json **ret_pod,
              struct err *err)
{
    cleanup_json struct json *pod = json_new_object();
    struct json *pod_spec;
    char name[64];

    pod_name(spec->id, name);
    json_set_text(pod, "apiVersion", "v1");
    json_set_text(pod, "kind", "Pod");
    set_metadata(pod, plan, name, spec);
    pod_spec = json_set_object(pod, "spec");
    set_placement(pod_spec, plan);
    json_set_int(pod_spec, "activeDeadlineSeconds", active_deadline(spec));
    set_pod_security(pod_spec, spec->run_as_user, spec->run_as_group);
    if (build_container(plan, spec, pod_spec, err) < 0)
        return -1;
    *ret_pod = TAKE_PTR(pod);
    return 0;
}

struct json *pod_build_probe(const struct pod_plan *plan, const char *name)
{
    static const struct box_spec small = {
        .cpu_limit = "100m",
        .cpu_request = "10m",
        .memory_limit = "64Mi",
        .memory_request = "16Mi",
        .storage_limit = "16Mi",
    };
    struct json *pod = json_new_object();
    struct json *container = json_new_object();
    struct json *pod_spec, *command;

    json_set_text(pod, "apiVersion", "v1");
    json_set_text(pod, "kind", "Pod");
    set_metadata(pod, plan, name, NULL);
    pod_spec = json_set_object(pod, "spec");
    set_placement(pod_spec, plan);
    json_set_int(pod_spec, "activeDeadlineSeconds", 60);
    set_pod_security(pod_spec, 1000, 1000);
    json_set_text(container, "name", "probe");
    json_set_text(container, "image", plan->config->agent_image);
    json_set_text(container, "imagePullPolicy", "IfNotPresent");
    command = json_set_array(container, "command");
    json_add_text(command, agent_path(plan));
    json_add_text(command, "--version");
    set_resources(container, &small);
    set_container_security(container, true);
    add_mount(json_set_array(container, "volumeMounts"), AGENT_VOLUME, AGENT_DIR, true);
    json_add(json_set_array(pod_spec, "containers"), container);
    add_image_volume(json_set_array(pod_spec, "volumes"), plan);
    return pod;
}

static bool is_label_value(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t len = strlen(text);

    return len > 0 && len <= 63 && strchr(letters, text[0]) != NULL &&
           strchr(letters, text[len - 1]) != NULL &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == len;
}

int pod_check_config(const struct k8s_config *config, struct err *err)
{
    cleanup_json struct json *tolerations = NULL;
    struct err why;

    if (config->instance == NULL || !is_label_value(config->instance))
        return err_set(err, ERR_CONFIG,
                       "instance: not a label value (letters, digits, -_., at most 63)");
    if (config->agent_image == NULL || config->agent_image[0] == '\0')
        return err_set(err, ERR_CONFIG, "agent-image is not set: the image that carries the agent");
    if (config->tolerations == NULL || config->tolerations[0] == '\0')
        return 0;
    if (json_parse(config->tolerations, strlen(config->tolerations), JSON_STRICT, &tolerations,
                   &why) < 0)
        return err_set(err, ERR_CONFIG, "tolerations: %s", why.msg);
    if (!json_is_array(tolerations))
        return err_set(err, ERR_CONFIG, "tolerations: not a JSON array");
    return 0;
}
