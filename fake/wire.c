#include "fake/wire.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "fake/fake_impl.h"

#define IN_MAX (256 * KIB)
#define OUT_ENOUGH (64 * KIB)
#define OUT_FULL (256 * KIB) /* the server is not listened to above this */
#define OUT_MAX (16 * MIB)
#define ROUNDS 16 /* in one turn; then others have theirs */

struct wire_part {
    struct wire_part *next;
    uint32_t channel;
    struct buf bytes;
};

/* --- out --------------------------------------------------------------------------------------
 */

bool wire_has_room(const struct wire *wire)
{
    return wire->out.len < OUT_ENOUGH && wire->why == NULL && !wire->overflowed && !wire->closed;
}

/* What cannot be sent breaks the stream: the server begins anew. */
static void put_frame(struct wire *wire, uint32_t channel, uint8_t type, const uint8_t *payload,
                      size_t len)
{
    char *at;

    if (wire->closed || wire->why != NULL || wire->overflowed)
        return;
    at = buf_reserve(&wire->out, FRAME_HEADER_LEN + len);
    if (at == NULL) {
        wire->overflowed = true; /* the turn ends it: whoever sends is in the midst of something */
        wire_wake(wire);
        return;
    }
    frame_header_write((uint8_t *)at, channel, type, len);
    if (len > 0)
        memcpy(at + FRAME_HEADER_LEN, payload, len);
    buf_grew(&wire->out, FRAME_HEADER_LEN + len);
    wire_wake(wire);
}

void wire_send(struct wire *wire, uint32_t channel, uint8_t type, const void *payload, size_t len)
{
    const uint8_t *ptr = payload;

    while (len > FRAME_PAYLOAD_MAX) {
        put_frame(wire, channel, FRAME_PART, ptr, FRAME_PAYLOAD_MAX);
        ptr += FRAME_PAYLOAD_MAX;
        len -= FRAME_PAYLOAD_MAX;
    }
    put_frame(wire, channel, type, ptr, len);
}

void wire_send_reply(struct wire *wire, uint32_t channel, uint8_t type, const struct reply *reply)
{
    wire_send(wire, channel, type, reply->fields.ptr, reply->fields.len);
}

void wire_send_error(struct wire *wire, uint32_t channel, const char *code, const char *format, ...)
{
    struct reply reply;
    va_list args;

    reply_init(&reply);
    va_start(args, format);
    reply_verror(&reply, code, format, args);
    va_end(args);
    wire_send_reply(wire, channel, FRAME_RESULT, &reply);
}

void outflow_follow(struct outflow *flow, uint64_t offset)
{
    flow->sent = offset;
    flow->limit = offset + PROTO_WINDOW;
    flow->end_sent = false;
}

void outflow_credit(struct outflow *flow, uint64_t limit)
{
    if (limit > flow->limit)
        flow->limit = limit;
}

bool outflow_send(struct outflow *flow, struct wire *wire, uint32_t channel, uint8_t stream)
{
    uint8_t payload[FRAME_PAYLOAD_MAX];
    uint64_t left = flow->len > flow->sent ? flow->len - flow->sent : 0;
    uint64_t granted = flow->limit > flow->sent ? flow->limit - flow->sent : 0;
    size_t len = (size_t)(left < granted ? left : granted);

    if (len > FRAME_DATA_MAX)
        len = FRAME_DATA_MAX;
    if (len == 0 && (left > 0 || flow->end_sent))
        return false;
    frame_data_header_write(payload, stream, flow->sent);
    if (len > 0)
        memcpy(payload + FRAME_DATA_HEADER, flow->bytes + flow->sent, len);
    wire_send(wire, channel, len > 0 ? FRAME_DATA : FRAME_END, payload, FRAME_DATA_HEADER + len);
    flow->sent += len;
    flow->end_sent = len == 0;
    return true;
}

/* --- in ---------------------------------------------------------------------------------------
 */

static struct wire_part *part_of(struct wire *wire, uint32_t channel)
{
    struct wire_part *part = wire->parts;

    while (part != NULL && part->channel != channel)
        part = part->next;
    return part;
}

