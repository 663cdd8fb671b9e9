#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sandbox/preview_access.h"
#include "sandbox/previews.h"
#include "sandbox/sandboxes.h"
#include "server/preview_gate.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define TTL_MS 3600000
#define TTL_MAX_MS INT64_C(2592000000) /* 30 days */

struct link_body {
    int64_t ttl_ms;
};

static const struct json_field link_fields[] = {
    {.name = "ttl",
     .decode = json_decode_seconds,
     .offset = offsetof(struct link_body, ttl_ms),
     .min = 1000,
     .max = TTL_MAX_MS},
    JSON_FIELDS_END,
};

static enum verdict post_link(struct request *request)
{
    struct link_body body = {.ttl_ms = TTL_MS};
    struct sandbox *sandbox = request_sandbox(request);
    const struct json *json = NULL;
    cleanup(preview_target_done) struct preview_target target = {.sandbox = NULL};
    char ticket[PREVIEW_TICKET_LEN];
    int64_t port = 0;
    struct err err = {0};

    if (request_param_number(request, "port", &port, &err) ||
        request_json(request, true, &json, &err) ||
        json_decode(json, link_fields, "", &body, &err) ||
        preview_of_port(sandbox, port, &target, &err))
        return reply_problem(request, &err);
    if (!target.facts.is_private) {
        (void)err_set(&err, ERR_CONFLICT,
                      "the preview of port %lld is public: its URL needs no link", (long long)port);
        return reply_problem(request, &err);
    }
    int64_t expires_s = (clock_wall_ms() + body.ttl_ms) / 1000;
    preview_ticket_make(&target, PREVIEW_LINK, expires_s, ticket);
    cleanup_free char *base = preview_url(request_sandboxes(request), target.host);
    cleanup_free char *url = xasprintf("%s?" LINK_PARAMETER "=%s", base, ticket);
    struct json *reply = json_new_object();
    json_set_text(reply, "url", url);
    json_set_time(reply, "expires", expires_s * 1000);
    return reply_json(request, 201, reply);
}

/* One change of a preview at a time. */
static enum verdict delete_links(struct request *request)
{
    struct sandbox *sandbox = request_sandbox(request);
    struct event *changed = sandbox_changed(sandbox);
    uint64_t seen = event_count(changed);
    int64_t port = 0;
    struct err err = {0};

    if (request_param_number(request, "port", &port, &err))
        return reply_problem(request, &err);
    if (!preview_claim(sandbox)) {
        return request_client_gone(request) ? reply_empty(request, 204)
                                            : request_wait(request, changed, seen, 0, delete_links);
    }
    int failed = preview_revoke_links(sandbox, port, &err);
    preview_release(sandbox);
    return failed ? reply_problem(request, &err) : reply_empty(request, 204);
}

static const struct route routes[] = {
    {"POST", "/v1/sandboxes/{id}/previews/{port}/links", post_link, ROUTE_SANDBOX | ROUTE_JSON_BODY,
     NULL},
    {"DELETE", "/v1/sandboxes/{id}/previews/{port}/links", delete_links, ROUTE_SANDBOX, NULL},
};

const struct route_table preview_link_routes = {routes, ARRAY_LEN(routes)};
