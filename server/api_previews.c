#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/previews.h"
#include "sandbox/sandboxes.h"
#include "server/fake_notes.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define KILL_WAIT_MS 10000 /* for the command that was there before */
#define READY_WAIT_MS 60000
#define PROBE_MS 1
#define LOG_TAIL (64 * KIB)
#define PROBLEM_TAIL ((size_t)1500)

/* --- publish --------------------------------------------------------------------------------- */

struct preview_body {
    struct preview_request want;
    char *visibility, *log_file;
    bool wait;
    int64_t ready_timeout_ms;
};

#define BODY(member) offsetof(struct preview_body, member)
static const struct json_field preview_fields[] = {
    {.name = "command",
     .decode = json_decode_text_list,
     .offset = BODY(want.command),
     .min = 1,
     .max = CAP_ARGS},
    {.name = "port",
     .decode = json_decode_int,
     .offset = BODY(want.port),
     .required = true,
     .min = 1,
     .max = 65535},
    {.name = "subdomain",
     .decode = json_decode_text,
     .offset = BODY(want.subdomain),
     .min = 1,
     .max = 255},
    {.name = "env", .decode = json_decode_text_map, .offset = BODY(want.env), .max = CAP_ENV},
    {.name = "visibility", .decode = json_decode_text, .offset = BODY(visibility), .max = 16},
    {.name = "log_file", .decode = json_decode_text_any, .offset = BODY(log_file), .max = CAP_PATH},
    {.name = "wait", .decode = json_decode_bool, .offset = BODY(wait)},
    {.name = "ready_timeout",
     .decode = json_decode_seconds,
     .offset = BODY(ready_timeout_ms),
     .min = 100,
     .max = 600000},
    JSON_FIELDS_END,
};

struct preview_state {
    struct preview_request want;
    char *host;
    bool first, wait;
    struct sandbox *changing; /* preview_claim() was called; NULL: not, or ended */
    int64_t ready_timeout_ms, deadline;
    struct exec *before, *exec;
    struct call *probe;
    struct event both; /* fires when the probe or the command moves on */
    struct waiter on_probe, on_exec;
};

static void unwatch_both(struct preview_state *state)
{
    (void)event_cancel(call_changed(state->probe), &state->on_probe);
    if (state->exec) {
        (void)event_cancel(exec_changed(state->exec), &state->on_exec);
    }
}

static void change_over(struct preview_state *state)
{
    if (state->changing) {
        preview_release(TAKE_PTR(state->changing));
    }
}

/* The request still holds its sandbox. */
static void preview_state_free(void *arg)
{
    struct preview_state *state = arg;
    change_over(state);
    if (state->probe) {
        unwatch_both(state);
        call_cancel(state->probe);
    }
    preview_request_done(&state->want);
    exec_unref(state->before);
    exec_unref(state->exec);
    call_unref(state->probe);
    event_done(&state->both);
    free(state->host);
    free(state);
}

static void preview_body_done(struct preview_body *body)
{
    preview_request_done(&body->want);
    free(body->visibility);
    free(body->log_file);
}

