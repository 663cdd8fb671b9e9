#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/exec.h"
#include "sandbox/follow.h"
#include "sandbox/sandboxes.h"
#include "server/exec_stream.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define WAIT_MAX_MS 60000

/* --- start ----------------------------------------------------------------------------------- */

struct exec_body {
    struct text_list cmd;
    struct text_map env;
    char *stdin_text, *stdin_encoding, *workdir, *on_disconnect;
    int64_t timeout_ms, max_output, disconnect_grace_ms;
    bool tty, detach;
};

#define BODY(member) offsetof(struct exec_body, member)
static const struct json_field exec_fields[] = {
    {.name = "cmd",
     .decode = json_decode_text_list,
     .offset = BODY(cmd),
     .required = true,
     .min = 1,
     .max = CAP_ARGS},
    {.name = "env", .decode = json_decode_text_map, .offset = BODY(env), .max = CAP_ENV},
    {.name = "stdin",
     .decode = json_decode_text_any,
     .offset = BODY(stdin_text),
     .max = CAP_JSON_STDIN * 2},
    {.name = "stdin_encoding",
     .decode = json_decode_text,
     .offset = BODY(stdin_encoding),
     .max = 16},
    {.name = "workdir",
     .decode = json_decode_text_any,
     .offset = BODY(workdir),
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "timeout",
     .decode = json_decode_seconds,
     .offset = BODY(timeout_ms),
     .min = 1,
     .max = INT64_C(366) * 86400 * 1000},
    {.name = "max_output",
     .decode = json_decode_int,
     .offset = BODY(max_output),
     .min = 0,
     .max = CAP_JSON_OUTPUT},
    {.name = "tty", .decode = json_decode_bool, .offset = BODY(tty)},
    {.name = "detach", .decode = json_decode_bool, .offset = BODY(detach)},
    {.name = "on_disconnect", .decode = json_decode_text, .offset = BODY(on_disconnect), .max = 16},
    {.name = "disconnect_grace",
     .decode = json_decode_seconds,
     .offset = BODY(disconnect_grace_ms),
     .min = 0,
     .max = INT64_C(3600) * 1000},
    JSON_FIELDS_END,
};

static void exec_body_done(struct exec_body *body)
{
    text_list_done(&body->cmd);
    text_map_done(&body->env);
    free(body->stdin_text);
    free(body->stdin_encoding);
    free(body->workdir);
    free(body->on_disconnect);
}

static int bad(struct err *err, const char *field, const char *what)
{
    return err_set(err, ERR_INVALID_FIELD, "field '%s' %s", field, what);
}

static int argv_check(const struct text_list *cmd, struct err *err)
{
    size_t total = 0;
    if (!*cmd->items[0]) {
        return bad(err, "cmd", "must begin with a program's name");
    }
    for (size_t i = 0; i < cmd->count; i++) {
        size_t len = strlen(cmd->items[i]);
        if (len > CAP_ARG) {
            return err_set(
                err, ERR_ARGUMENT_TOO_LONG,
                "field 'cmd': argument %zu is longer than the %d bytes that Linux allows", i,
                CAP_ARG);
        }
        total += len + 1;
    }
    return total > CAP_ARGV_BYTES ? err_set(err, ERR_ARGUMENT_TOO_LONG,
                                            "field 'cmd': the arguments are too long together")
                                  : 0;
}

static int stdin_take(const struct exec_body *body, struct exec_spec *spec, struct err *err)
{
    const char *encoding = body->stdin_encoding ? body->stdin_encoding : "utf-8";
    buf_init(&spec->stdin_bytes, CAP_JSON_STDIN);
    if (strcmp(encoding, "raw") == 0) {
        if (body->stdin_text) {
            return bad(err, "stdin", "must be absent when it comes by PUT (stdin_encoding raw)");
        }
        spec->stdin_kind = EXEC_STDIN_PIPE;
        return 0;
    }
    bool base64 = strcmp(encoding, "base64") == 0;
    if (!base64 && strcmp(encoding, "utf-8") != 0) {
        return bad(err, "stdin_encoding", "must be utf-8, base64 or raw");
    }
    if (!body->stdin_text) {
        return 0;
    }
    spec->stdin_kind = EXEC_STDIN_BYTES;
    struct str text = str_of(body->stdin_text);
    bool ok = base64 ? base64_decode(&spec->stdin_bytes, text)
                     : buf_append(&spec->stdin_bytes, text.ptr, text.len);
    if (spec->stdin_bytes.overflow) {
        return err_set(err, ERR_TOO_LARGE,
                       "field 'stdin': at most 1 MiB; send more with stdin_encoding raw");
    }
    return ok ? 0 : bad(err, "stdin", "is not base64");
}

