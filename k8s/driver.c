#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "k8s/access.h"
#include "k8s/driver_impl.h"
#include "k8s/pod.h"
#include "k8s/preview.h"
#include "k8s/reason.h"
#include "k8s/side.h"

#define DEFAULT_NAMESPACE "sandboxes"
#define CREATE_ATTEMPTS 3

/* --- start and stop -----------------------------------------------------------------------------
 */

/* So that the first sandbox need not wait for the answer. */
static void *run_starter(void *arg)
{
    struct k8s *k8s = arg;
    const char *class = k8s->config->runtime_class;
    bool readable = false;

    delivery_sweep(k8s->delivery);
    if (class != NULL && class[0] == '\0')
        class = NULL;
    if (class == NULL || runtimes_check(k8s->runtimes, class, &readable, NULL) == 0)
        (void)delivery_choose(k8s->delivery, class, readable);
    return NULL;
}

static void start_failed(void *arg, const struct box_info *info)
{
    struct k8s *k8s = arg;

    if (info->reason == ERR_CONTAINER_START || info->reason == ERR_VOLUME_MOUNT)
        delivery_failed(k8s->delivery, info->runtime_class[0] != '\0' ? info->runtime_class : NULL);
}

static int k8s_start(void *self, const struct box_observer *observer, struct err *err)
{
    struct k8s *k8s = self;
    struct watch_events events = {.start_failed = start_failed, .arg = k8s};

    k8s->watch = watch_start(&k8s->space, k8s->tracker, observer, &events, err);
    if (k8s->watch == NULL)
        return -1;
    k8s->has_starter = pthread_create(&k8s->starter, NULL, run_starter, k8s) == 0;
    return 0;
}

static void k8s_stop(void *self)
{
    struct k8s *k8s = self;

    api_stop(k8s->space.api);
    watch_stop(TAKE_PTR(k8s->watch));
    if (k8s->has_starter)
        pthread_join(k8s->starter, NULL);
    k8s->has_starter = false;
}

static void k8s_free(void *self)
{
    struct k8s *k8s = self;

    k8s_stop(k8s);
    streams_free(k8s->streams);
    delivery_free(k8s->delivery);
    runtimes_free(k8s->runtimes);
    tracker_free(k8s->tracker);
    api_free(k8s->space.api);
    json_free(k8s->capabilities);
    pthread_mutex_destroy(&k8s->lock);
    free(k8s);
}

/* --- boxes --------------------------------------------------------------------------------------
 */

static int build(struct k8s *k8s, const struct box_spec *spec, struct json **ret_pod,
                 struct err *err)
{
    struct pod_plan plan = {
        .config = k8s->config,
        .namespace_ = k8s->space.namespace_,
        .runtime_class =
            spec->runtime_class != NULL ? spec->runtime_class : k8s->config->runtime_class,
    };

    if (plan.runtime_class != NULL && plan.runtime_class[0] == '\0')
        plan.runtime_class = NULL;
    if (plan.runtime_class != NULL &&
        runtimes_check(k8s->runtimes, plan.runtime_class, &plan.readable_agent, err) < 0)
        return -1;
    plan.delivery = delivery_choose(k8s->delivery, plan.runtime_class, plan.readable_agent);
    return pod_build(&plan, spec, ret_pod, err);
}

/* A collection that is not found is a namespace that is not there. */
static int explain(const struct k8s *k8s, const struct err *why, struct err *err)
{
    if (why->code == ERR_BACKEND_NOT_FOUND)
        return err_set(err, ERR_BACKEND, "the namespace '%s' does not exist: %s",
                       k8s->space.namespace_, why->msg);
    return err_set(err, why->code, "%s", why->msg);
}

static int k8s_check(void *self, const struct box_spec *spec, struct err *err)
{
    struct k8s *k8s = self;
    cleanup_json struct json *pod = NULL;
    struct err why;

    if (build(k8s, spec, &pod, err) < 0)
        return -1;
    if (object_create(&k8s->space, KIND_POD, pod, true, NULL, &why) < 0)
        return explain(k8s, &why, err);
    return 0;
}

static const char *uid_of(const struct json *object)
{
    return json_get_text(json_get(object, "metadata"), "uid");
}

/* What stands under the name: ours of this very life (1, RET_INFO), nothing (0), or another (-1).
 */
static int adopt(struct k8s *k8s, const struct box_spec *spec, struct box_info *ret_info,
                 struct err *err)
{
    cleanup_json struct json *pod = NULL;
    struct err why;
    const char *uid;
    char name[64];

