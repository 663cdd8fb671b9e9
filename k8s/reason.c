#include "k8s/reason.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "k8s/object.h"
#include "k8s/pod.h"

void pod_history_done(struct pod_history *history)
{
    free(history->status);
    free(history->event);
    *history = (struct pod_history){.status = NULL};
}

/* --- what the pod is ---------------------------------------------------------------------------
 */

/* Cut at a character border: what is copied goes out as JSON. */
static void copy_text(char *to, size_t size, const char *text)
{
    size_t len = text != NULL ? strlen(text) : 0;

    if (len >= size) {
        len = size - 1;
        len -= utf8_partial_tail(text, len);
    }
    if (len > 0)
        memcpy(to, text, len);
    to[len] = '\0';
}

static const struct json *named(const struct json *list, const char *name)
{
    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        const char *is = json_get_text(item, "name");

        if (is != NULL && strcmp(is, name) == 0)
            return item;
    }
    return NULL;
}

static void copy_member(char *to, size_t size, const struct json *object, const char *name)
{
    copy_text(to, size, json_get_text(object, name));
}

static void fill_identity(const struct json *pod, struct box_info *info)
{
    const struct json *metadata = json_get(pod, "metadata");
    const struct json *annotations = json_get(metadata, "annotations");
    const struct json *spec = json_get(pod, "spec");
    const struct json *container = named(json_get(spec, "containers"), POD_CONTAINER);
    const struct json *limits = json_path(container, "resources.limits");
    const char *created = json_get_text(annotations, ANNOTATION_CREATED);

    copy_member(info->id, sizeof(info->id), json_get(metadata, "labels"), LABEL_ID);
    copy_member(info->uid, sizeof(info->uid), annotations, ANNOTATION_UID);
    copy_member(info->owner, sizeof(info->owner), annotations, ANNOTATION_OWNER);
    copy_member(info->digest, sizeof(info->digest), annotations, ANNOTATION_DIGEST);
    copy_member(info->box_uid, sizeof(info->box_uid), metadata, "uid");
    copy_member(info->name, sizeof(info->name), metadata, "name");
    copy_member(info->node, sizeof(info->node), spec, "nodeName");
    copy_member(info->runtime_class, sizeof(info->runtime_class), spec, "runtimeClassName");
    copy_member(info->image, sizeof(info->image), container, "image");
    copy_member(info->workdir, sizeof(info->workdir), container, "workingDir");
    copy_member(info->cpu_limit, sizeof(info->cpu_limit), limits, "cpu");
    copy_member(info->memory_limit, sizeof(info->memory_limit), limits, "memory");
    const char *storage = json_get_text(limits, "ephemeral-storage");
    if (storage != NULL)
        (void)str_to_bytes(storage, &info->storage_limit); /* somebody else's may be anything */
    info->created_ms = created != NULL ? time_parse(created) : -1;
    if (info->created_ms < 0)
        created = json_get_text(metadata, "creationTimestamp");
    if (info->created_ms < 0 && created != NULL)
        info->created_ms = time_parse(created);
    if (info->created_ms < 0)
        info->created_ms = 0;
}

/* --- ends ---------------------------------------------------------------------------------------
 */

struct word {
    const char *word;
    enum err_code code;
};

static enum err_code lookup(const struct word *words, size_t count, const char *word)
{
    for (size_t i = 0; word != NULL && i < count; i++) {
        if (strcmp(words[i].word, word) == 0)
            return words[i].code;
    }
    return ERR_NONE;
}

/* status.reason of a pod that has failed */
static const struct word pod_reasons[] = {
    {"Evicted", ERR_EVICTED},
    {"Preempting", ERR_EVICTED},
    {"Terminated", ERR_EVICTED}, /* the node is shutting down */
    {"Shutdown", ERR_EVICTED},
    {"NodeShutdown", ERR_EVICTED},
    {"DeadlineExceeded", ERR_MAX_LIFETIME},
    {"NodeLost", ERR_NODE_LOST},
    {"NodeAffinity", ERR_UNSCHEDULABLE},
    {"OutOfcpu", ERR_UNSCHEDULABLE},
    {"OutOfmemory", ERR_UNSCHEDULABLE},
    {"OutOfpods", ERR_UNSCHEDULABLE},
    {"OutOfephemeral-storage", ERR_UNSCHEDULABLE},
    {"UnexpectedAdmissionError", ERR_UNSCHEDULABLE},
};

