#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "fake/fake_impl.h"
#include "fake/wire.h"

/* --- the table; under the lock ----------------------------------------------------------------
 */

static size_t bucket_of(const char *id)
{
    uint32_t hash = 2166136261u;

    for (; *id != '\0'; id++)
        hash = (hash ^ (uint8_t)*id) * 16777619u;
    return hash % FAKE_BUCKETS;
}

static struct fake_box *find_locked(struct fake *fake, const char *id)
{
    struct fake_box *box = fake->boxes[bucket_of(id)];

    while (box != NULL && strcmp(box->id, id) != 0)
        box = box->next;
    return box;
}

static void insert_locked(struct fake *fake, struct fake_box *box)
{
    struct fake_box **link = &fake->boxes[bucket_of(box->id)];

    box->next = *link;
    *link = box;
    fake->box_count++;
}

/* Takes it out; NULL when there is none (of BOX_UID). */
static struct fake_box *remove_locked(struct fake *fake, const char *id, const char *box_uid)
{
    struct fake_box **link = &fake->boxes[bucket_of(id)], *box;

    while (*link != NULL && strcmp((*link)->id, id) != 0)
        link = &(*link)->next;
    box = *link;
    if (box == NULL || (box_uid[0] != '\0' && strcmp(box->box_uid, box_uid) != 0))
        return NULL;
    *link = box->next;
    fake->box_count--;
    return box;
}

static void describe_locked(const struct fake_box *box, struct box_info *ret_info)
{
    *ret_info = (struct box_info){
        .created_ms = box->created_ms,
        .state = box->failed == ERR_NONE ? BOX_ATTACHABLE : BOX_FAILED,
        .ended_well = box->failed == ERR_TTL,
        .reason = box->failed,
    };
    (void)snprintf(ret_info->id, sizeof(ret_info->id), "%s", box->id);
    (void)snprintf(ret_info->uid, sizeof(ret_info->uid), "%s", box->uid);
    (void)snprintf(ret_info->box_uid, sizeof(ret_info->box_uid), "%s", box->box_uid);
    (void)snprintf(ret_info->owner, sizeof(ret_info->owner), "%s", box->owner);
    (void)snprintf(ret_info->digest, sizeof(ret_info->digest), "%s", box->digest);
    (void)snprintf(ret_info->name, sizeof(ret_info->name), "%s", box->id);
    (void)snprintf(ret_info->image, sizeof(ret_info->image), "%s", box->image);
    if (box->failed == ERR_CONTAINER_EXITED)
        (void)snprintf(ret_info->message, sizeof(ret_info->message),
                       "the fake driver was told to lose it");
}

/* --- life -------------------------------------------------------------------------------------
 */

static void box_free(struct fake_box *box)
{
    text_list_done(&box->serving);
    free(box->owner);
    free(box->digest);
    free(box->image);
    free(box->workdir);
    free(box);
}

static void tell(struct fake *fake, const struct box_info *info)
{
    pthread_mutex_lock(&fake->telling);
    if (fake->observer.changed != NULL)
        fake->observer.changed(fake->observer.arg, info);
    pthread_mutex_unlock(&fake->telling);
}

void fake_box_fail(struct fake_box *box, enum err_code reason)
{
    struct box_info info;

    pthread_mutex_lock(&box->fake->lock);
    box->failed = reason;
    describe_locked(box, &info);
    pthread_mutex_unlock(&box->fake->lock);
    tell(box->fake, &info);
}

static bool same_command(const struct text_list *list, char *const *argv)
{
    size_t i = 0;

    while (i < list->count && argv[i] != NULL && strcmp(list->items[i], argv[i]) == 0)
        i++;
    return list->count > 0 && i == list->count && argv[i] == NULL;
}

bool fake_box_serves(struct fake_box *box, char *const *argv)
{
    pthread_mutex_lock(&box->fake->lock);
    bool serves = same_command(&box->serving, argv);
    if (serves)
        text_list_done(&box->serving);
    pthread_mutex_unlock(&box->fake->lock);
    return serves;
}

static void expect_service(struct fake *fake, const char *id, const struct text_list *command)
{
    pthread_mutex_lock(&fake->lock);
    struct fake_box *box = find_locked(fake, id);
    if (box != NULL) {
        text_list_done(&box->serving);
        text_list_copy(&box->serving, command);
    }
    pthread_mutex_unlock(&fake->lock);
}

