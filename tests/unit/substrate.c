#include "tests/unit/substrate.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/unit/substrate_agent.h"

/* --- what is there --------------------------------------------------------------------------- */

static struct scripted_box *find(struct substrate *substrate, const char *id)
{
    for (size_t i = 0; i < BOXES; i++) {
        struct scripted_box *box = &substrate->world->boxes[i];
        if (box->there && strcmp(box->info.id, id) == 0) {
            return box;
        }
    }
    return NULL;
}

static struct scripted_box *add(struct substrate *substrate, const char *id, const char *uid)
{
    struct scripted_box *box = substrate->world->boxes;
    while (box < substrate->world->boxes + BOXES && box->there) {
        box++;
    }
    ck_assert_ptr_ne(box, substrate->world->boxes + BOXES);
    *box = (struct scripted_box){.there = true};
    struct box_info *info = &box->info;
    (void)snprintf(info->id, sizeof(info->id), "%s", id);
    (void)snprintf(info->uid, sizeof(info->uid), "%s", uid);
    (void)snprintf(info->box_uid, sizeof(info->box_uid), "box-%u", ++substrate->world->last_uid);
    (void)snprintf(info->name, sizeof(info->name), "sandbox-%s", id);
    (void)snprintf(info->image, sizeof(info->image), "image");
    (void)snprintf(info->workdir, sizeof(info->workdir), "/workspace");
    info->created_ms = clock_wall_ms();
    info->state = substrate->hold_start ? BOX_STARTING : BOX_ATTACHABLE;
    (void)snprintf(info->node, sizeof(info->node), "%s", substrate->hold_start ? "" : "node-1");
    box->started_ms = clock_now_ms();
    return box;
}

static int refuse(struct substrate *substrate, enum err_code code, struct err *err)
{
    enum err_code why = substrate->stopped ? ERR_BACKEND_UNAVAILABLE : code;
    return why ? err_set(err, why, "the test says no") : 0;
}

/* --- the watch ------------------------------------------------------------------------------- */

struct news {
    struct substrate *substrate;
    struct box_info info;
    struct err why;
    bool health;
};

static void tell_now(void *arg)
{
    struct news *news = arg;
    struct substrate *substrate = news->substrate;
    pthread_mutex_lock(&substrate->lock);
    struct box_observer observer = substrate->observer;
    bool watching = substrate->watching;
    pthread_mutex_unlock(&substrate->lock);
    if (watching && news->health) {
        observer.health(observer.arg, news->why.code ? &news->why : NULL);
    } else if (watching) {
        observer.changed(observer.arg, &news->info);
    }
    free(news);
}

static void tell(struct substrate *substrate, const struct box_info *info)
{
    struct news *news = xcalloc(1, sizeof(*news));
    news->substrate = substrate;
    news->info = *info;
    loop_post(substrate->loop, tell_now, news);
}

static void list_now(void *arg)
{
    struct substrate *substrate = arg;
    cleanup_free struct box_info *infos = xcalloc(BOXES, sizeof(*infos));
    size_t count = 0;
    pthread_mutex_lock(&substrate->lock);
    struct box_observer observer = substrate->observer;
    bool watching = substrate->watching;
    for (size_t i = 0; i < BOXES; i++) {
        const struct scripted_box *box = &substrate->world->boxes[i];
        if (box->there && !box->info.foreign) {
            infos[count++] = box->info;
        }
    }
    pthread_mutex_unlock(&substrate->lock);
    if (watching) {
        observer.listed(observer.arg, infos, count);
    }
}

void substrate_list(struct substrate *substrate)
{
    loop_post(substrate->loop, list_now, substrate);
}

void substrate_health(struct substrate *substrate, enum err_code code)
{
    struct news *news = xcalloc(1, sizeof(*news));
    news->substrate = substrate;
    news->health = true;
    if (code) {
        (void)err_set(&news->why, code, "the substrate does not answer");
    }
    loop_post(substrate->loop, tell_now, news);
}

static int driver_start(void *self, const struct box_observer *observer, struct err *err)
{
    struct substrate *substrate = self;
    (void)err;
    pthread_mutex_lock(&substrate->lock);
    substrate->observer = *observer;
    substrate->watching = true;
    pthread_mutex_unlock(&substrate->lock);
    if (!substrate->hold_list) {
        substrate_list(substrate);
    }
    return 0;
}

