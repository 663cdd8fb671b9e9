#include "sandbox/exec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"
#include "sandbox/fields.h"
#include "sandbox/session.h"

/* --- life -------------------------------------------------------------------------------- */

struct exec *exec_new(struct sandbox *sandbox, int64_t number)
{
    struct exec *exec = xcalloc(1, sizeof(*exec));
    atomic_init(&exec->refs, 1);
    exec->sandbox = sandbox_ref(sandbox);
    exec->number = number;
    exec->kill_grace_ms = -1;
    exec->streams[0].unsettled = exec->streams[1].unsettled = UINT64_MAX;
    event_init(&exec->changed);
    event_init(&exec->output);
    pthread_mutex_init(&exec->lock, NULL);
    buf_init(&exec->open, PROTO_MESSAGE_MAX);
    return exec;
}

struct exec *exec_ref(struct exec *exec)
{
    atomic_fetch_add(&exec->refs, 1);
    return exec;
}

void exec_unref(struct exec *exec)
{
    if (!exec || atomic_fetch_sub(&exec->refs, 1) > 1)
        return;
    exec_pending_done(exec);
    if (exec->feed)
        feed_done(exec->feed);
    free(exec->feed);
    json_free(exec->spec);
    exec_facts_free(exec->facts);
    pipe_unref(exec->typed);
    free(exec->cwd);
    for (int i = 0; i < 2; i++) {
        journal_close(exec->streams[i].journal);
        ranges_done(&exec->streams[i].lost);
        ranges_done(&exec->streams[i].masks);
    }
    event_done(&exec->changed);
    event_done(&exec->output);
    pthread_mutex_destroy(&exec->lock);
    sandbox_unref(exec->sandbox);
    free(exec);
}

void exec_pending_done(struct exec *exec)
{
    atomic_fetch_sub(&exec->sandbox->all->pending_bytes, exec->pending);
    exec->pending = 0;
    buf_wipe(&exec->open);
}

void exec_spec_done(struct exec_spec *spec)
{
    text_list_done(&spec->cmd);
    text_map_done(&spec->env);
    free(spec->workdir);
    buf_wipe(&spec->stdin_bytes);
    *spec = (struct exec_spec){0};
}

/* --- the list of a sandbox --------------------------------------------------------------- */

/* Against the limit of running executions. Shells have a limit of their own. */
static bool exec_counts(const struct exec *exec)
{
    return !exec->service && exec->kind.is != EXEC_SHELL;
}

void exec_list_locked(struct exec *exec)
{
    struct sandbox *sandbox = exec->sandbox;
    exec->prev = NULL;
    exec->next = sandbox->execs;
    if (exec->next)
        exec->next->prev = exec;
    sandbox->execs = exec_ref(exec);
    exec->listed = true;
    if (exec_counts(exec) && !exec->facts && !exec->counted) {
        exec->counted = true;
        sandbox->running_execs++;
    }
}

void exec_unlist(struct exec *exec)
{
    struct sandbox *sandbox = exec->sandbox;
    pthread_mutex_lock(&sandbox->all->lock);
    bool listed = exec->listed;
    if (listed) {
        if (exec->prev)
            exec->prev->next = exec->next;
        else
            sandbox->execs = exec->next;
        if (exec->next)
            exec->next->prev = exec->prev;
        exec->next = exec->prev = NULL;
        exec->listed = false;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (listed)
        exec_unref(exec);
}

struct exec **exec_snapshot(struct sandbox *sandbox, size_t *ret_count)
{
    size_t count = 0;
    pthread_mutex_lock(&sandbox->all->lock);
    for (struct exec *exec = sandbox->execs; exec; exec = exec->next)
        count++;
    struct exec **execs = xcalloc(count + 1, sizeof(struct exec *));
    count = 0;
    for (struct exec *exec = sandbox->execs; exec; exec = exec->next)
        execs[count++] = exec_ref(exec);
    pthread_mutex_unlock(&sandbox->all->lock);
    *ret_count = count;
    return execs;
}

struct exec *exec_find(struct sandbox *sandbox, int64_t number)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct exec *exec = sandbox->execs;
    while (exec && (exec->number != number || exec->stored_only))
        exec = exec->next;
    if (exec)
        exec_ref(exec);
    pthread_mutex_unlock(&sandbox->all->lock);
    return exec;
}

