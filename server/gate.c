#include "server/gate.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/http_impl.h"
#include "server/origin.h"
#include "server/proxy.h"
#include "server/web_socket.h"

/* What every request passes before its handler: framing, target, Host and Origin, route, key,
 * query. */

#define MAX_HEADERS 100

struct header_walk {
    struct request *request;
    size_t room;
    bool bad;
};

static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                   size_t key_size, const char *value, size_t value_size)
{
    struct header_walk *walk = cls;
    struct request *request = walk->request;

    (void)kind;
    if (!value) {
        value = "";
        value_size = 0;
    }
    if (request->header_count == walk->room || strlen(key) != key_size ||
        strlen(value) != value_size) {
        walk->bad = true;
        return MHD_NO;
    }
    request->headers[request->header_count++] =
        (struct text_field){.name = xstrdup(key), .value = xstrdup(value)};
    return MHD_YES;
}

static int take_headers(struct request *request, struct MHD_Connection *connection, struct err *err)
{
    int count = MHD_get_connection_values_n(connection, MHD_HEADER_KIND, NULL, NULL);
    struct header_walk walk = {.request = request, .room = count > 0 ? (size_t)count : 0};

    if (walk.room > MAX_HEADERS)
        return err_set(err, ERR_HEADERS_TOO_LARGE, "more than %d headers", MAX_HEADERS);
    request->headers = xcalloc(walk.room + 1, sizeof(*request->headers));
    (void)MHD_get_connection_values_n(connection, MHD_HEADER_KIND, take_header, &walk);
    if (walk.bad)
        return err_set(err, ERR_INVALID_REQUEST, "a header has a NUL in it");
    return 0;
}

static void take_request_id(struct request *request)
{
    const char *given = request_header(request, "X-Request-ID");
    size_t len = given ? strlen(given) : 0;

    if (len && len < sizeof(request->id) && str_is_printable(given, len))
        memcpy(request->id, given, len + 1);
}

static int check_target(struct request *request, const char *version, struct err *err)
{
    /* libmicrohttpd hands out C strings; a NUL in the target shows by what should follow it, the
     * version, standing further behind. */
    if (request->uri_at + strlen(request->raw_uri) + 1 != version)
        return err_set(err, ERR_INVALID_PATH, "the request line is malformed");
    if (uri_check(request->raw_uri, err))
        return -1;
    request->path = xstrndup(request->raw_uri, strcspn(request->raw_uri, "?"));
    return 0;
}

/* The key of the request, or NULL. */
static const char *given_key(const struct request *request)
{
    const char *bearer = request_header(request, "Authorization");

    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return bearer + 7 + strspn(bearer + 7, " ");
    return request_header(request, "X-API-Key");
}

static int check_key(struct request *request, const char *key, struct err *err)
{
    const struct route *route = request->match.route;

    if (callers_keyed(request->http->callers) && !key)
        return err_set(err, ERR_UNAUTHENTICATED, "no API key came with the request");
    if (callers_check(request->http->callers, key ? key : "", request->owner,
                      &request->caller.admin, err))
        return -1;
    if ((route->flags & ROUTE_ADMIN) && !request->caller.admin)
        return err_set(err, ERR_FORBIDDEN, "this needs a key with the role admin");
    return 0;
}

static int check_caller(struct request *request, struct err *err)
{
    const struct route *route = request->match.route;
    const char *key = given_key(request);

    request->caller.owner = request->owner;
    if (route->flags & ROUTE_PUBLIC)
        return 0;
    if (!key && (route->flags & ROUTE_WEB_SOCKET)) {
        char *offered = web_socket_key(request);
        int rc = check_key(request, offered, err);

        free_secret(offered, offered ? strlen(offered) : 0);
        return rc;
    }
    return check_key(request, key, err);
}

static int check_query(struct request *request, struct err *err)
{
    const char *mark = strchr(request->raw_uri, '?');

    return uri_query_parse(mark ? mark + 1 : NULL, request->match.route->query, &request->query,
                           err);
}

int gate_admit(struct request *request, struct MHD_Connection *connection, const char *method,
               const char *version, bool *ret_close, struct err *err)
{
    char name[PREVIEW_HOST_LEN];

    *ret_close = true;
    request->body_length = 0;
    request->unchunked = strcmp(version, "HTTP/1.1") != 0;
    if (take_headers(request, connection, err))
        return -1;
    take_request_id(request);
    if (strlen(method) >= sizeof(request->method))
        return err_set(err, ERR_INVALID_REQUEST, "the method is too long");
    if (!str_is_token(method))
        return err_set(err, ERR_INVALID_REQUEST, "the method is not a token");
    memcpy(request->method, method, strlen(method) + 1);
    if (framing_check(version, request->headers, request->header_count, &request->body_length,
                      err) ||
        check_target(request, version, err))
        return -1;
    *ret_close = false;
    if (proxy_wants(request, name))
        return proxy_admit(request, connection, name, err);
    if (origin_check(request_header(request, "Host"), request_header(request, "Origin"),
                     request->http->local_only, err) ||
        route_find(request->http->routes, method, request->path, &request->match, err) ||
        check_caller(request, err))
        return -1;
    return check_query(request, err);
}