/* Loop thread: the last thing that happens to a box, which is in no table any more. */
static void end_box(void *arg)
{
    struct fake_box *box = arg;
    struct box_info info;

    fake_agent_end(box, "terminated", "the sandbox was removed");
    describe_locked(box, &info);
    info.state = BOX_GONE;
    tell(box->fake, &info);
    box_free(box);
}

static void tell_list(void *arg)
{
    struct fake *fake = arg;

    pthread_mutex_lock(&fake->telling);
    if (fake->observer.listed != NULL)
        fake->observer.listed(fake->observer.arg, NULL, 0);
    pthread_mutex_unlock(&fake->telling);
}

/* Nothing outlives the server: the first list is empty. */
static int fake_start(void *self, const struct box_observer *observer, struct err *err)
{
    struct fake *fake = self;

    (void)err;
    fake->observer = *observer;
    loop_post(fake->loop, tell_list, fake);
    return 0;
}

/* Loop thread: none begins after this. */
static void close_callbacks(void *arg)
{
    struct fake *fake = arg;

    callbacks_stop(TAKE_PTR(fake->callbacks));
}

static void fake_stop(void *self)
{
    struct fake *fake = self;

    pthread_mutex_lock(&fake->telling);
    fake->observer = (struct box_observer){.changed = NULL};
    pthread_mutex_unlock(&fake->telling);
    loop_post(fake->loop, close_callbacks, fake);
}

/* The loop has ended: nobody else is left. */
static void fake_free(void *self)
{
    struct fake *fake = self;

    for (size_t i = 0; i < FAKE_BUCKETS; i++) {
        while (fake->boxes[i] != NULL) {
            struct fake_box *box = fake->boxes[i];

            fake->boxes[i] = box->next;
            timer_stop(&box->due_timer);
            fake_exec_free_all(box);
            fake_transfers_lost(box, NULL);
            disk_done(&box->disk);
            free_secret(box->blob, box->blob_len);
            box_free(box);
        }
    }
    callbacks_stop(fake->callbacks); /* when it never began */
    presets_free(fake->presets);
    failing_free(fake->failing);
    script_free(fake->script);
    calls_free(fake->calls);
    pthread_mutex_destroy(&fake->lock);
    pthread_mutex_destroy(&fake->telling);
    free(fake);
}

/* --- boxes ------------------------------------------------------------------------------------
 */

static int fake_check(void *self, const struct box_spec *spec, struct err *err)
{
    (void)self;
    return spec->runtime_class == NULL
               ? 0
               : err_set(err, ERR_NOT_SUPPORTED,
                         "field 'runtime_class': the fake driver has no runtimes");
}

static struct fake_box *box_new(struct fake *fake, const struct box_spec *spec)
{
    struct fake_box *box = xcalloc(1, sizeof(*box));
    uint8_t bytes[12];
    struct buf hex = BUF_INIT(2 * sizeof(bytes) + 1);

    box->fake = fake;
    crypto_random(bytes, sizeof(bytes));
    (void)hex_encode(&hex, bytes, sizeof(bytes));
    (void)snprintf(box->box_uid, sizeof(box->box_uid), "fake-%s", buf_text(&hex));
    buf_done(&hex);
    (void)snprintf(box->id, sizeof(box->id), "%s", spec->id);
    (void)snprintf(box->uid, sizeof(box->uid), "%s", spec->uid);
    box->owner = xstrdup(spec->owner);
    box->digest = xstrdup(spec->digest);
    box->image = xstrdup(spec->image);
    box->workdir = xstrdup(spec->workdir);
    box->created_ms = spec->created_ms;
    box->secrets = spec->secrets;
    box->disk.space = &fake->space;
    box->started_ms = clock_now_ms();
    return box;
}

/* Before anybody else knows the box. */
static int put_preset(struct fake_box *box, struct err *err)
{
    struct preset *preset = presets_take(box->fake->presets, box->id);
    int result = 0;

    if (preset != NULL) {
        disk_init(&box->disk, &box->fake->space, box->workdir);
        result = preset_apply(preset, &box->disk, box->workdir, err);
    }
    preset_free(preset);
    return result;
}

/* What stands under the name: this very box (1, RET_INFO), nothing (0), or another (-1). */
static int find_made(struct fake *fake, const struct box_spec *spec, struct box_info *ret_info,
                     struct err *err)
{
    int result = 0;

    pthread_mutex_lock(&fake->lock);
    const struct fake_box *box = find_locked(fake, spec->id);
    if (box != NULL && strcmp(box->uid, spec->uid) == 0) {
        describe_locked(box, ret_info);
        result = 1;
    } else if (box != NULL) {
        result = err_set(err, ERR_ALREADY_EXISTS, "a sandbox named '%s' exists already", spec->id);
    }
    pthread_mutex_unlock(&fake->lock);
    return result;
}

