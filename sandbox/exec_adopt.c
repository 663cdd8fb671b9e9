/* Executions of before this server, or that only the agent remembers. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"

/* An agent knows PROTO_EXECS at most. */
#define KNOWN_MAX PROTO_EXECS

/* What it was is not on record: whether it is kept without a client, too. */
bool exec_only_agent_knows(const struct exec *exec)
{
    return json_get_bool(exec->spec, "adopted", false);
}

/* --- from a row -------------------------------------------------------------------------- */

static void take_spec(struct exec *exec)
{
    const char *on_disconnect = json_get_text(exec->spec, "on_disconnect");
    exec->service = json_get_bool(exec->spec, "service", false);
    exec->keep = exec->service || (on_disconnect && strcmp(on_disconnect, "keep") == 0);
    exec->max_output =
        json_get_int(exec->spec, "max_output", exec->sandbox->all->config.max_output);
    exec->grace_ms = EXEC_ADOPTED_GRACE_MS;
    if (json_get_bool(exec->spec, "tty", false) && !exec->forget)
        exec_make_terminal(exec, (unsigned)json_get_int(exec->spec, "cols", 80),
                           (unsigned)json_get_int(exec->spec, "rows", 24), true);
    exec->kind.session = json_get_int(exec->spec, "session", 0);
    if (exec->kind.session > 0)
        exec->kind.is = EXEC_TEXT;
    else if (json_get_bool(exec->spec, "shell", false))
        exec->kind.is = EXEC_SHELL;
    exec->begun = exec->kind.is == EXEC_SHELL; /* nobody waits for its beginning any more */
}

/* One that may be at the agent; whether it is is seen when it is joined. */
static int from_row(struct sandbox *sandbox, const struct exec_row *row, struct exec **ret_exec,
                    struct err *err)
{
    struct json *spec;
    if (json_parse(row->spec, strlen(row->spec), JSON_LENIENT, &spec, err))
        return err_wrap(err, "execution %lld", (long long)row->number);
    struct exec *exec = exec_new(sandbox, row->number);
    struct json *result = exec_row_result(row);
    exec->spec = spec;
    exec->created = row->created;
    exec->started = exec->sent = true;
    exec->forget = strcmp(row->state, "running") != 0;
    take_spec(exec);
    bool good = ranges_parse(json_get_text(result, "stdout_lost"), &exec->streams[0].lost) &&
                ranges_parse(json_get_text(result, "stderr_lost"), &exec->streams[1].lost);
    if (exec->forget) {
        exec->stored_only = true;
        exec->totals[0] = (uint64_t)json_get_int(result, "stdout_bytes", 0);
        exec->totals[1] = (uint64_t)json_get_int(result, "stderr_bytes", 0);
        exec->facts = xcalloc(1, sizeof(*exec->facts));
    }
    json_free(result);
    if (!good) {
        exec_unref(exec);
        return err_set(err, ERR_STORE, "the record of execution %lld is damaged",
                       (long long)row->number);
    }
    *ret_exec = exec;
    return 0;
}

/* Found at the agent, without a record: what it was is not known, its output and result are. */
static int from_agent(struct sandbox *sandbox, int64_t number, struct exec **ret_exec,
                      struct err *err)
{
    struct exec *exec = exec_new(sandbox, number);
    struct json *spec = json_new_object();
    (void)json_set_array(spec, "cmd");
    json_set_null(spec, "workdir");
    json_set_null(spec, "timeout");
    json_set_int(spec, "max_output", sandbox->all->config.max_output);
    json_set_text(spec, "stdin", "none");
    json_set_text(spec, "on_disconnect", "kill"); /* unless the agent says that it is kept */
    json_set_number(spec, "disconnect_grace", (double)EXEC_ADOPTED_GRACE_MS / 1000);
    json_set_bool(spec, "service", false);
    json_set_bool(spec, "adopted", true);
    exec->spec = spec;
    exec->created = clock_wall_ms();
    exec->started = exec->sent = true;
    take_spec(exec);
    if (exec_begin_journals(exec, err) || exec_store(exec, err)) {
        exec_unref(exec);
        return -1;
    }
    *ret_exec = exec;
    return 0;
}

/* --- into memory ------------------------------------------------------------------------- */

static void begin_on_loop(struct sandbox *sandbox, void *arg)
{
    struct exec *exec = arg;
    (void)sandbox;
    if (!exec->keep && !exec_only_agent_knows(exec))
        exec_start_grace(exec, EXEC_ADOPTED_GRACE_MS);
    exec_attach(exec);
    exec_unref(exec);
}