/* --- the start --------------------------------------------------------------------------- */

static int check_text(const struct exec_spec *spec, struct err *err)
{
    const char *text = spec->cmd.count > 0 ? spec->cmd.items[spec->cmd.count - 1] : "";
    if (strlen(text) > CAP_SESSION_TEXT)
        return err_set(err, ERR_TOO_LARGE, "field 'command': at most %zu bytes", CAP_SESSION_TEXT);
    return 0;
}

static int check_size(const struct exec_spec *spec, struct err *err)
{
    size_t total = 0;
    if (spec->kind.is == EXEC_TEXT)
        return check_text(spec, err);
    if (spec->cmd.count == 0)
        return err_set(err, ERR_INVALID_FIELD, "field 'cmd': the program is missing");
    if (spec->cmd.count > CAP_ARGS)
        return err_set(err, ERR_ARGUMENT_TOO_LONG, "field 'cmd': more than %d elements", CAP_ARGS);
    for (size_t i = 0; i < spec->cmd.count; i++) {
        size_t len = strlen(spec->cmd.items[i]);
        if (len > CAP_ARG)
            return err_set(err, ERR_ARGUMENT_TOO_LONG,
                           "field 'cmd': element %zu has more than %d bytes", i, CAP_ARG);
        total += len + 1;
    }
    for (size_t i = 0; i < spec->env.count; i++) {
        size_t len = strlen(spec->env.items[i].name) + strlen(spec->env.items[i].value) + 1;
        if (len > CAP_ARG)
            return err_set(err, ERR_ARGUMENT_TOO_LONG, "field 'env': '%s' has more than %d bytes",
                           spec->env.items[i].name, CAP_ARG);
        total += len + 1;
    }
    if (total > CAP_ARGV_BYTES)
        return err_set(err, ERR_ARGUMENT_TOO_LONG,
                       "the fields 'cmd' and 'env' have more than %zu bytes together",
                       CAP_ARGV_BYTES);
    return 0;
}

static void build_open(struct exec *exec, const struct exec_spec *spec)
{
    struct buf *open = &exec->open;
    cleanup_free char *id = xasprintf("%lld", (long long)exec->number);
    static const enum proto_op ops[] = {OP_EXEC, OP_SHELL, OP_SHELL_RUN};
    fields_put_u64(open, TAG_OP, ops[spec->kind.is]);
    fields_put_text(open, TAG_EXEC_ID, id);
    if (spec->kind.is == EXEC_TEXT) {
        cleanup_free char *session = xasprintf("%lld", (long long)spec->kind.session);
        fields_put_text(open, TAG_SESSION, session);
    }
    for (size_t i = 0; i < spec->cmd.count; i++)
        fields_put_text(open, TAG_ARG, spec->cmd.items[i]);
    for (size_t i = 0; i < spec->env.count; i++) {
        const struct text_pair *pair = &spec->env.items[i];
        size_t len = strlen(pair->name) + strlen(pair->value) + 1;
        char *entry = xasprintf("%s=%s", pair->name, pair->value);
        fields_put(open, TAG_ENV, entry, len);
        free_secret(entry, len);
    }
    if (spec->workdir)
        fields_put_text(open, TAG_WORKDIR, spec->workdir);
    if (!spec->service && spec->timeout_ms > 0)
        fields_put_u64(open, TAG_TIMEOUT_MS, (uint64_t)spec->timeout_ms);
    fields_put_u64(open, TAG_GRACE_MS, EXEC_KILL_GRACE_MS);
    if (spec->stdin_kind != EXEC_STDIN_NONE)
        fields_put_u64(open, TAG_STDIN, 1);
    if (spec->stdin_kind == EXEC_STDIN_BYTES)
        fields_put_u64(open, TAG_STDIN_TOTAL, spec->stdin_bytes.len);
    if (exec->keep)
        fields_put_u64(open, TAG_KEEP, 1);
    if (spec->columns) {
        fields_put_u64(open, TAG_COLUMNS, spec->columns);
        fields_put_u64(open, TAG_ROWS, spec->rows);
    }
}

