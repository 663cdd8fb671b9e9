#include "sandbox/exec_once.h"

#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"

/* What the claim of before started. False: nothing that counts. */
static int find_started(struct sandbox *sandbox, int64_t number, bool *ret_counts,
                        struct exec **ret_exec, struct err *err)
{
    struct exec_row row = {0};
    struct err why = {0};
    struct exec *exec = exec_find(sandbox, number);
    *ret_counts = true;
    if (exec && exec_problem(exec, &why)) {
        exec_unref(exec);
        *ret_counts = false;
        return 0;
    }
    *ret_exec = exec;
    if (exec)
        return 0;
    if (store_get_exec(sandbox->all->store, sandbox->uid, number, &row, &why)) {
        *ret_counts = false;
        return why.code == ERR_NOT_FOUND ? 0 : err_set(err, why.code, "%s", why.msg);
    }
    cleanup_json struct json *result = exec_row_result(&row);
    *ret_counts = !json_get_bool(result, "problem", false);
    exec_row_done(&row);
    return 0;
}

/* 1: it was started before; 0: it was not, and the key is free. */
static int look_before(struct sandbox *sandbox, struct idempotency_row *key, struct exec **ret_exec,
                       struct err *err)
{
    int found = 0;
    bool counts = false;
    if (store_find_key(sandbox->all->store, key, &found, err))
        return -1;
    if (!found)
        return 0;
    if (find_started(sandbox, key->number, &counts, ret_exec, err))
        return -1;
    if (counts)
        return 1;
    return store_release_key(sandbox->all->store, key, err);
}

int exec_start_once(struct sandbox *sandbox, struct exec_spec *spec, struct exec_once *once,
                    struct exec **ret_exec, struct err *err)
{
    struct sandboxes *all = sandbox->all;
    cleanup_free char *route = spec->kind.is == EXEC_TEXT
                                   ? xasprintf("POST /v1/sandboxes/%s/sessions/%lld/runs",
                                               sandbox->uid, (long long)spec->kind.session)
                                   : xasprintf("POST /v1/sandboxes/%s/execs", sandbox->uid);
    struct idempotency_row key = {
        .owner = once->owner, .route = route, .key = once->key, .digest = once->digest};
    struct exec *exec = NULL;
    pthread_mutex_lock(&all->intents);
    int before = look_before(sandbox, &key, &exec, err);
    int rc = before < 0 ? -1 : 0;
    if (before == 0)
        rc = exec_start_keyed(sandbox, spec, &key, &exec, err);
    else
        exec_spec_done(spec);
    pthread_mutex_unlock(&all->intents);
    if (rc)
        return -1;
    once->found = before > 0;
    once->number = key.number;
    *ret_exec = exec;
    return 0;
}
