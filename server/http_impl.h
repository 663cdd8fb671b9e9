#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/pool.h"
#include "server/callers.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/suspended.h"

/* The HTTP side as a whole, for its own files only. */

struct request;

struct peer { /* one connection, from accept to close; guarded by http->peers_lock */
    struct peer *next, *prev;
    int fd;
    bool started;            /* libmicrohttpd knows it; its thread's */
    struct request *request; /* from its request line to its completion */
};

struct http {
    struct app *app;
    struct MHD_Daemon *daemon;
    struct pool *pool;
    struct suspended *suspended;
    struct callers *callers;
    const struct route_table *const *routes;
    bool local_only;
    const char *preview_domain, *preview_scheme;
    struct sessions *sessions; /* connections that were upgraded */
    int port;
    int listen_fd;
    atomic_bool stopping; /* replies close their connections, /readyz fails */
    atomic_bool aborting; /* the deadline has passed: nothing waits any longer */
    atomic_bool dead;     /* no connection is suspended any longer */
    char id_prefix[9];
    atomic_uint_fast64_t next_id;
    struct metrics metrics;
    pthread_mutex_t peers_lock;
    pthread_cond_t peers_left;
    struct peer *peers;
    size_t peer_count;
};
