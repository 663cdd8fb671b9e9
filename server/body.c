#include "server/body.h"

#include <stdio.h>

#include "base/clock.h"
#include "server/connection.h"
#include "server/proxy.h"
#include "server/reply.h"

#define PIPE_CAPACITY (256 * KIB)
/* What is thrown away of a refused body, in time. The client may not see an answer that is sent
 * while it is still sending. */
#define DRAIN_MS 30000
/* A program behind a preview that takes nothing of a body for so long has the connection cut: it
 * may wait for its answer to be read, which libmicrohttpd sends only after the body. */
#define STALL_MS 60000
/* Around a piece of a chunked body: its length in hex, the line ends, and the last chunk. */
#define CHUNK_ROOM ((size_t)32)

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
        if (request->proxied && request->body_length) /* it has the room */
            (void)pipe_write(request->body_pipe, request->proxied->head.ptr,
                             request->proxied->head.len);
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

/* To a program, a body without a length goes in chunks, as it came. */
static size_t write_chunk(struct pipe *pipe, const char *data, size_t len)
{
    size_t space = pipe_space(pipe);
    char line[CHUNK_ROOM];

    if (space <= 2 * CHUNK_ROOM)
        return 0;
    if (len > space - 2 * CHUNK_ROOM)
        len = space - 2 * CHUNK_ROOM;
    int size = snprintf(line, sizeof(line), "%zx\r\n", len);
    (void)pipe_write(pipe, line, (size_t)size); /* there is room, and no other writer */
    (void)pipe_write(pipe, data, len);
    (void)pipe_write(pipe, "\r\n", 2);
    return len;
}

static enum MHD_Result feed(struct request *request, const char *data, size_t *size)
{
    struct event *writable = pipe_writable(request->body_pipe);
    uint64_t seen = event_count(writable);
    bool chunked = request->proxied && request->body_length < 0;
    size_t taken = chunked ? write_chunk(request->body_pipe, data, *size)
                           : pipe_write(request->body_pipe, data, *size);

    if (taken == *size) {
        *size = 0;
        return MHD_YES;
    }
    if (pipe_state(request->body_pipe, NULL) == PIPE_ABANDONED)
        return drain(request, size); /* the handler has had enough and will answer */
    if (atomic_load(&request->gone))
        return MHD_NO;
    *size -= taken;
    connection_suspend_for(request, writable, seen,
                           request->proxied ? clock_now_ms() + STALL_MS : 0);
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
    if (!request->proxied || !whole)
        pipe_finish(request->body_pipe, whole ? NULL : &cut);
    else if (request->body_length <
             0) /* the tunnel stays open: for many programs its end is all's */
        (void)pipe_write(request->body_pipe, "0\r\n\r\n", 5);
}
