#pragma once

#include <stdbool.h>

#include "base/json.h"
#include "k8s/api.h"

/* Typed requests for the kinds of objects we touch, all in one namespace. */
enum kind { KIND_POD, KIND_SERVICE, KIND_INGRESS, KIND_NETWORK_POLICY, KIND_EVENT, KIND_COUNT };

struct kind_info {
    const char *name;     /* "Pod" */
    const char *version;  /* "v1", "networking.k8s.io/v1" */
    const char *root;     /* "/api/v1" */
    const char *resource; /* "pods" */
};
extern const struct kind_info kinds[KIND_COUNT];

#define LABEL_ID "podsandbox.dev/sandbox-id"
#define LABEL_INSTANCE "podsandbox.dev/instance"
#define LABEL_NETWORK "podsandbox.dev/network"
#define LABEL_PROBE "podsandbox.dev/probe"
#define LABEL_PORT "podsandbox.dev/port"
#define LABEL_MANAGED_BY "app.kubernetes.io/managed-by"
#define MANAGED_BY "podsandbox"

struct space {
    struct api *api;
    const char *namespace_;
    const char *instance;
};

/* Label selectors of what is ours: of one sandbox, or of all when ID is NULL. malloc'd. */
char *object_selector(const struct space *space, const char *id);
/* Whether OBJECT carries our labels and our instance. */
bool object_is_ours(const struct space *space, const struct json *object);

/* The path of the collection, or of the object when NAME is not NULL, and after it what QUERY (may
 * be NULL) says. malloc'd; NULL when NAME cannot stand in a path. */
char *object_path(const struct space *space, enum kind kind, const char *name, const char *query);

/* BODY is borrowed. DRY_RUN validates only. */
int object_create(const struct space *space, enum kind kind, const struct json *body, bool dry_run,
                  struct json **ret_object, struct err *err) must_check;
int object_get(const struct space *space, enum kind kind, const char *name,
               struct json **ret_object, struct err *err) must_check;
/* At once (no grace), only if its uid is UID. Success also when it is gone or is another one. */
int object_delete(const struct space *space, enum kind kind, const char *name, const char *uid,
                  struct err *err) must_check;

/* For tidying up: what cannot be deleted now is found again by its labels. */
void object_discard(const struct space *space, enum kind kind, const char *name, const char *uid);

/* Every object that SELECTOR matches, page by page; starts again when a page has expired.
 * RET_VERSION (may be NULL): the resource version of the list, malloc'd. */
struct object_sink {
    void (*begin)(void *arg); /* forget what came before */
    void (*add)(void *arg, const struct json *object);
    void *arg;
};
struct selector {
    const char *labels, *fields; /* NULL: any */
};
int object_list(const struct space *space, enum kind kind, struct selector selector,
                const struct object_sink *sink, char **ret_version, struct err *err) must_check;
