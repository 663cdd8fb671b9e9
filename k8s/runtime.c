#include "k8s/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"

#define KNOWN_MAX 16
#define KNOWN_FOR_MS 10000

struct known {
    char name[254];
    bool readable;
    int64_t until_ms;
};

struct runtimes {
    struct api *api;
    pthread_mutex_t lock;
    struct known known[KNOWN_MAX]; /* those that exist */
    size_t next;
    char problem[512];
};

struct runtimes *runtimes_new(struct api *api)
{
    struct runtimes *runtimes = xcalloc(1, sizeof(*runtimes));

    runtimes->api = api;
    pthread_mutex_init(&runtimes->lock, NULL);
    return runtimes;
}

void runtimes_free(struct runtimes *runtimes)
{
    if (runtimes == NULL)
        return;
    pthread_mutex_destroy(&runtimes->lock);
    free(runtimes);
}

static bool find_known(struct runtimes *runtimes, const char *name, bool *ret_readable)
{
    bool found = false;

    pthread_mutex_lock(&runtimes->lock);
    for (size_t i = 0; i < KNOWN_MAX && !found; i++) {
        const struct known *known = &runtimes->known[i];

        found = known->until_ms > clock_now_ms() && strcmp(known->name, name) == 0;
        if (found)
            *ret_readable = known->readable;
    }
    pthread_mutex_unlock(&runtimes->lock);
    return found;
}

static void remember(struct runtimes *runtimes, const char *name, bool readable)
{
    pthread_mutex_lock(&runtimes->lock);
    for (size_t i = 0; i < KNOWN_MAX; i++) {
        if (strcmp(runtimes->known[i].name, name) == 0)
            runtimes->next = i;
    }
    runtimes->known[runtimes->next] =
        (struct known){.readable = readable, .until_ms = clock_now_ms() + KNOWN_FOR_MS};
    (void)snprintf(runtimes->known[runtimes->next].name, sizeof(runtimes->known[0].name), "%s",
                   name);
    runtimes->next = (runtimes->next + 1) % KNOWN_MAX;
    pthread_mutex_unlock(&runtimes->lock);
}

static void set_problem(struct runtimes *runtimes, const char *text)
{
    pthread_mutex_lock(&runtimes->lock);
    (void)snprintf(runtimes->problem, sizeof(runtimes->problem), "%.500s", text);
    pthread_mutex_unlock(&runtimes->lock);
}

int runtimes_check(struct runtimes *runtimes, const char *name, bool *ret_readable, struct err *err)
{
    cleanup_buf struct buf path = BUF_INIT(CAP_SMALL);
    cleanup_json struct json *object = NULL;
    struct api_request request = {.about = {"get", "runtimeclasses", name}};
    const char *handler;
    struct err why;

    if (find_known(runtimes, name, ret_readable))
        return 0;
    if (strlen(name) > 253 || !buf_append_str(&path, "/apis/node.k8s.io/v1/runtimeclasses/") ||
        !url_append_segment(&path, str_of(name)))
        return err_set(err, ERR_INVALID_FIELD, "runtime_class: '%s' cannot be a name", name);
    request.path = buf_text(&path);
    if (api_call(runtimes->api, &request, &object, &why) == 0) {
        handler = json_get_text(object, "handler");
        *ret_readable = handler == NULL || strstr(handler, "runsc") != NULL ||
                        strstr(handler, "gvisor") != NULL;
        remember(runtimes, name, *ret_readable);
        set_problem(runtimes, "");
        return 0;
    }
    if (why.code == ERR_BACKEND_FORBIDDEN) {
        set_problem(runtimes, why.msg);
        *ret_readable = true;
        return 0;
    }
    if (why.code == ERR_BACKEND_NOT_FOUND)
        return err_set(err, ERR_RUNTIME_CLASS_MISSING,
                       "the cluster has no RuntimeClass '%s'; install it, or leave runtime_class "
                       "out",
                       name);
    return err_set(err, why.code, "%s", why.msg);
}

void runtimes_problem(struct runtimes *runtimes, char *ret_text, size_t size)
{
    pthread_mutex_lock(&runtimes->lock);
    (void)snprintf(ret_text, size, "%s", runtimes->problem);
    pthread_mutex_unlock(&runtimes->lock);
}
