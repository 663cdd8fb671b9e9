#pragma once

#include <stddef.h>

#include "base/mem.h"
#include "server/request.h"

/* A route is one const entry in the file that serves it; server/routes.c collects the tables. */
enum {
    ROUTE_PUBLIC = 1 << 0,  /* needs no key (health, version, openapi) */
    ROUTE_ADMIN = 1 << 1,   /* role admin; others get 403 */
    ROUTE_SANDBOX = 1 << 2, /* {id} names a living sandbox of the caller: 404, or 410 when gone */
    ROUTE_STREAM_BODY = 1 << 3, /* the handler runs when the headers are in */
    ROUTE_JSON_BODY = 1 << 4,   /* body up to CAP_JSON_BODY */
    ROUTE_GONE_TOO = 1 << 5, /* with ROUTE_SANDBOX: also when gone (request_sandbox is NULL then) */
    /* Never blocks: runs on libmicrohttpd's thread, without the pool. With ROUTE_SANDBOX only when
     * that is in memory; else the store has to be asked. */
    ROUTE_QUICK = 1 << 6,
    /* After its first wait it blocks no more: its resume functions run on libmicrohttpd's thread,
     * once the body has come. */
    ROUTE_INLINE = 1 << 7,
    ROUTE_WEB_SOCKET = 1 << 8, /* the key may come as a subprotocol, too (web_socket.h) */
};

struct route {
    const char *method; /* GET also serves HEAD */
    const char *path;   /* "/v1/sandboxes/{id}/execs/{n}" */
    handler_fn handler;
    unsigned flags;
    const char *query; /* allowed query parameters, space-separated; NULL: none */
};

struct route_table {
    const struct route *routes;
    size_t count;
};

/* Finds the route in TABLES (ended by NULL), or fails with ERR_NOT_FOUND, or ERR_METHOD_NOT_ALLOWED
 * with RET_ALLOW filled.
 */
struct route_match {
    const struct route *route;
    char *params[4]; /* decoded, malloc'd, in the order of the pattern's {…} */
    char allow[64];
};
/* Finds the route in TABLES (ended by NULL), or fails with ERR_INVALID_PATH, ERR_NOT_FOUND, or
 * ERR_METHOD_NOT_ALLOWED with `allow` filled. The first that fits wins. */
int route_find(const struct route_table *const *tables, const char *method, const char *raw_path,
               struct route_match *ret_match, struct err *err) must_check;
void route_match_done(struct route_match *match);