/* reason of the condition DisruptionTarget: who is taking the pod away */
static const struct word disruptions[] = {
    {"PreemptionByScheduler", ERR_EVICTED}, {"EvictionByEvictionAPI", ERR_EVICTED},
    {"TerminationByKubelet", ERR_EVICTED},  {"DeletionByTaintManager", ERR_NODE_LOST},
    {"DeletionByPodGC", ERR_NODE_LOST},
};

/* state.terminated.reason of a container */
static const struct word container_ends[] = {
    {"OOMKilled", ERR_OOM_KILLED},
    {"ContainerCannotRun", ERR_CONTAINER_START},
    {"StartError", ERR_CONTAINER_START},
    {"ContainerStatusUnknown", ERR_NODE_LOST},
};

static void fail(struct box_info *info, enum err_code code, const char *message)
{
    info->state = BOX_FAILED;
    info->waiting = false;
    info->reason = code;
    copy_text(info->message, sizeof(info->message), message);
}

#define EXIT_TERMINATED 143

/* The exit codes of `podsandbox-agent serve`, which ends by itself with these; 0 was that of an
 * earlier version for TERM. */
static const char *own_end(int64_t exit_code)
{
    return exit_code == 0 || exit_code == EXIT_TERMINATED ? "it was told to end"
           : exit_code == 3                               ? "the deadline has passed"
           : exit_code == 4                               ? "no server came"
                                                          : NULL;
}

/* A container's end: INFO gets the reason, the exit code and the runtime's message. WHO is NULL for
 * our own container, which the agent is. */
static void fail_by_container(struct box_info *info, const struct json *terminated, const char *who)
{
    const char *reason = json_get_text(terminated, "reason");
    const char *said = json_get_text(terminated, "message");
    int64_t exit_code = json_get_int(terminated, "exitCode", -1);
    enum err_code code = lookup(container_ends, ARRAY_LEN(container_ends), reason);
    const char *own = who == NULL && code == ERR_NONE ? own_end(exit_code) : NULL;
    cleanup_free char *message = NULL;

    if (said == NULL)
        said = own != NULL ? own : reason;
    message = xasprintf("%s ended with exit code %lld%s%s", who != NULL ? who : "the agent",
                        (long long)exit_code, said != NULL ? ": " : "", said != NULL ? said : "");
    if (code == ERR_NONE)
        code = who == NULL ? ERR_CONTAINER_EXITED : ERR_AGENT_FAILED;
    fail(info, code, message);
    /* Told to by whom? Well only if the pod is being deleted: assess_ended(). */
    info->ended_well = own != NULL && exit_code != EXIT_TERMINATED;
}

static const struct json *condition(const struct json *status, const char *type)
{
    const struct json *list = json_get(status, "conditions");

    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        const char *is = json_get_text(item, "type");

        if (is != NULL && strcmp(is, type) == 0)
            return item;
    }
    return NULL;
}

static bool condition_is(const struct json *found, const char *status)
{
    const char *is = json_get_text(found, "status");

    return is != NULL && strcmp(is, status) == 0;
}

/* Whether somebody is taking the pod away, and as what. */
static bool is_disrupted(const struct json *status, enum err_code *ret_code,
                         const char **ret_message)
{
    const struct json *found = condition(status, "DisruptionTarget");

    if (!condition_is(found, "True"))
        return false;
    *ret_code = lookup(disruptions, ARRAY_LEN(disruptions), json_get_text(found, "reason"));
    *ret_message = json_get_text(found, "message");
    return *ret_code != ERR_NONE;
}

static const struct json *status_of(const struct json *status, const char *list, const char *name)
{
    return named(json_get(status, list), name);
}

/* The first init container that has failed. */
static const struct json *failed_init(const struct json *status, const char **ret_name)
{
    const struct json *list = json_get(status, "initContainerStatuses");

    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        const struct json *terminated = json_path(item, "state.terminated");

        if (terminated != NULL && json_get_int(terminated, "exitCode", 0) != 0) {
            *ret_name = json_get_text(item, "name");
            return terminated;
        }
    }
    return NULL;
}

static bool is_being_deleted(const struct json *pod)
{
    return json_get_text(json_get(pod, "metadata"), "deletionTimestamp") != NULL;
}