static void driver_stop(void *self)
{
    struct substrate *substrate = self;
    pthread_mutex_lock(&substrate->lock);
    substrate->watching = false;
    substrate->stopped = true;
    pthread_mutex_unlock(&substrate->lock);
}

/* --- boxes ----------------------------------------------------------------------------------- */

static int driver_check(void *self, const struct box_spec *spec, struct err *err)
{
    struct substrate *substrate = self;
    ck_assert_str_ne(spec->image, "");
    return refuse(substrate, substrate->fail_create, err);
}

static int make(struct substrate *substrate, const struct box_spec *spec, struct box_info *ret_info,
                struct err *err)
{
    struct scripted_box *box = find(substrate, spec->id);
    if (box) {
        if (strcmp(box->info.uid, spec->uid) != 0) {
            return err_set(err, ERR_ALREADY_EXISTS, "a box named '%s' exists", box->info.name);
        }
        *ret_info = box->info;
        return 0;
    }
    if (refuse(substrate, substrate->fail_create, err) < 0 && !substrate->lose_answer) {
        return -1;
    }
    box = add(substrate, spec->id, spec->uid);
    substrate->world->created++;
    (void)snprintf(box->info.owner, sizeof(box->info.owner), "%s", spec->owner);
    (void)snprintf(box->info.digest, sizeof(box->info.digest), "%s", spec->digest);
    (void)snprintf(box->info.image, sizeof(box->info.image), "%s", spec->image);
    (void)snprintf(box->info.workdir, sizeof(box->info.workdir), "%s", spec->workdir);
    box->info.created_ms = spec->created_ms;
    *ret_info = box->info;
    tell(substrate, &box->info);
    return refuse(substrate, substrate->fail_create, err);
}

static int driver_create(void *self, const struct box_spec *spec, struct box_info *ret_info,
                         struct err *err)
{
    struct substrate *substrate = self;
    pthread_mutex_lock(&substrate->lock);
    int rc = make(substrate, spec, ret_info, err);
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static void drop_objects(struct substrate *substrate, const char *id, const char *name)
{
    struct scripted_world *world = substrate->world;
    size_t kept = 0;
    for (size_t i = 0; i < world->object_count; i++) {
        const struct side_object *object = &world->objects[i];
        bool drop = strcmp(object->id, id) == 0 && (!name || strcmp(object->name, name) == 0);
        if (!drop) {
            world->objects[kept++] = *object;
        }
    }
    world->object_count = kept;
}

static void take_away(struct substrate *substrate, struct scripted_box *box, bool told)
{
    struct box_info info = box->info;
    box->there = false;
    substrate->world->destroyed++;
    info.state = BOX_GONE;
    agent_cut_later(substrate, (size_t)(box - substrate->world->boxes), ERR_SANDBOX_GONE);
    if (told) {
        tell(substrate, &info);
    }
}

static int driver_destroy(void *self, const char *id, const char *box_uid, struct err *err)
{
    struct substrate *substrate = self;
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_destroy, err);
    struct scripted_box *box = rc == 0 ? find(substrate, id) : NULL;
    if (box && (!*box_uid || strcmp(box->info.box_uid, box_uid) == 0)) {
        ck_assert(!box->info.foreign);
        if (substrate->linger) {
            box->leaving = true;
        } else {
            take_away(substrate, box, true);
        }
    }
    if (rc == 0) {
        rc = refuse(substrate, substrate->fail_beside, err);
    }
    if (rc == 0) {
        drop_objects(substrate, id, NULL);
    }
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static int driver_inspect(void *self, const char *id, struct box_info *ret_info, struct err *err)
{
    struct substrate *substrate = self;
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_inspect, err);
    struct scripted_box *box = rc == 0 ? find(substrate, id) : NULL;
    if (box) {
        *ret_info = box->info;
    } else if (rc == 0) {
        rc = err_set(err, ERR_BACKEND_NOT_FOUND, "there is no box '%s'", id);
    }
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static int driver_list(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                       struct err *err)
{
    struct substrate *substrate = self;
    struct box_info *infos = xcalloc(BOXES, sizeof(*infos));
    size_t count = 0;
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_list, err);
    for (size_t i = 0; i < BOXES && rc == 0; i++) {
        const struct scripted_box *box = &substrate->world->boxes[i];
        if (box->there && (foreign || !box->info.foreign)) {
            infos[count++] = box->info;
        }
    }
    pthread_mutex_unlock(&substrate->lock);
    if (rc < 0) {
        free(infos);
        return -1;
    }
    *ret_infos = infos;
    *ret_count = count;
    return 0;
}

