#include <stddef.h>

#include "sandbox/sandboxes.h"
#include "server/api_list.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

static enum verdict get_all(struct request *request)
{
    struct err err = {0};
    bool foreign = false;
    struct str owner = {0};
    if (request_query_bool(request, "foreign", &foreign, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (foreign) {
        struct json *page = NULL;
        if (sandboxes_foreign(request_sandboxes(request), &page, &err) < 0) {
            return reply_problem(request, &err);
        }
        return reply_json(request, 200, page);
    }
    cleanup_free char *name =
        request_query(request, "owner", &owner) ? xstrndup(owner.ptr, owner.len) : NULL;
    return list_sandboxes(request, name);
}

static enum verdict get_stats(struct request *request)
{
    struct err err = {0};
    struct json *json = NULL;
    if (sandboxes_stats(request_sandboxes(request), &json, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, json);
}

struct reap_body {
    bool dry_run;
};

static const struct json_field reap_fields[] = {
    {.name = "dry_run", .decode = json_decode_bool, .offset = offsetof(struct reap_body, dry_run)},
    JSON_FIELDS_END,
};

static enum verdict post_reap(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    struct json *report = NULL;
    struct reap_body body = {0};
    if (request_json(request, true, &json, &err) < 0 ||
        json_decode(json, reap_fields, "", &body, &err) < 0 ||
        sandboxes_reap(request_sandboxes(request), body.dry_run, &report, &err) < 0) {
        return reply_problem(request, &err);
    }
    return reply_json(request, 200, report);
}

static enum verdict get_capabilities(struct request *request)
{
    struct err err = {0};
    struct json *json = NULL;
    if (sandboxes_capabilities(request_sandboxes(request), &json, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct json *caller = json_new_object();
    json_set_text(caller, "owner", request_caller(request)->owner);
    json_set_text(caller, "role", request_caller(request)->admin ? "admin" : "user");
    json_set(json, "caller", caller);
    return reply_json(request, 200, json);
}

static const struct route routes[] = {
    {"GET", "/v1/admin/sandboxes", get_all, ROUTE_ADMIN, "state label limit cursor owner foreign"},
    {"GET", "/v1/admin/stats", get_stats, ROUTE_ADMIN, NULL},
    {"POST", "/v1/admin/reap", post_reap, ROUTE_ADMIN | ROUTE_JSON_BODY, NULL},
    {"GET", "/v1/capabilities", get_capabilities, 0, NULL},
};

const struct route_table admin_routes = {routes, ARRAY_LEN(routes)};
