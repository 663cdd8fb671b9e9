#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/framing.h"
#include "server/request.h"
#include "server/route.h"
#include "server/suspended.h"
#include "server/uri.h"

/* The data of the HTTP core, for its files only: handlers see
 * server/request.h.
 *
 * A request is held by its connection, until libmicrohttpd says that it completed, and by its
 * handler, from its submission to its DONE. Both go on at once only for a route that streams its
 * body.
 *
 * Suspending: only libmicrohttpd's thread suspends, inside a callback, and only under `lock` after
 * it saw that there is still something to wait for; whoever ends the wait takes `lock`, and resumes
 * only what `suspended` says is suspended. So a resume can neither come first nor come twice.
 *
 * Lock order: a park's lock (suspended.c), an event's, request->lock, then the watch's lock and
 * libmicrohttpd's own. No event is fired, waited for or cancelled under request->lock. */

enum body_plan {
    BODY_REFUSED,   /* thrown away; the reply, set already, follows */
    BODY_COLLECTED, /* into memory, then the handler runs */
    BODY_PIPED,     /* the handler runs at once and reads the pipe */
};

struct http;
struct proxied;
struct upstream;
struct session;

struct reply {
    int status;
    struct text_field *headers;
    size_t header_count, header_cap;
    char *type;
    char *body; /* malloc'd */
    size_t len;
    struct pipe *pipe;         /* instead of the body */
    struct upstream *upstream; /* or its */
    struct session *session;   /* or a WebSocket of ours */
    int64_t pipe_length;
    uint64_t pipe_sent, pipe_paused; /* bytes; at the last pause */
    bool close;                      /* the connection ends with it */
    bool verbatim;                   /* the headers are a program's: none of ours */
};

struct request {
    struct http *http;
    atomic_uint refs;

    /* libmicrohttpd's thread fills these before the handler runs; constant then */
    char *raw_uri;
    const char *uri_at; /* where it stood in libmicrohttpd's buffer: only compared */
    char *path;         /* raw, without the query */
    char method[16];
    char id[129];
    char owner[129];
    struct caller caller;
    struct text_field *headers;
    size_t header_count;
    struct uri_query query;
    struct route_match match;
    int64_t body_length;          /* -1: chunked */
    bool unchunked;               /* HTTP/1.0: no chunks in the answer */
    struct proxied *proxied;      /* NULL unless it is for a preview */
    int64_t started_us, waits_us; /* waits_us: for a thread, since then */

    /* libmicrohttpd's thread */
    bool begun;
    bool ended;     /* the whole body has come */
    bool at_once;   /* the handler's first step blocks no more than the others */
    bool submitted; /* the handler has been, or is being, run */
    bool queued;    /* the reply is libmicrohttpd's */
    bool upgraded;  /* the connection is a session's */
    enum body_plan plan;
    int64_t drain_until_ms;
    struct park flow; /* waits for a pipe while the connection is suspended */

    /* the body: written by libmicrohttpd's thread, the handler's once it is submitted */
    struct buf body;
    struct pipe *body_pipe;
    struct json *json;

    /* the handler's */
    handler_fn next;
    struct park wait;
    struct sandbox *sandbox;
    void *state;
    void (*state_free)(void *state);
    struct reply reply;

    /* what the handler's wait asks for */
    struct event *wait_event;
    uint64_t wait_seen;
    int64_t wait_deadline_ms;

    atomic_bool gone; /* the client has left */

    pthread_mutex_t lock;
    struct MHD_Connection *connection; /* NULL once completed */
    bool suspended;                    /* the connection, by us */
    bool receiving; /* a piped body is coming: a FIN ends or cuts it, but is no leaving yet */
    bool fin;       /* it came while receiving */
    bool replied;   /* `reply` is complete */
    bool woken;     /* the next step is libmicrohttpd's thread's to run */
    struct watch watch;
};

struct request *request_new(struct http *http, const char *raw_uri);
void request_unref(struct request *request);
