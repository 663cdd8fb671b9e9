#include "docker/container.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/proto.h"
#include "base/clock.h"
#include "base/str.h"
#include "docker/agent_file.h"

#define BOX_UID_CHARS 48 /* of a container's id: as good as all 64, and fits */
#define EXIT_KILLED 137

void container_name(const char *id, char *ret_name)
{
    (void)snprintf(ret_name, 64, "sandbox-%s", id);
}

/* --- labels -------------------------------------------------------------------------------------
 */

static bool is_compat(const struct box_spec *spec)
{
    return spec->profile && strcmp(spec->profile, "compat") == 0;
}

/* What is written lies in memory: two full places would leave nothing to run with. */
static uint64_t storage_of(const struct box_spec *spec)
{
    uint64_t storage = 0, memory = 0;

    (void)str_to_bytes(spec->storage_limit, &storage); /* both checked by the domain */
    (void)str_to_bytes(spec->memory_limit, &memory);
    return storage < memory / 2 ? storage : memory / 2;
}

static void set_number(struct json *labels, const char *name, uint64_t number)
{
    cleanup_free char *text = xasprintf("%llu", (unsigned long long)number);

    json_set_text(labels, name, text);
}

static void set_labels(struct json *container, const struct container_plan *plan,
                       const struct box_spec *spec)
{
    struct json *labels = json_set_object(container, "Labels");
    char created[TIME_TEXT_LEN];

    time_format(spec->created_ms, created);
    json_set_text(labels, LABEL_MANAGED_BY, MANAGED_BY);
    json_set_text(labels, LABEL_INSTANCE, plan->instance);
    json_set_text(labels, LABEL_ID, spec->id);
    json_set_text(labels, LABEL_UID, spec->uid);
    json_set_text(labels, LABEL_OWNER, spec->owner);
    json_set_text(labels, LABEL_CREATED, created);
    json_set_text(labels, LABEL_DIGEST, spec->digest);
    json_set_text(labels, LABEL_IMAGE, spec->image);
    json_set_text(labels, LABEL_WORKDIR, spec->workdir);
    json_set_text(labels, LABEL_CPU, spec->cpu_limit);
    json_set_text(labels, LABEL_MEMORY, spec->memory_limit);
    set_number(labels, LABEL_PIDS, (uint64_t)plan->pids);
    set_number(labels, LABEL_STORAGE, spec->read_only_root ? storage_of(spec) : 0);
    if (plan->runtime)
        json_set_text(labels, LABEL_RUNTIME, plan->runtime);
}

/* --- writable places ----------------------------------------------------------------------------
 */

static int check_path(const char *path, struct err *err)
{
    size_t len = strlen(AGENT_DIR);

    if (path[0] != '/' || path[1] == '\0' || strchr(path, ':'))
        return err_set(err, ERR_INVALID_FIELD, "'%s' cannot be a writable place", path);
    if (strncmp(path, AGENT_DIR, len) == 0 && (path[len] == '/' || path[len] == '\0'))
        return err_set(err, ERR_INVALID_FIELD, "'%s' is reserved for the agent", path);
    return 0;
}

/* Whose the place is. In the profile `compat` nobody knows who the image's user is. */
static char *owner_of(const struct container_plan *plan, const struct box_spec *spec,
                      const char *path)
{
    bool everybodys = strcmp(path, "/tmp") == 0;

    if (is_compat(spec))
        return xstrdup("mode=1777");
    if (plan->podman) /* takes no ids, but gives it to the container's user */
        return xasprintf("mode=%s,U", everybodys ? "1777" : "0755");
    return xasprintf("mode=%s,uid=%lld,gid=%lld", everybodys ? "1777" : "0755",
                     (long long)spec->run_as_user, (long long)spec->run_as_group);
}

/* Each is a file system of its own in memory, which ends with the container. */
static int add_writable(struct json *places, const struct container_plan *plan,
                        const struct box_spec *spec, const char *path, struct err *err)
{
    if (check_path(path, err) < 0)
        return -1;
    if (json_get(places, path))
        return 0;
    cleanup_free char *owner = owner_of(plan, spec, path);
    cleanup_free char *options =
        xasprintf("rw,exec,nosuid,nodev,size=%llu,%s", (unsigned long long)storage_of(spec), owner);
    json_set_text(places, path, options);
    return 0;
}

