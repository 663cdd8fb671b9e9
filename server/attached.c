#include "server/attached.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/frame.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/json.h"
#include "net/ws_server.h"
#include "sandbox/attachment.h"
#include "server/problem.h"
#include "server/sessions.h"
#include "server/signal_name.h"

#define BLOCK (16 * KIB)
#define BLOCKS_AT_ONCE 64          /* then others have their turn */
#define MESSAGE_MAX (64 * KIB + 1) /* of the client */
/* What came in one block and was not taken: one message, and those behind it in the block. */
#define TYPED_MAX (MESSAGE_MAX + BLOCK)
#define QUEUE_MAX 16 /* messages; then nothing more is read: each may have an answer */
#define PING_MS 30000
#define SILENCE_MS (3 * PING_MS) /* two pings without an answer */
#define LINGER_MS 5000           /* for the client to close, when we have */

enum channel { CHANNEL_STDIN = 0, CHANNEL_RESIZE = 4 };
enum close_code {
    CLOSE_NORMAL = 1000,
    CLOSE_GOING_AWAY = 1001,
    CLOSE_BAD_DATA = 1007,
    CLOSE_POLICY = 1008,
    CLOSE_FAILED = 1011,
};

struct attached {
    struct session session;
    struct ws_server *peer;
    struct attachment *attachment;
    /* to the client */
    struct pipe *records;
    struct waiter on_record;
    uint8_t header[ATTACHMENT_RECORD_HEADER];
    size_t header_len;
    struct buf record;
    bool closing; /* a close is queued, nothing comes behind it */
    char *held;   /* framed, not sent yet */
    size_t held_at, held_len;
    /* from the client */
    struct buf early; /* came with the request, not looked at yet */
    struct buf typed; /* not taken yet */
    bool end_typed;   /* and the end behind it */
    bool waits_for_room;
    struct waiter on_room;
    bool paused; /* there may be more in the socket */
    int64_t heard_ms, pinged_ms;
    int64_t until_ms; /* ends then at the latest; 0: no such time */
};

static void record_came(struct waiter *waiter)
{
    session_wake(&container_of(waiter, struct attached, on_record)->session);
}

static void room_came(struct waiter *waiter)
{
    session_wake(&container_of(waiter, struct attached, on_room)->session);
}

static void wait_no_more(struct attached *attached)
{
    (void)event_cancel(pipe_readable(attached->records), &attached->on_record);
    if (attached->waits_for_room)
        (void)event_cancel(attachment_writable(attached->attachment), &attached->on_room);
    attached->waits_for_room = false;
}

/* --- answers ------------------------------------------------------------------------------------
 */

/* Takes MESSAGE. */
static void say(struct attached *attached, struct json *message)
{
    struct buf text = BUF_INIT(CAP_SMALL);

    if (json_print(message, &text)) /* all are short */
        ws_server_send(attached->peer, true, text.ptr, text.len);
    json_free(message);
    buf_done(&text);
}

static void say_error(struct attached *attached, const struct err *err)
{
    struct json *message = json_new_object();

    json_set_text(message, "type", "error");
    json_set_text(message, "code", err_code_name(err->code));
    json_set_text(message, "title", problem_of(err->code)->title);
    json_set_text(message, "detail", err->msg);
    say(attached, message);
}

static void close_with(struct attached *attached, enum close_code code)
{
    ws_server_close(attached->peer, code);
    attached->closing = true;
    attachment_release(attached->attachment); /* the place is free before he hears of it */
}

static void refuse(struct attached *attached, enum close_code code, enum err_code why,
                   const char *what)
{
    struct err err;

    (void)err_set(&err, why, "%s", what);
    say_error(attached, &err);
    close_with(attached, code);
}

/* --- what is typed ------------------------------------------------------------------------------
 */

/* It takes no more: what is left goes with it. */
static void stop_typing(struct attached *attached, const struct err *why)
{
    buf_wipe(&attached->typed);
    attached->end_typed = false;
    say_error(attached, why);
}

/* RET_MORE: there is room for more now. */
static int type_some(struct attached *attached, bool *ret_more, struct err *err)
{
    struct buf *typed = &attached->typed;
    size_t took = 0;
    bool done = false;

    if (typed->len) {
        if (attachment_write(attached->attachment, typed->ptr, typed->len, &took, err))
            return -1;
        buf_consume(typed, took);
        *ret_more = took > 0;
        return 0;
    }
    if (attachment_end_input(attached->attachment, &done, err))
        return -1;
    attached->end_typed = !done;
    *ret_more = done;
    return 0;
}

