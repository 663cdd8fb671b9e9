#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/app.h"

struct metrics;
struct route_table;

/* The HTTP side: libmicrohttpd's epoll thread, the worker pool, suspended requests. */
struct http_config {
    const char *listen;                      /* "127.0.0.1:8080", "[::1]:8080" */
    size_t workers;                          /* threads that run handlers */
    size_t queue;                            /* requests waiting for one; more get 503 */
    size_t connections;                      /* open at once */
    bool local_only;                         /* no keys: loopback Host and Origin only */
    const struct route_table *const *routes; /* ended by NULL */
    /* Hosts below it are previews that the server itself serves; NULL: none are. */
    const char *preview_domain;
    const char *preview_scheme;               /* as the visitor's browser sees it */
    void (*bound)(struct app *app, int port); /* before the first request; NULL: not told */
};

/* Sets app->http, too. */
int http_start(const struct http_config *config, struct app *app, struct http **ret_http,
               struct err *err) must_check;
int http_port(const struct http *http); /* what was bound, for port 0 */
/* For /readyz and /metrics. */
bool http_stopping(const struct http *http);
const struct metrics *http_metrics(const struct http *http);
size_t http_queued(const struct http *http);
/* No new connection is accepted, what has been accepted is answered (within AT_MOST_MS), then all
 * ends. Requests that still wait then are answered with ERR_STOPPING, not resumed. */
void http_stop(struct http *http, int64_t at_most_ms);