    pod_name(spec->id, name);
    if (object_get(&k8s->space, KIND_POD, name, &pod, &why) < 0) {
        if (why.code == ERR_BACKEND_NOT_FOUND)
            return 0;
        return err_set(err, why.code, "%s", why.msg);
    }
    uid = json_get_text(json_path(pod, "metadata.annotations"), ANNOTATION_UID);
    if (!object_is_ours(&k8s->space, pod) || uid == NULL || strcmp(uid, spec->uid) != 0)
        return err_set(err, ERR_ALREADY_EXISTS, "a pod named '%s' exists already", name);
    tracker_note_pod(k8s->tracker, pod, clock_now_ms(), ret_info);
    return 1;
}

/* A create may have been done although the answer says something else or never came (B17): what is
 * there under the name decides. */
static int k8s_create(void *self, const struct box_spec *spec, struct box_info *ret_info,
                      struct err *err)
{
    struct k8s *k8s = self;
    cleanup_json struct json *pod = NULL;
    struct err why;

    if (build(k8s, spec, &pod, err) < 0)
        return -1;
    for (int attempt = 0; attempt < CREATE_ATTEMPTS; attempt++) {
        cleanup_json struct json *made = NULL;
        int found;

        if (object_create(&k8s->space, KIND_POD, pod, false, &made, &why) == 0) {
            tracker_note_pod(k8s->tracker, made, clock_now_ms(), ret_info);
            return 0;
        }
        if (why.code != ERR_ALREADY_EXISTS && why.code != ERR_BACKEND_CONFLICT &&
            why.code != ERR_BACKEND_UNAVAILABLE && why.code != ERR_BACKEND)
            break;
        found = adopt(k8s, spec, ret_info, err);
        if (found > 0)
            return 0;
        if (found < 0 && (why.code == ERR_ALREADY_EXISTS || why.code == ERR_BACKEND_CONFLICT))
            return -1;
        /* Not there. A conflict (of a quota's counter, or with a name that is just leaving) passes;
         * after an outage the caller decides. */
        if (why.code == ERR_BACKEND_UNAVAILABLE || why.code == ERR_BACKEND)
            break;
    }
    return explain(k8s, &why, err);
}

/* The uid of the pod to delete, malloc'd: NULL when there is none of ours (of BOX_UID). */
static int find_pod(struct k8s *k8s, const char *id, const char *box_uid, char **ret_uid,
                    struct err *err)
{
    cleanup_json struct json *pod = NULL;
    struct tracked known;
    struct err why;
    const char *uid;
    char name[64];

    *ret_uid = NULL;
    if (box_uid[0] != '\0' && tracker_find(k8s->tracker, id, &known) &&
        strcmp(known.box_uid, box_uid) == 0) {
        *ret_uid = xstrdup(box_uid);
        return 0;
    }
    pod_name(id, name);
    if (object_get(&k8s->space, KIND_POD, name, &pod, &why) < 0)
        return why.code == ERR_BACKEND_NOT_FOUND ? 0 : err_set(err, why.code, "%s", why.msg);
    uid = uid_of(pod);
    if (object_is_ours(&k8s->space, pod) && uid != NULL &&
        (box_uid[0] == '\0' || strcmp(uid, box_uid) == 0))
        *ret_uid = xstrdup(uid);
    return 0;
}

static int delete_pod(struct k8s *k8s, const char *id, const char *box_uid, struct err *err)
{
    cleanup_free char *uid = NULL;
    char name[64];

    pod_name(id, name);
    if (find_pod(k8s, id, box_uid, &uid, err) < 0)
        return -1;
    return uid == NULL ? 0 : object_delete(&k8s->space, KIND_POD, name, uid, err);
}

/* The pod goes even when an object beside it cannot: it may then be removed with its owner. */
static int k8s_destroy(void *self, const char *id, const char *box_uid, struct err *err)
{
    struct k8s *k8s = self;
    struct err side = {.code = ERR_NONE};
    int failed = side_remove_all(&k8s->space, id, NULL, &side);

    if (delete_pod(k8s, id, box_uid, err) < 0)
        return -1;
    return failed ? err_set(err, side.code, "%s", side.msg) : 0;
}

static int k8s_inspect(void *self, const char *id, struct box_info *ret_info, struct err *err)
{
    struct k8s *k8s = self;
    cleanup_json struct json *pod = NULL;
    char name[64];

    pod_name(id, name);
    if (object_get(&k8s->space, KIND_POD, name, &pod, err) < 0)
        return -1;
    if (!object_is_ours(&k8s->space, pod))
        return err_set(err, ERR_BACKEND_NOT_FOUND, "the pod '%s' is not ours", name);
    tracker_note_pod(k8s->tracker, pod, clock_now_ms(), ret_info);
    return 0;
}

struct listing {
    const struct k8s *k8s;
    struct box_info *infos;
    size_t count, room;
};

static void listing_begin(void *arg)
{
    struct listing *listing = arg;

    listing->count = 0;
}