/* A pod in phase Failed or Succeeded, or soon: our container has ended. */
static void assess_ended(const struct json *pod, struct box_info *info)
{
    const struct json *status = json_get(pod, "status");
    const struct json *ours = status_of(status, "containerStatuses", POD_CONTAINER);
    const struct json *terminated = json_path(ours, "state.terminated");
    const char *reason = json_get_text(status, "reason");
    const char *message = json_get_text(status, "message");
    const char *init_name = NULL;
    const struct json *init = failed_init(status, &init_name);
    enum err_code code = lookup(pod_reasons, ARRAY_LEN(pod_reasons), reason);

    if (code != ERR_NONE) {
        fail(info, code, message != NULL ? message : reason);
    } else if (init != NULL) {
        cleanup_free char *who = xasprintf("the init container '%s'", init_name);

        fail_by_container(info, init, who);
    } else if (is_disrupted(status, &code, &message)) {
        fail(info, code, message);
    } else if (terminated != NULL) {
        fail_by_container(info, terminated, NULL);
        if (json_get_int(terminated, "exitCode", -1) == EXIT_TERMINATED && is_being_deleted(pod))
            info->ended_well = true;
    } else {
        fail(info, ERR_CONTAINER_EXITED, message != NULL ? message : "the pod has ended");
    }
}

static void assess_terminating(const struct json *status, struct box_info *info)
{
    enum err_code code = ERR_REMOVED_EXTERNALLY;
    const char *message = "the pod is being deleted";

    (void)is_disrupted(status, &code, &message);
    fail(info, code != ERR_NONE ? code : ERR_REMOVED_EXTERNALLY, message);
}

/* --- troubles while starting -------------------------------------------------------------------
 */

/* state.waiting.reason of a container. */
static const struct waiting_reason {
    const char *word;
    enum err_code code;
    bool fatal;
    bool counts; /* an observation of it is one step nearer to the end of our patience */
} waiting_reasons[] = {
    {"ErrImagePull", ERR_IMAGE_PULL_FAILED, false, false},
    {"ImagePullBackOff", ERR_IMAGE_PULL_FAILED, false, true},
    {"RegistryUnavailable", ERR_IMAGE_PULL_FAILED, false, true},
    {"ErrImageNeverPull", ERR_IMAGE_PULL_FAILED, true, true},
    {"ImageInspectError", ERR_IMAGE_PULL_FAILED, true, true},
    {"SignatureValidationFailed", ERR_IMAGE_PULL_FAILED, true, true},
    {"InvalidImageName", ERR_INVALID_IMAGE, true, true},
    {"CreateContainerConfigError", ERR_CONTAINER_CONFIG, true, true},
    {"CreateContainerError", ERR_CONTAINER_START, true, true},
    {"RunContainerError", ERR_CONTAINER_START, true, true},
    {"PreCreateHookError", ERR_CONTAINER_START, true, true},
    {"PreStartHookError", ERR_CONTAINER_START, true, true},
    {"PostStartHookError", ERR_CONTAINER_START, true, true},
    {"CrashLoopBackOff", ERR_CONTAINER_EXITED, true, true},
};

/* A busy runtime says these of a container that it makes a moment later. */
static bool is_passing(const char *message)
{
    return strstr(message, "is reserved for") != NULL ||
           strstr(message, "deadline exceeded") != NULL ||
           strstr(message, "DeadlineExceeded") != NULL;
}

static struct trouble *note(struct trouble **trouble, enum err_code code, bool specific,
                            const char *message, int64_t now_ms)
{
    if (*trouble == NULL)
        *trouble = xcalloc(1, sizeof(**trouble));
    if ((*trouble)->code != code) {
        **trouble = (struct trouble){.code = code, .since_ms = now_ms};
        copy_text((*trouble)->message, sizeof((*trouble)->message), message);
        (*trouble)->specific = specific;
    } else if (specific && !(*trouble)->specific) {
        copy_text((*trouble)->message, sizeof((*trouble)->message), message);
        (*trouble)->specific = true;
    }
    return *trouble;
}

static bool note_waiting(const struct json *container, struct pod_history *history, bool fresh,
                         int64_t now_ms)
{
    const struct json *waiting = json_path(container, "state.waiting");
    const char *reason = json_get_text(waiting, "reason");
    const char *message = json_get_text(waiting, "message");

    for (size_t i = 0; reason != NULL && i < ARRAY_LEN(waiting_reasons); i++) {
        const struct waiting_reason *is = &waiting_reasons[i];
        struct trouble *trouble;

        if (strcmp(is->word, reason) != 0)
            continue;
        if (message == NULL)
            message = reason;
        trouble =
            note(&history->status, is->code,
                 strcmp(reason, "ImagePullBackOff") != 0 || strstr(message, "ErrImagePull") != NULL,
                 message, now_ms);
        trouble->count += fresh && is->counts;
        trouble->fatal = is->fatal && !is_passing(message);
        return true;
    }
    return false;
}

