#include "server/run.h"

#include "base/clock.h"
#include "sandbox/sandboxes.h"
#include "server/connection.h"
#include "server/http_impl.h"

/* Running handlers: on a worker of the pool, or, for quick routes, on libmicrohttpd's thread. */

static struct owner_view view_of(const struct request *request)
{
    return (struct owner_view){.owner = request->caller.owner,
                               .admin = request->caller.admin,
                               .failed_too = (request->match.route->flags & ROUTE_GONE_TOO) != 0};
}

static enum verdict find_sandbox(struct request *request)
{
    const struct route *route = request->match.route;
    const struct owner_view view = view_of(request);
    struct json *record = NULL;
    struct err err;

    if (sandboxes_find(request->http->app->sandboxes, &view, request_param(request, "id"),
                       &request->sandbox, &record, &err)) {
        if (err.code != ERR_GONE)
            return reply_problem(request, &err);
        if (!(route->flags & ROUTE_GONE_TOO))
            return record ? reply_problem_with(request, &err, "sandbox", record)
                          : reply_problem(request, &err);
        json_free(record);
    }
    return route->handler(request);
}

static void finish(struct request *request)
{
    if (!request->reply.status) {
        const struct err err = {ERR_INTERNAL, "the handler gave no answer"};

        (void)reply_problem(request, &err);
    }
    bool unread = request->body_pipe && !request->reply.upstream;
    pthread_mutex_lock(&request->lock);
    request->replied = true; /* the reply is libmicrohttpd's thread's now */
    pthread_mutex_unlock(&request->lock);
    /* A body that nobody reads any more must not keep the connection suspended; a program may read
     * on after its answer has begun. */
    if (unread)
        pipe_abandon(request->body_pipe, NULL);
    connection_resume(request);
    request_unref(request);
}

/* False: there is nothing to wait for. */
static bool wait_for(struct request *request)
{
    connection_watch(request);
    return suspended_park(request->http->suspended, &request->wait, request->wait_event,
                          request->wait_seen, request->wait_deadline_ms);
}

static void go_on(struct request *request, bool on_worker)
{
    const struct err stopping = {ERR_STOPPING, "the server is stopping; ask the next one"};

    (void)suspended_settle(request->http->suspended, &request->wait);
    for (;;) {
        /* Not told to the handler: it might take it for a client that left, and kill its command.
         */
        if (atomic_load(&request->http->aborting)) {
            (void)reply_problem(request, &stopping);
            break;
        }
        enum verdict verdict = request->next(request);
        if (verdict == DONE)
            break;
        if (verdict == ON_WORKER && !on_worker) {
            run_on_pool(request);
            return;
        }
        if (verdict == WAIT && wait_for(request))
            return;
    }
    finish(request);
}

static void run(void *arg)
{
    go_on(arg, true);
}

static void first_run(void *arg)
{
    struct request *request = arg;

    histogram_add(&request->http->metrics.queue, clock_now_us() - request->waits_us);
    go_on(request, true);
}

void run_wake(struct park *park)
{
    struct request *request = container_of(park, struct request, wait);

    if (!(request->match.route->flags & ROUTE_INLINE) || !connection_wake(request))
        run_on_pool(request);
}

void run_step(struct request *request)
{
    go_on(request, false);
}

void run_on_pool(struct request *request)
{
    /* Refused only after the pool has stopped, and http_stop ends all waits before. */
    (void)pool_resume(request->http->pool, run, request);
}

void run_interrupt(struct request *request)
{
    suspended_interrupt(request->http->suspended, &request->wait);
}

/* Whether it can be answered here and now. */
static bool is_quick(struct request *request)
{
    unsigned flags = request->match.route->flags;

    if (!(flags & ROUTE_QUICK) || !(flags & ROUTE_SANDBOX))
        return flags & ROUTE_QUICK;
    const struct owner_view view = view_of(request);
    request->sandbox =
        sandboxes_peek(request->http->app->sandboxes, &view, request_param(request, "id"));
    if (request->sandbox)
        request->next = request->match.route->handler;
    return request->sandbox != NULL;
}

void run_begin(struct request *request)
{
    const struct err busy = {ERR_BUSY, "too many requests are waiting"};
    unsigned flags = request->match.route->flags;

    request->submitted = true;
    request->next = flags & ROUTE_SANDBOX ? find_sandbox : request->match.route->handler;
    atomic_fetch_add(&request->refs, 1);
    if (request->at_once || is_quick(request)) {
        go_on(request, false);
    } else {
        request->waits_us = clock_now_us();
        if (!pool_submit(request->http->pool, first_run, request)) {
            (void)reply_problem(request, &busy);
            finish(request);
        }
    }
}
