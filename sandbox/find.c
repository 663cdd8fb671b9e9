/* Which sandbox a request means, and whether its caller may see it. */
#include <string.h>

#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

static bool may_see(const struct owner_view *view, const char *owner)
{
    return view->admin || strcmp(view->owner, owner) == 0;
}

static int unknown(const char *id, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
}

/* There is no record. Before the substrate's first list, that does not say much. */
static int no_record(struct sandboxes *all, const char *id, struct err *err)
{
    pthread_mutex_lock(&all->lock);
    bool known = all->lists > 0;
    pthread_mutex_unlock(&all->lock);
    return known ? unknown(id, err)
                 : err_set(err, ERR_BACKEND_UNAVAILABLE,
                           "sandboxes are still being looked up after a start");
}

static int find_tombstone(struct sandboxes *all, const struct owner_view *view, const char *id,
                          struct json **ret_record, struct err *err)
{
    struct sandbox_row row;
    struct err why = {0};
    if (store_get_sandbox(all->store, id, &row, &why) < 0) {
        return why.code == ERR_NOT_FOUND ? no_record(all, id, err)
                                         : err_set(err, why.code, "%s", why.msg);
    }
    int result = -1;
    if (!may_see(view, row.owner)) {
        result = unknown(id, err);
    } else if (strcmp(row.state, sandbox_state_name(SANDBOX_GONE)) != 0) {
        result = err_set(err, ERR_NOT_READY, "sandbox '%s' has just been created", id);
    } else {
        result = err_set(err, ERR_GONE, "sandbox '%s' is gone: %s%s%s", id,
                         row.reason ? row.reason : "unknown", row.message ? ": " : "",
                         row.message ? row.message : "");
        if (ret_record) {
            *ret_record = record_row_json(all, &row);
        }
    }
    sandbox_row_done(&row);
    return result;
}

static bool is_open_locked(const struct owner_view *view, const struct sandbox *sandbox)
{
    return sandbox_state_lives(sandbox->state) ||
           (view->failed_too && sandbox->state != SANDBOX_GONE);
}

struct sandbox *sandboxes_peek(struct sandboxes *all, const struct owner_view *view, const char *id)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = sandboxes_lookup(all, id);
    if (!sandbox || !may_see(view, sandbox->owner)) {
        return NULL;
    }
    pthread_mutex_lock(&all->lock);
    bool open = is_open_locked(view, sandbox);
    pthread_mutex_unlock(&all->lock);
    return open ? TAKE_PTR(sandbox) : NULL;
}

int sandboxes_find(struct sandboxes *all, const struct owner_view *view, const char *id,
                   struct sandbox **ret_sandbox, struct json **ret_record, struct err *err)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = sandboxes_lookup(all, id);
    if (!sandbox) {
        return find_tombstone(all, view, id, ret_record, err);
    }
    if (!may_see(view, sandbox->owner)) {
        return unknown(id, err);
    }
    pthread_mutex_lock(&all->lock);
    bool ok = is_open_locked(view, sandbox);
    if (!ok) {
        (void)sandbox_dead_error_locked(sandbox, err);
    }
    pthread_mutex_unlock(&all->lock);
    if (!ok) {
        if (ret_record) {
            *ret_record = sandbox_json(sandbox);
        }
        return -1;
    }
    *ret_sandbox = TAKE_PTR(sandbox);
    return 0;
}
