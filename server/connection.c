#include "server/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/body.h"
#include "server/gate.h"
#include "server/http_impl.h"
#include "server/reply.h"
#include "server/run.h"

/* One request of a connection, as libmicrohttpd calls for it: its line, its headers (the first
 * call), pieces of its body, its end, and its completion. All on libmicrohttpd's thread but the
 * functions whose header comment says "any thread". */

/* Up to here a refused body is read to its end before the answer; a longer one is answered at once
 * and the connection closed. */
#define DRAIN_MAX (64 * MIB)

static struct peer *peer_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

static void peer_set(struct http *http, struct MHD_Connection *connection, struct request *request)
{
    struct peer *peer = peer_of(connection);

    if (!peer)
        return;
    pthread_mutex_lock(&http->peers_lock);
    peer->request = request;
    pthread_mutex_unlock(&http->peers_lock);
}

/* --- suspending ---------------------------------------------------------------------------------
 */

enum outlook {
    REPLY_LATER, /* suspended */
    REPLY_STEP,  /* run_step() is to be called */
    REPLY_NOW,
    REPLY_NEVER,
};

static enum outlook suspend_for_reply(struct request *request)
{
    enum outlook outlook = REPLY_LATER;

    pthread_mutex_lock(&request->lock);
    if (request->replied) {
        outlook = REPLY_NOW;
    } else if (request->woken) {
        request->woken = false;
        outlook = REPLY_STEP;
    } else if (atomic_load(&request->http->dead)) {
        outlook = REPLY_NEVER;
    } else {
        MHD_suspend_connection(request->connection);
        request->suspended = true;
    }
    pthread_mutex_unlock(&request->lock);
    return outlook;
}

bool connection_wake(struct request *request)
{
    pthread_mutex_lock(&request->lock);
    bool there = request->connection != NULL;
    request->woken = there;
    if (there && request->suspended) {
        request->suspended = false;
        MHD_resume_connection(request->connection);
    }
    pthread_mutex_unlock(&request->lock);
    return there;
}

void connection_suspend_for(struct request *request, struct event *event, uint64_t seen,
                            int64_t deadline_ms)
{
    pthread_mutex_lock(&request->lock);
    bool suspends = !atomic_load(&request->http->dead);
    if (suspends) {
        MHD_suspend_connection(request->connection);
        request->suspended = true;
    }
    pthread_mutex_unlock(&request->lock);
    connection_watch(request);
    if (suspends &&
        !suspended_park(request->http->suspended, &request->flow, event, seen, deadline_ms))
        connection_resume(request);
}

void connection_resume(struct request *request)
{
    pthread_mutex_lock(&request->lock);
    if (request->suspended) {
        request->suspended = false;
        MHD_resume_connection(request->connection);
    }
    pthread_mutex_unlock(&request->lock);
}

static void flow_wake(struct park *park)
{
    connection_resume(container_of(park, struct request, flow));
}

/* --- the client leaves --------------------------------------------------------------------------
 */

static void watch_ref(struct watch *watch)
{
    atomic_fetch_add(&container_of(watch, struct request, watch)->refs, 1);
}

static void watch_unref(struct watch *watch)
{
    request_unref(container_of(watch, struct request, watch));
}

/* Under the lock. */
static int socket_of(struct request *request)
{
    return MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD)
        ->connect_fd;
}

/* Under the lock. */
static void arm_watch(struct request *request)
{
    suspended_watch(request->http->suspended, &request->watch, socket_of(request),
                    !(request->receiving && request->fin));
}