static void describe(struct exec *exec, const struct exec_spec *spec)
{
    static const char *const kinds[] = {"none", "bytes", "raw"};
    struct scrubber *scrubber = sandbox_scrubber(exec->sandbox);
    struct json *json = json_new_object();
    struct json *cmd = json_set_array(json, "cmd");
    for (size_t i = 0; i < spec->cmd.count; i++) {
        cleanup_free char *text = scrub_copy(scrubber, spec->cmd.items[i]);
        json_add_text(cmd, text);
    }
    const char *workdir = spec->workdir ? spec->workdir : sandbox_workdir(exec->sandbox);
    if (spec->kind.is == EXEC_TEXT)
        workdir = NULL; /* where its shell is by then */
    cleanup_free char *shown = workdir ? scrub_copy(scrubber, workdir) : NULL;
    json_set_text(json, "workdir", shown);
    if (spec->timeout_ms > 0 && !spec->service)
        json_set_number(json, "timeout", (double)spec->timeout_ms / 1000);
    else
        json_set_null(json, "timeout");
    json_set_int(json, "max_output", exec->max_output);
    json_set_text(json, "stdin", kinds[spec->stdin_kind]);
    json_set_bool(json, "tty", spec->columns > 0);
    json_set_text(json, "on_disconnect", exec->keep ? "keep" : "kill");
    json_set_number(json, "disconnect_grace", (double)exec->grace_ms / 1000);
    json_set_bool(json, "service", exec->service);
    if (exec->kind.is == EXEC_TEXT)
        json_set_int(json, "session", exec->kind.session);
    else if (exec->kind.is == EXEC_SHELL)
        json_set_bool(json, "shell", true);
    exec->spec = json;
    scrubber_unref(scrubber);
}

static struct exec *build(struct sandbox *sandbox, struct exec_spec *spec)
{
    struct exec *exec = exec_new(sandbox, spec->number);
    exec->keep = spec->keep || spec->service;
    exec->service = spec->service;
    exec->kind = spec->kind;
    exec->max_output = spec->max_output;
    if (exec->max_output < 0 || exec->max_output > (int64_t)CAP_JSON_OUTPUT)
        exec->max_output = CAP_JSON_OUTPUT;
    exec->grace_ms = spec->disconnect_grace_ms;
    exec->created = clock_wall_ms();
    exec->stdin_kind = spec->stdin_kind;
    describe(exec, spec);
    if (spec->stdin_kind != EXEC_STDIN_NONE) {
        exec->feed = xcalloc(1, sizeof(*exec->feed));
        feed_init(exec->feed, &exec_feed_ops, exec, sandbox->all->loop, true);
    }
    if (spec->columns)
        exec_make_terminal(exec, spec->columns, spec->rows, false);
    return exec;
}

/* What the agent has not taken yet is memory that callers size: bounded over all of them. */
static int count_pending(struct exec *exec, struct err *err)
{
    atomic_size_t *all = &exec->sandbox->all->pending_bytes;
    size_t bytes = exec->open.len + (exec->feed ? exec->feed->bytes.len : 0);
    if (atomic_fetch_add(all, bytes) + bytes > CAP_EXEC_PENDING) {
        atomic_fetch_sub(all, bytes);
        return err_set(err, ERR_BUSY, "too much input is waiting for agents");
    }
    exec->pending = bytes;
    return 0;
}

int64_t exec_reserve(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    int64_t number = ++sandbox->last_exec;
    pthread_mutex_unlock(&sandbox->all->lock);
    return number;
}

