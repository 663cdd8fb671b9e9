#include "server/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/preview_access.h"
#include "sandbox/sandboxes.h"
#include "server/http_impl.h"
#include "server/preview_gate.h"
#include "server/preview_host.h"
#include "server/proxy_page.h"
#include "server/reply.h"
#include "server/upstream.h"
#include "server/upstream_request.h"

#define PROXY_HEAD_MAX (48 * KIB)

/* --- admission: libmicrohttpd's thread ----------------------------------------------------------
 */

void proxied_free(struct proxied *proxied)
{
    if (!proxied)
        return;
    buf_wipe(&proxied->head); /* credentials of the program's users */
    if (proxied->target.sandbox)
        preview_target_done(&proxied->target);
    free(proxied);
}

bool proxy_wants(const struct request *request, char ret_name[PREVIEW_HOST_LEN])
{
    const char *domain = request->http->preview_domain;
    const char *host = request_header(request, "Host");

    return domain && host && preview_host_read(host, domain, ret_name);
}

static void client_address(struct MHD_Connection *connection, char ret_text[INET6_ADDRSTRLEN])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    const char *text = NULL;

    if (address && address->sa_family == AF_INET)
        text = inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
                         ret_text, INET6_ADDRSTRLEN);
    else if (address && address->sa_family == AF_INET6)
        text = inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
                         ret_text, INET6_ADDRSTRLEN);
    if (!text)
        memcpy(ret_text, "unknown", sizeof("unknown"));
}