void connection_patience(struct request *request, unsigned ms)
{
    pthread_mutex_lock(&request->lock);
    if (request->connection)
        (void)setsockopt(socket_of(request), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    pthread_mutex_unlock(&request->lock);
}

void connection_watch(struct request *request)
{
    pthread_mutex_lock(&request->lock);
    if (request->connection)
        arm_watch(request);
    pthread_mutex_unlock(&request->lock);
}

/* A FIN that arrives together with data is not seen by libmicrohttpd 0.9.75: after a read that did
 * not fill its buffer it waits for a next edge of epoll, and there is none. Shutting down what is
 * shut down already makes one; what has come is still read. */
static bool nudge(struct request *request)
{
    bool receiving = false;

    pthread_mutex_lock(&request->lock);
    if (request->connection && request->receiving) {
        receiving = true;
        request->fin = true;
        (void)shutdown(socket_of(request), SHUT_RD); /* fails only when it is reset: seen anyway */
        arm_watch(request);
    }
    pthread_mutex_unlock(&request->lock);
    return receiving;
}

void connection_interrupt(struct request *request)
{
    atomic_store(&request->gone, true);
    run_interrupt(request);
    suspended_interrupt(request->http->suspended, &request->flow);
}

static void watch_gone(struct watch *watch, bool reset)
{
    struct request *request = container_of(watch, struct request, watch);

    if (reset || !nudge(request))
        connection_interrupt(request);
}

/* --- a request begins ---------------------------------------------------------------------------
 */

void *connection_uri(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct http *http = cls;
    struct request *request = request_new(http, uri);

    request->connection = connection;
    request->flow.wake = flow_wake;
    request->wait.wake = run_wake;
    request->watch = (struct watch){.gone = watch_gone, .ref = watch_ref, .unref = watch_unref};
    atomic_fetch_add(&http->metrics.running, 1);
    peer_set(http, connection, request);
    return request;
}

static bool answers_at_once(const struct request *request)
{
    bool takes = strcmp(request->method, "POST") == 0 || strcmp(request->method, "PUT") == 0;
    const char *expect = request_header(request, "Expect");

    /* libmicrohttpd 0.9.75 takes an early answer to an unread body only with these methods. */
    return request->reply.close || request->body_length == 0 ||
           (takes && (expect || request->body_length > (int64_t)DRAIN_MAX));
}

static enum MHD_Result begin(struct request *request, struct MHD_Connection *connection,
                             const char *method, const char *version)
{
    struct err err;

    request->begun = true;
    if (gate_admit(request, connection, method, version, &request->reply.close, &err) ||
        body_begin(request, &err)) {
        request->plan = BODY_REFUSED;
        if (err.code == ERR_METHOD_NOT_ALLOWED)
            reply_header(request, "Allow", request->match.allow);
        (void)reply_problem(request, &err);
        return answers_at_once(request) ? reply_queue(request, connection) : MHD_YES;
    }
    if (request->plan == BODY_PIPED) {
        request->receiving = true; /* nobody else knows the request yet */
        connection_watch(request);
        run_begin(request);
    }
    return MHD_YES;
}

/* --- and ends -----------------------------------------------------------------------------------
 */

static enum MHD_Result end(struct request *request, struct MHD_Connection *connection)
{
    enum outlook outlook;

    body_end(request, true);
    if (request->plan == BODY_REFUSED)
        return reply_queue(request, connection);
    if (!request->submitted)
        run_begin(request);
    if (request->plan == BODY_PIPED)
        connection_watch(request);
    while ((outlook = suspend_for_reply(request)) == REPLY_STEP)
        run_step(request);
    if (outlook == REPLY_LATER)
        return MHD_YES;
    return outlook == REPLY_NOW ? reply_queue(request, connection) : MHD_NO;
}

/* The signature is libmicrohttpd's. */
enum MHD_Result connection_handle(/* NOLINT(readability-function-size) */
                                  void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
    struct request *request = *context;

    (void)cls;
    (void)url; /* decoded by rules that are not ours: raw_uri is used */
    if (!request->begun)
        return begin(request, connection, method, version);
    bool late = suspended_settle(request->http->suspended, &request->flow);
    if (*size)
        return late ? MHD_NO : body_take(request, data, size);
    return end(request, connection);
}

static void log_access(const struct request *request, bool whole)
{
    int status = request->queued ? request->reply.status : 0;
    int64_t took_us = clock_now_us() - request->started_us;
    char status_text[16], took_text[24];

    metrics_count(&request->http->metrics, status, took_us);
    if (!log_shows(LOG_LEVEL_INFO))
        return;
    (void)snprintf(status_text, sizeof(status_text), "%d", status);
    (void)snprintf(took_text, sizeof(took_text), "%lld.%03d", (long long)(took_us / 1000),
                   (int)(took_us % 1000));
    log_event(LOG_LEVEL_INFO, "request", "method", request->method, "path",
              request->path ? request->path : "", "status", status_text, "ms", took_text, "req_id",
              request->id, "owner", request->owner, "end", whole ? "ok" : "cut", NULL);
}

/* The end of a request on its connection, whose thread this is. */
/* Answered in full while the server stops: as http.c ends those that were idle by then. */
static void end_if_stopping(struct http *http, struct MHD_Connection *connection)
{
    const struct peer *peer = peer_of(connection);
    char byte;

    if (peer && atomic_load(&http->stopping) &&
        recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        (void)shutdown(peer->fd, SHUT_RD); /* fails only when it has ended */
}

static void leave(struct request *request, struct MHD_Connection *connection, bool whole)
{
    struct http *http = request->http;

    peer_set(http, connection, NULL);
    end_if_stopping(http, connection);
    (void)suspended_settle(http->suspended, &request->flow);
    if (request->queued && (request->reply.pipe || request->reply.upstream))
        connection_patience(request, 0);
    pthread_mutex_lock(&request->lock);
    suspended_unwatch(http->suspended, &request->watch);
    request->connection = NULL;
    request->suspended = false;
    bool woken = request->woken;
    request->woken = false;
    pthread_mutex_unlock(&request->lock);
    body_end(request, false);
    if (request->queued) {
        reply_abandon(request, whole);
    } else if (request->submitted) {
        atomic_store(&request->gone, true);
        run_interrupt(request);
        if (woken)
            run_on_pool(request);
    }
    if (request->begun)
        log_access(request, whole);
    atomic_fetch_sub(&http->metrics.running, 1);
}

void connection_upgraded(struct request *request, struct MHD_Connection *connection)
{
    request->upgraded = true;
    leave(request, connection, true);
    if (request->state_free)
        request->state_free(request->state);
    request->state_free = NULL;
}

void connection_completed(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode code)
{
    struct request *request = *context;

    (void)cls;
    if (!request)
        return;
    *context = NULL;
    if (!request->upgraded)
        leave(request, connection, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    request_unref(request);
}
