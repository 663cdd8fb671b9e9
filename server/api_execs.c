#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/exec.h"
#include "sandbox/exec_once.h"
#include "sandbox/follow.h"
#include "sandbox/sandboxes.h"
#include "server/exec_body.h"
#include "server/exec_reply.h"
#include "server/exec_stream.h"
#include "server/idempotency.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define WAIT_MAX_MS 60000
#define PREFER_MAX 86400

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

static enum verdict reply_exec(struct request *request, const char *uid, int64_t number, int status)
{
    struct err err = {0};
    struct json *json = NULL;
    if (exec_json(request_sandboxes(request), uid, number, true, &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return reply_json(request, status, json);
}

static void reply_location(struct request *request, int64_t number)
{
    cleanup_free char *location =
        xasprintf("/v1/sandboxes/%s/execs/%lld", request_param(request, "id"), (long long)number);
    reply_header(request, "Location", location);
}

static enum verdict goes_on(struct request *request, struct exec *exec)
{
    reply_location(request, exec_number(exec));
    return reply_held(request, exec, 202);
}

static enum verdict exec_answer(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct err err = {0};
    if (!wait->shown && exec_problem(wait->exec, &err)) {
        return reply_masked_problem(request, &err);
    }
    bool answered = wait->shown || exec_done(wait->exec) || request_client_gone(request);
    return answered ? reply_held(request, wait->exec, 200) : goes_on(request, wait->exec);
}

/* On any thread. */
static enum verdict exec_wait(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct event *changed = exec_changed(wait->exec);
    uint64_t seen = event_count(changed);
    if (!exec_done(wait->exec) && !request_client_gone(request) &&
        (!wait->deadline || clock_now_ms() < wait->deadline)) {
        return request_wait(request, changed, seen, wait->deadline, exec_wait);
    }
    return exec_is_small(wait->exec) ? exec_answer(request)
                                     : request_on_worker(request, exec_answer);
}

static enum verdict exec_events(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct err err = {0};
    if (exec_problem(wait->exec, &err)) {
        return reply_masked_problem(request, &err);
    }
    const struct exec_key key = {.uid = sandbox_uid(request_sandbox(request)),
                                 .number = exec_number(wait->exec)};
    reply_location(request, key.number);
    return exec_stream_reply(request, &key);
}

/* Events, once it is known that there is no problem to be told instead. */
static enum verdict exec_stream(struct request *request)
{
    struct exec_wait *wait = request_state(request);
    struct event *output = exec_output_event(wait->exec);
    uint64_t seen = event_count(output);
    if (!exec_begun(wait->exec) && !request_client_gone(request)) {
        return request_wait(request, output, seen, 0, exec_stream);
    }
    return request_on_worker(request, exec_events);
}

/* --- start ----------------------------------------------------------------------------------- */

/* One that is malformed is none: a server may leave any of them out. */
int64_t exec_preferred_wait(const struct request *request)
{
    const char *at = request_header(request, "Prefer");
    while (at) {
        uint64_t seconds;
        at += strspn(at, " \t,");
        size_t len = strcspn(at, " \t,;");
        if (len > 5 && strncasecmp(at, "wait=", 5) == 0 &&
            str_to_u64((struct str){at + 5, len - 5}, PREFER_MAX, &seconds)) {
            return (int64_t)seconds;
        }
        at = strchr(at, ',');
    }
    return -1;
}

/* One that an earlier request with this key has started and that has been stored since. */
static enum verdict reply_stored(struct request *request, int64_t number, bool detach)
{
    const char *uid = sandbox_uid(request_sandbox(request));
    if (exec_stream_wanted(request)) {
        const struct exec_key key = {.uid = uid, .number = number};
        reply_location(request, number);
        return exec_stream_reply(request, &key);
    }
    if (detach) {
        reply_location(request, number);
    }
    return reply_exec(request, uid, number, detach ? 202 : 200);
}

static enum verdict reply_started(struct request *request, struct exec *exec, bool elsewhere,
                                  int64_t wait_s)
{
    struct exec_wait *wait = keep_wait(request, exec);
    wait->joined = true;
    exec_join(exec);
    if (exec_stream_wanted(request)) {
        return exec_stream(request);
    }
    if (elsewhere) {
        return goes_on(request, exec);
    }
    if (wait_s >= 0) {
        cleanup_free char *applied = xasprintf("wait=%lld", (long long)wait_s);
        reply_header(request, "Preference-Applied", applied);
        wait->deadline = clock_now_ms() + wait_s * 1000;
    }
    return exec_wait(request);
}

static int start(struct request *request, struct exec_spec *spec, const struct json *json,
                 struct exec_once *ret_once, struct exec **ret_exec, struct err *err)
{
    struct idempotency idempotency;
    if (idempotency_of(request, json, &idempotency, err) < 0) {
        return -1;
    }
    if (!idempotency.key) {
        return exec_start(request_sandbox(request), spec, ret_exec, err);
    }
    ret_once->owner = request_caller(request)->owner;
    ret_once->key = idempotency.key;
    ret_once->digest = idempotency.digest;
    int rc = exec_start_once(request_sandbox(request), spec, ret_once, ret_exec, err);
    ret_once->digest = NULL; /* it ends here */
    return rc;
}

enum verdict exec_begin_reply(struct request *request, struct exec_wish *wish,
                              const struct json *json)
{
    struct err err = {0};
    struct exec_once once = {.found = false};
    struct exec *exec = NULL;
    int64_t wait_s = exec_preferred_wait(request);
    if (wish->detach && exec_stream_wanted(request)) {
        err_set(&err, ERR_INVALID_FIELD,
                "field 'detach': its answer is a record; ask for the "
                "stream of events at the Location");
        return reply_problem(request, &err);
    }
    /* Whoever is to send the input has the disconnect grace to begin. */
    bool elsewhere = wish->detach || wish->spec.stdin_kind == EXEC_STDIN_PIPE;
    if (start(request, &wish->spec, json, &once, &exec, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return exec ? reply_started(request, exec, elsewhere, wait_s)
                : reply_stored(request, once.number, elsewhere);
}

static enum verdict post_exec(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    const struct sandboxes_config *config = sandboxes_config(request_sandboxes(request));
    cleanup(exec_wish_done) struct exec_wish wish = {.detach = false};
    bool patient = exec_preferred_wait(request) >= 0;
    if (request_json(request, false, &json, &err) < 0 ||
        exec_body_parse(json, config, patient, &wish, &err) < 0) {
        return reply_problem(request, &err);
    }
    return exec_begin_reply(request, &wish, json);
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
    {"POST", "/v1/sandboxes/{id}/execs", post_exec, ROUTE_SANDBOX | ROUTE_JSON_BODY | ROUTE_INLINE,
     NULL},
    {"GET", "/v1/sandboxes/{id}/execs", get_execs, ROUTE_SANDBOX | ROUTE_GONE_TOO, "before limit"},
    {"GET", "/v1/sandboxes/{id}/execs/{n}", get_exec, ROUTE_SANDBOX | ROUTE_GONE_TOO, "wait"},
    {"PUT", "/v1/sandboxes/{id}/execs/{n}/stdin", put_stdin, ROUTE_SANDBOX | ROUTE_STREAM_BODY,
     NULL},
    {"GET", "/v1/sandboxes/{id}/execs/{n}/output", get_output, ROUTE_SANDBOX | ROUTE_GONE_TOO,
     "stream offset limit follow"},
};

const struct route_table exec_routes = {routes, ARRAY_LEN(routes)};