static void listing_add(void *arg, const struct json *pod)
{
    struct listing *listing = arg;
    struct pod_history history = {.status = NULL};
    struct box_info *info;

    if (listing->count == listing->room) {
        listing->room = listing->room * 2 + 64;
        listing->infos = xrealloc(listing->infos, listing->room * sizeof(*listing->infos));
    }
    info = &listing->infos[listing->count++];
    reason_of_pod(pod, &history, clock_now_ms(), info);
    pod_history_done(&history);
    info->foreign = !object_is_ours(&listing->k8s->space, pod);
    if (info->foreign)
        info->uid[0] = '\0';
}

static int k8s_list(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                    struct err *err)
{
    struct k8s *k8s = self;
    struct listing listing = {.k8s = k8s};
    struct object_sink sink = {.begin = listing_begin, .add = listing_add, .arg = &listing};
    cleanup_free char *selector =
        foreign ? xasprintf("%s=%s,%s", LABEL_MANAGED_BY, MANAGED_BY, LABEL_ID)
                : object_selector(&k8s->space, NULL);

    if (object_list(&k8s->space, KIND_POD, (struct selector){selector, NULL}, &sink, NULL, err) <
        0) {
        free(listing.infos);
        return -1;
    }
    *ret_infos = listing.infos;
    *ret_count = listing.count;
    return 0;
}

/* --- previews, streams --------------------------------------------------------------------------
 */

static int k8s_publish(void *self, const struct preview_spec *spec, struct preview_names *ret_names,
                       struct err *err)
{
    struct k8s *k8s = self;

    return preview_publish(&k8s->space, k8s->config, spec, ret_names, err);
}

static int k8s_unpublish(void *self, const char *id, int64_t port, bool first, struct err *err)
{
    struct k8s *k8s = self;
    char name[64];

    preview_name(id, port, first, name);
    return side_remove_all(&k8s->space, id, name, err);
}

static int k8s_side_objects(void *self, struct side_object **ret_objects, size_t *ret_count,
                            struct err *err)
{
    struct k8s *k8s = self;

    return side_list(&k8s->space, NULL, ret_objects, ret_count, err);
}

static int k8s_remove_side_object(void *self, const struct side_object *object, struct err *err)
{
    struct k8s *k8s = self;

    return side_remove(&k8s->space, object, err);
}

static struct stream *k8s_open(void *self, const char *id, const char *box_uid,
                               const struct stream_handler *handler, void *arg)
{
    struct k8s *k8s = self;

    return streams_open(k8s->streams, id, box_uid, handler, arg);
}

static const struct driver_ops k8s_ops = {
    .name = "kubernetes",
    .promises =
        {
            .programs = true,
            .posix_files = true,
            .images = true,
            .previews = true,
            .runtime_classes = true,
            .adoption = true,
        },
    .start = k8s_start,
    .stop = k8s_stop,
    .free = k8s_free,
    .check = k8s_check,
    .create = k8s_create,
    .destroy = k8s_destroy,
    .inspect = k8s_inspect,
    .list = k8s_list,
    .publish = k8s_publish,
    .unpublish = k8s_unpublish,
    .side_objects = k8s_side_objects,
    .remove_side_object = k8s_remove_side_object,
    .open = k8s_open,
    .capabilities = k8s_capabilities,
};

int k8s_check_config(const struct k8s_config *config, struct err *err)
{
    const char *delivery = config->agent_delivery;

    if (pod_check_config(config, err) < 0 || preview_check_config(config, err) < 0)
        return -1;
    if (delivery != NULL && delivery[0] != '\0' && strcmp(delivery, "auto") != 0 &&
        strcmp(delivery, "image-volume") != 0 && strcmp(delivery, "init") != 0)
        return err_set(err, ERR_CONFIG, "agent-delivery: not auto, image-volume or init");
    return 0;
}

int k8s_driver_new(const struct k8s_config *config, struct loop *loop, struct driver *ret_driver,
                   struct err *err)
{
    struct access access = {.server = NULL};
    struct api *api;
    struct k8s *k8s;

    if (k8s_check_config(config, err) < 0 || access_find(config, &access, err) < 0)
        return -1;
    api = api_new(&access, err);
    if (api == NULL)
        return -1;
    k8s = xcalloc(1, sizeof(*k8s));
    k8s->config = config;
    k8s->space = (struct space){
        .api = api,
        .namespace_ = config->namespace_ != NULL && config->namespace_[0] != '\0'
                          ? config->namespace_
                          : DEFAULT_NAMESPACE,
        .instance = config->instance,
    };
    pthread_mutex_init(&k8s->lock, NULL);
    k8s->tracker = tracker_new();
    k8s->runtimes = runtimes_new(api);
    k8s->delivery = delivery_new(&k8s->space, config);
    k8s->streams = streams_new(loop, &k8s->space, k8s->tracker);
    *ret_driver = (struct driver){.ops = &k8s_ops, .self = k8s};
    return 0;
}
