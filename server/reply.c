#include "server/reply.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "server/connection.h"
#include "server/http_impl.h"
#include "server/problem.h"
#include "server/relay.h"
#include "server/sessions.h"
#include "server/upstream.h"

#define READ_BLOCK (64 * KIB)
#define SMALL_BLOCK KIB
#define NO_BLOCK 1
/* Of a program's answer, sent together with its head. */
#define SMALL_BODY (16 * KIB)
/* Keepalive is silent while sent bytes are unacknowledged: this finds the client that was unplugged
 * in the middle of an answer, while nothing more is there to send. */
#define PATIENCE_MS 60000
#define SMALL_SENT (4 * KIB)
#define UNANSWERED 3 /* times that the same bytes were sent again */

static const struct err client_left = {ERR_CANCELLED,
                                       "the client left before the end of the answer"};

/* Its writer learns that nobody reads, also when libmicrohttpd never asked for a byte. */
static void drop_pipe(struct reply *reply)
{
    if (reply->pipe)
        pipe_abandon(reply->pipe, &client_left);
    pipe_unref(reply->pipe);
    reply->pipe = NULL;
    upstream_done(reply->upstream, false);
    reply->upstream = NULL;
    if (reply->session)
        reply->session->ops->free(reply->session);
    reply->session = NULL;
}

void reply_done(struct reply *reply)
{
    for (size_t i = 0; i < reply->header_count; i++) {
        free(reply->headers[i].name);
        free(reply->headers[i].value);
    }
    free(reply->headers);
    free(reply->type);
    free(reply->body);
    drop_pipe(reply);
    *reply = (struct reply){.status = 0};
}

/* A second answer replaces the first; headers that were set stay. */
static void reply_set(struct request *request, int status, const char *type)
{
    struct reply *reply = &request->reply;

    free(reply->type);
    free(reply->body);
    drop_pipe(reply);
    reply->body = NULL;
    reply->len = 0;
    reply->status = status;
    reply->type = type ? xstrdup(type) : NULL;
}

static bool reply_has_header(const struct reply *reply, const char *name)
{
    return framing_header(reply->headers, reply->header_count, name) != NULL;
}

void reply_header(struct request *request, const char *name, const char *value)
{
    struct reply *reply = &request->reply;

    if (reply->header_count == reply->header_cap) {
        reply->header_cap = reply->header_cap ? reply->header_cap * 2 : 16;
        reply->headers = xrealloc(reply->headers, reply->header_cap * sizeof(*reply->headers));
    }
    reply->headers[reply->header_count++] =
        (struct text_field){.name = xstrdup(name), .value = xstrdup(value)};
}

static enum verdict reply_text(struct request *request, int status, const char *type, bool fits,
                               struct buf *text)
{
    if (!fits) {
        const struct err err = {ERR_INTERNAL, "the answer is too large for JSON"};

        return reply_problem(request, &err);
    }
    reply_set(request, status, type);
    request->reply.body = buf_take(text, &request->reply.len);
    return DONE;
}

/* Takes JSON. */
static enum verdict reply_tree(struct request *request, int status, const char *type,
                               struct json *json)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_REPLY);
    bool fits = json_print(json, &text);

    json_free(json);
    return reply_text(request, status, type, fits, &text);
}

enum verdict reply_json_text(struct request *request, int status, bool fits, struct buf *text)
{
    return reply_text(request, status, "application/json", fits, text);
}

enum verdict reply_json(struct request *request, int status, struct json *json)
{
    return reply_tree(request, status, "application/json", json);
}

enum verdict reply_problem(struct request *request, const struct err *err)
{
    return reply_problem_with(request, err, NULL, NULL);
}

enum verdict reply_problem_with(struct request *request, const struct err *err, const char *name,
                                struct json *json)
{
    const struct problem *problem = problem_of(err->code);
    struct reply *reply = &request->reply;
    struct json *body = problem_json(err, request->id, reply_has_header(reply, "Retry-After"));

    if (problem->level >= LOG_LEVEL_WARN)
        log_event(problem->level, "request failed", "code", err_code_name(err->code), "detail",
                  err->msg, "req_id", request->id, NULL);
    if (problem->retry_after_s && !reply_has_header(reply, "Retry-After")) {
        char seconds[16];

        (void)snprintf(seconds, sizeof(seconds), "%d", problem->retry_after_s);
        reply_header(request, "Retry-After", seconds);
    }
    if (problem->status == 401 && !reply_has_header(reply, "WWW-Authenticate"))
        reply_header(request, "WWW-Authenticate", "Bearer realm=\"podsandbox\"");
    if (json) {
        const char *reason = json_get_text(json, "reason");

        if (reason)
            json_set_text(body, "reason", reason);
        json_set(body, name, json);
    }
    return reply_tree(request, problem->status, "application/problem+json", body);
}

enum verdict reply_empty(struct request *request, int status)
{
    reply_set(request, status, NULL);
    return DONE;
}

