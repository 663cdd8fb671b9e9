/* What tests prepare and ask of the fake driver. With another driver the routes answer 404. */
#include <stdlib.h>

#include "base/caps.h"
#include "fake/fake.h"
#include "sandbox/previews.h"
#include "sandbox/sandbox.h"
#include "sandbox/spec.h"
#include "server/app.h"
#include "server/fake_notes.h"
#include "server/options.h"
#include "server/route.h"
#include "server/routes.h"

/* NULL: ERR says which driver this server has. */
static struct fake *fake_in(const struct request *request, struct err *err)
{
    const struct app *app = request_app(request);
    if (!app->fake) {
        (void)err_set(err, ERR_FAKE_ONLY, "this server's driver is %s", app->options->driver);
    }
    return app->fake;
}

/* --- notes ----------------------------------------------------------------------------------- */

void note_preview(struct request *request, const struct preview_request *preview)
{
    const struct fake_preview note = {
        .port = preview->port,
        .subdomain = preview->subdomain,
        .command = &preview->command,
        .env = &preview->env,
    };
    struct fake *fake = request_app(request)->fake;
    if (fake) {
        fake_note_preview(fake, sandbox_id(request_sandbox(request)), &note);
    }
}

void note_preview_removed(struct request *request, int64_t port)
{
    struct fake *fake = request_app(request)->fake;
    if (fake) {
        fake_note_preview_removed(fake, sandbox_id(request_sandbox(request)), port);
    }
}

void note_secrets(struct request *request, size_t count)
{
    struct fake *fake = request_app(request)->fake;
    if (fake) {
        fake_note_secrets(fake, sandbox_id(request_sandbox(request)), count);
    }
}

char *take_prepared_id(struct request *request)
{
    struct fake *fake = request_app(request)->fake;
    return fake ? fake_take_id(fake) : NULL;
}

/* --- what is prepared ------------------------------------------------------------------------ */

typedef int put_fn(struct fake *fake, const struct json *body, struct err *err);
typedef struct json *get_fn(struct fake *fake);
typedef void delete_fn(struct fake *fake);

static enum verdict put_prepared(struct request *request, put_fn *put, get_fn *get)
{
    struct err err = {0};
    const struct json *body = NULL;
    struct fake *fake = fake_in(request, &err);
    if (!fake || request_json(request, false, &body, &err) < 0 || put(fake, body, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, get(fake));
}

static enum verdict get_prepared(struct request *request, get_fn *get)
{
    struct err err = {0};
    struct fake *fake = fake_in(request, &err);
    return fake ? reply_json(request, 200, get(fake)) : reply_problem(request, &err);
}

static enum verdict delete_prepared(struct request *request, delete_fn *delete)
{
    struct err err = {0};
    struct fake *fake = fake_in(request, &err);
    if (!fake) {
        return reply_problem(request, &err);
    }
    delete (fake);
    return reply_empty(request, 204);
}

static enum verdict put_replies(struct request *request)
{
    return put_prepared(request, fake_put_replies, fake_replies);
}

static enum verdict get_replies(struct request *request)
{
    return get_prepared(request, fake_replies);
}

static enum verdict delete_replies(struct request *request)
{
    return delete_prepared(request, fake_delete_replies);
}

static enum verdict put_files(struct request *request)
{
    return put_prepared(request, fake_put_files, fake_files);
}

static enum verdict get_files(struct request *request)
{
    return get_prepared(request, fake_files);
}

static enum verdict delete_files(struct request *request)
{
    return delete_prepared(request, fake_delete_files);
}

static enum verdict put_creates(struct request *request)
{
    return put_prepared(request, fake_put_creates, fake_creates);
}

static enum verdict get_creates(struct request *request)
{
    return get_prepared(request, fake_creates);
}

static enum verdict delete_creates(struct request *request)
{
    return delete_prepared(request, fake_delete_creates);
}

static int put_checked_ids(struct fake *fake, const struct json *body, struct err *err)
{
    const struct json *ids = json_get(body, "ids");
    for (const struct json *id = json_first(ids); id; id = json_next(id)) {
        if (json_text(id) && !sandbox_id_valid(json_text(id))) {
            return err_set(err, ERR_INVALID_FIELD, "field 'ids': '%.64s' cannot be an id",
                           json_text(id));
        }
    }
    return fake_put_ids(fake, body, err);
}

static enum verdict put_ids(struct request *request)
{
    return put_prepared(request, put_checked_ids, fake_ids);
}

static enum verdict get_ids(struct request *request)
{
    return get_prepared(request, fake_ids);
}

static enum verdict delete_ids(struct request *request)
{
    return delete_prepared(request, fake_delete_ids);
}

/* --- what was asked for ---------------------------------------------------------------------- */

static char *query_text(const struct request *request, const char *name)
{
    struct str value;
    return request_query(request, name, &value) ? xstrndup(value.ptr, value.len) : NULL;
}

static enum verdict get_calls(struct request *request)
{
    struct err err = {0};
    cleanup_free char *sandbox = query_text(request, "sandbox");
    cleanup_free char *type = query_text(request, "type");
    int64_t after = 0, limit = CAP_LIST_LIMIT;
    struct fake *fake = fake_in(request, &err);
    if (!fake || request_query_int(request, "after", 0, INT64_MAX, &after, &err) < 0 ||
        request_query_int(request, "limit", 1, CAP_LIST_LIMIT, &limit, &err) < 0) {
        return reply_problem(request, &err);
    }
    const struct calls_query query = {
        .sandbox = sandbox, .type = type, .after = after, .limit = (size_t)limit};
    return reply_json(request, 200, fake_calls(fake, &query));
}

static enum verdict delete_calls(struct request *request)
{
    return delete_prepared(request, fake_delete_calls);
}

static const struct route routes[] = {
    {"PUT", "/v1/fake/replies", put_replies, ROUTE_ADMIN | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/fake/replies", get_replies, ROUTE_ADMIN, NULL},
    {"DELETE", "/v1/fake/replies", delete_replies, ROUTE_ADMIN, NULL},
    {"PUT", "/v1/fake/files", put_files, ROUTE_ADMIN | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/fake/files", get_files, ROUTE_ADMIN, NULL},
    {"DELETE", "/v1/fake/files", delete_files, ROUTE_ADMIN, NULL},
    {"PUT", "/v1/fake/creates", put_creates, ROUTE_ADMIN | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/fake/creates", get_creates, ROUTE_ADMIN, NULL},
    {"DELETE", "/v1/fake/creates", delete_creates, ROUTE_ADMIN, NULL},
    {"PUT", "/v1/fake/ids", put_ids, ROUTE_ADMIN | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/fake/ids", get_ids, ROUTE_ADMIN, NULL},
    {"DELETE", "/v1/fake/ids", delete_ids, ROUTE_ADMIN, NULL},
    {"GET", "/v1/fake/calls", get_calls, ROUTE_ADMIN, "sandbox type after limit"},
    {"DELETE", "/v1/fake/calls", delete_calls, ROUTE_ADMIN, NULL},
};

const struct route_table fake_routes = {routes, ARRAY_LEN(routes)};