/* --- beside the boxes ------------------------------------------------------------------------ */

static void name_of(const char *id, int64_t port, bool first, char ret_name[64])
{
    if (first) {
        (void)snprintf(ret_name, 64, "preview-%s", id);
    } else {
        (void)snprintf(ret_name, 64, "preview%lld-%s", (long long)port, id);
    }
}

static struct side_object *put_object(struct substrate *substrate, const char *kind,
                                      const char *name, const char *id, int64_t port)
{
    struct scripted_world *world = substrate->world;
    ck_assert_uint_lt(world->object_count, OBJECTS);
    struct side_object *object = &world->objects[world->object_count++];
    *object = (struct side_object){.port = port};
    (void)snprintf(object->kind, sizeof(object->kind), "%s", kind);
    (void)snprintf(object->name, sizeof(object->name), "%s", name);
    (void)snprintf(object->id, sizeof(object->id), "%s", id);
    (void)snprintf(object->uid, sizeof(object->uid), "object-%u", ++world->last_uid);
    return object;
}

static int driver_publish(void *self, const struct preview_spec *spec,
                          struct preview_names *ret_names, struct err *err)
{
    struct substrate *substrate = self;
    char name[64];
    name_of(spec->id, spec->port, spec->first, name);
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_publish, err);
    if (rc == 0) {
        drop_objects(substrate, spec->id, name);
        static const char *const kinds[] = {"Service", "NetworkPolicy", "Ingress"};
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            struct side_object *object =
                put_object(substrate, kinds[i], name, spec->id, i == 1 ? 0 : spec->port);
            (void)snprintf(object->box_uid, sizeof(object->box_uid), "%s", spec->box_uid);
            (void)snprintf(object->host, sizeof(object->host), "%s", i == 2 ? spec->host : "");
        }
        (void)snprintf(ret_names->service, sizeof(ret_names->service), "%s", name);
        (void)snprintf(ret_names->ingress, sizeof(ret_names->ingress), "%s", name);
    }
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static int driver_unpublish(void *self, const char *id, int64_t port, bool first, struct err *err)
{
    struct substrate *substrate = self;
    char name[64];
    name_of(id, port, first, name);
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_unpublish, err);
    if (rc == 0) {
        drop_objects(substrate, id, name);
    }
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static int driver_side_objects(void *self, struct side_object **ret_objects, size_t *ret_count,
                               struct err *err)
{
    struct substrate *substrate = self;
    struct side_object *objects = xcalloc(OBJECTS, sizeof(*objects));
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_objects, err);
    size_t count = substrate->world->object_count;
    memcpy(objects, substrate->world->objects, count * sizeof(*objects));
    pthread_mutex_unlock(&substrate->lock);
    if (rc < 0) {
        free(objects);
        return -1;
    }
    *ret_objects = objects;
    *ret_count = count;
    return 0;
}

static int driver_remove_side_object(void *self, const struct side_object *object, struct err *err)
{
    struct substrate *substrate = self;
    struct scripted_world *world = substrate->world;
    pthread_mutex_lock(&substrate->lock);
    int rc = refuse(substrate, substrate->fail_remove, err);
    size_t kept = 0;
    for (size_t i = 0; i < world->object_count && rc == 0; i++) {
        if (strcmp(world->objects[i].uid, object->uid) != 0) {
            world->objects[kept++] = world->objects[i];
        }
    }
    world->object_count = rc == 0 ? kept : world->object_count;
    pthread_mutex_unlock(&substrate->lock);
    return rc;
}

static void driver_capabilities(void *self, struct json *object)
{
    (void)self;
    json_set_bool(object, "scripted", true);
}

static const struct driver_ops ops = {
    .name = "scripted",
    .start = driver_start,
    .stop = driver_stop,
    .check = driver_check,
    .create = driver_create,
    .destroy = driver_destroy,
    .inspect = driver_inspect,
    .list = driver_list,
    .publish = driver_publish,
    .unpublish = driver_unpublish,
    .side_objects = driver_side_objects,
    .remove_side_object = driver_remove_side_object,
    .open = agent_open,
    .capabilities = driver_capabilities,
};