static int set_writable(struct json *host, const struct container_plan *plan,
                        const struct box_spec *spec, struct err *err)
{
    struct json *places = json_set_object(host, "Tmpfs");

    /* Over a writable root they would only hide what the image has there. */
    if (!is_compat(spec) && (add_writable(places, plan, spec, spec->workdir, err) < 0 ||
                             add_writable(places, plan, spec, "/tmp", err) < 0 ||
                             add_writable(places, plan, spec, CONTAINER_HOME, err) < 0))
        return -1;
    if (check_path(spec->workdir, err) < 0)
        return -1;
    for (size_t i = 0; spec->writable_mounts && i < spec->writable_mounts->count; i++) {
        if (add_writable(places, plan, spec, spec->writable_mounts->items[i], err) < 0)
            return -1;
    }
    return 0;
}

/* --- the container ------------------------------------------------------------------------------
 */

static void set_limits(struct json *host, const struct container_plan *plan,
                       const struct box_spec *spec)
{
    uint64_t memory = 0, milli = 0;

    (void)str_to_bytes(spec->memory_limit, &memory); /* both checked by the domain */
    (void)str_to_milli(spec->cpu_limit, &milli);
    if (memory > 0) {
        json_set_int(host, "Memory", (int64_t)memory);
        json_set_int(host, "MemorySwap", (int64_t)memory); /* of both: no swap */
    }
    if (milli > 0 && milli < INT64_MAX / 1000000)
        json_set_int(host, "NanoCpus", (int64_t)milli * 1000000);
    json_set_int(host, "PidsLimit", plan->pids);
}

static void set_security(struct json *host, const struct box_spec *spec)
{
    json_set_bool(host, "ReadonlyRootfs", spec->read_only_root);
    json_set_bool(host, "Privileged", false);
    if (!is_compat(spec)) /* root of an image without them can install nothing */
        json_add_text(json_set_array(host, "CapDrop"), "ALL");
    json_add_text(json_set_array(host, "SecurityOpt"), "no-new-privileges");
    json_set_text(host, "IpcMode", "private");
}

static int set_host(struct json *container, const struct container_plan *plan,
                    const struct box_spec *spec, struct err *err)
{
    struct json *host = json_set_object(container, "HostConfig");

    set_security(host, spec);
    set_limits(host, plan, spec);
    json_set_bool(host, "Init", false); /* the agent is one */
    json_set_bool(host, "AutoRemove", false);
    json_set_text(json_set_object(host, "RestartPolicy"), "Name", "no");
    /* What commands write comes through the agent. */
    json_set_text(json_set_object(host, "LogConfig"), "Type", "none");
    json_set_text(host, "NetworkMode", plan->network);
    if (plan->runtime)
        json_set_text(host, "Runtime", plan->runtime);
    return set_writable(host, plan, spec, err);
}

int container_build(const struct container_plan *plan, const struct box_spec *spec,
                    struct json **ret_container, struct err *err)
{
    cleanup_json struct json *container = json_new_object();
    cleanup_free char *user =
        xasprintf("%lld:%lld", (long long)spec->run_as_user, (long long)spec->run_as_group);
    struct json *command;

    json_set_text(container, "Image", spec->image);
    json_set_text(container, "Hostname", spec->id);
    if (!is_compat(spec))
        json_set_text(container, "User", user);
    json_set_text(container, "WorkingDir", spec->workdir);
    if (!is_compat(spec))
        json_add_text(json_set_array(container, "Env"), "HOME=" CONTAINER_HOME);
    command = json_set_array(container, "Entrypoint");
    json_add_text(command, AGENT_PATH);
    json_add_text(command, "serve");
    json_add_text(command, "--uid"); /* an exec by the name may reach the one before */
    json_add_text(command, spec->uid);
    json_set(container, "Cmd", json_new_array());
    (void)json_set_object(json_set_object(container, "Volumes"), AGENT_DIR);
    set_labels(container, plan, spec);
    if (set_host(container, plan, spec, err) < 0)
        return -1;
    *ret_container = TAKE_PTR(container);
    return 0;
}

