#include "server/body.h"

#include "base/clock.h"
#include "server/connection.h"
#include "server/reply.h"

#define PIPE_CAPACITY (256 * KIB)
/* What is thrown away of a refused body, in time. The client may not see an answer that is sent
 * while it is still sending. */
#define DRAIN_MS 30000

static size_t body_cap(const struct request *request)
{
    return request->match.route->flags & ROUTE_JSON_BODY ? CAP_JSON_BODY : 0;
}

int body_begin(struct request *request, struct err *err)
{
    const struct route *route = request->match.route;
    size_t cap = body_cap(request);

    if (route->flags & ROUTE_STREAM_BODY) {
        request->plan = BODY_PIPED;
        request->body_pipe = pipe_new(PIPE_CAPACITY);
        return 0;
    }
    if (!cap && request->body_length)
        return err_set(err, ERR_INVALID_REQUEST, "%s %s takes no body", request->method,
                       route->path);
    if (request->body_length > 0 && (size_t)request->body_length > cap)
        return err_set(err, ERR_TOO_LARGE, "the body is larger than %zu bytes", cap);
    request->plan = BODY_COLLECTED;
    buf_init(&request->body, cap);
    return 0;
}

static enum MHD_Result drain(struct request *request, size_t *size)
{
    if (!request->drain_until_ms)
        request->drain_until_ms = clock_now_ms() + DRAIN_MS;
    if (clock_now_ms() > request->drain_until_ms)
        return MHD_NO;
    *size = 0;
    return MHD_YES;
}

static enum MHD_Result collect(struct request *request, const char *data, size_t *size)
{
    if (!buf_append(&request->body, data, *size)) {
        const struct err err = {ERR_TOO_LARGE, "the body is too large"};

        request->plan = BODY_REFUSED;
        buf_done(&request->body);
        (void)reply_problem(request, &err);
        return drain(request, size);
    }
    *size = 0;
    return MHD_YES;
}

static enum MHD_Result feed(struct request *request, const char *data, size_t *size)
{
    struct event *writable = pipe_writable(request->body_pipe);
    uint64_t seen = event_count(writable);
    size_t taken = pipe_write(request->body_pipe, data, *size);

    if (taken == *size) {
        *size = 0;
        return MHD_YES;
    }
    if (pipe_state(request->body_pipe, NULL) == PIPE_ABANDONED)
        return drain(request, size); /* the handler has had enough and will answer */
    if (atomic_load(&request->gone))
        return MHD_NO;
    *size -= taken;
    connection_suspend_for(request, writable, seen);
    return MHD_YES;
}

enum MHD_Result body_take(struct request *request, const char *data, size_t *size)
{
    switch (request->plan) {
    case BODY_COLLECTED:
        return collect(request, data, size);
    case BODY_PIPED:
        return feed(request, data, size);
    case BODY_REFUSED:
        break;
    }
    return drain(request, size);
}

void body_end(struct request *request, bool whole)
{
    const struct err cut = {ERR_CANCELLED, "the request's body was cut short"};

    if (request->ended)
        return;
    request->ended = true;
    if (!request->body_pipe)
        return;
    pthread_mutex_lock(&request->lock);
    request->receiving = false;
    pthread_mutex_unlock(&request->lock);
    pipe_finish(request->body_pipe, whole ? NULL : &cut);
}
