#include "agent/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/dial.h"
#include "agent/exec.h"
#include "agent/exec_kill.h"
#include "agent/task.h"

#define READ_SIZE 65536
#define OUT_ENOUGH 65536 /* sources are asked below this */
#define OUT_FULL 262144  /* the peer is not read above this */
#define OUT_KEEP 131072  /* an empty buffer above this is freed */
#define PARTS_MAX ((size_t)2 * PROTO_MESSAGE_MAX)
#define PARTS_AT_ONCE 64
#define HELLO_WAIT_MS 10000

/* --- output -------------------------------------------------------------------------------------
 */

uint8_t *conn_reserve(struct conn *conn, size_t len)
{
    if (conn->lost)
        return NULL;
    if (conn->out_start > 0 && conn->out_start + conn->out_len + len > conn->out_cap) {
        memmove(conn->out, conn->out + conn->out_start, conn->out_len);
        conn->out_start = 0;
    }
    if (conn->out_len + len > conn->out_cap) {
        size_t cap = conn->out_cap != 0 ? conn->out_cap : 4096;
        while (cap < conn->out_len + len)
            cap *= 2;
        uint8_t *out = realloc(conn->out, cap);
        if (out == NULL) {
            conn_lose(conn);
            return NULL;
        }
        conn->out = out;
        conn->out_cap = cap;
    }
    return conn->out + conn->out_start + conn->out_len;
}

void conn_commit(struct conn *conn, size_t len)
{
    conn->out_len += len;
}

static void put_frame(struct conn *conn, uint32_t channel, uint8_t type, const uint8_t *payload,
                      size_t len)
{
    uint8_t *ptr = conn_reserve(conn, FRAME_HEADER_LEN + len);
    if (ptr == NULL)
        return;
    frame_header_write(ptr, channel, type, len);
    if (len > 0)
        memcpy(ptr + FRAME_HEADER_LEN, payload, len);
    conn_commit(conn, FRAME_HEADER_LEN + len);
}

void conn_send(struct conn *conn, uint32_t channel, uint8_t type, const void *payload, size_t len)
{
    const uint8_t *ptr = payload;
    while (len > FRAME_PAYLOAD_MAX) {
        put_frame(conn, channel, FRAME_PART, ptr, FRAME_PAYLOAD_MAX);
        ptr += FRAME_PAYLOAD_MAX;
        len -= FRAME_PAYLOAD_MAX;
    }
    put_frame(conn, channel, type, ptr, len);
}

void conn_send_reply(struct conn *conn, uint32_t channel, uint8_t type, const struct reply *reply)
{
    conn_send(conn, channel, type, reply->fields.ptr, reply->fields.len);
}

void conn_send_error(struct conn *conn, uint32_t channel, const char *code, const char *format, ...)
{
    struct reply reply;
    va_list args;
    reply_init(&reply);
    va_start(args, format);
    reply_verror(&reply, code, format, args);
    va_end(args);
    conn_send_reply(conn, channel, FRAME_RESULT, &reply);
}