/* --- what there is ------------------------------------------------------------------------------
 */

static void copy(char *ret_text, size_t size, const char *from)
{
    (void)snprintf(ret_text, size, "%s", from ? from : "");
}

static uint64_t number_of(const struct json *labels, const char *name)
{
    uint64_t number = 0;

    (void)str_to_u64(str_of(json_get_text(labels, name)), INT64_MAX, &number);
    return number;
}

void container_describe(const struct json *labels, const char *container_id, const char *instance,
                        struct box_info *ret_info)
{
    const char *id = json_get_text(labels, LABEL_ID), *its = json_get_text(labels, LABEL_INSTANCE);
    const char *created = json_get_text(labels, LABEL_CREATED);
    bool ours = its && strcmp(its, instance) == 0;

    *ret_info = (struct box_info){
        .foreign = !ours,
        .created_ms = created ? time_parse(created) : 0,
        .pids_limit = number_of(labels, LABEL_PIDS),
        .storage_limit = number_of(labels, LABEL_STORAGE),
    };
    copy(ret_info->id, sizeof(ret_info->id), id);
    copy(ret_info->uid, sizeof(ret_info->uid), ours ? json_get_text(labels, LABEL_UID) : "");
    copy(ret_info->owner, sizeof(ret_info->owner), json_get_text(labels, LABEL_OWNER));
    copy(ret_info->digest, sizeof(ret_info->digest), json_get_text(labels, LABEL_DIGEST));
    copy(ret_info->box_uid, BOX_UID_CHARS + 1, container_id);
    copy(ret_info->container_id, sizeof(ret_info->container_id), container_id);
    container_name(ret_info->id, ret_info->name);
    copy(ret_info->image, sizeof(ret_info->image), json_get_text(labels, LABEL_IMAGE));
    copy(ret_info->workdir, sizeof(ret_info->workdir), json_get_text(labels, LABEL_WORKDIR));
    copy(ret_info->cpu_limit, sizeof(ret_info->cpu_limit), json_get_text(labels, LABEL_CPU));
    copy(ret_info->memory_limit, sizeof(ret_info->memory_limit),
         json_get_text(labels, LABEL_MEMORY));
    copy(ret_info->runtime_class, sizeof(ret_info->runtime_class),
         json_get_text(labels, LABEL_RUNTIME));
}

static void judge_end(const struct json *state, struct box_info *info)
{
    int64_t code = json_get_int(state, "ExitCode", -1);
    const char *words = json_get_text(state, "Error");

    info->state = BOX_FAILED;
    info->ended_well = code == 0 || code == PROTO_EXIT_DEADLINE || code == PROTO_EXIT_NO_HELLO;
    info->reason = ERR_CONTAINER_EXITED;
    /* The mark stays after a command alone has been killed, too. */
    if (code == EXIT_KILLED && json_get_bool(state, "OOMKilled", false))
        info->reason = ERR_OOM_KILLED;
    (void)snprintf(info->message, sizeof(info->message), "%s with exit code %lld%s%s",
                   info->reason == ERR_OOM_KILLED ? "killed for lack of memory" : "ended",
                   (long long)code, words && words[0] != '\0' ? ": " : "", words ? words : "");
}

void container_judge(const struct json *state, struct box_info *info)
{
    const char *status = json_get_text(state, "Status");

    if (!status)
        status = "";
    if (strcmp(status, "created") == 0 || strcmp(status, "configured") == 0 ||
        strcmp(status, "initialized") == 0)
        info->state = BOX_STARTING;
    else if (strcmp(status, "running") == 0 || strcmp(status, "paused") == 0)
        info->state = BOX_ATTACHABLE;
    else if (strcmp(status, "removing") == 0)
        info->state = BOX_GONE; /* its end, killed first, is not a fault of its own */
    else
        judge_end(state, info);
}