enum verdict reply_bytes(struct request *request, int status, const char *type, const void *data,
                         size_t len)
{
    reply_set(request, status, type);
    request->reply.body = xmalloc(len);
    request->reply.len = len;
    if (len)
        memcpy(request->reply.body, data, len);
    return DONE;
}

enum verdict reply_pipe(struct request *request, int status, const char *type, struct pipe *pipe,
                        int64_t length)
{
    reply_set(request, status, type);
    request->reply.pipe = pipe;
    request->reply.pipe_length = length;
    return DONE;
}

enum verdict reply_upstream(struct request *request, struct upstream *upstream)
{
    const struct upstream_head *head = upstream_head(upstream);
    struct reply *reply = &request->reply;

    reply_set(request, head->status, NULL);
    reply->verbatim = true;
    for (size_t i = 0; i < head->count; i++)
        reply_header(request, head->fields[i].name, head->fields[i].value);
    if (request->body_length == 0) /* else the program may still be reading */
        reply->body = upstream_small_body(upstream, SMALL_BODY, &reply->len);
    if (reply->body) {
        upstream_done(upstream, true);
        return DONE;
    }
    reply->upstream = upstream;
    reply->pipe_length = head->length;
    return DONE;
}

enum verdict reply_switched(struct request *request, struct session *session)
{
    reply_set(request, 101, NULL);
    request->reply.session = session;
    return DONE;
}

/* --- the body's source --------------------------------------------------------------------------
 */

static size_t source_read(struct reply *reply, char *data, size_t max)
{
    return reply->upstream ? upstream_read(reply->upstream, data, max)
                           : pipe_read(reply->pipe, data, max);
}

static enum pipe_state source_state(const struct reply *reply)
{
    return reply->upstream ? upstream_state(reply->upstream) : pipe_state(reply->pipe, NULL);
}

static struct event *source_readable(const struct reply *reply)
{
    return reply->upstream ? upstream_readable(reply->upstream) : pipe_readable(reply->pipe);
}

/* --- handing over to libmicrohttpd --------------------------------------------------------------
 */

static bool is_whole(const struct reply *reply, enum pipe_state state)
{
    return state == PIPE_ENDED &&
           (reply->pipe_length < 0 || reply->pipe_sent == (uint64_t)reply->pipe_length);
}

/* libmicrohttpd 0.9.75 forgets a connection whose body ends with an error after a pause: it is
 * never closed. So the socket is shut down, and a byte that cannot be sent makes it fail in a way
 * that works. The client sees the end before the body's end. */
static ssize_t cut_off(struct request *request, char *buf)
{
    int fd =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

    (void)shutdown(fd, SHUT_RDWR); /* or it is shut already */
    buf[0] = '\0';
    return 1;
}

/* What was sent before is not acknowledged, and was sent again and again: the client was unplugged.
 * A stream that speaks every few seconds finds it so long before PATIENCE_MS is over. One that only
 * does not read answers the kernel's probes, which is no such case. */
static bool is_unplugged(struct request *request)
{
    int fd =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    struct tcp_info info = {.tcpi_state = 0};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           info.tcpi_retransmits >= UNANSWERED;
}

/* Thousands of streams may say nothing for long, each with tens of KiB in which the next chunk
 * could be made, and which libmicrohttpd has filled with zeros. Between much and much it is not
 * worth it.
 */
static void give_room_back(struct reply *reply, char *buf, size_t max)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)buf + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)buf + max) & ~(page - 1);

    if (reply->pipe_sent - reply->pipe_paused < SMALL_SENT) {
        if (begin < end)
            (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* else it just stays */
        if (reply->pipe)
            pipe_rest(reply->pipe);
    }
    reply->pipe_paused = reply->pipe_sent;
}

/* libmicrohttpd's thread, when the socket takes more. */
static ssize_t read_pipe(void *cls, uint64_t position, char *buf, size_t max)
{
    struct request *request = cls;
    struct reply *reply = &request->reply;
    struct event *readable = source_readable(reply);

    (void)position;
    (void)suspended_settle(request->http->suspended, &request->flow);
    uint64_t seen = event_count(readable);
    size_t len = source_read(reply, buf, max);
    if (len) {
        /* Only where little is said: in the midst of much, the kernel knows best. */
        if (len < max && is_unplugged(request))
            return cut_off(request, buf);
        reply->pipe_sent += len;
        return (ssize_t)len;
    }
    enum pipe_state state = source_state(reply);
    if (state != PIPE_OPEN)
        return is_whole(reply, state) ? MHD_CONTENT_READER_END_OF_STREAM : cut_off(request, buf);
    if (atomic_load(&request->gone) || atomic_load(&request->http->aborting))
        return cut_off(request, buf);
    give_room_back(reply, buf, max);
    connection_suspend_for(request, readable, seen, 0);
    return 0;
}

/* Also of an answer to HEAD, whose body is described but not read. */
static bool has_body(const struct request *request)
{
    const struct reply *reply = &request->reply;

    return reply->status >= 200 && reply->status != 204 && reply->status != 304 &&
           (reply->pipe_length >= 0 || upstream_head(reply->upstream)->kind != BODY_EMPTY);
}