/* The domain makes one box of an id at a time. */
static int fake_create(void *self, const struct box_spec *spec, struct box_info *ret_info,
                       struct err *err)
{
    struct fake *fake = self;
    struct fake_box *box;
    int made;

    if (fake_check(self, spec, err) < 0)
        return -1;
    made = find_made(fake, spec, ret_info, err);
    if (made != 0)
        return made > 0 ? 0 : -1;
    if (failing_check(fake->failing, spec->id, err) < 0)
        return -1;
    box = box_new(fake, spec);
    if (put_preset(box, err) < 0) {
        disk_done(&box->disk);
        box_free(box);
        return -1;
    }
    pthread_mutex_lock(&fake->lock);
    insert_locked(fake, box);
    describe_locked(box, ret_info);
    pthread_mutex_unlock(&fake->lock);
    return 0;
}

static int fake_destroy(void *self, const char *id, const char *box_uid, struct err *err)
{
    struct fake *fake = self;

    (void)err;
    pthread_mutex_lock(&fake->lock);
    struct fake_box *box = remove_locked(fake, id, box_uid);
    pthread_mutex_unlock(&fake->lock);
    if (box != NULL) {
        (void)calls_add(fake->calls, id, "remove", json_new_object());
        loop_post(fake->loop, end_box, box);
    }
    return 0;
}

static int fake_inspect(void *self, const char *id, struct box_info *ret_info, struct err *err)
{
    struct fake *fake = self;

    pthread_mutex_lock(&fake->lock);
    const struct fake_box *box = find_locked(fake, id);
    if (box != NULL)
        describe_locked(box, ret_info);
    pthread_mutex_unlock(&fake->lock);
    return box != NULL ? 0 : err_set(err, ERR_BACKEND_NOT_FOUND, "there is no box '%s'", id);
}

static int fake_list(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                     struct err *err)
{
    struct fake *fake = self;
    size_t count = 0;

    (void)foreign, (void)err; /* all are ours */
    pthread_mutex_lock(&fake->lock);
    struct box_info *infos = xcalloc(fake->box_count + 1, sizeof(*infos));
    for (size_t i = 0; i < FAKE_BUCKETS; i++) {
        for (const struct fake_box *box = fake->boxes[i]; box != NULL; box = box->next)
            describe_locked(box, &infos[count++]);
    }
    pthread_mutex_unlock(&fake->lock);
    *ret_infos = infos;
    *ret_count = count;
    return 0;
}

/* --- previews, streams ------------------------------------------------------------------------
 */

/* The names that a cluster would have them under; nothing is made. */
static int fake_publish(void *self, const struct preview_spec *spec,
                        struct preview_names *ret_names, struct err *err)
{
    (void)self, (void)err;
    if (spec->first)
        (void)snprintf(ret_names->service, sizeof(ret_names->service), "preview-%s", spec->id);
    else
        (void)snprintf(ret_names->service, sizeof(ret_names->service), "preview%lld-%s",
                       (long long)spec->port, spec->id);
    memcpy(ret_names->ingress, ret_names->service, sizeof(ret_names->ingress));
    return 0;
}

static int fake_unpublish(void *self, const char *id, int64_t port, bool first, struct err *err)
{
    (void)self, (void)id, (void)port, (void)first, (void)err;
    return 0;
}

static int fake_side_objects(void *self, struct side_object **ret_objects, size_t *ret_count,
                             struct err *err)
{
    (void)self, (void)err;
    *ret_objects = NULL;
    *ret_count = 0;
    return 0;
}

static int fake_remove_side_object(void *self, const struct side_object *object, struct err *err)
{
    (void)self, (void)object, (void)err;
    return 0;
}

static struct stream *fake_open(void *self, const char *id, const char *box_uid,
                                const struct stream_handler *handler, void *arg)
{
    struct fake *fake = self;
    struct err why = {.code = ERR_NONE};

    pthread_mutex_lock(&fake->lock);
    struct fake_box *box = find_locked(fake, id);
    bool there = box != NULL && strcmp(box->box_uid, box_uid) == 0 && box->failed == ERR_NONE;
    pthread_mutex_unlock(&fake->lock);
    /* A box that is removed now is freed in a later turn of this thread. */
    if (!there || box->ended)
        (void)err_set(&why, ERR_SANDBOX_GONE, "there is no box '%s'", id);
    return &wire_new(fake->loop, box, handler, arg, why.code != ERR_NONE ? &why : NULL)->base;
}