static void type_on(struct attached *attached)
{
    struct err err = {0};
    bool more = true;

    while ((attached->typed.len || attached->end_typed) && !attached->waits_for_room) {
        /* Before the first try there may be no event yet, but room. */
        struct event *room = more ? NULL : attachment_writable(attached->attachment);
        uint64_t seen = room ? event_count(room) : 0;

        if (type_some(attached, &more, &err)) {
            stop_typing(attached, &err);
            return;
        }
        if (!more && room)
            attached->waits_for_room = event_wait(room, seen, &attached->on_room);
    }
}

static void on_typed(struct attached *attached, const uint8_t *data, size_t len)
{
    if (!buf_append(&attached->typed, data, len))
        refuse(attached, CLOSE_POLICY, ERR_TOO_LARGE, "more input than can be kept");
    else
        type_on(attached);
}

static void on_resize(struct attached *attached, const uint8_t *data, size_t len)
{
    struct err err = {0};

    if (len != 4) {
        refuse(attached, CLOSE_POLICY, ERR_INVALID_REQUEST,
               "a resize is two numbers of two bytes: columns and rows");
        return;
    }
    unsigned columns = (unsigned)data[0] << 8 | data[1], rows = (unsigned)data[2] << 8 | data[3];
    if (!columns || !rows)
        (void)err_set(&err, ERR_INVALID_FIELD, "a terminal has one column and one row at least");
    else if (attachment_resize(attached->attachment, columns, rows, &err) == 0)
        return;
    say_error(attached, &err);
}

/* --- control ------------------------------------------------------------------------------------
 */

struct control {
    int type;
    char *signal;
    bool tree;
};

enum control_type {
    CONTROL_TAKEOVER,
    CONTROL_RELEASE,
    CONTROL_CLOSE_STDIN,
    CONTROL_SIGNAL,
    CONTROL_PING,
};
static const char *const control_types[] = {"takeover", "release", "close_stdin",
                                            "signal",   "ping",    NULL};

static const struct json_field control_fields[] = {
    {.name = "type",
     .decode = json_decode_word,
     .offset = offsetof(struct control, type),
     .required = true,
     .extra = control_types},
    {.name = "signal",
     .decode = json_decode_text,
     .offset = offsetof(struct control, signal),
     .min = 1,
     .max = 16},
    {.name = "tree", .decode = json_decode_bool, .offset = offsetof(struct control, tree)},
    JSON_FIELDS_END,
};

static int send_signal(struct attached *attached, const struct control *control, struct err *err)
{
    int number = control->signal ? signal_of_name(control->signal) : 0;

    if (!number)
        return err_set(err, ERR_INVALID_FIELD, "field 'signal' must be a name such as TERM or INT");
    return attachment_signal(attached->attachment, number, control->tree, err);
}

static int obey(struct attached *attached, const struct control *control, struct err *err)
{
    struct json *pong;

    switch ((enum control_type)control->type) {
    case CONTROL_TAKEOVER:
        return attachment_take_over(attached->attachment, err);
    case CONTROL_RELEASE:
        attachment_release(attached->attachment);
        return 0;
    case CONTROL_CLOSE_STDIN:
        attached->end_typed = true;
        type_on(attached);
        return 0;
    case CONTROL_SIGNAL:
        return send_signal(attached, control, err);
    case CONTROL_PING:
        pong = json_new_object();
        json_set_text(pong, "type", "pong");
        say(attached, pong);
        return 0;
    }
    return 0;
}

static void on_control(struct attached *attached, const char *text, size_t len)
{
    struct control control = {.signal = NULL};
    struct json *json = NULL;
    struct err err = {0};

    if (json_parse(text, len, JSON_STRICT, &json, &err)) {
        refuse(attached, CLOSE_BAD_DATA, ERR_INVALID_JSON, err.msg);
        return;
    }
    if (json_decode(json, control_fields, "", &control, &err) || obey(attached, &control, &err))
        say_error(attached, &err);
    free(control.signal);
    json_free(json);
}

