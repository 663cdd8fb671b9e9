#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/sandboxes.h"
#include "sandbox/session.h"
#include "sandbox/spec.h"
#include "server/exec_reply.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define IDLE_MS (INT64_C(3600) * 1000)
#define GRACE_MS 2000
#define GRACE_MAX_MS 60000

/* --- POST …/sessions ------------------------------------------------------------------------- */

#define BODY(member) offsetof(struct session_spec, member)
static const struct json_field session_fields[] = {
    {.name = "shell",
     .decode = json_decode_text,
     .offset = BODY(shell),
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "workdir",
     .decode = json_decode_text_any,
     .offset = BODY(workdir),
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "env", .decode = json_decode_text_map, .offset = BODY(env), .max = CAP_ENV},
    {.name = "timeout",
     .decode = json_decode_seconds,
     .offset = BODY(idle_ms),
     .min = 1,
     .max = INT64_C(366) * 86400 * 1000},
    JSON_FIELDS_END,
};

/* Of those that are known to work as a session. */
static int check_shell(const char *shell, struct err *err)
{
    static const char *const names[] = {"sh", "bash", "dash", "ash"};
    const char *slash = strrchr(shell, '/');
    const char *name = slash ? slash + 1 : shell;
    bool known = !slash || shell[0] == '/';
    for (size_t i = 0; known && i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return 0;
        }
    }
    return err_set(err, ERR_INVALID_FIELD,
                   "field 'shell' must be sh, bash, dash or ash, or an absolute path to one");
}

static void exec_free(void *exec)
{
    exec_unref(exec);
}

static enum verdict session_begun(struct request *request)
{
    struct exec *session = request_state(request);
    struct err err = {0};
    struct json *json = NULL;
    if (exec_problem(session, &err) || exec_error(session, &err)) {
        if (err.code == ERR_COMMAND_NOT_FOUND || err.code == ERR_NOT_EXECUTABLE) {
            err.code = ERR_SHELL_NOT_FOUND;
        }
        return reply_masked_problem(request, &err);
    }
    if (session_json(request_sandboxes(request), sandbox_uid(request_sandbox(request)),
                     exec_number(session), &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    cleanup_free char *location =
        xasprintf("/v1/sandboxes/%s/sessions/%lld", request_param(request, "id"),
                  (long long)exec_number(session));
    reply_header(request, "Location", location);
    return reply_json(request, 201, json);
}

static enum verdict session_wait(struct request *request)
{
    struct exec *session = request_state(request);
    struct event *output = exec_output_event(session);
    uint64_t seen = event_count(output);
    if (!exec_begun(session) && !request_client_gone(request)) {
        return request_wait(request, output, seen, 0, session_wait);
    }
    return request_on_worker(request, session_begun);
}

static enum verdict post_session(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    struct exec *session = NULL;
    cleanup(session_spec_done) struct session_spec spec = {.idle_ms = IDLE_MS};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, session_fields, "", &spec, &err) < 0 ||
        env_check(&spec.env, "env", &err) < 0) {
        return reply_problem(request, &err);
    }
    if (!spec.shell) {
        spec.shell = xstrdup("sh");
    }
    if (check_shell(spec.shell, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (session_start(request_sandbox(request), &spec, &session, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    request_keep(request, session, exec_free);
    return session_wait(request);
}

/* --- one, and all ---------------------------------------------------------------------------- */

static enum verdict get_session(struct request *request)
{
    struct err err = {0};
    cleanup_free char *uid = NULL;
    int64_t number = 0;
    struct json *json = NULL;
    if (request_param_number(request, "s", &number, &err) < 0 ||
        subject_uid(request, &uid, &err) < 0 ||
        session_json(request_sandboxes(request), uid, number, &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return reply_json(request, 200, json);
}

static enum verdict get_sessions(struct request *request)
{
    struct err err = {0};
    cleanup_free char *uid = NULL;
    int64_t limit = 0;
    struct exec_key before = {.number = 0};
    struct json *page = NULL;
    if (query_page(request, "before", &limit, &before.number, &err) < 0 ||
        subject_uid(request, &uid, &err) < 0) {
        return reply_problem(request, &err);
    }
    before.uid = uid;
    if (session_list_json(request_sandboxes(request), &before, (size_t)limit, &page, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, page);
}

static enum verdict delete_session(struct request *request)
{
    struct err err = {0};
    int64_t number = 0, grace_ms = GRACE_MS;
    struct json *json = NULL;
    if (request_query_seconds(request, "grace", GRACE_MAX_MS, &grace_ms, &err) < 0 ||
        request_param_number(request, "s", &number, &err) < 0 ||
        session_json(request_sandboxes(request), sandbox_uid(request_sandbox(request)), number,
                     &json, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    json_free(json);
    return exec_end_reply(request, number, grace_ms);
}

/* --- a command text -------------------------------------------------------------------------- */

static enum verdict post_run(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    const struct sandboxes_config *config = sandboxes_config(request_sandboxes(request));
    cleanup(exec_wish_done) struct exec_wish wish = {.detach = false};
    bool patient = exec_preferred_wait(request) >= 0;
    char *text = NULL;
    int64_t number = 0;
    if (request_param_number(request, "s", &number, &err) < 0 ||
        request_json(request, false, &json, &err) < 0 ||
        exec_text_parse(json, config, patient, &wish, &text, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (session_text(request_sandbox(request), number, text, &wish.spec, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return exec_begin_reply(request, &wish, json);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes/{id}/sessions", post_session, ROUTE_SANDBOX | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/sandboxes/{id}/sessions", get_sessions, ROUTE_SANDBOX | ROUTE_GONE_TOO,
     "before limit"},
    {"GET", "/v1/sandboxes/{id}/sessions/{s}", get_session, ROUTE_SANDBOX | ROUTE_GONE_TOO, NULL},
    {"DELETE", "/v1/sandboxes/{id}/sessions/{s}", delete_session, ROUTE_SANDBOX, "grace"},
    {"POST", "/v1/sandboxes/{id}/sessions/{s}/runs", post_run, ROUTE_SANDBOX | ROUTE_JSON_BODY,
     NULL},
};

const struct route_table session_routes = {routes, ARRAY_LEN(routes)};
