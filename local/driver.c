#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "local/driver_impl.h"
#include "local/preflight.h"
#include "net/socket_stream.h"

#define HOST_IMAGE "host"
#define TERM_MS 1500 /* the agent itself gives what it runs 500 ms */
#define DEFAULT_PIDS 1024
#define DEFAULT_UIDS "200000-265535"

/* --- start and stop -----------------------------------------------------------------------------
 */

static int local_start(void *self, const struct box_observer *observer, struct err *err)
{
    struct local *local = self;

    local->observer = *observer;
    return ends_start(local, err);
}

static void local_stop(void *self)
{
    struct local *local = self;

    if (local->images)
        image_store_stop(local->images);
    ends_stop(local);
}

static void local_free(void *self)
{
    struct local *local = self;

    local_stop(local);
    while (local->boxes) {
        cleanup_fd_close(&local->boxes->agent);
        cleanup_fd_close(&local->boxes->bwrap);
        struct box *box = local->boxes;
        boxes_remove_locked(local, box);
        box_free(local, box);
    }
    if (local->images)
        image_store_free(local->images);
    cleanup_fd_close(&local->epoll);
    cleanup_fd_close(&local->wakeup);
    cgroups_close(&local->cgroups);
    filters_done(&local->filters);
    uids_done(&local->uids);
    place_close(&local->place);
    pthread_mutex_destroy(&local->lock);
    free(local->bwrap);
    free(local->agent);
    free(local);
}

/* --- boxes --------------------------------------------------------------------------------------
 */

static bool is_host(const struct box_spec *spec)
{
    return strcmp(spec->image, HOST_IMAGE) == 0;
}

static int local_check(void *self, const struct box_spec *spec, struct err *err)
{
    const struct local *local = self;
    bool host_network = strcmp(spec->network, "host") == 0 && local->config->host_network;

    if (!is_host(spec) && !local->images)
        return err_set(err, ERR_INVALID_IMAGE,
                       "the local driver has no image '%s', only '" HOST_IMAGE
                       "': name folders of images with --local-images",
                       spec->image);
    if (!spec->read_only_root)
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'read_only_root': the local driver has read-only roots only; ask for "
                       "writable_mounts");
    if (spec->runtime_class && *spec->runtime_class)
        return err_set(err, ERR_NOT_SUPPORTED, "field 'runtime_class': the local driver has none");
    if (strcmp(spec->network, "none") != 0 && !host_network)
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'network': the local driver has no network '%s'; use 'none'%s",
                       spec->network, local->config->host_network ? " or 'host'" : "");
    return 0;
}

static void text(char *ret_text, size_t size, const char *from)
{
    (void)snprintf(ret_text, size, "%s", from ? from : "");
}

static bool pids_limited(const struct local *local)
{
    return local->uids.count > 0 || local->cgroups.parents[CGROUP_PIDS][0] != '\0';
}

/* What is written lies in memory: two full places would leave nothing to run with. */
static uint64_t storage_of(const struct box_spec *spec)
{
    uint64_t storage = 0, memory = 0;

    (void)str_to_bytes(spec->storage_limit, &storage); /* both checked by the domain */
    (void)str_to_bytes(spec->memory_limit, &memory);
    return storage < memory / 2 ? storage : memory / 2;
}

static void fill_record(const struct local *local, const struct box_spec *spec,
                        struct box_record *record)
{
    record->created_ms = spec->created_ms;
    if (pids_limited(local))
        record->pids = (uint64_t)(local->config->pids > 0 ? local->config->pids : DEFAULT_PIDS);
    record->storage = storage_of(spec);
    text(record->instance, sizeof(record->instance), local->config->instance);
    text(record->boot, sizeof(record->boot), local->boot);
    text(record->id, sizeof(record->id), spec->id);
    text(record->uid, sizeof(record->uid), spec->uid);
    text(record->owner, sizeof(record->owner), spec->owner);
    text(record->digest, sizeof(record->digest), spec->digest);
    text(record->image, sizeof(record->image), spec->image);
    text(record->workdir, sizeof(record->workdir), spec->workdir);
    text(record->cpu_limit, sizeof(record->cpu_limit), spec->cpu_limit);
    text(record->memory_limit, sizeof(record->memory_limit), spec->memory_limit);
}

/* 1: it is there already, RET_INFO says how; 0: RET_BOX is claimed for it. */
static int claim(struct local *local, const struct box_spec *spec, struct box **ret_box,
                 struct box_info *ret_info, struct err *err)
{
    struct box *box = boxes_find_locked(local, spec->id);