/* libmicrohttpd's thread: the answer 101 is sent, the socket is ours. The signature is
 * libmicrohttpd's. */
static void upgraded(/* NOLINT(readability-function-size) */
                     void *cls, struct MHD_Connection *connection, void *context, const char *extra,
                     size_t extra_len, MHD_socket fd, struct MHD_UpgradeResponseHandle *urh)
{
    struct request *request = cls;
    struct relay_ends ends = {
        .fd = fd, .urh = urh, .to_program = extra, .to_program_len = extra_len};

    (void)context;
    ends.tunnel =
        upstream_take(TAKE_PTR(request->reply.upstream), &ends.to_client, &ends.to_client_len);
    struct sessions *sessions = request->http->sessions;
    connection_upgraded(request, connection);
    relay_begin(sessions, &ends);
}

/* The signature is libmicrohttpd's. */
static void switched(/* NOLINT(readability-function-size) */
                     void *cls, struct MHD_Connection *connection, void *context, const char *extra,
                     size_t extra_len, MHD_socket fd, struct MHD_UpgradeResponseHandle *urh)
{
    struct request *request = cls;
    struct session *session = TAKE_PTR(request->reply.session);
    struct sessions *sessions = request->http->sessions;

    (void)context;
    connection_upgraded(request, connection);
    session->fd = fd;
    session->urh = urh;
    session->ops->early(session, extra, extra_len);
    sessions_begin(sessions, session);
}

/* An answer that nothing has changed is no empty document: its length is that of the document,
 * where the program says it. libmicrohttpd reads no body for it, but describes one; where the
 * length is not known that is left out only on a connection that ends. */
static struct MHD_Response *make_unchanged(struct request *request)
{
    const struct reply *reply = &request->reply;
    bool known = reply->upstream && reply->pipe_length >= 0;
    uint64_t length = known ? (uint64_t)reply->pipe_length : MHD_SIZE_UNKNOWN;
    struct MHD_Response *response =
        MHD_create_response_from_callback(length, SMALL_BLOCK, read_pipe, request, NULL);

    if (response && !known)
        (void)MHD_set_response_options(response, MHD_RF_HTTP_1_0_COMPATIBLE_STRICT, MHD_RO_END);
    return response;
}

static struct MHD_Response *make_response(struct request *request)
{
    struct reply *reply = &request->reply;

    if (reply->session)
        return MHD_create_response_for_upgrade(switched, request);
    if (reply->upstream && reply->status == 101)
        return MHD_create_response_for_upgrade(upgraded, request);
    if (reply->status == 304)
        return make_unchanged(request);
    if (reply->pipe || (reply->upstream && has_body(request))) {
        uint64_t length = reply->pipe_length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)reply->pipe_length;

        /* Chunks are read into the connection's own buffer, and there may be thousands of streams;
         * to an HTTP/1.0 client there are none. */
        size_t unknown = request->unchunked ? SMALL_BLOCK : NO_BLOCK;
        size_t block = reply->pipe_length < 0 ? unknown : READ_BLOCK;

        return MHD_create_response_from_callback(length, block, read_pipe, request, NULL);
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(
        reply->len, reply->body, reply->body ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (response)
        reply->body = NULL;
    return response;
}

static void add_own_headers(struct request *request, struct MHD_Response *response)
{
    const struct reply *reply = &request->reply;

    if (reply->type)
        (void)MHD_add_response_header(response, "Content-Type", reply->type);
    (void)MHD_add_response_header(response, "X-Request-ID", request->id);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (!reply_has_header(reply, "Cache-Control"))
        (void)MHD_add_response_header(response, "Cache-Control", "no-store");
}

static void add_headers(struct request *request, struct MHD_Response *response)
{
    const struct reply *reply = &request->reply;

    /* A value that libmicrohttpd refuses (a line end in it) is left out. */
    for (size_t i = 0; i < reply->header_count; i++)
        (void)MHD_add_response_header(response, reply->headers[i].name, reply->headers[i].value);
    if (!reply->verbatim)
        add_own_headers(request, response);
    if (reply->status != 101 && (reply->close || atomic_load(&request->http->stopping)))
        (void)MHD_add_response_header(response, "Connection", "close");
}

enum MHD_Result reply_queue(struct request *request, struct MHD_Connection *connection)
{
    struct MHD_Response *response = make_response(request);

    if (!response)
        return MHD_NO;
    add_headers(request, response);
    request->queued = true;
    if (request->reply.pipe || request->reply.upstream)
        connection_patience(request, PATIENCE_MS);
    enum MHD_Result result =
        MHD_queue_response(connection, (unsigned)request->reply.status, response);
    MHD_destroy_response(response);
    return result;
}

void reply_abandon(struct request *request, bool whole)
{
    struct reply *reply = &request->reply;

    if (reply->pipe)
        pipe_abandon(reply->pipe, whole ? NULL : &client_left);
    upstream_done(TAKE_PTR(reply->upstream), whole);
}
