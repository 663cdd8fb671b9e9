/* Previews for the sweep: those of adopted sandboxes, those that a server could not complete, and
 * which objects in the substrate belong to one. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/previews.h"
#include "sandbox/previews_parts.h"

static const struct side_object *ingress_of(const struct side_object *objects, size_t count,
                                            const struct side_object *service)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(objects[i].kind, "Ingress") == 0 &&
            strcmp(objects[i].name, service->name) == 0 && *objects[i].host) {
            return &objects[i];
        }
    }
    return NULL;
}

static int restore_one(struct sandbox *sandbox, const struct side_object *service,
                       const struct side_object *ingress, struct err *err)
{
    struct preview_row row = {
        .uid = sandbox->uid,
        .port = service->port,
        .first = str_starts(service->name, "preview-"),
        .host = (char *)(uintptr_t)ingress->host,
        .service = (char *)(uintptr_t)service->name,
        .ingress = (char *)(uintptr_t)ingress->name,
        .spec = (char *)(uintptr_t) "{}",
        .created = clock_wall_ms(),
    };
    struct err why = {0};
    if (store_put_preview(sandbox->all->store, &row, &why) == 0 || why.code == ERR_HOST_TAKEN) {
        return 0; /* a taken one is left to the sweep */
    }
    return err_set(err, why.code, "%s", why.msg);
}

int previews_restore(struct sandbox *sandbox, const struct side_object *objects, size_t count,
                     struct err *err)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    if (preview_rows_load(sandbox, &rows, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const struct side_object *service = &objects[i];
        const struct side_object *ingress = NULL;
        if (strcmp(service->kind, "Service") == 0 && strcmp(service->id, sandbox->id) == 0) {
            ingress = ingress_of(objects, count, service);
        }
        bool known =
            ingress && preview_rows_of(&rows, service->port); /* made since, or restored before */
        if (ingress && !known && restore_one(sandbox, service, ingress, err) < 0) {
            return -1;
        }
    }
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->previews_unknown = false;
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_save(sandbox);
    return 0;
}

static bool never_began(struct sandbox *sandbox, int64_t number)
{
    struct exec_row row = {0};
    struct err err = {0};
    if (store_get_exec(sandbox->all->store, sandbox->uid, number, &row, &err) == 0) {
        exec_row_done(&row);
        return false;
    }
    return err.code == ERR_NOT_FOUND;
}

/* A row without a Service was being published when its server ended. What its command is doing
 * decides: it runs, and is published; it ended: the preview was none. False: that is not known yet.
 */
static bool publish(struct sandbox *sandbox, struct preview_row *row)
{
    struct err err = {0};
    struct preview_names names = {0};
    struct exec *exec = row->exec ? exec_find(sandbox, row->exec) : NULL;
    bool ended = row->exec && (!exec || exec_ended(exec));
    bool known = ended || !exec || exec_begun(exec);
    exec_unref(exec);
    if (ended) {
        preview_take_down(sandbox, row);
    } else if (known && preview_publish_row(sandbox, row, &names, &err) < 0) {
        log_event(LOG_LEVEL_WARN, "preview not published yet", "id", sandbox->id, "error", err.msg,
                  NULL);
        known = false;
    } else if (known) {
        preview_tell(sandbox, row);
    }
    row->service = row->ingress = NULL; /* were those of `names` */
    return known;
}

/* As publish(). */
static bool finish(struct sandbox *sandbox, struct preview_row *row)
{
    if (row->exec && never_began(sandbox, row->exec)) {
        preview_take_down(sandbox, row);
        return true;
    }
    return row->service || preview_is_proxied(row) || publish(sandbox, row);
}

static bool finish_all(struct sandbox *sandbox)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    bool done = preview_rows_load(sandbox, &rows, NULL) == 0;
    for (size_t i = 0; i < rows.count; i++) {
        done = finish(sandbox, &rows.items[i]) && done;
    }
    return done;
}

void previews_finish(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool wanted = sandbox->state == SANDBOX_RUNNING && sandbox->previews_unfinished;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (!wanted || !preview_claim(sandbox)) {
        return;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->previews_unfinished = false; /* unless it becomes so meanwhile */
    pthread_mutex_unlock(&sandbox->all->lock);
    if (!finish_all(sandbox)) {
        preview_leave_to_sweep(sandbox);
    }
    preview_release(sandbox);
}

/* By its name; a row whose publishing was cut off by a crash has none yet, and owns its port. */
static bool owns(const struct preview_row *row, const struct side_object *object)
{
    if (preview_is_proxied(row)) {
        return false;
    }
    if (!row->service) {
        return row->port == object->port || !object->port;
    }
    return strcmp(row->service, object->name) == 0 ||
           (row->ingress && strcmp(row->ingress, object->name) == 0);
}

bool previews_own(struct sandbox *sandbox, const struct side_object *object)
{
    cleanup(preview_rows_done) struct preview_rows rows = {0};
    if (preview_rows_load(sandbox, &rows, NULL) < 0) {
        return true;
    }
    bool owned = false;
    for (size_t i = 0; i < rows.count; i++) {
        owned = owned || owns(&rows.items[i], object);
    }
    return owned;
}