static bool add_part(struct wire *wire, const struct frame *frame)
{
    struct wire_part *part = part_of(wire, frame->channel);

    if (frame->len == 0 || wire->parts_len + frame->len > (size_t)2 * PROTO_MESSAGE_MAX)
        return false;
    if (part == NULL) {
        part = xcalloc(1, sizeof(*part));
        part->channel = frame->channel;
        buf_init(&part->bytes, PROTO_MESSAGE_MAX);
        part->next = wire->parts;
        wire->parts = part;
    }
    wire->parts_len += frame->len;
    return buf_append(&part->bytes, frame->payload, frame->len);
}

static void drop_part(struct wire *wire, struct wire_part *part)
{
    struct wire_part **link = &wire->parts;

    while (*link != part)
        link = &(*link)->next;
    *link = part->next;
    wire->parts_len -= part->bytes.len;
    buf_wipe(&part->bytes);
    free(part);
}

static bool on_message(struct wire *wire, const struct frame *frame)
{
    struct wire_part *part = part_of(wire, frame->channel);
    struct message message = {.data = (uint8_t *)(uintptr_t)frame->payload, .len = frame->len};
    bool good = true;

    if (part != NULL) {
        good = buf_append(&part->bytes, frame->payload, frame->len);
        message = (struct message){(uint8_t *)part->bytes.ptr, part->bytes.len};
        wire->parts_len += good ? frame->len : 0;
    }
    if (frame->type != FRAME_PING && frame->type != FRAME_PONG)
        good = good && message_well_formed(&message);
    good = good && fake_agent_message(wire, frame->channel, frame->type, &message);
    if (part != NULL)
        drop_part(wire, part);
    return good;
}

static bool on_frame(struct wire *wire, const struct frame *frame)
{
    if (!wire->greeted && (frame->channel != 0 || frame->type != FRAME_HELLO))
        return false;
    switch (frame->type) {
    case FRAME_PART:
        return add_part(wire, frame);
    case FRAME_DATA:
    case FRAME_END:
    case FRAME_CREDIT:
        return frame->channel == 0 || fake_agent_frame(wire, frame);
    default:
        return on_message(wire, frame);
    }
}

/* What has come is taken out first: a frame's answer may let more come. */
static void take(struct wire *wire)
{
    struct buf in = wire->in;
    const uint8_t *data = (const uint8_t *)in.ptr;
    size_t left = in.len;
    enum frame_result result = FRAME_MORE;
    struct frame frame;

    buf_init(&wire->in, IN_MAX);
    if (left > 0 && wire->decoder == NULL) {
        wire->decoder = xmalloc(sizeof(*wire->decoder));
        wire->decoder->have = 0;
    }
    while (left > 0 && wire->box != NULL && !wire->closed) {
        result = frame_decode(wire->decoder, &data, &left, &frame);
        if (result == FRAME_MORE)
            break;
        if (result == FRAME_BROKEN || !on_frame(wire, &frame)) {
            wire_end(wire, ERR_STREAM_LOST, "the stream breaks the protocol");
            break;
        }
    }
    buf_wipe(&in);
    if (wire->decoder != NULL && (wire->decoder->have == 0 || wire->box == NULL)) {
        free_secret(wire->decoder, sizeof(*wire->decoder));
        wire->decoder = NULL;
    }
}

/* --- life -------------------------------------------------------------------------------------
 */

static void forget(struct wire *wire)
{
    while (wire->parts != NULL)
        drop_part(wire, wire->parts);
    free(wire->decoder);
    wire->decoder = NULL;
    buf_wipe(&wire->in);
    buf_wipe(&wire->out);
}

static void leave_box(struct wire *wire)
{
    struct fake_box *box = wire->box;
    struct wire **link;

    if (box == NULL)
        return;
    for (link = &box->wires; *link != wire;)
        link = &(*link)->next;
    *link = wire->next;
    wire->box = NULL;
    if (box->wire == wire) {
        box->wire = NULL;
        fake_agent_wire_lost(box, wire);
    }
}

static void wire_free(struct wire *wire)
{
    leave_box(wire);
    forget(wire);
    free(wire->why);
    free(wire);
}

static void deliver(struct wire *wire)
{
    struct buf out = wire->out;

    if (out.len == 0 || wire->paused)
        return;
    buf_init(&wire->out, OUT_MAX);
    wire->base.handler->received(wire->base.arg, (const uint8_t *)out.ptr, out.len);
    buf_wipe(&out);
}