static int spec_of(struct request *request, struct exec_body *body, struct exec_spec *ret_spec,
                   struct err *err)
{
    const struct sandboxes_config *config = sandboxes_config(request_sandboxes(request));
    if (body->tty || body->detach) {
        return err_set(err, ERR_NOT_SUPPORTED, "field '%s' is not supported yet",
                       body->tty ? "tty" : "detach");
    }
    if (body->timeout_ms > config->max_exec_timeout_ms) {
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'timeout': at most %lld seconds on this server",
                       (long long)(config->max_exec_timeout_ms / 1000));
    }
    const char *leave = body->on_disconnect ? body->on_disconnect : "kill";
    if (strcmp(leave, "kill") != 0 && strcmp(leave, "keep") != 0) {
        return bad(err, "on_disconnect", "must be kill or keep");
    }
    if (argv_check(&body->cmd, err) < 0 || env_check(&body->env, "env", err) < 0 ||
        stdin_take(body, ret_spec, err) < 0) {
        return -1;
    }
    ret_spec->cmd = body->cmd;
    ret_spec->env = body->env;
    ret_spec->workdir = TAKE_PTR(body->workdir);
    body->cmd = (struct text_list){0};
    body->env = (struct text_map){0};
    ret_spec->timeout_ms = body->timeout_ms;
    ret_spec->max_output = body->max_output;
    ret_spec->disconnect_grace_ms = body->disconnect_grace_ms;
    ret_spec->keep = strcmp(leave, "keep") == 0;
    return 0;
}

/* --- wait for the result --------------------------------------------------------------------- */

struct exec_wait {
    struct exec *exec;
    int64_t deadline; /* clock_now_ms; 0: as long as it takes */
    bool joined;
    bool shown; /* as a record: what is at fault in it is no problem of this request */
};

static void exec_wait_free(void *state)
{
    struct exec_wait *wait = state;
    if (wait->exec && wait->joined) {
        exec_leave(wait->exec);
    }
    exec_unref(wait->exec);
    free(wait);
}

/* Takes EXEC. */
static struct exec_wait *keep_wait(struct request *request, struct exec *exec)
{
    struct exec_wait *wait = xcalloc(1, sizeof(*wait));
    wait->exec = exec;
    request_keep(request, wait, exec_wait_free);
    return wait;
}