/* A number (unless it has a reserved one), and a place among the running ones. */
static int take_number(struct exec *exec, struct err *err)
{
    struct sandbox *sandbox = exec->sandbox;
    int64_t max = sandbox->all->config.max_execs;
    int rc = 0;
    pthread_mutex_lock(&sandbox->all->lock);
    if (exec_counts(exec) && max > 0 && sandbox->running_execs >= (size_t)max) {
        rc = err_set(err, ERR_BUSY, "%lld executions are running in this sandbox already",
                     (long long)max);
    } else {
        exec->number = exec->number ? exec->number : ++sandbox->last_exec;
        exec->counted = exec_counts(exec);
        sandbox->running_execs += exec->counted;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return rc;
}

static void enlist(struct exec *exec)
{
    pthread_mutex_lock(&exec->sandbox->all->lock);
    exec_list_locked(exec);
    pthread_mutex_unlock(&exec->sandbox->all->lock);
}

void exec_not_running(struct exec *exec)
{
    struct sandbox *sandbox = exec->sandbox;
    pthread_mutex_lock(&sandbox->all->lock);
    if (exec->counted)
        sandbox->running_execs--;
    exec->counted = false;
    pthread_mutex_unlock(&sandbox->all->lock);
}

static void attach_on_loop(struct sandbox *sandbox, void *arg)
{
    struct exec *exec = arg;
    (void)sandbox;
    exec_attach(exec);
    exec_unref(exec);
}

/* KEY points to the number before its record is there: one without a record counts for nothing. */
static int claim(struct exec *exec, struct idempotency_row *key, struct err *err)
{
    int found;
    if (!key)
        return 0;
    (void)snprintf(key->uid, sizeof(key->uid), "%s", exec->sandbox->uid);
    key->number = exec->number;
    return store_claim_key(exec->sandbox->all->store, key, &found, err);
}

/* The loop thread sees it when it is complete and stored. */
static int start(struct exec *exec, struct exec_spec *spec, struct idempotency_row *key,
                 struct err *err)
{
    if (take_number(exec, err))
        return -1;
    build_open(exec, spec);
    if (spec->stdin_kind == EXEC_STDIN_BYTES)
        feed_give(exec->feed, &spec->stdin_bytes);
    if (count_pending(exec, err) || exec_begin_journals(exec, err) || claim(exec, key, err) ||
        exec_store(exec, err)) {
        exec_not_running(exec);
        return -1;
    }
    enlist(exec);
    sandbox_on_loop(exec->sandbox, attach_on_loop, exec_ref(exec));
    return 0;
}

int exec_start(struct sandbox *sandbox, struct exec_spec *spec, struct exec **ret_exec,
               struct err *err)
{
    return exec_start_keyed(sandbox, spec, NULL, ret_exec, err);
}

int exec_start_keyed(struct sandbox *sandbox, struct exec_spec *spec, struct idempotency_row *key,
                     struct exec **ret_exec, struct err *err)
{
    int rc = check_size(spec, err);
    if (rc == 0)
        rc = sandbox_check_running(sandbox, err);
    if (rc == 0 && spec->kind.is == EXEC_TEXT)
        rc = session_check(sandbox, spec->kind.session, err);
    if (rc == 0) {
        struct exec *exec = build(sandbox, spec);
        rc = start(exec, spec, key, err);
        if (rc == 0)
            *ret_exec = exec;
        else
            exec_unref(exec);
    }
    exec_spec_done(spec);
    return rc;
}

/* --- looking at it ----------------------------------------------------------------------- */

int64_t exec_number(const struct exec *exec)
{
    return exec->number;
}

struct event *exec_changed(struct exec *exec)
{
    return &exec->changed;
}

bool exec_done(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool done = exec->facts || exec->lost;
    pthread_mutex_unlock(&exec->lock);
    return done;
}

bool exec_is_small(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool small = exec->facts && exec->totals[0] + exec->totals[1] <= EXEC_SMALL;
    pthread_mutex_unlock(&exec->lock);
    return small;
}

bool exec_kept(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool kept = exec->keep;
    pthread_mutex_unlock(&exec->lock);
    return kept;
}

struct event *exec_output_event(struct exec *exec)
{
    return &exec->output;
}

bool exec_begun(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool begun = exec->begun || exec->facts || exec->lost;
    pthread_mutex_unlock(&exec->lock);
    return begun;
}

bool exec_ended(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool done = exec->facts != NULL;
    pthread_mutex_unlock(&exec->lock);
    return done;
}

bool exec_problem(struct exec *exec, struct err *ret_err)
{
    pthread_mutex_lock(&exec->lock);
    bool problem = exec->facts && exec->facts->problem;
    if (problem) {
        const char *workdir = json_get_text(exec->spec, "workdir");
        (void)err_set(ret_err, exec->facts->error, "%s (in %s)", exec->facts->message,
                      workdir ? workdir : "an unknown workdir");
    }
    pthread_mutex_unlock(&exec->lock);
    return problem;
}

bool exec_error(struct exec *exec, struct err *ret_err)
{
    pthread_mutex_lock(&exec->lock);
    bool error = exec->facts && exec->facts->error != ERR_NONE;
    if (error) {
        const char *message = exec->facts->message;
        (void)err_set(ret_err, exec->facts->error, "%s", message ? message : "");
    }
    pthread_mutex_unlock(&exec->lock);
    return error;
}

bool exec_stdin_done(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool done = exec->stdin_taken || exec->facts;
    pthread_mutex_unlock(&exec->lock);
    return done;
}

/* --- who waits for it -------------------------------------------------------------------- */

void exec_join(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    exec->waiters++;
    pthread_mutex_unlock(&exec->lock);
}

static void grace_on_loop(struct sandbox *sandbox, void *arg)
{
    struct exec *exec = arg;
    (void)sandbox;
    exec_start_grace(exec, exec->grace_ms);
    exec_unref(exec);
}

void exec_leave(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    assert(exec->waiters > 0);
    bool alone = --exec->waiters == 0 && !exec->facts && !exec->keep;
    pthread_mutex_unlock(&exec->lock);
    if (alone)
        sandbox_on_loop(exec->sandbox, grace_on_loop, exec_ref(exec));
}

/* --- driving it -------------------------------------------------------------------------- */

struct order {
    struct exec *exec;
    int64_t grace_ms;
};

static void kill_on_loop(struct sandbox *sandbox, void *arg)
{
    struct order *order = arg;
    (void)sandbox;
    exec_kill_now(order->exec, order->grace_ms, NULL);
    exec_unref(order->exec);
    free(order);
}

void exec_kill(struct exec *exec, int64_t grace_ms)
{
    struct order *order = xmalloc(sizeof(*order));
    *order = (struct order){exec_ref(exec), grace_ms};
    sandbox_on_loop(exec->sandbox, kill_on_loop, order);
}

struct feeding {
    struct exec *exec;
    struct pipe *pipe;
};

static void feed_on_loop(struct sandbox *sandbox, void *arg)
{
    struct feeding *feeding = arg;
    struct exec *exec = feeding->exec;
    (void)sandbox;
    if (exec->feed) {
        feed_pipe(exec->feed, feeding->pipe);
        exec_pump(exec);
    } else {
        pipe_abandon(feeding->pipe, NULL);
        pipe_unref(feeding->pipe);
    }
    exec_unref(exec);
    free(feeding);
}

static const char *why_no_input(const struct exec *exec, bool fed)
{
    const char *wanted = json_get_text(exec->spec, "stdin");
    if (fed)
        return "it has had it";
    if (exec->stdin_kind == EXEC_STDIN_PIPE)
        return "it has ended";
    return wanted && strcmp(wanted, "raw") == 0
               ? "the server was started again meanwhile, and does not know what it has had"
               : "it was not started with raw input";
}

int exec_feed(struct exec *exec, struct pipe *pipe, struct err *err)
{
    pthread_mutex_lock(&exec->lock);
    bool takes = exec->stdin_kind == EXEC_STDIN_PIPE && !exec->fed && !exec->facts;
    bool fed = exec->fed;
    if (takes)
        exec->fed = true;
    pthread_mutex_unlock(&exec->lock);
    if (!takes)
        return err_set(err, ERR_CONFLICT, "execution %lld takes no input: %s",
                       (long long)exec->number, why_no_input(exec, fed));
    struct feeding *feeding = xmalloc(sizeof(*feeding));
    *feeding = (struct feeding){exec_ref(exec), pipe_ref(pipe)};
    sandbox_on_loop(exec->sandbox, feed_on_loop, feeding);
    return 0;
}