    if (local->stopping)
        return err_set(err, ERR_STOPPING, "the server stops");
    if (box && strcmp(box->record.uid, spec->uid) == 0 && box->phase != PHASE_MAKING) {
        box_describe_locked(local, box, ret_info);
        return 1;
    }
    if (box)
        return err_set(err, ERR_ALREADY_EXISTS, "a box named '%s' exists already", spec->id);
    box = xcalloc(1, sizeof(*box));
    box->bwrap = box->agent = -1;
    box->phase = PHASE_MAKING;
    fill_record(local, spec, &box->record);
    box->next = local->boxes;
    local->boxes = box;
    *ret_box = box;
    return 0;
}

/* Unpacks it if it has to be; what has not been used for long gives way. */
static int hold_image(struct local *local, struct box *box, const struct box_spec *spec,
                      struct err *err)
{
    const struct text_list none = {0};

    if (is_host(spec))
        return 0;
    if (image_resolve(local->images, spec->image, &box->image, err) < 0)
        return -1;
    text(box->record.image_digest, sizeof(box->record.image_digest), box->image.digest);
    return image_gc(local->images, &none, local->config->image_cache_bytes, err);
}

static int make(struct local *local, struct box *box, const struct box_spec *spec, struct err *err)
{
    if (hold_image(local, box, spec, err) < 0)
        return -1;
    if (uids_take(&local->uids, &box->record.host_uid, err) < 0)
        return -1;
    if (box_make(local, box, spec, err) == 0)
        return 0;
    uids_give(&local->uids, box->record.host_uid);
    return -1;
}

static int local_create(void *self, const struct box_spec *spec, struct box_info *ret_info,
                        struct err *err)
{
    struct local *local = self;
    struct box *box = NULL;

    if (local_check(local, spec, err) < 0)
        return -1;
    pthread_mutex_lock(&local->lock);
    int found = claim(local, spec, &box, ret_info, err);
    pthread_mutex_unlock(&local->lock);
    if (found != 0 || !box)
        return found < 0 ? -1 : 0;
    bool made = make(local, box, spec, err) == 0;
    pthread_mutex_lock(&local->lock);
    if (made && box->ended_early) {
        made = false;
        (void)err_set(err, ERR_CONTAINER_START, "the sandbox ended at once: %s", box->message);
        uids_give(&local->uids, box->record.host_uid);
        box_clear_soon(local, &box->record);
    }
    if (made) {
        box->phase = PHASE_LIVE;
        box_describe_locked(local, box, ret_info);
    } else {
        cleanup_fd_close(&box->agent);
        cleanup_fd_close(&box->bwrap);
        boxes_remove_locked(local, box);
    }
    pthread_mutex_unlock(&local->lock);
    if (!made)
        box_free(local, box);
    return made ? 0 : -1;
}

/* TERM lets the agent say goodbye; what does not end by that is killed by the watch. */
static int local_destroy(void *self, const char *id, const char *box_uid, struct err *err)
{
    struct local *local = self;
    int result = 0;

    pthread_mutex_lock(&local->lock);
    struct box *box = boxes_find_locked(local, id);
    if (box && strcmp(box->record.instance, local->config->instance) != 0)
        box = NULL;
    if (box && *box_uid && strcmp(box->record.uid, box_uid) != 0)
        box = NULL;
    if (box && box->phase == PHASE_MAKING) {
        result = err_set(err, ERR_BUSY, "the box '%s' is just being made", id);
    } else if (box && box->phase != PHASE_GOING) {
        if (box->agent >= 0) {
            process_signal(box->agent, SIGTERM);
            box->kill_at_ms = clock_now_ms() + TERM_MS;
        }
        box->phase = PHASE_GOING;
        ends_wake(local);
    }
    pthread_mutex_unlock(&local->lock);
    return result;
}

static int local_inspect(void *self, const char *id, struct box_info *ret_info, struct err *err)
{
    struct local *local = self;

    pthread_mutex_lock(&local->lock);
    const struct box *box = boxes_find_locked(local, id);
    if (box && box->phase != PHASE_MAKING)
        box_describe_locked(local, box, ret_info);
    else
        box = NULL;
    pthread_mutex_unlock(&local->lock);
    return box && !ret_info->foreign
               ? 0
               : err_set(err, ERR_BACKEND_NOT_FOUND, "there is no box '%s'", id);
}

static int local_list(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                      struct err *err)
{
    (void)err;
    *ret_infos = boxes_describe(self, foreign, ret_count);
    return 0;
}

/* --- streams ------------------------------------------------------------------------------------
 */

static int local_side_objects(void *self, struct side_object **ret_objects, size_t *ret_count,
                              struct err *err)
{
    (void)self;
    (void)err;
    *ret_objects = NULL;
    *ret_count = 0;
    return 0;
}

static int local_remove_side_object(void *self, const struct side_object *object, struct err *err)
{
    (void)self;
    (void)object;
    (void)err;
    return 0;
}

