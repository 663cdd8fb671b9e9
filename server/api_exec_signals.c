#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sandbox/call.h"
#include "sandbox/exec.h"
#include "sandbox/sandboxes.h"
#include "server/exec_reply.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/signal_name.h"
#include "server/subject.h"

#define GRACE_MS 2000
#define GRACE_MAX_MS 60000
#define END_WAIT_MS 30000 /* beyond the grace; then 202: it goes on */

struct signalling {
    struct exec *exec; /* NULL: not in memory */
    struct call *call;
    char number[24];
    int64_t grace_ms, deadline;
};

static void signalling_free(void *state)
{
    struct signalling *signalling = state;
    exec_unref(signalling->exec);
    call_unref(signalling->call);
    free(signalling);
}

/* Of an execution that there is, or was. */
static int begin(struct request *request, int64_t number, struct signalling **ret_signalling,
                 struct err *err)
{
    struct json *record = NULL;
    struct sandbox *sandbox = request_sandbox(request);
    if (exec_json(request_sandboxes(request), sandbox_uid(sandbox), number, false, &record, err) <
        0) {
        return -1;
    }
    json_free(record);
    struct signalling *signalling = xcalloc(1, sizeof(*signalling));
    snprintf(signalling->number, sizeof(signalling->number), "%lld", (long long)number);
    signalling->exec = exec_find(sandbox, number);
    request_keep(request, signalling, signalling_free);
    *ret_signalling = signalling;
    return 0;
}

static enum verdict call_wait(struct request *request)
{
    struct signalling *signalling = request_state(request);
    struct event *changed = call_changed(signalling->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    switch (call_state(signalling->call, &err)) {
    case CALL_DONE:
        return reply_empty(request, 204);
    case CALL_FAILED:
        return reply_masked_problem(request, &err);
    case CALL_WAITING:
    case CALL_STARTED:
        break;
    }
    if (request_client_gone(request) ||
        (signalling->deadline && clock_now_ms() >= signalling->deadline)) {
        return reply_empty(request, 202);
    }
    return request_wait(request, changed, seen, signalling->deadline, call_wait);
}

static enum verdict call_run(struct request *request)
{
    struct signalling *signalling = request_state(request);
    struct err err = {0};
    if (call_start(request_sandbox(request), signalling->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return call_wait(request);
}

/* --- POST …/signal --------------------------------------------------------------------------- */

struct signal_body {
    char *signal;
    int scope;
};

static const char *const scopes[] = {"process", "tree", NULL};

static const struct json_field signal_fields[] = {
    {.name = "signal",
     .decode = json_decode_text,
     .offset = offsetof(struct signal_body, signal),
     .required = true,
     .min = 1,
     .max = 16},
    {.name = "scope",
     .decode = json_decode_word,
     .offset = offsetof(struct signal_body, scope),
     .extra = scopes},
    JSON_FIELDS_END,
};

static void signal_body_done(struct signal_body *body)
{
    free(body->signal);
}

static enum verdict post_signal(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    int64_t exec_number = 0;
    struct signalling *signalling = NULL;
    cleanup(signal_body_done) struct signal_body body = {.scope = 0};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, signal_fields, "", &body, &err) < 0) {
        return reply_problem(request, &err);
    }
    int number = signal_of_name(body.signal);
    if (!number) {
        err_set(&err, ERR_INVALID_FIELD, "field 'signal' must be a name such as TERM or INT");
        return reply_problem(request, &err);
    }
    if (request_param_number(request, "n", &exec_number, &err) < 0 ||
        begin(request, exec_number, &signalling, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    signalling->call = call_new(OP_KILL);
    call_put_text(signalling->call, TAG_EXEC_ID, signalling->number);
    call_put_u64(signalling->call, TAG_SIGNAL, (uint64_t)number);
    call_put_u64(signalling->call, TAG_SCOPE, body.scope == 0 ? SCOPE_PROCESS : SCOPE_TREE);
    return call_run(request);
}

/* --- DELETE ---------------------------------------------------------------------------------- */

/* It has ended: what it has left behind in the background ends, too. */
static enum verdict end_rest(struct request *request)
{
    struct signalling *signalling = request_state(request);
    signalling->call = call_new(OP_KILL);
    call_put_text(signalling->call, TAG_EXEC_ID, signalling->number);
    call_put_u64(signalling->call, TAG_GRACE_MS, (uint64_t)signalling->grace_ms);
    return call_run(request);
}

static enum verdict end_wait(struct request *request)
{
    struct signalling *signalling = request_state(request);
    struct event *changed = exec_changed(signalling->exec);
    uint64_t seen = event_count(changed);
    if (exec_ended(signalling->exec)) {
        return end_rest(request);
    }
    if (request_client_gone(request) || clock_now_ms() >= signalling->deadline) {
        return reply_empty(request, 202);
    }
    return request_wait(request, changed, seen, signalling->deadline, end_wait);
}

enum verdict exec_end_reply(struct request *request, int64_t number, int64_t grace_ms)
{
    struct err err = {0};
    struct signalling *signalling = NULL;
    if (begin(request, number, &signalling, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    signalling->grace_ms = grace_ms;
    signalling->deadline = clock_now_ms() + grace_ms + END_WAIT_MS;
    if (!signalling->exec) {
        return end_rest(request);
    }
    exec_kill(signalling->exec, grace_ms);
    return end_wait(request);
}

static enum verdict delete_exec(struct request *request)
{
    struct err err = {0};
    int64_t number = 0, grace_ms = GRACE_MS;
    if (request_query_seconds(request, "grace", GRACE_MAX_MS, &grace_ms, &err) < 0 ||
        request_param_number(request, "n", &number, &err) < 0) {
        return reply_problem(request, &err);
    }
    return exec_end_reply(request, number, grace_ms);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes/{id}/execs/{n}/signal", post_signal, ROUTE_SANDBOX | ROUTE_JSON_BODY,
     NULL},
    {"DELETE", "/v1/sandboxes/{id}/execs/{n}", delete_exec, ROUTE_SANDBOX, "grace"},
};

const struct route_table exec_signal_routes = {routes, ARRAY_LEN(routes)};
