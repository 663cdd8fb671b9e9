#include "k8s/object.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"

#define LIST_RESTARTS 3
#define PAGE_SIZE "100" /* a page is parsed whole: about 1 MiB of text, several of tree */

const struct kind_info kinds[KIND_COUNT] = {
    [KIND_POD] = {"Pod", "v1", "/api/v1", "pods"},
    [KIND_SERVICE] = {"Service", "v1", "/api/v1", "services"},
    [KIND_INGRESS] = {"Ingress", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1", "ingresses"},
    [KIND_NETWORK_POLICY] = {"NetworkPolicy", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1",
                             "networkpolicies"},
    [KIND_EVENT] = {"Event", "v1", "/api/v1", "events"},
};

char *object_selector(const struct space *space, const char *id)
{
    return xasprintf("%s=%s,%s=%s,%s%s%s", LABEL_MANAGED_BY, MANAGED_BY, LABEL_INSTANCE,
                     space->instance, LABEL_ID, id != NULL ? "=" : "", id != NULL ? id : "");
}

static bool label_is(const struct json *object, const char *name, const char *value)
{
    const char *text = json_get_text(json_path(object, "metadata.labels"), name);

    return text != NULL && strcmp(text, value) == 0;
}

bool object_is_ours(const struct space *space, const struct json *object)
{
    return label_is(object, LABEL_MANAGED_BY, MANAGED_BY) &&
           label_is(object, LABEL_INSTANCE, space->instance) &&
           json_get_text(json_path(object, "metadata.labels"), LABEL_ID) != NULL;
}

char *object_path(const struct space *space, enum kind kind, const char *name, const char *query)
{
    cleanup_buf struct buf path = BUF_INIT(CAP_SMALL);
    bool ok = buf_append_str(&path, kinds[kind].root) && buf_append_str(&path, "/namespaces/") &&
              url_append_segment(&path, str_of(space->namespace_)) && buf_append_char(&path, '/') &&
              buf_append_str(&path, kinds[kind].resource);

    if (name != NULL)
        ok = ok && buf_append_char(&path, '/') && url_append_segment(&path, str_of(name));
    if (query != NULL)
        ok = ok && buf_append_char(&path, '?') && buf_append_str(&path, query);
    return ok ? buf_take(&path, NULL) : NULL;
}

static int call(const struct space *space, struct api_request *request, enum kind kind, char *path,
                struct json **ret_object, struct err *err)
{
    cleanup_free char *owned = path;

    if (owned == NULL)
        return err_set(err, ERR_INVALID_REQUEST, "%s cannot be the name of an object",
                       request->about.name != NULL ? request->about.name : "this");
    request->path = owned;
    request->about.resource = kinds[kind].resource;
    return api_call(space->api, request, ret_object, err);
}

int object_create(const struct space *space, enum kind kind, const struct json *body, bool dry_run,
                  struct json **ret_object, struct err *err)
{
    struct api_request request = {
        .method = "POST",
        .body = body,
        .about = {"create", NULL, json_get_text(json_get(body, "metadata"), "name")},
    };

    return call(space, &request, kind,
                object_path(space, kind, NULL, dry_run ? "dryRun=All" : NULL), ret_object, err);
}

int object_get(const struct space *space, enum kind kind, const char *name,
               struct json **ret_object, struct err *err)
{
    struct api_request request = {.about = {"get", NULL, name}};

    return call(space, &request, kind, object_path(space, kind, name, NULL), ret_object, err);
}

int object_delete(const struct space *space, enum kind kind, const char *name, const char *uid,
                  struct err *err)
{
    cleanup_json struct json *body = json_new_object();
    struct api_request request = {
        .method = "DELETE", .body = body, .about = {"delete", NULL, name}};
    struct err why;

    json_set_text(body, "apiVersion", "v1");
    json_set_text(body, "kind", "DeleteOptions");
    if (kind == KIND_POD)
        json_set_int(body, "gracePeriodSeconds", 0);
    json_set_text(body, "propagationPolicy", "Background");
    json_set_text(json_set_object(body, "preconditions"), "uid", uid);
    if (call(space, &request, kind, object_path(space, kind, name, NULL), NULL, &why) == 0 ||
        why.code == ERR_BACKEND_NOT_FOUND || why.code == ERR_BACKEND_CONFLICT ||
        why.code == ERR_ALREADY_EXISTS)
        return 0;
    return err_set(err, why.code, "%s", why.msg);
}

void object_discard(const struct space *space, enum kind kind, const char *name, const char *uid)
{
    if (object_delete(space, kind, name, uid, NULL) < 0)
        return;
}

static char *list_query(struct selector selector, const char *next)
{
    cleanup_buf struct buf query = BUF_INIT(CAP_SMALL);
    bool ok = url_append_query(&query, "limit", STR(PAGE_SIZE));

    if (selector.labels != NULL)
        ok = ok && url_append_query(&query, "labelSelector", str_of(selector.labels));
    if (selector.fields != NULL)
        ok = ok && url_append_query(&query, "fieldSelector", str_of(selector.fields));
    if (next != NULL)
        ok = ok && url_append_query(&query, "continue", str_of(next));
    if (!ok)
        return NULL;
    buf_consume(&query, 1); /* the question mark */
    return buf_take(&query, NULL);
}

/* All pages. ERR_BACKEND_EXPIRED: has to start again. */
static int list_pages(const struct space *space, enum kind kind, struct selector selector,
                      const struct object_sink *sink, char **ret_version, struct err *err)
{
    cleanup_free char *next = NULL;

    for (;;) {
        cleanup_json struct json *page = NULL;
        cleanup_free char *query = list_query(selector, next);
        struct api_request request = {.about = {"list", NULL, NULL}};
        const struct json *items;
        const char *more, *version;

        if (call(space, &request, kind,
                 query != NULL ? object_path(space, kind, NULL, query) : NULL, &page, err) < 0)
            return -1;
        items = json_get(page, "items");
        for (const struct json *item = json_first(items); item != NULL; item = json_next(item))
            sink->add(sink->arg, item);
        more = json_get_text(json_get(page, "metadata"), "continue");
        if (more != NULL && more[0] != '\0') {
            free(next);
            next = xstrdup(more);
            continue;
        }
        version = json_get_text(json_get(page, "metadata"), "resourceVersion");
        if (!json_is_array(items) || (version == NULL && ret_version != NULL))
            return err_set(err, ERR_BACKEND, "list %s: the answer is no list",
                           kinds[kind].resource);
        if (ret_version != NULL)
            *ret_version = xstrdup(version);
        return 0;
    }
}

int object_list(const struct space *space, enum kind kind, struct selector selector,
                const struct object_sink *sink, char **ret_version, struct err *err)
{
    struct err why;

    for (int attempt = 0; attempt < LIST_RESTARTS; attempt++) {
        if (sink->begin != NULL)
            sink->begin(sink->arg);
        if (list_pages(space, kind, selector, sink, ret_version, &why) == 0)
            return 0;
        if (why.code != ERR_BACKEND_EXPIRED)
            break;
    }
    return err_set(err, why.code, "%s", why.msg);
}