static void on_message(void *arg, bool text, const void *data, size_t len)
{
    struct attached *attached = arg;
    const uint8_t *bytes = data;

    if (attached->closing)
        return;
    if (text)
        on_control(attached, data, len);
    else if (len && bytes[0] == CHANNEL_STDIN)
        on_typed(attached, bytes + 1, len - 1);
    else if (len && bytes[0] == CHANNEL_RESIZE)
        on_resize(attached, bytes + 1, len - 1);
    else
        refuse(attached, CLOSE_POLICY, ERR_INVALID_REQUEST,
               "a binary message begins with its channel: 0 input, 4 resize");
}

/* --- bytes from the client ----------------------------------------------------------------------
 */

static bool is_full(const struct attached *attached)
{
    return attached->typed.len || attached->end_typed ||
           ws_server_queued(attached->peer) > QUEUE_MAX;
}

/* False: he has gone. */
static bool pull(struct attached *attached)
{
    char block[BLOCK];

    attached->paused = false;
    for (int blocks = 0;; blocks++) {
        if (blocks == BLOCKS_AT_ONCE) {
            session_wake(&attached->session);
            return true;
        }
        if (!attached->closing && is_full(attached)) {
            attached->paused = true;
            return true;
        }
        ssize_t len = recv(attached->session.fd, block, sizeof(block), MSG_DONTWAIT);
        if (len < 0 && errno == EINTR)
            continue;
        if (len <= 0)
            return len < 0 && errno == EAGAIN;
        attached->heard_ms = clock_now_ms();
        ws_server_receive(attached->peer, block, (size_t)len);
    }
}

/* --- bytes to the client ------------------------------------------------------------------------
 */

/* True when all that was held is sent; else there is no room now, or he has gone. */
static bool send_held(struct attached *attached, bool *ret_gone)
{
    while (attached->held_at < attached->held_len) {
        ssize_t len = send(attached->session.fd, attached->held + attached->held_at,
                           attached->held_len - attached->held_at, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0) {
            *ret_gone = errno != EAGAIN;
            return false;
        }
        attached->held_at += (size_t)len;
    }
    free(attached->held);
    attached->held = NULL;
    attached->held_at = attached->held_len = 0;
    return true;
}

static bool hold_more(struct attached *attached)
{
    char *block = xmalloc(BLOCK);
    size_t len = ws_server_take(attached->peer, block, BLOCK);

    if (!len) {
        free(block);
        return false;
    }
    attached->held = block;
    attached->held_len = len;
    return true;
}

/* The pipe has nothing more. */
static void records_ended(struct attached *attached, enum pipe_state state, const struct err *why)
{
    if (state == PIPE_ENDED) {
        close_with(attached, CLOSE_NORMAL);
        return;
    }
    say_error(attached, why);
    if (why->code == ERR_STOPPING)
        close_with(attached, CLOSE_GOING_AWAY);
    else
        close_with(attached, why->code == ERR_SLOW_READER ? CLOSE_POLICY : CLOSE_FAILED);
}

/* Reads on in a record; true when something was read. */
static bool read_record(struct attached *attached)
{
    size_t missing = sizeof(attached->header) - attached->header_len;
    char block[BLOCK];

    if (missing) {
        size_t len = pipe_read(attached->records, attached->header + attached->header_len, missing);
        attached->header_len += len;
        return len > 0;
    }
    size_t left = wire_u32(attached->header + 1) - attached->record.len;
    size_t len = pipe_read(attached->records, block, left < BLOCK ? left : BLOCK);
    (void)buf_append(&attached->record, block, len); /* within ATTACHMENT_RECORD_MAX */
    if (len == left && left) {
        ws_server_send(attached->peer, attached->header[0] == ATTACHMENT_TEXT, attached->record.ptr,
                       attached->record.len);
        buf_reset(&attached->record);
        attached->header_len = 0;
    }
    return len > 0;
}

/* False: nothing more comes now. */
static bool next_record(struct attached *attached)
{
    struct event *readable = pipe_readable(attached->records);
    uint64_t seen = event_count(readable);
    struct err why = {0};

    (void)event_cancel(readable, &attached->on_record); /* it was, when a step pushes again */
    if (read_record(attached))
        return true;
    enum pipe_state state = pipe_state(attached->records, &why);
    if (state == PIPE_OPEN)
        return !event_wait(readable, seen, &attached->on_record);
    records_ended(attached, state, &why);
    return true;
}