static bool is_own_key(const struct request *request, const char *given)
{
    char owner[129];
    bool admin;
    struct err err;

    if (strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    given += 7 + strspn(given + 7, " ");
    return callers_check(request->http->callers, given, owner, &admin, &err) == 0;
}

/* A key of the API would let the program act for its user. Programs differ in which of several
 * headers they look at: each counts. */
static bool has_own_key(const struct request *request)
{
    if (!callers_keyed(request->http->callers))
        return false;
    for (size_t i = 0; i < request->header_count; i++) {
        if (strcasecmp(request->headers[i].name, "Authorization") == 0 &&
            is_own_key(request, request->headers[i].value))
            return true;
    }
    return false;
}

static enum verdict serve(struct request *request);

static const struct route proxy_route = {"*", "*", serve,
                                         ROUTE_PUBLIC | ROUTE_STREAM_BODY | ROUTE_INLINE, NULL};

int proxy_admit(struct request *request, struct MHD_Connection *connection, const char *name,
                struct err *err)
{
    struct proxied *proxied = xcalloc(1, sizeof(*proxied));
    char address[INET6_ADDRSTRLEN];

    request->proxied = proxied;
    request->match.route = &proxy_route;
    request->caller.owner = request->owner;
    memcpy(proxied->host, name, strlen(name) + 1);
    request->at_once =
        preview_recall(request_app(request)->sandboxes, proxied->host, &proxied->target);
    buf_init(&proxied->head, PROXY_HEAD_MAX);
    client_address(connection, address);
    proxied->upgrade =
        upstream_wants_upgrade(request->headers, request->header_count, request->body_length);
    const struct upstream_request upstream = {
        .method = request->method,
        .target = request->raw_uri,
        .headers = request->headers,
        .header_count = request->header_count,
        .body_length = request->body_length,
        .upgrade = proxied->upgrade,
        .own_credentials = has_own_key(request),
        .client_address = address,
        .scheme = request->http->preview_scheme,
    };
    return upstream_request_write(&upstream, &proxied->head, err);
}

/* --- the exchange: a worker ---------------------------------------------------------------------
 */

struct exchange {
    struct preview_target target;
    struct upstream *upstream; /* until it is the reply's */
};

static void exchange_free(void *state)
{
    struct exchange *exchange = state;

    upstream_done(exchange->upstream, false);
    preview_target_done(&exchange->target);
    free(exchange);
}

/* What may be sent again when a kept tunnel turns out to be closed. */
static bool is_repeatable(const struct request *request)
{
    return request->body_length == 0 && !request->proxied->upgrade &&
           (strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0 ||
            strcmp(request->method, "OPTIONS") == 0);
}

/* A body goes straight from the client into the tunnel's pipe, behind the head. */
static int open_upstream(struct request *request, struct exchange *exchange, bool fresh,
                         struct err *err)
{
    const struct preview_target *target = &exchange->target;
    const struct buf *head = &request->proxied->head;
    bool bodied = request->body_length != 0;
    struct tunnel *tunnel = NULL;

    if (!fresh && is_repeatable(request))
        tunnel = tunnel_reuse(target->sandbox, target->port);
    bool reused = tunnel != NULL;
    if (!tunnel && tunnel_open(target->sandbox, target->port, bodied ? request->body_pipe : NULL,
                               &tunnel, err))
        return -1;
    upstream_done(exchange->upstream, false);
    exchange->upstream = upstream_new(tunnel, reused, strcmp(request->method, "HEAD") == 0);
    if (!bodied) /* a new or idle pipe has the room */
        (void)pipe_write(tunnel_out(tunnel), head->ptr, head->len);
    return 0;
}

/* The codes of calls, as a visitor sees them. */
static enum verdict refuse(struct request *request, const struct err *err)
{
    struct err shown = *err;

    if (shown.code == ERR_NOT_READY)
        shown.code = ERR_PORT_CLOSED;
    else if (shown.code == ERR_SERVICE_FAILED)
        shown.code = ERR_BAD_ANSWER;
    log_event(LOG_LEVEL_DEBUG, "preview not served", "host", request->proxied->host, "code",
              err_code_name(err->code), "error", err->msg, "req_id", request->id, NULL);
    return reply_preview_page(request, &shown);
}

static enum verdict answer(struct request *request, struct exchange *exchange)
{
    const struct upstream_head *head = upstream_head(exchange->upstream);
    const struct err unasked = {ERR_BAD_ANSWER, "the program changed the protocol unasked"};

    if (head->status == 101 && !request->proxied->upgrade)
        return refuse(request, &unasked);
    return reply_upstream(request, TAKE_PTR(exchange->upstream));
}

static enum verdict wait_head(struct request *request)
{
    struct exchange *exchange = request_state(request);
    bool silent = false;
    const struct err stopping = {ERR_STOPPING, "the server is stopping; ask the next one"};
    struct err err = {0};

    for (;;) {
        struct event *readable = upstream_readable(exchange->upstream);
        uint64_t seen = event_count(readable);
        int rc = upstream_receive(exchange->upstream, &silent, &err);

        if (rc > 0)
            return answer(request, exchange);
        if (rc < 0 && silent && upstream_reused(exchange->upstream)) {
            if (open_upstream(request, exchange, true, &err))
                return refuse(request, &err);
            continue;
        }
        if (rc < 0)
            return refuse(request, &err);
        if (request_client_gone(request))
            return http_stopping(request->http) ? reply_problem(request, &stopping)
                                                : reply_empty(request, 204);
        return request_wait(request, readable, seen, 0, wait_head);
    }
}

static enum verdict begin_exchange(struct request *request)
{
    struct err err = {0};

    if (open_upstream(request, request_state(request), false, &err))
        return refuse(request, &err);
    return wait_head(request);
}

/* To an absolute address: the target may begin with two slashes, which would name another host. */
static enum verdict redirect(struct request *request, const struct exchange *exchange,
                             const char *target, const char *cookie)
{
    cleanup_free char *base = preview_url(request_app(request)->sandboxes, exchange->target.host);
    cleanup_free char *location = xasprintf("%.*s%s", (int)strlen(base) - 1, base, target);

    reply_header(request, "Location", location);
    reply_header(request, "Referrer-Policy", "no-referrer");
    if (*cookie)
        reply_header(request, "Set-Cookie", cookie);
    return reply_empty(request, 303);
}

static enum verdict visit_private(struct request *request, struct exchange *exchange)
{
    const struct err closed = {
        ERR_PREVIEW_PRIVATE,
        "this preview is private: its owner makes links that open it; they expire and can be "
        "revoked"};
    struct err ended = {0};
    cleanup_buf struct buf clean = BUF_INIT(PROXY_HEAD_MAX);
    cleanup_buf struct buf cookie = BUF_INIT(CAP_SMALL);
    const struct preview_visit visit = {
        .target = request->raw_uri,
        .headers = request->headers,
        .header_count = request->header_count,
        .now_s = clock_wall_ms() / 1000,
        .secure = strcmp(request->http->preview_scheme, "https") == 0,
    };

    if (preview_private_check(&exchange->target, &ended) < 0)
        return refuse(request, &ended);
    switch (preview_gate_look(&exchange->target, &visit, &clean, &cookie)) {
    case PREVIEW_PASS:
        return begin_exchange(request);
    case PREVIEW_REDIRECT:
        return redirect(request, exchange, buf_text(&clean), buf_text(&cookie));
    case PREVIEW_REFUSE:
        break;
    }
    return refuse(request, &closed);
}

static enum verdict serve(struct request *request)
{
    struct exchange *exchange = xcalloc(1, sizeof(*exchange));
    struct sandboxes *sandboxes = request_app(request)->sandboxes;
    struct err err = {0};

    request_keep(request, exchange, exchange_free);
    exchange->target = request->proxied->target;
    request->proxied->target = (struct preview_target){.sandbox = NULL};
    if (!exchange->target.sandbox &&
        preview_find(sandboxes, request->proxied->host, &exchange->target, &err))
        return refuse(request, &err);
    if (exchange->target.facts.is_private)
        return visit_private(request, exchange);
    return begin_exchange(request);
}