static enum verdict reply_preview(struct request *request, int64_t port, bool ready, int status)
{
    struct err err = {0};
    struct json *json = NULL;
    if (preview_json(request_sandbox(request), port, ready, &json, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, status, json);
}

/* The last MAX bytes of a stream of the command's output, masked, behind TEXT. */
static int append_tail(struct request *request, int64_t number, int stream, size_t max,
                       struct buf *text, struct err *err)
{
    const struct exec_key key = {.uid = sandbox_uid(request_sandbox(request)), .number = number};
    struct exec_range range = {.stream = stream};
    struct exec_reading reading = {0};
    cleanup_buf struct buf tail = BUF_INIT(max);
    if (exec_output(request_sandboxes(request), &key, &range, &tail, &reading, err) < 0) {
        return -1;
    }
    range.offset = reading.total > max ? reading.total - max : 0;
    range.length = (int64_t)max;
    if (exec_output(request_sandboxes(request), &key, &range, &tail, &reading, err) < 0) {
        return -1;
    }
    (void)buf_append(text, buf_text(&tail), tail.len); /* the caller has the room */
    return 0;
}

/* The claim is ours. Unless another request has replaced it meanwhile. */
static void take_back(struct request *request, const struct preview_state *state)
{
    struct sandbox *sandbox = request_sandbox(request);
    int64_t number = 0, port = state->want.port;
    if (preview_exec(sandbox, port, &number, NULL) == 0 && number == exec_number(state->exec)) {
        preview_withdraw(sandbox, port);
    }
}

/* The command ended before anything listened: the preview is taken back, the log's tail says why.
 * Another port of the sandbox may be changing just now. */
static enum verdict command_failed(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    cleanup_buf struct buf text = BUF_INIT(2 * PROBLEM_TAIL);
    int64_t number = exec_number(state->exec);
    if (preview_claim(sandbox)) {
        state->changing = sandbox;
    } else if (!request_client_gone(request)) {
        return request_wait(request, changed, seen, 0, command_failed);
    }
    if (state->changing) {
        take_back(request, state);
        change_over(state);
    }
    if (exec_problem(state->exec, &err)) {
        return reply_masked_problem(request, &err);
    }
    (void)(append_tail(request, number, 1, PROBLEM_TAIL / 2, &text, &err) == 0 &&
           append_tail(request, number, 2, PROBLEM_TAIL / 2, &text, &err) == 0);
    struct err why = {0}; /* such as that the program does not exist */
    bool known = exec_error(state->exec, &why);
    (void)err_set(
        &err, ERR_SERVICE_FAILED,
        "the command ended before anything listened on port %lld; see execution %lld%s%s. %s%s",
        (long long)state->want.port, (long long)number, known ? ": " : "", known ? why.msg : "",
        text.len ? "Its output ends with: " : "It wrote nothing.", buf_text(&text));
    return reply_masked_problem(request, &err);
}

static void wake_probe(struct waiter *waiter)
{
    event_fire(&container_of(waiter, struct preview_state, on_probe)->both);
}

static void wake_exec(struct waiter *waiter)
{
    event_fire(&container_of(waiter, struct preview_state, on_exec)->both);
}

/* Both are to wake the request: whichever has moved on since it was looked at fires at once. */
static void watch_both(struct preview_state *state, uint64_t probe_seen, uint64_t exec_seen)
{
    bool armed = event_wait(call_changed(state->probe), probe_seen, &state->on_probe);
    if (state->exec) {
        armed = event_wait(exec_changed(state->exec), exec_seen, &state->on_exec) && armed;
    }
    if (!armed) {
        event_fire(&state->both);
    }
}

static enum verdict ready_wait(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct err err = {0};
    unwatch_both(state);
    uint64_t seen = event_count(&state->both);
    uint64_t probe_seen = event_count(call_changed(state->probe));
    uint64_t exec_seen = state->exec ? event_count(exec_changed(state->exec)) : 0;
    enum call_state probe = call_state(state->probe, &err);
    uint64_t ready = 0;
    if (probe == CALL_DONE) {
        (void)call_result_u64(state->probe, TAG_READY, &ready);
        return reply_preview(request, state->want.port, ready != 0, 201);
    }
    if (state->exec && exec_ended(state->exec)) {
        return command_failed(request);
    }
    if (probe == CALL_FAILED && err.code != ERR_TIMEOUT) {
        return reply_masked_problem(request, &err);
    }
    if (probe == CALL_FAILED || request_client_gone(request)) {
        return reply_preview(request, state->want.port, false, 201); /* starting still */
    }
    watch_both(state, probe_seen, exec_seen);
    return request_wait(request, &state->both, seen, 0, ready_wait);
}

static enum verdict publish(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct sandbox *sandbox = request_sandbox(request);
    struct err err = {0};
    note_preview(request, &state->want);
    if (preview_begin(sandbox, &state->want, state->host, state->first, &state->exec, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    change_over(state);
    if (preview_probe(sandbox, state->want.port, state->wait ? state->ready_timeout_ms : PROBE_MS,
                      &state->probe, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return state->wait ? ready_wait(request) : reply_preview(request, state->want.port, false, 201);
}

static enum verdict before_wait(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct event *changed = exec_changed(state->before);
    uint64_t seen = event_count(changed);
    if (exec_ended(state->before)) {
        return publish(request);
    }
    if (request_client_gone(request)) {
        return reply_empty(request, 204); /* nobody reads it */
    }
    if (clock_now_ms() >= state->deadline) {
        struct err err;
        (void)err_set(&err, ERR_SERVICE_FAILED,
                      "the command that served the port before does not end");
        return reply_problem(request, &err);
    }
    return request_wait(request, changed, seen, state->deadline, before_wait);
}

static int check_body(const struct preview_body *body, bool proxied, struct err *err)
{
    bool is_private = body->visibility && strcmp(body->visibility, "private") == 0;
    if (body->visibility && !is_private && strcmp(body->visibility, "public") != 0) {
        return err_set(err, ERR_NOT_SUPPORTED, "field 'visibility' is public or private");
    }
    if (is_private && !proxied) {
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'visibility': private previews need --preview-mode proxy, since "
                       "others are served without asking this server");
    }
    if (body->log_file) {
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'log_file' is not supported: the output is at …/previews/{port}/log");
    }
    return env_check(&body->want.env, "env", err);
}

/* Waits for its turn; then the host is chosen, and what served the port before is ended. */
static enum verdict begin_change(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (request_client_gone(request)) {
        return reply_empty(request, 204);
    }
    if (!preview_claim(sandbox)) {
        return request_wait(request, changed, seen, 0, begin_change);
    }
    state->changing = sandbox;
    if (preview_host(sandbox, &state->want, &state->host, &state->first, &err) < 0) {
        return reply_problem(request, &err);
    }
    state->deadline = clock_now_ms() + KILL_WAIT_MS;
    state->before = preview_end_command(sandbox, state->want.port);
    return state->before ? before_wait(request) : publish(request);
}

static enum verdict post_preview(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    cleanup(preview_body_done) struct preview_body body = {.wait = true,
                                                           .ready_timeout_ms = READY_WAIT_MS};
    struct preview_state *state = xcalloc(1, sizeof(*state));
    event_init(&state->both);
    state->on_probe.wake = wake_probe;
    state->on_exec.wake = wake_exec;
    request_keep(request, state, preview_state_free);
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, preview_fields, "", &body, &err) < 0 ||
        check_body(&body, sandboxes_config(request_sandboxes(request))->proxied, &err) < 0) {
        return reply_problem(request, &err);
    }
    state->want = body.want;
    body.want = (struct preview_request){0};
    state->want.is_private = body.visibility && strcmp(body.visibility, "private") == 0;
    state->wait = body.wait;
    state->ready_timeout_ms = body.ready_timeout_ms;
    return begin_change(request);
}

/* --- list ------------------------------------------------------------------------------------ */

struct list_state {
    int64_t *ports;
    size_t count, at;
    struct call *probe;
    bool deaf; /* the agent does not answer: the others are not asked for */
    struct json *items;
};

static void list_state_free(void *arg)
{
    struct list_state *state = arg;
    free(state->ports);
    call_unref(state->probe);
    json_free(state->items);
    free(state);
}

static void add_item(struct request *request, struct list_state *state, bool ready)
{
    struct json *json = NULL;
    if (preview_json(request_sandbox(request), state->ports[state->at], ready, &json, NULL) == 0) {
        json_add(state->items, json); /* else it has just been removed */
    }
    state->at++;
}

static enum verdict list_next(struct request *request);

static enum verdict list_probed(struct request *request)
{
    struct list_state *state = request_state(request);
    struct event *changed = call_changed(state->probe);
    uint64_t seen = event_count(changed);
    enum call_state probe = call_state(state->probe, NULL);
    if (probe == CALL_WAITING || probe == CALL_STARTED) {
        return request_client_gone(request) ? reply_empty(request, 204)
                                            : request_wait(request, changed, seen, 0, list_probed);
    }
    uint64_t ready = 0;
    (void)(probe == CALL_DONE && call_result_u64(state->probe, TAG_READY, &ready));
    state->deaf = probe == CALL_FAILED;
    call_unref(state->probe);
    state->probe = NULL;
    add_item(request, state, ready != 0);
    return list_next(request);
}

static enum verdict list_next(struct request *request)
{
    struct list_state *state = request_state(request);
    struct err err = {0};
    while (state->deaf && state->at < state->count) {
        add_item(request, state, false);
    }
    if (state->at < state->count) {
        if (preview_probe(request_sandbox(request), state->ports[state->at], PROBE_MS,
                          &state->probe, &err) < 0) {
            return reply_masked_problem(request, &err);
        }
        return list_probed(request);
    }
    struct json *page = json_new_object();
    json_set(page, "items", TAKE_PTR(state->items));
    json_set_null(page, "next");
    return reply_json(request, 200, page);
}

static enum verdict get_previews(struct request *request)
{
    struct err err = {0};
    struct list_state *state = xcalloc(1, sizeof(*state));
    state->items = json_new_array();
    request_keep(request, state, list_state_free);
    if (preview_ports(request_sandbox(request), &state->ports, &state->count, &err) < 0) {
        return reply_problem(request, &err);
    }
    return list_next(request);
}

/* --- remove, log ----------------------------------------------------------------------------- */

static enum verdict removed_wait(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct event *changed = exec_changed(state->before);
    uint64_t seen = event_count(changed);
    if (exec_done(state->before) || request_client_gone(request) ||
        clock_now_ms() >= state->deadline) {
        return reply_empty(request, 204);
    }
    return request_wait(request, changed, seen, state->deadline, removed_wait);
}

static enum verdict begin_removal(struct request *request)
{
    struct preview_state *state = request_state(request);
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    if (!preview_claim(sandbox)) {
        return request_client_gone(request)
                   ? reply_empty(request, 204)
                   : request_wait(request, changed, seen, 0, begin_removal);
    }
    state->changing = sandbox;
    state->before = preview_end_command(sandbox, state->want.port);
    state->deadline = clock_now_ms() + KILL_WAIT_MS;
    if (preview_remove(sandbox, state->want.port, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    note_preview_removed(request, state->want.port);
    change_over(state);
    return state->before ? removed_wait(request) : reply_empty(request, 204);
}

static enum verdict delete_preview(struct request *request)
{
    struct err err = {0};
    int64_t port = 0;
    if (request_param_number(request, "port", &port, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct preview_state *state = xcalloc(1, sizeof(*state));
    event_init(&state->both);
    state->want.port = port;
    request_keep(request, state, preview_state_free);
    return begin_removal(request);
}

static enum verdict get_log(struct request *request)
{
    struct err err = {0};
    int64_t port = 0, number = 0;
    struct sandbox *sandbox = request_sandbox(request);
    if (request_param_number(request, "port", &port, &err) < 0 ||
        preview_exec(sandbox, port, &number, &err) < 0) {
        return reply_problem(request, &err);
    }
    cleanup_buf struct buf text = BUF_INIT(2 * LOG_TAIL);
    for (int stream = 1; stream <= 2 && number; stream++) {
        if (append_tail(request, number, stream, LOG_TAIL, &text, &err) < 0) {
            return reply_masked_problem(request, &err);
        }
    }
    return reply_bytes(request, 200, "text/plain; charset=utf-8", buf_text(&text), text.len);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes/{id}/previews", post_preview, ROUTE_SANDBOX | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/sandboxes/{id}/previews", get_previews, ROUTE_SANDBOX, NULL},
    {"DELETE", "/v1/sandboxes/{id}/previews/{port}", delete_preview, ROUTE_SANDBOX, NULL},
    {"GET", "/v1/sandboxes/{id}/previews/{port}/log", get_log, ROUTE_SANDBOX, NULL},
};

const struct route_table preview_routes = {routes, ARRAY_LEN(routes)};
