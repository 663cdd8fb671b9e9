#include "k8s/delivery.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/event.h"
#include "k8s/reason.h"

#define CLASSES_MAX 16
#define PROBE_WAIT_MS 30000
#define PROBE_POLL_MS 150
#define OTHERS_WAIT_MS 5000
#define RETRY_MS 60000
#define RETRY_AWAY_MS 2000 /* the API server was not there */

enum knowledge { UNDECIDED, PROBING, DECIDED };

struct class
{
    char name[254]; /* "" for the node's default */
    enum knowledge knowledge;
    enum agent_delivery how;
    int64_t retry_ms; /* UNDECIDED: not again before */
    char why[512];
};

struct delivery {
    const struct space *space;
    const struct k8s_config *config;
    bool is_auto;
    enum agent_delivery fixed;
    pthread_mutex_t lock; /* classes */
    struct class classes[CLASSES_MAX];
    size_t count;
    struct event changed;
};

struct delivery *delivery_new(const struct space *space, const struct k8s_config *config)
{
    struct delivery *delivery = xcalloc(1, sizeof(*delivery));
    const char *wanted = config->agent_delivery;

    delivery->space = space;
    delivery->config = config;
    delivery->is_auto = wanted == NULL || wanted[0] == '\0' || strcmp(wanted, "auto") == 0;
    delivery->fixed = wanted != NULL && strcmp(wanted, "image-volume") == 0 ? DELIVERY_IMAGE_VOLUME
                                                                            : DELIVERY_INIT;
    pthread_mutex_init(&delivery->lock, NULL);
    event_init(&delivery->changed);
    return delivery;
}

void delivery_free(struct delivery *delivery)
{
    if (delivery == NULL)
        return;
    pthread_mutex_destroy(&delivery->lock);
    event_done(&delivery->changed);
    free(delivery);
}

/* With the lock held; NULL when there are too many, which then all use the init container. */
static struct class *find_class(struct delivery *delivery, const char *name, bool add)
{
    if (name == NULL)
        name = "";
    for (size_t i = 0; i < delivery->count; i++) {
        if (strcmp(delivery->classes[i].name, name) == 0)
            return &delivery->classes[i];
    }
    if (!add || delivery->count == CLASSES_MAX || strlen(name) >= sizeof(delivery->classes[0].name))
        return NULL;
    (void)snprintf(delivery->classes[delivery->count].name, sizeof(delivery->classes[0].name), "%s",
                   name);
    return &delivery->classes[delivery->count++];
}

/* --- the probe ----------------------------------------------------------------------------------
 */

static void say(char *why, size_t size, const char *text)
{
    (void)snprintf(why, size, "%s", text != NULL ? text : "no reason given");
}

int delivery_judge(const struct json *pod, char *ret_why, size_t size)
{
    const struct json *status = json_get(pod, "status");
    const struct json *container = json_at(json_get(status, "containerStatuses"), 0);
    const struct json *waiting = json_path(container, "state.waiting");
    const char *reason = json_get_text(waiting, "reason");
    const char *message = json_get_text(waiting, "message");
    const char *phase = json_get_text(status, "phase");

    if (phase != NULL && strcmp(phase, "Succeeded") == 0)
        return 1;
    if (phase != NULL && strcmp(phase, "Failed") == 0) {
        message = json_get_text(json_path(container, "state.terminated"), "message");
        say(ret_why, size, message != NULL ? message : "the probe pod has failed");
        return json_get_text(status, "reason") != NULL ? -2 : 0; /* evicted: says nothing */
    }
    if (reason == NULL || strcmp(reason, "ContainerCreating") == 0 ||
        strcmp(reason, "PodInitializing") == 0)
        return -1;
    say(ret_why, size, message != NULL ? message : reason);
    if (strcmp(reason, "ErrImagePull") == 0 || strcmp(reason, "ImagePullBackOff") == 0 ||
        strcmp(reason, "ErrImageNeverPull") == 0 || strcmp(reason, "InvalidImageName") == 0)
        return -2; /* the image itself: the init container would fare no better */
    return 0;
}

static bool volume_survived(const struct json *pod)
{
    const struct json *volumes = json_path(pod, "spec.volumes");

    for (const struct json *item = json_first(volumes); item != NULL; item = json_next(item)) {
        const char *name = json_get_text(item, "name");

        if (name != NULL && strcmp(name, AGENT_VOLUME) == 0 &&
            json_get_text(json_get(item, "image"), "reference") != NULL)
            return true;
    }
    return false;
}

struct watched {
    const char *name, *uid;
    struct pod_history history;
};

