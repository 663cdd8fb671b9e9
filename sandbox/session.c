#include "sandbox/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"
#include "sandbox/lifecycle.h"
#include "store/sessions.h"

void session_spec_done(struct session_spec *spec)
{
    free(spec->shell);
    text_map_done(&spec->env);
    free(spec->workdir);
    *spec = (struct session_spec){0};
}

/* --- begin ------------------------------------------------------------------------------- */

static bool has_ended(struct exec *session)
{
    pthread_mutex_lock(&session->lock);
    bool ended = session->facts || session->shell_ended;
    pthread_mutex_unlock(&session->lock);
    return ended;
}

static size_t count_living(struct sandbox *sandbox)
{
    size_t count, living = 0;
    struct exec **execs = exec_snapshot(sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        living += execs[i]->kind.is == EXEC_SHELL && !has_ended(execs[i]);
        exec_unref(execs[i]);
    }
    free(execs);
    return living;
}

int session_start(struct sandbox *sandbox, struct session_spec *spec, struct exec **ret_exec,
                  struct err *err)
{
    struct exec_spec exec = {.kind.is = EXEC_SHELL,
                             .env = spec->env,
                             .workdir = TAKE_PTR(spec->workdir),
                             .timeout_ms = spec->idle_ms,
                             .keep = true};
    spec->env = (struct text_map){0};
    text_list_add(&exec.cmd, spec->shell);
    session_spec_done(spec);
    if (count_living(sandbox) >= CAP_SESSIONS) {
        exec_spec_done(&exec);
        return err_set(err, ERR_SESSION_LIMIT, "there are %d sessions in this sandbox already",
                       CAP_SESSIONS);
    }
    return exec_start(sandbox, &exec, ret_exec, err);
}

/* --- run --------------------------------------------------------------------------------- */

static bool is_busy(struct exec *session)
{
    size_t count;
    bool busy = false;
    struct exec **execs = exec_snapshot(session->sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        bool ours = execs[i]->kind.is == EXEC_TEXT && execs[i]->kind.session == session->number;
        busy = busy || (ours && !exec_ended(execs[i]));
        exec_unref(execs[i]);
    }
    free(execs);
    return busy;
}

static int not_found(int64_t number, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no session %lld", (long long)number);
}

/* Of one that is not in memory. */
static int shell_of_stored(struct sandbox *sandbox, int64_t number, char **ret_shell,
                           struct err *err)
{
    struct exec_row row = {0};
    cleanup_json struct json *spec = NULL;
    if (store_get_exec(sandbox->all->store, sandbox->uid, number, &row, err))
        return err->code == ERR_NOT_FOUND ? not_found(number, err) : -1;
    bool session = row.session == number;
    int rc = session ? json_parse(row.spec, strlen(row.spec), JSON_LENIENT, &spec, err)
                     : not_found(number, err);
    exec_row_done(&row);
    if (rc)
        return -1;
    const char *shell = json_text(json_first(json_get(spec, "cmd")));
    *ret_shell = xstrdup(shell ? shell : "sh");
    return 0;
}

static int shell_of(struct sandbox *sandbox, int64_t number, char **ret_shell, struct err *err)
{
    struct exec *session = exec_find(sandbox, number);
    if (!session)
        return shell_of_stored(sandbox, number, ret_shell, err);
    int rc = session->kind.is == EXEC_SHELL ? 0 : not_found(number, err);
    if (rc == 0)
        *ret_shell = xstrdup(json_text(json_first(json_get(session->spec, "cmd"))));
    exec_unref(session);
    return rc;
}

int session_text(struct sandbox *sandbox, int64_t number, char *text, struct exec_spec *spec,
                 struct err *err)
{
    cleanup_free char *shell = NULL;
    int rc = shell_of(sandbox, number, &shell, err);
    if (rc == 0) {
        spec->kind.is = EXEC_TEXT;
        spec->kind.session = number;
        text_list_add(&spec->cmd, shell);
        text_list_add(&spec->cmd, "-c");
        text_list_add(&spec->cmd, text);
    }
    free(text);
    return rc;
}