/* One that is held: true also while the store fails. */
static enum verdict reply_held(struct request *request, struct exec *exec, int status)
{
    struct err err = {0};
    struct json *json = NULL;
    if (exec_record(exec, true, &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return reply_json(request, status, json);
}

static enum verdict exec_wait(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct event *changed = exec_changed(wait->exec);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (!wait->shown && exec_problem(wait->exec, &err)) {
        return reply_masked_problem(request, &err);
    }
    bool late = wait->deadline && clock_now_ms() >= wait->deadline;
    if (exec_done(wait->exec) || late || request_client_gone(request)) {
        return reply_held(request, wait->exec, 200);
    }
    return request_wait(request, changed, seen, wait->deadline, exec_wait);
}

static void reply_location(struct request *request, struct exec *exec)
{
    cleanup_free char *location = xasprintf(
        "/v1/sandboxes/%s/execs/%lld", request_param(request, "id"), (long long)exec_number(exec));
    reply_header(request, "Location", location);
}

static enum verdict started_elsewhere(struct request *request, struct exec *exec)
{
    reply_location(request, exec);
    return reply_held(request, exec, 202);
}

/* Events, once it is known that there is no problem to be told instead. */
static enum verdict exec_stream(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct event *output = exec_output_event(wait->exec);
    uint64_t seen = event_count(output);
    struct err err = {0};
    if (exec_problem(wait->exec, &err)) {
        return reply_masked_problem(request, &err);
    }
    if (!exec_begun(wait->exec) && !request_client_gone(request)) {
        return request_wait(request, output, seen, 0, exec_stream);
    }
    const struct exec_key key = {.uid = sandbox_uid(request_sandbox(request)),
                                 .number = exec_number(wait->exec)};
    reply_location(request, wait->exec);
    return exec_stream_reply(request, &key);
}

static enum verdict post_exec(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    const struct sandboxes_config *config = sandboxes_config(request_sandboxes(request));
    cleanup(exec_spec_done) struct exec_spec spec = {0};
    cleanup(exec_body_done) struct exec_body body = {
        .timeout_ms = config->exec_timeout_ms,
        .max_output = config->max_output,
        .disconnect_grace_ms = 10000,
    };
    if (request_header(request, "Idempotency-Key")) {
        err_set(&err, ERR_NOT_SUPPORTED, "the header Idempotency-Key is not supported here yet");
        return reply_problem(request, &err);
    }
    struct exec *exec = NULL;
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, exec_fields, "", &body, &err) < 0 ||
        spec_of(request, &body, &spec, &err) < 0) {
        return reply_problem(request, &err);
    }
    bool raw = spec.stdin_kind == EXEC_STDIN_PIPE;
    if (exec_start(request_sandbox(request), &spec, &exec, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    struct exec_wait *wait = keep_wait(request, exec);
    wait->joined = true;
    exec_join(exec);
    if (exec_stream_wanted(request)) {
        return exec_stream(request);
    }
    /* Whoever is to send the input has the disconnect grace to begin. */
    return raw ? started_elsewhere(request, exec) : exec_wait(request);
}

/* --- records --------------------------------------------------------------------------------- */

static enum verdict get_execs(struct request *request)
{
    struct err err = {0};
    cleanup_free char *uid = NULL;
    int64_t limit = 0, before = 0;
    struct json *page = NULL;
    if (query_page(request, "before", &limit, &before, &err) < 0 ||
        subject_uid(request, &uid, &err) < 0 ||
        exec_list_json(request_sandboxes(request), uid, before, (size_t)limit, &page, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, page);
}

static enum verdict reply_exec(struct request *request, const char *uid, int64_t number, int status)
{
    struct err err = {0};
    struct json *json = NULL;
    if (exec_json(request_sandboxes(request), uid, number, true, &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return reply_json(request, status, json);
}

static enum verdict get_exec(struct request *request)
{
    struct err err = {0};
    cleanup_free char *uid = NULL;
    int64_t number = 0, wait_ms = 0;
    if (request_query_seconds(request, "wait", WAIT_MAX_MS, &wait_ms, &err) < 0 ||
        request_param_number(request, "n", &number, &err) < 0 ||
        subject_uid(request, &uid, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct sandbox *sandbox = request_sandbox(request);
    struct exec *exec = sandbox ? exec_find(sandbox, number) : NULL;
    if (exec) {
        struct exec_wait *wait = keep_wait(request, exec);
        wait->deadline = clock_now_ms() + wait_ms;
        wait->joined = wait->shown = true;
        exec_join(exec);
    }
    if (exec_stream_wanted(request)) {
        const struct exec_key key = {.uid = uid, .number = number};
        return exec_stream_reply(request, &key);
    }
    return exec ? exec_wait(request) : reply_exec(request, uid, number, 200);
}

/* --- input ----------------------------------------------------------------------------------- */

static enum verdict stdin_wait(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct event *changed = exec_changed(wait->exec);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (pipe_state(request_body_pipe(request), &err) == PIPE_FAILED) {
        return reply_problem(request, &err); /* the client did not send it all */
    }
    if (exec_stdin_done(wait->exec) || exec_done(wait->exec) || request_client_gone(request)) {
        return reply_held(request, wait->exec, 200);
    }
    return request_wait(request, changed, seen, 0, stdin_wait);
}

static enum verdict put_stdin(struct request *request)
{
    struct err err = {0};
    int64_t number = 0;
    if (request_param_number(request, "n", &number, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct exec *exec = exec_find(request_sandbox(request), number);
    if (!exec) {
        err_set(&err, ERR_CONFLICT, "execution %lld takes no input: it has ended, or never was",
                (long long)number);
        return reply_problem(request, &err);
    }
    struct exec_wait *wait = keep_wait(request, exec);
    if (exec_feed(exec, request_body_pipe(request), &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    wait->joined = true;
    exec_join(exec);
    return stdin_wait(request);
}

/* --- raw output ------------------------------------------------------------------------------ */

static int stream_of(const struct request *request, int *ret_stream, struct err *err)
{
    struct str name = STR("stdout");
    (void)request_query(request, "stream", &name);
    if (!str_is(name, "stdout") && !str_is(name, "stderr")) {
        return err_set(err, ERR_INVALID_FIELD, "query parameter 'stream' must be stdout or stderr");
    }
    *ret_stream = str_is(name, "stdout") ? 1 : 2;
    return 0;
}

/* Whoever follows waits for it: his leaving counts. */
static enum verdict follow_output(struct request *request, const struct exec_key *key,
                                  const struct exec_range *range)
{
    struct sandbox *sandbox = request_sandbox(request);
    struct exec *exec = sandbox ? exec_find(sandbox, key->number) : NULL;
    if (exec) {
        struct exec_wait *wait = keep_wait(request, exec);
        wait->joined = true;
        exec_join(exec);
    }
    struct err err = {0};
    struct exec_reading reading = {0};
    cleanup_buf struct buf nothing = BUF_INIT(1);
    const struct exec_range at = {.stream = range->stream, .offset = range->offset};
    struct pipe *pipe = pipe_new(256 * KIB);
    if (exec_output(request_sandboxes(request), key, &at, &nothing, &reading, &err) < 0 ||
        follow_bytes(request_sandboxes(request), key, range->stream, range->offset, pipe, &err) <
            0) {
        pipe_unref(pipe);
        return reply_masked_problem(request, &err);
    }
    return reply_pipe(request, 200, "application/octet-stream", pipe, -1);
}

static enum verdict send_output(struct request *request, const struct exec_key *key,
                                const struct exec_range *range)
{
    struct err err = {0};
    struct exec_reading reading = {0};
    struct pipe *pipe = pipe_new(256 * KIB);
    if (exec_output_pipe(request_sandboxes(request), key, range, pipe, &reading, &err) < 0) {
        pipe_unref(pipe);
        return reply_masked_problem(request, &err);
    }
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)reading.total);
    reply_header(request, "X-Output-Total", text);
    if (reading.scrubbed) {
        snprintf(text, sizeof(text), "%zu", reading.scrubbed);
        reply_header(request, "Scrubbed", text);
    }
    return reply_pipe(request, 200, "application/octet-stream", pipe, -1);
}

static int range_of(const struct request *request, struct exec_range *ret_range, bool *ret_follow,
                    struct err *err)
{
    int64_t offset = 0, limit = 0;
    if (request_query_int(request, "offset", 0, INT64_MAX, &offset, err) < 0 ||
        request_query_int(request, "limit", 1, INT64_MAX, &limit, err) < 0 ||
        request_query_bool(request, "follow", ret_follow, err) < 0 ||
        stream_of(request, &ret_range->stream, err) < 0) {
        return -1;
    }
    if (*ret_follow && limit) {
        return err_set(err, ERR_INVALID_FIELD,
                       "query parameter 'limit' cannot be combined with follow=true");
    }
    ret_range->offset = (uint64_t)offset;
    ret_range->length = limit ? limit : INT64_MAX;
    return 0;
}

static enum verdict get_output(struct request *request)
{
    struct err err = {0};
    cleanup_free char *uid = NULL;
    struct exec_key key = {.number = 0};
    struct exec_range range = {.offset = 0};
    bool follow = false;
    if (request_param_number(request, "n", &key.number, &err) < 0 ||
        range_of(request, &range, &follow, &err) < 0 || subject_uid(request, &uid, &err) < 0) {
        return reply_problem(request, &err);
    }
    key.uid = uid;
    return follow ? follow_output(request, &key, &range) : send_output(request, &key, &range);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes/{id}/execs", post_exec, ROUTE_SANDBOX | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/sandboxes/{id}/execs", get_execs, ROUTE_SANDBOX | ROUTE_GONE_TOO, "before limit"},
    {"GET", "/v1/sandboxes/{id}/execs/{n}", get_exec, ROUTE_SANDBOX | ROUTE_GONE_TOO, "wait"},
    {"PUT", "/v1/sandboxes/{id}/execs/{n}/stdin", put_stdin, ROUTE_SANDBOX | ROUTE_STREAM_BODY,
     NULL},
    {"GET", "/v1/sandboxes/{id}/execs/{n}/output", get_output, ROUTE_SANDBOX | ROUTE_GONE_TOO,
     "stream offset limit follow"},
};

const struct route_table exec_routes = {routes, ARRAY_LEN(routes)};