static void fake_capabilities(void *self, struct json *object)
{
    (void)self;
    json_set_array(object, "warnings");
}

static const struct driver_ops fake_ops = {
    .name = "fake",
    .promises = {.previews = false}, /* none: what is asked for is remembered, not done */
    .start = fake_start,
    .stop = fake_stop,
    .free = fake_free,
    .check = fake_check,
    .create = fake_create,
    .destroy = fake_destroy,
    .inspect = fake_inspect,
    .list = fake_list,
    .publish = fake_publish,
    .unpublish = fake_unpublish,
    .side_objects = fake_side_objects,
    .remove_side_object = fake_remove_side_object,
    .open = fake_open,
    .capabilities = fake_capabilities,
};

int fake_driver_new(struct loop *loop, struct driver *ret_driver, struct err *err)
{
    struct fake *fake = xcalloc(1, sizeof(*fake));

    fake->loop = loop;
    fake->callbacks = callbacks_new(loop, err);
    if (fake->callbacks == NULL) {
        free(fake);
        return -1;
    }
    fake->space.max = CAP_FAKE_FILES;
    fake->calls = calls_new();
    fake->presets = presets_new();
    fake->failing = failing_new();
    fake->script = script_new();
    pthread_mutex_init(&fake->lock, NULL);
    pthread_mutex_init(&fake->telling, NULL);
    *ret_driver = (struct driver){.ops = &fake_ops, .self = fake};
    return 0;
}

struct fake *fake_of(const struct driver *driver)
{
    return driver->ops == &fake_ops ? driver->self : NULL;
}

/* --- what tests prepare and ask ---------------------------------------------------------------
 */

int fake_put_replies(struct fake *fake, const struct json *body, struct err *err)
{
    return script_put_rules(fake->script, body, err);
}

struct json *fake_replies(struct fake *fake)
{
    return script_rules(fake->script);
}

void fake_delete_replies(struct fake *fake)
{
    script_clear_rules(fake->script);
}

int fake_put_files(struct fake *fake, const struct json *body, struct err *err)
{
    return presets_put(fake->presets, body, err);
}

struct json *fake_files(struct fake *fake)
{
    return presets_json(fake->presets);
}

void fake_delete_files(struct fake *fake)
{
    presets_clear(fake->presets);
}

int fake_put_creates(struct fake *fake, const struct json *body, struct err *err)
{
    return failing_put(fake->failing, body, err);
}

struct json *fake_creates(struct fake *fake)
{
    return failing_json(fake->failing);
}

void fake_delete_creates(struct fake *fake)
{
    failing_clear(fake->failing);
}

int fake_put_ids(struct fake *fake, const struct json *body, struct err *err)
{
    return script_put_ids(fake->script, body, err);
}

struct json *fake_ids(struct fake *fake)
{
    return script_ids(fake->script);
}

void fake_delete_ids(struct fake *fake)
{
    script_clear_ids(fake->script);
}

char *fake_take_id(struct fake *fake)
{
    return script_take_id(fake->script);
}

struct json *fake_calls(struct fake *fake, const struct calls_query *query)
{
    return calls_list(fake->calls, query);
}

void fake_delete_calls(struct fake *fake)
{
    calls_clear(fake->calls);
}

void fake_note_preview(struct fake *fake, const char *id, const struct fake_preview *preview)
{
    struct json *call = json_new_object();
    struct json *command = json_set_array(call, "command");

    expect_service(fake, id, preview->command);
    for (size_t i = 0; i < preview->command->count; i++)
        json_add_text(command, preview->command->items[i]);
    json_set_int(call, "port", preview->port);
    json_set_text(call, "subdomain", preview->subdomain != NULL ? preview->subdomain : id);
    struct json *env = json_set_object(call, "env");
    for (size_t i = 0; i < preview->env->count; i++)
        json_set_text(env, preview->env->items[i].name, preview->env->items[i].value);
    (void)calls_add(fake->calls, id, "preview", call);
}

void fake_note_preview_removed(struct fake *fake, const char *id, int64_t port)
{
    struct json *call = json_new_object();

    json_set_int(call, "port", port);
    (void)calls_add(fake->calls, id, "preview_removed", call);
}

void fake_note_secrets(struct fake *fake, const char *id, size_t count)
{
    struct json *call = json_new_object();

    json_set_int(call, "count", (int64_t)count);
    (void)calls_add(fake->calls, id, "secrets", call);
}