/* One exchange in both directions; false when there is nothing more to do. */
static bool round_of(struct wire *wire)
{
    bool heard = wire->in.len > 0 && wire->out.len < OUT_FULL;

    if (heard)
        take(wire);
    if (!wire->closed && wire->box != NULL && wire->greeted)
        fake_agent_pump(wire);
    bool said = wire->out.len > 0 && !wire->paused && !wire->closed;
    if (said)
        deliver(wire);
    if (!wire->closed && wire->wants_room && wire->in.len < IN_MAX / 2) {
        wire->wants_room = false;
        wire->base.handler->writable(wire->base.arg);
    }
    return (heard || said) && !wire->closed;
}

static bool has_more(const struct wire *wire)
{
    return (wire->out.len > 0 && !wire->paused) ||
           (wire->in.len > 0 && wire->out.len < OUT_FULL && wire->box != NULL);
}

static void tell_end(struct wire *wire)
{
    const struct stream_handler *handler = wire->base.handler;
    void *arg = wire->base.arg;
    struct err why = *wire->why;

    wire_free(wire);
    handler->closed(arg, &why);
}

static void turn(void *arg)
{
    struct wire *wire = arg;
    int rounds = 0;

    wire->scheduled = false;
    wire->running = true;
    if (!wire->closed && wire->why == NULL && !wire->opened) {
        wire->opened = true;
        wire->base.handler->opened(wire->base.arg);
    }
    while (!wire->closed && round_of(wire) && rounds < ROUNDS)
        rounds++;
    if (wire->overflowed && !wire->closed) {
        buf_wipe(&wire->out);
        wire_end(wire, ERR_STREAM_LOST, "the server does not read");
    }
    wire->running = false;
    if (wire->closed)
        wire_free(wire);
    else if (wire->why != NULL && (wire->out.len == 0 || !wire->opened))
        tell_end(wire);
    else if (rounds == ROUNDS || has_more(wire))
        wire_wake(wire);
}

void wire_wake(struct wire *wire)
{
    if (wire->scheduled || wire->running)
        return;
    wire->scheduled = true;
    loop_post(wire->loop, turn, wire);
}

void wire_end(struct wire *wire, enum err_code code, const char *why)
{
    if (wire->why != NULL)
        return;
    wire->why = xcalloc(1, sizeof(*wire->why));
    (void)err_set(wire->why, code, "%s", why);
    leave_box(wire);
    wire_wake(wire);
}

/* --- the stream -------------------------------------------------------------------------------
 */

static struct wire *of(struct stream *stream)
{
    return container_of(stream, struct wire, base);
}

static size_t wire_op_write(struct stream *stream, const void *data, size_t len)
{
    struct wire *wire = of(stream);
    size_t room = IN_MAX - wire->in.len;

    if (wire->box == NULL || !wire->opened)
        return len; /* nobody listens any more: its end is on the way */
    if (room > len)
        room = len;
    if (room > 0 && !buf_append(&wire->in, data, room))
        room = 0;
    wire->wants_room = wire->wants_room || room < len;
    wire_wake(wire);
    return room;
}

static void wire_op_pause(struct stream *stream, int paused)
{
    struct wire *wire = of(stream);

    wire->paused = paused != 0;
    if (!wire->paused)
        wire_wake(wire);
}

static void wire_op_close(struct stream *stream)
{
    struct wire *wire = of(stream);

    wire->closed = true;
    leave_box(wire);
    if (!wire->scheduled && !wire->running)
        wire_free(wire);
}

static const struct stream_ops wire_ops = {
    .write = wire_op_write,
    .pause = wire_op_pause,
    .close = wire_op_close,
};

struct wire *wire_new(struct loop *loop, struct fake_box *box, const struct stream_handler *handler,
                      void *arg, const struct err *why)
{
    struct wire *wire = xcalloc(1, sizeof(*wire));

    wire->base = (struct stream){.ops = &wire_ops, .handler = handler, .arg = arg};
    wire->loop = loop;
    buf_init(&wire->in, IN_MAX);
    buf_init(&wire->out, OUT_MAX);
    if (why != NULL) {
        wire->why = xmalloc(sizeof(*wire->why));
        *wire->why = *why;
    } else {
        wire->box = box;
        wire->next = box->wires;
        box->wires = wire;
    }
    wire_wake(wire);
    return wire;
}