/* --- for the test ---------------------------------------------------------------------------- */

void substrate_init(struct substrate *substrate, struct loop *loop)
{
    *substrate = (struct substrate){.loop = loop};
    substrate->world = mmap(NULL, sizeof(*substrate->world), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(substrate->world, MAP_FAILED);
    substrate->driver = (struct driver){.ops = &ops, .self = substrate};
    pthread_mutex_init(&substrate->lock, NULL);
}

void substrate_done(struct substrate *substrate)
{
    for (size_t i = 0; i < BOXES; i++) {
        ck_assert_ptr_null(substrate->streams[i]);
    }
    pthread_mutex_destroy(&substrate->lock);
    ck_assert_int_eq(munmap(substrate->world, sizeof(*substrate->world)), 0);
}

void substrate_reset(struct substrate *substrate)
{
    for (size_t i = 0; i < BOXES; i++) {
        ck_assert_ptr_null(substrate->streams[i]);
    }
    *substrate = (struct substrate){.loop = substrate->loop,
                                    .world = substrate->world,
                                    .driver = substrate->driver,
                                    .lock = substrate->lock};
}

struct scripted_box *substrate_box(struct substrate *substrate, const char *id)
{
    pthread_mutex_lock(&substrate->lock);
    struct scripted_box *box = find(substrate, id);
    pthread_mutex_unlock(&substrate->lock);
    return box;
}

size_t substrate_count(struct substrate *substrate)
{
    size_t count = 0;
    pthread_mutex_lock(&substrate->lock);
    for (size_t i = 0; i < BOXES; i++) {
        count += substrate->world->boxes[i].there;
    }
    pthread_mutex_unlock(&substrate->lock);
    return count;
}

size_t substrate_objects(struct substrate *substrate, const char *id)
{
    size_t count = 0;
    pthread_mutex_lock(&substrate->lock);
    for (size_t i = 0; i < substrate->world->object_count; i++) {
        count += strcmp(substrate->world->objects[i].id, id) == 0;
    }
    pthread_mutex_unlock(&substrate->lock);
    return count;
}

struct scripted_box *substrate_add(struct substrate *substrate, const char *id, const char *uid,
                                   bool foreign)
{
    pthread_mutex_lock(&substrate->lock);
    struct scripted_box *box = add(substrate, id, uid);
    box->info.foreign = foreign;
    (void)snprintf(box->info.owner, sizeof(box->info.owner), "%s", *uid ? "me" : "");
    pthread_mutex_unlock(&substrate->lock);
    return box;
}

void substrate_add_object(struct substrate *substrate, const char *kind, const char *name,
                          const char *id, int64_t port)
{
    pthread_mutex_lock(&substrate->lock);
    struct side_object *object = put_object(substrate, kind, name, id, port);
    struct scripted_box *box = find(substrate, id);
    (void)snprintf(object->box_uid, sizeof(object->box_uid), "%s", box ? box->info.box_uid : "");
    (void)snprintf(object->host, sizeof(object->host), "%s.example", name);
    pthread_mutex_unlock(&substrate->lock);
}

void substrate_tell(struct substrate *substrate, const char *id)
{
    struct scripted_box *box = substrate_box(substrate, id);
    ck_assert_ptr_nonnull(box);
    tell(substrate, &box->info);
}

void substrate_fail(struct substrate *substrate, const char *id, enum err_code reason,
                    bool ended_well, const char *message)
{
    struct scripted_box *box = substrate_box(substrate, id);
    ck_assert_ptr_nonnull(box);
    box->info.state = BOX_FAILED;
    box->info.reason = reason;
    box->info.ended_well = ended_well;
    (void)snprintf(box->info.message, sizeof(box->info.message), "%s", message);
    tell(substrate, &box->info);
}

void substrate_remove(struct substrate *substrate, const char *id, bool told)
{
    struct scripted_box *box = substrate_box(substrate, id);
    ck_assert_ptr_nonnull(box);
    pthread_mutex_lock(&substrate->lock);
    take_away(substrate, box, told);
    pthread_mutex_unlock(&substrate->lock);
}
