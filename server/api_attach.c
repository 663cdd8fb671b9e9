#include <stddef.h>
#include <stdlib.h>

#include "base/caps.h"
#include "sandbox/attachment.h"
#include "sandbox/exec.h"
#include "sandbox/sandboxes.h"
#include "server/attached.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"
#include "server/web_socket.h"

#define RECORDS_SIZE (64 * KIB)

static int wish_of(const struct request *request, struct attachment_wish *wish, struct err *err)
{
    wish->write = true;
    if (request_param_number(request, "n", &wish->number, err) < 0 ||
        request_query_int(request, "offset", -INT64_MAX, INT64_MAX, &wish->offset[0], err) < 0 ||
        request_query_int(request, "stderr_offset", -INT64_MAX, INT64_MAX, &wish->offset[1], err) <
            0 ||
        request_query_bool(request, "write", &wish->write, err) < 0 ||
        request_query_bool(request, "takeover", &wish->takeover, err) < 0) {
        return -1;
    }
    if (!wish->write && wish->takeover) {
        return err_set(err, ERR_INVALID_FIELD,
                       "query parameter 'takeover' cannot be combined with write=false");
    }
    return 0;
}

static enum verdict get_attach(struct request *request)
{
    struct err err = {0};
    struct attachment_wish wish = {.number = 0};
    struct attachment *attachment = NULL;
    if (wish_of(request, &wish, &err) < 0 || web_socket_check(request, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct pipe *records = pipe_new(RECORDS_SIZE);
    if (attachment_open(request_sandbox(request), &wish, records, &attachment, &err) < 0) {
        pipe_abandon(records, NULL);
        pipe_unref(records);
        return reply_masked_problem(request, &err);
    }
    return reply_web_socket(request, attached_new(attachment, records));
}

/* --- POST …/resize --------------------------------------------------------------------------- */

struct resize_body {
    int64_t columns, rows;
};

static const struct json_field resize_fields[] = {
    {.name = "cols",
     .decode = json_decode_int,
     .offset = offsetof(struct resize_body, columns),
     .required = true,
     .min = 1,
     .max = UINT16_MAX},
    {.name = "rows",
     .decode = json_decode_int,
     .offset = offsetof(struct resize_body, rows),
     .required = true,
     .min = 1,
     .max = UINT16_MAX},
    JSON_FIELDS_END,
};

/* Not in memory any more, or never was. */
static enum verdict reply_ended(struct request *request, int64_t number)
{
    struct err err = {0};
    struct json *record = NULL;
    if (exec_json(request_sandboxes(request), sandbox_uid(request_sandbox(request)), number, false,
                  &record, &err) == 0) {
        json_free(record);
        err_set(&err, ERR_CONFLICT, "execution %lld has ended", (long long)number);
    }
    return reply_masked_problem(request, &err);
}

static enum verdict post_resize(struct request *request)
{
    struct err err = {0};
    int64_t number = 0;
    const struct json *json = NULL;
    struct resize_body body = {.columns = 0};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, resize_fields, "", &body, &err) < 0 ||
        request_param_number(request, "n", &number, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct exec *exec = exec_find(request_sandbox(request), number);
    if (!exec) {
        return reply_ended(request, number);
    }
    int rc = exec_resize(exec, (unsigned)body.columns, (unsigned)body.rows, &err);
    exec_unref(exec);
    return rc < 0 ? reply_problem(request, &err) : reply_empty(request, 204);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/execs/{n}/attach", get_attach, ROUTE_SANDBOX | ROUTE_WEB_SOCKET,
     "offset stderr_offset write takeover"},
    {"POST", "/v1/sandboxes/{id}/execs/{n}/resize", post_resize, ROUTE_SANDBOX | ROUTE_JSON_BODY,
     NULL},
};

const struct route_table attach_routes = {routes, ARRAY_LEN(routes)};