static void note_containers(const struct json *pod, struct pod_history *history, int64_t now_ms)
{
    const struct json *status = json_get(pod, "status");
    const struct json *inits = json_get(status, "initContainerStatuses");
    const char *version = json_get_text(json_get(pod, "metadata"), "resourceVersion");
    bool fresh = version == NULL || strcmp(version, history->version) != 0;

    copy_text(history->version, sizeof(history->version), version);

    for (const struct json *item = json_first(inits); item != NULL; item = json_next(item)) {
        if (note_waiting(item, history, fresh, now_ms))
            return;
    }
    (void)note_waiting(status_of(status, "containerStatuses", POD_CONTAINER), history, fresh,
                       now_ms);
}

int64_t reason_apply(const struct pod_history *history, int64_t now_ms, struct box_info *info)
{
    /* What the containers' status says is nearer to the cause than an event. */
    const struct trouble *trouble = history->status != NULL ? history->status : history->event;
    int64_t due_ms;

    if (trouble == NULL || history->container_id[0] != '\0' ||
        (info->state != BOX_STARTING && info->state != BOX_ATTACHABLE))
        return 0;
    due_ms = trouble->since_ms + TROUBLE_PATIENCE_MS;
    if (trouble->fatal || trouble->count >= TROUBLE_PATIENCE_COUNT || now_ms >= due_ms) {
        fail(info, trouble->code, trouble->message);
        return 0;
    }
    info->waiting = true;
    info->reason = trouble->code;
    copy_text(info->message, sizeof(info->message), trouble->message);
    return due_ms;
}

/* --- the pod as a whole -------------------------------------------------------------------------
 */

/* True when our container shows that what was in it is lost. */
static bool assess_container(const struct json *pod, struct pod_history *history,
                             struct box_info *info)
{
    const struct json *ours =
        status_of(json_get(pod, "status"), "containerStatuses", POD_CONTAINER);
    const struct json *terminated = json_path(ours, "state.terminated");
    bool running = json_path(ours, "state.running") != NULL;
    const char *id = json_get_text(ours, "containerID");

    copy_text(info->container_id, sizeof(info->container_id), id);
    if (terminated != NULL) {
        assess_ended(pod, info);
        return true;
    }
    if (json_get_int(ours, "restartCount", 0) > 0 ||
        (running && id != NULL && history->container_id[0] != '\0' &&
         strcmp(history->container_id, info->container_id) != 0)) {
        const struct json *last = json_path(ours, "lastState.terminated");

        if (last != NULL)
            fail_by_container(info, last, NULL);
        else
            fail(info, ERR_CONTAINER_EXITED, "the container was started again: its state is lost");
        info->ended_well = false;
        return true;
    }
    if (running && id != NULL) {
        copy_text(history->container_id, sizeof(history->container_id), id);
        free(history->status);
        free(history->event);
        history->status = history->event = NULL;
    }
    return false;
}

static void assess_starting(const struct json *status, struct box_info *info)
{
    const struct json *scheduled = condition(status, "PodScheduled");

    if (info->node[0] != '\0') {
        info->state = BOX_ATTACHABLE;
        return;
    }
    info->state = BOX_STARTING;
    if (condition_is(scheduled, "False")) {
        const char *message = json_get_text(scheduled, "message");

        info->waiting = true;
        info->reason = ERR_UNSCHEDULABLE;
        copy_text(info->message, sizeof(info->message),
                  message != NULL ? message : json_get_text(scheduled, "reason"));
    }
}

void reason_of_pod(const struct json *pod, struct pod_history *history, int64_t now_ms,
                   struct box_info *ret_info)
{
    const struct json *status = json_get(pod, "status");
    const struct json *ours = status_of(status, "containerStatuses", POD_CONTAINER);
    const char *phase = json_get_text(status, "phase");

    *ret_info = (struct box_info){.state = BOX_STARTING};
    fill_identity(pod, ret_info);
    copy_text(ret_info->container_id, sizeof(ret_info->container_id),
              json_get_text(ours, "containerID"));
    if (phase != NULL && (strcmp(phase, "Failed") == 0 || strcmp(phase, "Succeeded") == 0)) {
        assess_ended(pod, ret_info);
    } else if (is_being_deleted(pod)) {
        assess_terminating(status, ret_info);
    } else if (!assess_container(pod, history, ret_info)) {
        assess_starting(status, ret_info);
        note_containers(pod, history, now_ms);
        (void)reason_apply(history, now_ms, ret_info);
    }
}