/* Writes what the socket takes; false when the peer has gone. */
static bool write_out(struct conn *conn)
{
    while (conn->out_len > 0) {
        ssize_t count =
            send(conn->watch.fd, conn->out + conn->out_start, conn->out_len, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno == EAGAIN;
        conn->out_start += (size_t)count;
        conn->out_len -= (size_t)count;
    }
    conn->out_start = 0;
    if (conn->out_cap > OUT_KEEP) {
        free(conn->out);
        conn->out = NULL;
        conn->out_cap = 0;
    }
    return true;
}

static void ask_sources(struct conn *conn)
{
    while (conn->sources != NULL && conn->out_len < OUT_ENOUGH && !conn->lost) {
        struct source *source = conn->sources;
        conn->sources = source->next;
        source->pump(source);
    }
}

void conn_flush(struct conn *conn)
{
    while (!conn->lost) {
        ask_sources(conn);
        if (conn->lost || conn->out_len == 0)
            break;
        if (!write_out(conn)) {
            conn_lose(conn);
            return;
        }
        if (conn->out_len > 0)
            break;
    }
    if (conn->lost)
        return;
    conn->stalled = conn->out_len > OUT_FULL;
    uint32_t events = (conn->stalled ? 0u : EPOLLIN) | (conn->out_len > 0 ? EPOLLOUT : 0u);
    if (loop_watch(&conn->agent->loop, &conn->watch, events) < 0)
        conn_lose(conn);
}

void source_wake(struct conn *conn, struct source *source)
{
    if (source->conn == conn)
        return;
    source_remove(source);
    source->conn = conn;
    if (conn->sources == NULL) {
        source->next = source->prev = source;
        conn->sources = source;
        return;
    }
    source->next = conn->sources;
    source->prev = conn->sources->prev;
    source->prev->next = source;
    source->next->prev = source;
}

void source_remove(struct source *source)
{
    struct conn *conn = source->conn;
    if (conn == NULL)
        return;
    if (source->next == source) {
        conn->sources = NULL;
    } else {
        source->prev->next = source->next;
        source->next->prev = source->prev;
        if (conn->sources == source)
            conn->sources = source->next;
    }
    source->conn = NULL;
}

/* --- input --------------------------------------------------------------------------------------
 */

static struct part **find_part(struct conn *conn, uint32_t channel)
{
    struct part **link = &conn->parts;
    while (*link != NULL && (*link)->channel != channel)
        link = &(*link)->next;
    return link;
}

static bool add_part(struct conn *conn, const struct frame *frame)
{
    struct part **link = find_part(conn, frame->channel);
    struct part *part = *link;
    size_t have = part != NULL ? part->len : 0;
    if (have + frame->len > PROTO_MESSAGE_MAX || conn->parts_len + frame->len > PARTS_MAX ||
        frame->len == 0)
        return false;
    if (part == NULL) {
        if (conn->parts_count == PARTS_AT_ONCE)
            return false;
        part = calloc(1, sizeof(*part));
        if (part == NULL)
            return false;
        part->channel = frame->channel;
        part->next = conn->parts;
        conn->parts = part;
        conn->parts_count++;
    }
    uint8_t *data = realloc(part->data, have + frame->len);
    if (data == NULL)
        return false;
    memcpy(data + have, frame->payload, frame->len);
    part->data = data;
    part->len += frame->len;
    conn->parts_len += frame->len;
    return true;
}

static bool is_message(uint8_t type)
{
    return type < FRAME_PART || type == FRAME_OPEN || type == FRAME_SIGNAL ||
           type == FRAME_COMMIT || type == FRAME_CANCEL || type == FRAME_RESIZE;
}

/* The message that FRAME ends, in memory of its own. False breaks the stream. */
static bool whole_message(struct conn *conn, const struct frame *frame, struct message *ret_message)
{
    struct part **link = find_part(conn, frame->channel);
    struct part *part = *link;
    if (part == NULL)
        return message_copy(ret_message, frame->payload, frame->len);
    if (part->len + frame->len > PROTO_MESSAGE_MAX)
        return false;
    uint8_t *data = realloc(part->data, part->len + frame->len + 1);
    if (data == NULL)
        return false;
    if (frame->len > 0)
        memcpy(data + part->len, frame->payload, frame->len);
    *ret_message = (struct message){.data = data, .len = part->len + frame->len};
    *link = part->next;
    conn->parts_len -= part->len;
    conn->parts_count--;
    free(part);
    return true;
}

static bool is_exec(uint64_t op)
{
    return op == OP_EXEC || op == OP_SHELL || op == OP_SHELL_RUN;
}

static bool on_message(struct conn *conn, const struct frame *frame)
{
    struct message message = {0};
    if (!whole_message(conn, frame, &message))
        return false;
    bool opaque = frame->type == FRAME_PING || frame->type == FRAME_PONG;
    bool good = opaque || message_well_formed(&message);
    if (good && frame->channel == 0)
        control_message(conn, frame->type, &message);
    else if (good && frame->type == FRAME_OPEN && is_exec(message_u64(&message, TAG_OP, 0)))
        exec_open(conn, frame->channel, &message);
    else if (good && frame->type == FRAME_OPEN && message_u64(&message, TAG_OP, 0) == OP_DIAL)
        dial_open(conn, frame->channel, &message);
    else if (good && frame->type == FRAME_OPEN && message_u64(&message, TAG_OP, 0) == OP_KILL)
        exec_kill_open(conn, frame->channel, &message);
    else if (good && frame->type == FRAME_OPEN)
        task_open(conn, frame->channel, &message);
    else if (good && !exec_message(conn, frame->channel, frame->type, &message) &&
             !dial_message(conn, frame->channel, frame->type) &&
             !exec_kill_message(conn, frame->channel, frame->type))
        task_cancel(conn, frame->channel, frame->type);
    explicit_bzero(message.data, message.len);
    message_free(&message);
    /* A process that a later frame has forked must not find the token where it was received. */
    if (frame->type == FRAME_HELLO)
        explicit_bzero((void *)(uintptr_t)frame->payload, frame->len);
    return good;
}

static bool on_frame(struct conn *conn, const struct frame *frame)
{
    /* Before a valid HELLO nothing else is looked at, and it fits one frame. */
    if (!conn->greeted && (frame->channel != 0 || frame->type != FRAME_HELLO))
        return false;
    if (frame->type == FRAME_PART)
        return add_part(conn, frame);
    if (is_message(frame->type))
        return on_message(conn, frame);
    if (frame->channel == 0)
        return true;
    if (frame->type == FRAME_DATA || frame->type == FRAME_END || frame->type == FRAME_CREDIT) {
        bool broken = false;
        if (!exec_frame(conn, frame, &broken) && !dial_frame(conn, frame, &broken) &&
            !task_frame(conn, frame, &broken))
            return true; /* a channel that has ended meanwhile */
        return !broken;
    }
    return true;
}

static void on_ready(struct watch *watch, uint32_t events)
{
    struct conn *conn = (struct conn *)(void *)((char *)watch - offsetof(struct conn, watch));
    uint8_t bytes[READ_SIZE];
    if (conn->lost || (events & ~(uint32_t)EPOLLOUT) == 0)
        return; /* conn_flush() follows */
    ssize_t count = recv(watch->fd, bytes, sizeof(bytes), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        conn_lose(conn);
        return;
    }
    const uint8_t *data = bytes;
    size_t left = (size_t)count;
    struct frame frame;
    while (!conn->lost) {
        enum frame_result result = frame_decode(&conn->decoder, &data, &left, &frame);
        if (result == FRAME_MORE)
            break;
        if (result == FRAME_BROKEN || !on_frame(conn, &frame)) {
            conn_bye(conn, "invalid_request", "the stream breaks the protocol");
            break;
        }
    }
    explicit_bzero(bytes, (size_t)count);
}

/* --- life ---------------------------------------------------------------------------------------
 */

static void on_hello_timer(struct timer *timer)
{
    struct conn *conn = (struct conn *)(void *)((char *)timer - offsetof(struct conn, hello_timer));
    conn_lose(conn);
}

struct conn *conn_new(struct agent *agent, int fd, pid_t peer)
{
    struct conn *conn = calloc(1, sizeof(*conn));
    if (conn == NULL) {
        close(fd);
        return NULL;
    }
    conn->agent = agent;
    conn->peer = peer;
    conn->watch = (struct watch){.fd = fd, .ready = on_ready};
    conn->hello_timer.fire = on_hello_timer;
    timer_set(&agent->loop, &conn->hello_timer, now_ms() + HELLO_WAIT_MS);
    if (loop_watch(&agent->loop, &conn->watch, EPOLLIN) < 0) {
        timer_clear(&agent->loop, &conn->hello_timer);
        close(fd);
        free(conn);
        return NULL;
    }
    conn->next = agent->pending;
    agent->pending = conn;
    agent->pending_count++;
    return conn;
}

void conn_bye(struct conn *conn, const char *code, const char *why)
{
    struct reply reply;
    if (conn->lost)
        return;
    reply_init(&reply);
    reply_error(&reply, code, "%s", why);
    if (conn->greeted)
        conn_send_reply(conn, 0, FRAME_BYE, &reply);
    if (!conn->lost)
        (void)write_out(conn);
    conn_lose(conn);
}

void conn_lose(struct conn *conn)
{
    struct agent *agent = conn->agent;
    if (conn->lost)
        return;
    conn->lost = true;
    timer_clear(&agent->loop, &conn->hello_timer);
    loop_close(&agent->loop, &conn->watch);
    if (!conn->greeted)
        return;
    exec_stream_lost(conn);
    dial_stream_lost(conn);
    exec_kill_stream_lost(conn);
    task_stream_lost(conn);
    if (agent->conn != conn)
        return;
    timer_set(&agent->loop, &agent->without_server, now_ms() + agent->options.without_server_ms);
    if (agent->options.end_without_server_ms > 0)
        timer_set(&agent->loop, &agent->end_without_server,
                  now_ms() + agent->options.end_without_server_ms);
}

static void conn_free(struct conn *conn)
{
    while (conn->parts != NULL) {
        struct part *part = conn->parts;
        conn->parts = part->next;
        free(part->data);
        free(part);
    }
    free(conn->out);
    explicit_bzero(&conn->decoder, sizeof(conn->decoder));
    free(conn);
}

void conn_sweep(struct agent *agent)
{
    if (agent->conn != NULL && agent->conn->lost) {
        conn_free(agent->conn);
        agent->conn = NULL;
    }
    for (struct conn **link = &agent->pending; *link != NULL;) {
        struct conn *conn = *link;
        if (!conn->lost) {
            link = &conn->next;
            continue;
        }
        *link = conn->next;
        agent->pending_count--;
        conn_free(conn);
    }
}