int session_check(struct sandbox *sandbox, int64_t number, struct err *err)
{
    struct exec *session = exec_find(sandbox, number);
    int rc = 0;
    if (!session || has_ended(session))
        rc = err_set(err, ERR_SESSION_ENDED, "session %lld has ended", (long long)number);
    else if (is_busy(session))
        rc = err_set(err, ERR_SESSION_BUSY, "a command runs in session %lld", (long long)number);
    exec_unref(session);
    return rc;
}

/* --- records ----------------------------------------------------------------------------- */

void session_moved(struct exec *session, char *cwd, bool ended)
{
    pthread_mutex_lock(&session->lock);
    free(session->cwd);
    session->cwd = cwd;
    session->shell_ended = session->shell_ended || ended;
    pthread_mutex_unlock(&session->lock);
}

static const char *state_of(struct exec *session)
{
    if (has_ended(session))
        return "ended";
    if (!exec_begun(session))
        return "starting";
    return is_busy(session) ? "busy" : "idle";
}

/* Of the record of its execution, what a session shows. */
static struct json *describe(const struct json *record, struct exec *session)
{
    static const char *const names[] = {"workdir",   "timeout", "created", "ended",
                                        "exit_code", "signal",  "error"};
    struct json *json = json_new_object();
    json_set(json, "id", json_copy(json_get(record, "id")));
    bool over = !session && strcmp(json_get_text(record, "state"), "running") != 0;
    json_set_text(json, "state", session ? state_of(session) : over ? "ended" : "starting");
    json_set_text(json, "shell", json_text(json_first(json_get(record, "cmd"))));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        json_set(json, names[i], json_copy(json_get(record, names[i])));
    cleanup_free char *cwd = NULL;
    if (session) {
        pthread_mutex_lock(&session->lock);
        char *raw = session->cwd ? xstrdup(session->cwd) : NULL;
        pthread_mutex_unlock(&session->lock);
        struct scrubber *scrubber = sandbox_scrubber(session->sandbox);
        cwd = raw ? scrub_copy(scrubber, raw) : NULL;
        scrubber_unref(scrubber);
        free(raw);
    }
    json_set_text(json, "cwd", cwd);
    return json;
}

int session_json(struct sandboxes *all, const char *uid, int64_t number, struct json **ret_json,
                 struct err *err)
{
    struct exec_row row = {0};
    struct json *record = NULL;
    if (store_get_exec(all->store, uid, number, &row, err))
        return err->code == ERR_NOT_FOUND ? not_found(number, err) : -1;
    bool is_session = row.session == number;
    exec_row_done(&row);
    if (!is_session)
        return not_found(number, err);
    struct exec *session = exec_lookup(all, uid, number);
    int rc = session ? exec_record(session, false, &record, err)
                     : exec_json(all, uid, number, false, &record, err);
    if (rc == 0)
        *ret_json = describe(record, session);
    json_free(record);
    exec_unref(session);
    return rc;
}

int session_list_json(struct sandboxes *all, const struct exec_key *before, size_t limit,
                      struct json **ret_page, struct err *err)
{
    struct exec_row *rows = NULL;
    size_t count = 0;
    /* One more than asked for tells whether there is a next page. */
    const struct exec_page page = {before->uid, before->number, limit + 1};
    if (store_list_sessions(all->store, &page, &rows, &count, err))
        return -1;
    size_t shown = count > limit ? limit : count;
    cleanup_free char *next =
        count > shown ? xasprintf("%lld", (long long)rows[shown - 1].number) : NULL;
    struct json *json = json_new_object();
    struct json *items = json_set_array(json, "items");
    int rc = 0;
    for (size_t i = 0; i < shown && rc == 0; i++) {
        struct json *item = NULL;
        rc = session_json(all, before->uid, rows[i].number, &item, err);
        if (rc == 0)
            json_add(items, item);
    }
    json_set_text(json, "next", next);
    exec_rows_free(rows, count);
    if (rc)
        json_free(json);
    else
        *ret_page = json;
    return rc;
}