/* --- events -------------------------------------------------------------------------------------
 */

static const struct {
    const char *words;
    enum err_code code;
    bool fatal;
} sandbox_troubles[] = {
    {"no runtime for", ERR_RUNTIME_HANDLER_MISSING, true},
    {"RuntimeHandler", ERR_RUNTIME_HANDLER_MISSING, true},
    {"untime handler", ERR_RUNTIME_HANDLER_MISSING, true},
    {"unknown runtime", ERR_RUNTIME_HANDLER_MISSING, true},
    {"network", ERR_NETWORK_SETUP, false},
    {"cni", ERR_NETWORK_SETUP, false},
    {"CNI", ERR_NETWORK_SETUP, false},
    {"", ERR_CONTAINER_START, false},
};

/* "Failed": a container could not be made or started. The status says so too, but sometimes only
 * when the kubelet looks at the pod again, ten seconds later. */
static enum err_code classify_failed(const struct json *event, const char *message, bool *ret_fatal)
{
    static const struct {
        const char *words;
        enum err_code code;
        bool fatal;
    } known[] = {
        {"Failed to pull image", ERR_IMAGE_PULL_FAILED, false},
        {"Error: ErrImagePull", ERR_NONE, false}, /* says nothing that the one above has not */
        {"Error: ImagePullBackOff", ERR_NONE, false},
        {"Error: ErrImageNeverPull", ERR_IMAGE_PULL_FAILED, true},
        {"Error: InvalidImageName", ERR_INVALID_IMAGE, true},
        {"runAsNonRoot", ERR_CONTAINER_CONFIG, true},
        {"Error: ", ERR_CONTAINER_START, true},
    };
    const char *field = json_get_text(json_get(event, "involvedObject"), "fieldPath");

    if (field == NULL || (strstr(field, "{" POD_CONTAINER "}") == NULL &&
                          strstr(field, "{" POD_INIT_CONTAINER "}") == NULL))
        return ERR_NONE; /* a container that somebody has added */
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strstr(message, known[i].words) == NULL)
            continue;
        *ret_fatal = known[i].fatal && !is_passing(message);
        return known[i].code;
    }
    return ERR_NONE;
}

/* ERR_NONE for an event that says nothing of why a pod does not start. */
static enum err_code classify_event(const struct json *event, const char *reason,
                                    const char *message, bool *ret_fatal)
{
    *ret_fatal = false;
    if (strcmp(reason, "FailedCreatePodSandBox") == 0) {
        for (size_t i = 0; i < ARRAY_LEN(sandbox_troubles); i++) {
            if (strstr(message, sandbox_troubles[i].words) == NULL)
                continue;
            *ret_fatal = sandbox_troubles[i].fatal;
            return sandbox_troubles[i].code;
        }
    }
    if (strcmp(reason, "Failed") == 0)
        return classify_failed(event, message, ret_fatal);
    if (strcmp(reason, "ErrImageNeverPull") == 0) {
        *ret_fatal = true;
        return ERR_IMAGE_PULL_FAILED;
    }
    if (strcmp(reason, "InspectFailed") == 0 &&
        strstr(message, "Failed to apply default image tag") != NULL) {
        *ret_fatal = true; /* says why, just before "Error: InvalidImageName" */
        return ERR_INVALID_IMAGE;
    }
    if (strcmp(reason, "NetworkNotReady") == 0)
        return ERR_NETWORK_SETUP;
    if (strcmp(reason, "FailedMount") == 0 || strcmp(reason, "FailedAttachVolume") == 0 ||
        strcmp(reason, "FailedMapVolume") == 0)
        return ERR_VOLUME_MOUNT;
    return ERR_NONE;
}

bool reason_note_event(const struct json *event, struct pod_history *history, int64_t now_ms)
{
    const char *reason = json_get_text(event, "reason");
    const char *message = json_get_text(event, "message");
    struct trouble *trouble;
    enum err_code code;
    int64_t count;
    bool fatal;

    if (reason == NULL || message == NULL || history->container_id[0] != '\0')
        return false;
    code = classify_event(event, reason, message, &fatal);
    if (code == ERR_NONE)
        return false;
    count = json_get_int(event, "count", 0);
    if (count == 0)
        count = json_get_int(json_get(event, "series"), "count", 1);
    trouble = note(&history->event, code, true, message, now_ms);
    trouble->fatal = fatal;
    if (count > trouble->count)
        trouble->count = count;
    return true;
}