/* False: he has gone. */
static bool push(struct attached *attached)
{
    bool gone = false;

    for (int blocks = 0;; blocks++) {
        if (blocks == BLOCKS_AT_ONCE) {
            session_wake(&attached->session);
            return true;
        }
        if (!send_held(attached, &gone))
            return !gone;
        if (hold_more(attached))
            continue;
        if (attached->closing || ws_server_closed(attached->peer) || !next_record(attached))
            return true;
    }
}

/* --- life --------------------------------------------------------------------------------------
 */

/* By us or by him, and be it by what he sent. */
static bool is_closing(const struct attached *attached)
{
    return attached->closing || ws_server_closed(attached->peer) ||
           !ws_server_wants(attached->peer);
}

/* Also of a connection on which nothing else happens: the time to look again stands from the first
 * step on. */
static void ping(struct attached *attached, int64_t now)
{
    if (attached->closing || attached->until_ms)
        return;
    if (now - attached->pinged_ms >= PING_MS) {
        ws_server_ping(attached->peer);
        attached->pinged_ms = now;
    }
    session_look(&attached->session, attached->pinged_ms + PING_MS);
}

/* False: it is over. */
static bool goes_on(struct attached *attached)
{
    int64_t now = clock_now_ms();

    if (ws_server_over(attached->peer) && !attached->held)
        return false;
    if (is_closing(attached)) {
        if (!attached->until_ms) {
            attached->until_ms = now + LINGER_MS;
            session_look(&attached->session, attached->until_ms);
        }
        if (ws_server_closed(attached->peer) && !ws_server_wants(attached->peer) && !attached->held)
            (void)shutdown(attached->session.fd, SHUT_WR); /* or he has gone: seen next */
        return now < attached->until_ms;
    }
    if (attached->paused)
        attached->heard_ms = now; /* he is not listened to */
    return now - attached->heard_ms < SILENCE_MS;
}

static bool attached_step(struct session *session)
{
    struct attached *attached = container_of(session, struct attached, session);

    wait_no_more(attached);
    ping(attached, clock_now_ms());
    if (attached->early.len)
        ws_server_receive(attached->peer, attached->early.ptr, attached->early.len);
    buf_wipe(&attached->early);
    type_on(attached);
    do {
        if (!pull(attached))
            return false;
        if (is_closing(attached)) /* as above */
            attachment_release(attached->attachment);
        if (!push(attached))
            return false;
    } while (attached->paused && !is_full(attached)); /* each turn has sent a block at least */
    return goes_on(attached);
}

static bool attached_stop(struct session *session)
{
    struct attached *attached = container_of(session, struct attached, session);

    if (!attached->closing)
        close_with(attached, CLOSE_GOING_AWAY);
    return attached_step(session);
}

static void attached_early(struct session *session, const void *data, size_t len)
{
    struct attached *attached = container_of(session, struct attached, session);

    (void)buf_append(&attached->early, data, len); /* see its maximum */
}

static void attached_free(struct session *session)
{
    struct attached *attached = container_of(session, struct attached, session);

    wait_no_more(attached);
    pipe_abandon(attached->records, NULL);
    pipe_unref(attached->records);
    attachment_close(attached->attachment);
    ws_server_free(attached->peer);
    buf_done(&attached->record);
    buf_wipe(&attached->typed);
    buf_wipe(&attached->early);
    free(attached->held);
    free(attached);
}

static const struct session_ops attached_ops = {attached_early, attached_step, attached_stop,
                                                attached_free};

struct session *attached_new(struct attachment *attachment, struct pipe *records)
{
    struct attached *attached = xcalloc(1, sizeof(*attached));

    attached->session.ops = &attached_ops;
    attached->peer = ws_server_new(MESSAGE_MAX, on_message, attached);
    attached->attachment = attachment;
    attached->records = records;
    attached->on_record.wake = record_came;
    attached->on_room.wake = room_came;
    buf_init(&attached->record, ATTACHMENT_RECORD_MAX);
    buf_init(&attached->typed, TYPED_MAX);
    buf_init(&attached->early, CAP_SMALL); /* beyond libmicrohttpd's memory of a connection */
    attached->heard_ms = attached->pinged_ms = clock_now_ms();
    return &attached->session;
}