/* Takes EXEC; drops it when the number is in memory already. */
static void enlist(struct exec *exec)
{
    struct sandbox *sandbox = exec->sandbox;
    pthread_mutex_lock(&sandbox->all->lock);
    struct exec *other = sandbox->execs;
    while (other && other->number != exec->number)
        other = other->next;
    if (!other) {
        exec_list_locked(exec);
        if (exec->number > sandbox->last_exec)
            sandbox->last_exec = exec->number;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (other)
        exec_unref(exec);
    else
        sandbox_on_loop(sandbox, begin_on_loop, exec);
}

static void raise_last(struct sandbox *sandbox, int64_t number)
{
    pthread_mutex_lock(&sandbox->all->lock);
    if (number > sandbox->last_exec)
        sandbox->last_exec = number;
    pthread_mutex_unlock(&sandbox->all->lock);
}

/* A number that was reserved for a preview's command is not used again, even if that never began.
 */
static int raise_by_previews(struct sandbox *sandbox, struct err *err)
{
    struct preview_row *rows = NULL;
    size_t count = 0;
    if (store_list_previews(sandbox->all->store, sandbox->uid, &rows, &count, err))
        return -1;
    for (size_t i = 0; i < count; i++)
        raise_last(sandbox, rows[i].exec);
    preview_rows_free(rows, count);
    return 0;
}

/* So that no number is given out twice. */
static int raise_by_newest(struct sandbox *sandbox, struct err *err)
{
    struct exec_row *rows = NULL;
    size_t count = 0;
    if (store_list_execs(sandbox->all->store, sandbox->uid, 0, 1, &rows, &count, err))
        return -1;
    if (count > 0)
        raise_last(sandbox, rows[0].number);
    exec_rows_free(rows, count);
    return 0;
}

static int enlist_rows(struct sandbox *sandbox, const struct exec_row *rows, size_t count,
                       struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        struct exec *exec = NULL;
        if (from_row(sandbox, &rows[i], &exec, err))
            return -1;
        enlist(exec);
    }
    return 0;
}

int execs_adopt(struct sandbox *sandbox, struct err *err)
{
    int64_t before = 0;
    size_t count;
    if (raise_by_previews(sandbox, err) || raise_by_newest(sandbox, err))
        return -1;
    do {
        struct exec_row *rows = NULL;
        if (store_running_execs(sandbox->all->store, sandbox->uid, before, &rows, &count, err))
            return -1;
        before = count > 0 ? rows[count - 1].number : 0;
        int rc = enlist_rows(sandbox, rows, count, err);
        exec_rows_free(rows, count);
        if (rc)
            return -1;
    } while (count > 0);
    return 0;
}

/* --- what the agent's hello names -------------------------------------------------------- */

struct known {
    struct sandbox *sandbox;
    size_t count;
    int64_t numbers[KNOWN_MAX];
};

static int adopt_one(struct sandbox *sandbox, int64_t number, struct err *err)
{
    struct exec_row row = {0};
    struct exec *exec = NULL;
    int rc = store_get_exec(sandbox->all->store, sandbox->uid, number, &row, err);
    if (rc == 0) {
        rc = from_row(sandbox, &row, &exec, err);
        exec_row_done(&row);
    } else if (err->code == ERR_NOT_FOUND) {
        rc = from_agent(sandbox, number, &exec, err);
    }
    if (rc == 0)
        enlist(exec);
    return rc;
}

static void adopt_job(void *arg)
{
    struct known *known = arg;
    for (size_t i = 0; i < known->count; i++) {
        struct err err;
        if (adopt_one(known->sandbox, known->numbers[i], &err))
            log_event(LOG_LEVEL_ERROR, "execution not adopted", "id", known->sandbox->id, "error",
                      err.msg, NULL);
    }
    sandbox_unref(known->sandbox);
    free(known);
}

static bool in_memory(struct exec *const *execs, size_t count, int64_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (execs[i]->number == number)
            return true;
    }
    return false;
}

void exec_adopt_known(struct sandbox *sandbox, const struct link_hello *hello,
                      struct exec *const *execs, size_t count)
{
    struct known *known = xcalloc(1, sizeof(*known));
    for (size_t i = 0; i < hello->exec_count && known->count < KNOWN_MAX; i++) {
        if (hello->exec_ids[i] <= EXEC_NUMBER_MAX &&
            !in_memory(execs, count, (int64_t)hello->exec_ids[i]))
            known->numbers[known->count++] = (int64_t)hello->exec_ids[i];
    }
    if (known->count == 0) {
        free(known);
        return;
    }
    known->sandbox = sandbox_ref(sandbox);
    sandboxes_work(sandbox->all, adopt_job, known);
}
