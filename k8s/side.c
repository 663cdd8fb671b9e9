#include "k8s/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* In the order in which they are removed: first what leads traffic in. */
static const enum kind side_kinds[] = {KIND_INGRESS, KIND_SERVICE, KIND_NETWORK_POLICY};

struct collected {
    const struct space *space;
    enum kind kind;
    struct side_object *objects;
    size_t count, start; /* of the kind that is being listed */
};

static void begin_kind(void *arg)
{
    struct collected *all = arg;

    all->count = all->start;
}

static void copy_text(char *to, size_t size, const char *text)
{
    (void)snprintf(to, size, "%s", text != NULL ? text : "");
}

static int64_t port_of(enum kind kind, const struct json *object)
{
    const struct json *spec = json_get(object, "spec");

    if (kind == KIND_SERVICE)
        return json_get_int(json_at(json_get(spec, "ports"), 0), "port", 0);
    if (kind == KIND_INGRESS) {
        const struct json *rule = json_at(json_get(spec, "rules"), 0);
        const struct json *path = json_at(json_path(rule, "http.paths"), 0);

        return json_get_int(json_path(path, "backend.service.port"), "number", 0);
    }
    return 0;
}

static void add_object(void *arg, const struct json *object)
{
    struct collected *all = arg;
    const struct json *metadata = json_get(object, "metadata");
    struct side_object *side;

    if (!object_is_ours(all->space, object))
        return;
    all->objects = xrealloc(all->objects, (all->count + 1) * sizeof(*all->objects));
    side = &all->objects[all->count++];
    *side = (struct side_object){.port = port_of(all->kind, object)};
    copy_text(side->kind, sizeof(side->kind), kinds[all->kind].name);
    copy_text(side->name, sizeof(side->name), json_get_text(metadata, "name"));
    copy_text(side->id, sizeof(side->id), json_get_text(json_get(metadata, "labels"), LABEL_ID));
    copy_text(side->uid, sizeof(side->uid), json_get_text(metadata, "uid"));
    copy_text(side->box_uid, sizeof(side->box_uid),
              json_get_text(json_at(json_get(metadata, "ownerReferences"), 0), "uid"));
    copy_text(side->host, sizeof(side->host),
              json_get_text(json_at(json_path(object, "spec.rules"), 0), "host"));
}

int side_list(const struct space *space, const char *id, struct side_object **ret_objects,
              size_t *ret_count, struct err *err)
{
    struct collected all = {.space = space};
    struct object_sink sink = {.begin = begin_kind, .add = add_object, .arg = &all};
    cleanup_free char *selector = object_selector(space, id);
    struct err why = {.code = ERR_NONE}, refused = {.code = ERR_NONE};
    size_t refusals = 0;

    for (size_t i = 0; i < ARRAY_LEN(side_kinds); i++) {
        all.kind = side_kinds[i];
        all.start = all.count;
        if (object_list(space, all.kind, (struct selector){selector, NULL}, &sink, NULL, &why) == 0)
            continue;
        if (why.code != ERR_BACKEND_FORBIDDEN) {
            free(all.objects);
            return err_set(err, why.code, "%s", why.msg);
        }
        all.count = all.start;
        refused = why;
        refusals++;
    }
    if (refusals > 0 && refusals < ARRAY_LEN(side_kinds)) {
        free(all.objects);
        return err_set(err, refused.code, "%s", refused.msg);
    }
    *ret_objects = all.objects;
    *ret_count = all.count;
    return 0;
}

int side_remove(const struct space *space, const struct side_object *object, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(side_kinds); i++) {
        if (strcmp(kinds[side_kinds[i]].name, object->kind) == 0)
            return object_delete(space, side_kinds[i], object->name, object->uid, err);
    }
    return err_set(err, ERR_INTERNAL, "no such kind of object: %s", object->kind);
}

int side_remove_all(const struct space *space, const char *id, const char *name, struct err *err)
{
    cleanup_free struct side_object *objects = NULL;
    struct err why;
    size_t count = 0, left = 0, first = 0;
    struct err first_why = {.code = ERR_NONE};

    if (side_list(space, id, &objects, &count, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        if (name != NULL && strcmp(objects[i].name, name) != 0)
            continue;
        if (side_remove(space, &objects[i], &why) == 0)
            continue;
        if (left++ == 0) {
            first = i;
            first_why = why;
        }
    }
    if (left == 0)
        return 0;
    return err_set(err, first_why.code, "%zu object%s left, %s '%s' among them: %s", left,
                   left == 1 ? " is" : "s are", objects[first].kind, objects[first].name,
                   first_why.msg);
}