static void note_probe_event(void *arg, const struct json *event)
{
    struct watched *probe = arg;

    (void)reason_note_event(event, &probe->history, clock_now_ms()); /* or it says nothing */
}

/* What will keep it from starting at all is not waited for: the sandbox's own pod then says so.
 * True: WHY. */
static bool is_hopeless(struct delivery *delivery, struct watched *probe, const struct json *pod,
                        char *why, size_t size)
{
    cleanup_free char *selector = xasprintf("involvedObject.uid=%s,type=Warning", probe->uid);
    struct object_sink sink = {.add = note_probe_event, .arg = probe};
    struct box_info info;
    struct err err;

    if (object_list(delivery->space, KIND_EVENT, (struct selector){NULL, selector}, &sink, NULL,
                    &err) < 0)
        return false;
    reason_of_pod(pod, &probe->history, clock_now_ms(), &info);
    if (info.state != BOX_FAILED && !(info.waiting && info.reason == ERR_UNSCHEDULABLE))
        return false;
    say(why, size, info.message);
    return true;
}

#define AWAY (-3) /* as -2, but soon */

/* As delivery_judge(). */
static int wait_for_probe(struct delivery *delivery, struct watched *probe, char *why, size_t size)
{
    int64_t deadline_ms = clock_now_ms() + PROBE_WAIT_MS;
    int answer = -1;

    say(why, size, "the probe pod did not end in time");
    while (answer == -1 && clock_now_ms() < deadline_ms) {
        cleanup_json struct json *pod = NULL;
        struct err err;

        if (!api_sleep(delivery->space->api, PROBE_POLL_MS))
            return -2;
        if (object_get(delivery->space, KIND_POD, probe->name, &pod, &err) == 0) {
            answer = delivery_judge(pod, why, size);
            if (answer == -1 && is_hopeless(delivery, probe, pod, why, size))
                return -2;
        } else if (err.code == ERR_BACKEND_NOT_FOUND) {
            say(why, size, "the probe pod was removed");
            return -2;
        }
    }
    return answer == -1 ? -2 : answer;
}

/* An object that the cluster refuses for its volume; anything else says nothing about volumes. */
static int refused(const struct err *err, char *why, size_t size)
{
    say(why, size, err->msg);
    if (err->code == ERR_BACKEND_UNAVAILABLE || err->code == ERR_BACKEND_THROTTLED)
        return AWAY;
    return err->code == ERR_INVALID_OBJECT || err->code == ERR_ADMISSION_DENIED ? 0 : -2;
}

static int probe(struct delivery *delivery, const char *runtime_class, bool readable_agent,
                 char *why, size_t size)
{
    struct pod_plan plan = {
        .config = delivery->config,
        .namespace_ = delivery->space->namespace_,
        .runtime_class = runtime_class,
        .delivery = DELIVERY_IMAGE_VOLUME,
        .readable_agent = readable_agent,
    };
    cleanup_json struct json *pod = NULL, *dry = NULL, *made = NULL;
    struct watched watched = {.history = {.status = NULL}};
    struct err err;
    uint32_t random;
    char name[40];
    int answer;

    crypto_random(&random, sizeof(random));
    (void)snprintf(name, sizeof(name), "podsandbox-probe-%08x", random);
    pod = pod_build_probe(&plan, name);
    if (object_create(delivery->space, KIND_POD, pod, true, &dry, &err) < 0)
        return refused(&err, why, size);
    if (!volume_survived(dry)) {
        say(why, size, "the API server does not know image volumes");
        return 0;
    }
    if (object_create(delivery->space, KIND_POD, pod, false, &made, &err) < 0)
        return refused(&err, why, size);
    watched.name = name;
    watched.uid = json_get_text(json_get(made, "metadata"), "uid");
    if (watched.uid == NULL)
        watched.uid = "";
    answer = wait_for_probe(delivery, &watched, why, size);
    pod_history_done(&watched.history);
    object_discard(delivery->space, KIND_POD, name, watched.uid); /* or the next sweep */
    return answer;
}

/* --- choosing -----------------------------------------------------------------------------------
 */

static void conclude(struct delivery *delivery, const char *runtime_class, int answer,
                     const char *why)
{
    struct class *class;

    pthread_mutex_lock(&delivery->lock);
    class = find_class(delivery, runtime_class, true);
    if (answer >= 0) {
        class->knowledge = DECIDED;
        class->how = answer == 1 ? DELIVERY_IMAGE_VOLUME : DELIVERY_INIT;
    } else {
        class->knowledge = UNDECIDED;
        class->retry_ms = clock_now_ms() + (answer == AWAY ? RETRY_AWAY_MS : RETRY_MS);
    }
    say(class->why, sizeof(class->why), answer == 1 ? "" : why);
    pthread_mutex_unlock(&delivery->lock);
    event_fire(&delivery->changed);
}