static struct stream *local_open(void *self, const char *id, const char *box_uid,
                                 const struct stream_handler *handler, void *arg)
{
    struct local *local = self;
    struct err why;
    int fd = -1;

    pthread_mutex_lock(&local->lock);
    const struct box *box = boxes_find_locked(local, id);
    bool there = box && strcmp(box->record.uid, box_uid) == 0 && box->phase != PHASE_ENDED;
    pthread_mutex_unlock(&local->lock);
    if (!there)
        (void)err_set(&why, ERR_SANDBOX_GONE, "the box '%s' has ended", id);
    if (!there || place_connect(&local->place, id, &fd, &why) < 0)
        return socket_stream_refused(local->loop, &why, handler, arg);
    return socket_stream_new(local->loop, fd, handler, arg);
}

static void local_capabilities(void *self, struct json *object)
{
    struct local *local = self;
    struct json *mine = json_set_object(object, "local");

    json_set_text(mine, "isolation", "bubblewrap");
    json_set_bool(mine, "host_uid_per_sandbox", local->uids.count > 0);
    struct json *warnings = json_set_array(object, "warnings");
    struct json *limits = json_set_object(mine, "limits");

    json_set_bool(limits, "cpu", local->cgroups.parents[CGROUP_CPU][0] != '\0');
    json_set_bool(limits, "memory", local->cgroups.parents[CGROUP_MEMORY][0] != '\0');
    json_set_bool(limits, "pids", pids_limited(local));
    json_set_text(limits, "storage",
                  "of each writable directory alone, at most half of the memory");
    json_set_bool(mine, "images", local->images != NULL);
    json_set_bool(mine, "host_network", local->config->host_network);
    if (*preflight_forbidden())
        json_add_text(warnings, preflight_forbidden() + strlen("; "));
    if (local->cgroups.why[0] != '\0')
        json_add_text(warnings, local->cgroups.why);
}

static const struct driver_ops local_ops = {
    .name = "local",
    .promises =
        {.programs = true, .posix_files = true, .images = true, .adoption = true, .previews = true},
    .start = local_start,
    .stop = local_stop,
    .free = local_free,
    .check = local_check,
    .create = local_create,
    .destroy = local_destroy,
    .inspect = local_inspect,
    .list = local_list,
    .side_objects = local_side_objects,
    .remove_side_object = local_remove_side_object,
    .open = local_open,
    .capabilities = local_capabilities,
};

/* --- opening ------------------------------------------------------------------------------------
 */

static void read_file(const char *path, char *ret_text, size_t size)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, ret_text, size - 1) : 0;

    ret_text[n > 0 ? n : 0] = '\0';
}

static void open_cgroups(struct local *local)
{
    char own[4096];

    read_file("/proc/self/cgroup", own, sizeof(own));
    cgroups_open(&local->cgroups, "/sys/fs/cgroup", own, local->config->instance);
}

static int prepare(struct local *local, struct err *err)
{
    const struct local_config *config = local->config;
    struct epoll_event event = {.events = EPOLLIN};

    read_file("/proc/sys/kernel/random/boot_id", local->boot, sizeof(local->boot));
    local->boot[strcspn(local->boot, "\n")] = '\0';
    if (uids_init(&local->uids, config->uids && *config->uids ? config->uids : DEFAULT_UIDS, err) <
            0 ||
        programs_find(local, err) < 0 || place_open(config->dir, &local->place, err) < 0 ||
        filters_make(&local->filters, err) < 0)
        return -1;
    open_cgroups(local);
    if (preflight_run(local, err) < 0 ||
        (config->image_folders && config->image_folders->count > 0 &&
         image_store_open(config->image_cache, config->image_folders, NULL, &local->images, err) <
             0))
        return -1;
    local->epoll = epoll_create1(EPOLL_CLOEXEC);
    local->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (local->epoll < 0 || local->wakeup < 0 ||
        epoll_ctl(local->epoll, EPOLL_CTL_ADD, local->wakeup, &event) < 0)
        return err_errno(err, ERR_INTERNAL, errno, "epoll");
    boxes_load(local); /* before the first create, which may come before the start */
    for (struct box *box = local->boxes; box; box = box->next) {
        if (ends_add(local, box, err) < 0)
            return -1;
    }
    return 0;
}

int local_driver_new(const struct local_config *config, struct loop *loop,
                     struct driver *ret_driver, struct err *err)
{
    struct local *local = xcalloc(1, sizeof(*local));

    local->config = config;
    local->loop = loop;
    local->epoll = local->wakeup = -1;
    local->place = (struct place){.lock = -1, .boxes = -1};
    local->filters = (struct filters){.known = -1, .refused = -1};
    pthread_mutex_init(&local->lock, NULL);
    if (prepare(local, err) < 0) {
        local_free(local);
        return -1;
    }
    *ret_driver = (struct driver){.ops = &local_ops, .self = local};
    return 0;
}