/* Whether the caller has to probe; else RET_HOW is what to use now, and with PROBING it may change.
 */
static enum knowledge look(struct delivery *delivery, const char *runtime_class, bool *ret_probe,
                           enum agent_delivery *ret_how)
{
    enum knowledge knowledge = DECIDED;
    struct class *class;

    *ret_probe = false;
    *ret_how = DELIVERY_INIT;
    pthread_mutex_lock(&delivery->lock);
    class = find_class(delivery, runtime_class, true);
    if (class != NULL) {
        if (class->knowledge == UNDECIDED && clock_now_ms() >= class->retry_ms) {
            class->knowledge = PROBING;
            *ret_probe = true;
        }
        knowledge = class->knowledge;
        if (knowledge == DECIDED)
            *ret_how = class->how;
    }
    pthread_mutex_unlock(&delivery->lock);
    return knowledge;
}

enum agent_delivery delivery_choose(struct delivery *delivery, const char *runtime_class,
                                    bool readable_agent)
{
    int64_t deadline_ms = clock_now_ms() + OTHERS_WAIT_MS;

    if (!delivery->is_auto)
        return delivery->fixed;
    for (;;) {
        uint64_t seen = event_count(&delivery->changed);
        enum agent_delivery how;
        enum knowledge knowledge;
        bool must_probe;

        knowledge = look(delivery, runtime_class, &must_probe, &how);
        if (must_probe) {
            char why[512] = "";
            int answer = probe(delivery, runtime_class, readable_agent, why, sizeof(why));

            conclude(delivery, runtime_class, answer, why);
        } else if (knowledge != PROBING || !event_block(&delivery->changed, seen, deadline_ms)) {
            return how;
        }
    }
}

void delivery_failed(struct delivery *delivery, const char *runtime_class)
{
    struct class *class;

    if (!delivery->is_auto)
        return;
    pthread_mutex_lock(&delivery->lock);
    class = find_class(delivery, runtime_class, false);
    if (class != NULL && class->knowledge == DECIDED && class->how == DELIVERY_IMAGE_VOLUME) {
        class->how = DELIVERY_INIT;
        say(class->why, sizeof(class->why), "a pod with an image volume did not start");
    }
    pthread_mutex_unlock(&delivery->lock);
}

const char *delivery_describe(struct delivery *delivery, const char *runtime_class, char *ret_why,
                              size_t size)
{
    enum agent_delivery how = delivery->fixed;
    struct class *class;
    bool decided = !delivery->is_auto;

    ret_why[0] = '\0';
    pthread_mutex_lock(&delivery->lock);
    class = find_class(delivery, runtime_class, false);
    if (delivery->is_auto && class != NULL) {
        decided = class->knowledge == DECIDED;
        how = class->how;
        (void)snprintf(ret_why, size, "%s", class->why);
    }
    pthread_mutex_unlock(&delivery->lock);
    if (!decided)
        return "undecided";
    return how == DELIVERY_IMAGE_VOLUME ? "image-volume" : "init";
}

static bool is_our_probe(const struct delivery *delivery, const struct json *labels)
{
    const char *instance = json_get_text(labels, LABEL_INSTANCE);

    return json_get_text(labels, LABEL_PROBE) != NULL && instance != NULL &&
           strcmp(instance, delivery->space->instance) == 0;
}

static void sweep_one(void *arg, const struct json *pod)
{
    struct delivery *delivery = arg;
    const struct json *metadata = json_get(pod, "metadata");
    const char *name = json_get_text(metadata, "name");
    const char *uid = json_get_text(metadata, "uid");

    if (name != NULL && uid != NULL && is_our_probe(delivery, json_get(metadata, "labels")))
        object_discard(delivery->space, KIND_POD, name, uid);
}

void delivery_sweep(struct delivery *delivery)
{
    struct object_sink sink = {.add = sweep_one, .arg = delivery};
    cleanup_free char *selector = xasprintf("%s=%s,%s=%s,%s=agent", LABEL_MANAGED_BY, MANAGED_BY,
                                            LABEL_INSTANCE, delivery->space->instance, LABEL_PROBE);

    if (object_list(delivery->space, KIND_POD, (struct selector){selector, NULL}, &sink, NULL,
                    NULL) < 0)
        return; /* the next start tries again */
}
