#include "tests/unit/fake_stream.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "net/loop.h"
#include "sandbox/fields.h"

struct fake_stream {
    struct stream stream;
    struct fake_agent *agent; /* NULL: closed, the posted task frees it */
    bool opened;
};

static size_t stream_take(struct stream *stream, const void *data, size_t len)
{
    struct fake_agent *agent = ((struct fake_stream *)(void *)stream)->agent;
    size_t size = len < agent->room ? len : agent->room;
    ck_assert(((struct fake_stream *)(void *)stream)->opened);
    ck_assert(buf_append(&agent->sent, data, size));
    if (agent->room != SIZE_MAX)
        agent->room -= size;
    return size;
}

static void stream_hold(struct stream *stream, int paused)
{
    (void)stream;
    (void)paused;
}

static void stream_end(struct stream *stream)
{
    struct fake_stream *fake = (struct fake_stream *)(void *)stream;
    ck_assert_ptr_eq(fake->agent->stream, fake);
    fake->agent->stream = NULL;
    fake->agent = NULL;
    if (fake->opened)
        free(fake);
}

static const struct stream_ops stream_ops = {stream_take, stream_hold, stream_end};

static void tell_opened(void *arg)
{
    struct fake_stream *fake = arg;
    if (!fake->agent) {
        free(fake);
        return;
    }
    fake->opened = true;
    fake->stream.handler->opened(fake->stream.arg);
}

static void tell_refused(void *arg)
{
    struct fake_stream *fake = arg;
    if (fake->agent) {
        struct err why = fake->agent->refusal;
        fake->agent->stream = NULL;
        fake->stream.handler->closed(fake->stream.arg, &why);
    }
    free(fake);
}

static struct stream *driver_open(void *self, const char *id, const char *box_uid,
                                  const struct stream_handler *handler, void *arg)
{
    struct fake_agent *agent = self;
    (void)id;
    (void)box_uid;
    agent->opens++;
    if (agent->refusal.code != ERR_NONE && agent->refuse_at_once) {
        handler->closed(arg, &agent->refusal);
        return NULL;
    }
    ck_assert_ptr_null(agent->stream);
    struct fake_stream *fake = xcalloc(1, sizeof(*fake));
    fake->stream = (struct stream){.ops = &stream_ops, .handler = handler, .arg = arg};
    fake->agent = agent;
    agent->stream = fake;
    buf_reset(&agent->sent);
    loop_post(agent->loop, agent->refusal.code == ERR_NONE ? tell_opened : tell_refused, fake);
    return &fake->stream;
}

void fake_agent_init(struct fake_agent *agent, struct loop *loop)
{
    *agent = (struct fake_agent){.loop = loop, .room = SIZE_MAX};
    agent->ops = (struct driver_ops){.name = "fake", .open = driver_open};
    agent->driver = (struct driver){.ops = &agent->ops, .self = agent};
    buf_init(&agent->sent, (size_t)1 << 30);
    buf_init(&agent->taken, FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX);
}

void fake_agent_done(struct fake_agent *agent)
{
    ck_assert_ptr_null(agent->stream);
    buf_done(&agent->sent);
    buf_done(&agent->taken);
}

bool fake_agent_take(struct fake_agent *agent, struct frame *ret_frame)
{
    if (agent->sent.len < FRAME_HEADER_LEN)
        return false;
    size_t len = FRAME_HEADER_LEN + wire_u32((const uint8_t *)agent->sent.ptr);
    if (agent->sent.len < len)
        return false;
    buf_reset(&agent->taken);
    ck_assert(buf_append(&agent->taken, agent->sent.ptr, len));
    buf_consume(&agent->sent, len);
    const uint8_t *bytes = (const uint8_t *)agent->taken.ptr;
    *ret_frame = (struct frame){
        .channel = wire_u32(bytes + 4),
        .type = bytes[8],
        .payload = bytes + FRAME_HEADER_LEN,
        .len = len - FRAME_HEADER_LEN,
    };
    return true;
}

struct frame fake_agent_expect(struct fake_agent *agent, uint32_t channel, enum frame_type type)
{
    struct frame frame = {0};
    ck_assert_msg(fake_agent_take(agent, &frame), "no frame; expected type %d", (int)type);
    ck_assert_int_eq(frame.type, type);
    ck_assert_uint_eq(frame.channel, channel);
    return frame;
}

void fake_agent_expect_nothing(struct fake_agent *agent)
{
    struct frame frame = {0};
    ck_assert_msg(!fake_agent_take(agent, &frame), "an unexpected frame of type %d", frame.type);
}

void fake_agent_make_room(struct fake_agent *agent, size_t room)
{
    agent->room = room;
    if (agent->stream)
        agent->stream->stream.handler->writable(agent->stream->stream.arg);
}

void fake_agent_bytes(struct fake_agent *agent, const void *data, size_t len)
{
    ck_assert_ptr_nonnull(agent->stream);
    agent->stream->stream.handler->received(agent->stream->stream.arg, data, len);
}

void fake_agent_say(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                    const void *payload, size_t len)
{
    struct buf bytes = BUF_INIT((size_t)1 << 20);
    uint8_t header[FRAME_HEADER_LEN];
    frame_header_write(header, channel, (uint8_t)type, len);
    ck_assert(buf_append(&bytes, header, sizeof(header)));
    ck_assert(buf_append(&bytes, payload ? payload : "", len));
    fake_agent_bytes(agent, bytes.ptr, bytes.len);
    buf_done(&bytes);
}

void fake_agent_tell(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                     struct buf *fields)
{
    fake_agent_say(agent, channel, type, fields ? fields->ptr : NULL, fields ? fields->len : 0);
    if (fields)
        buf_done(fields);
}

void fake_agent_error(struct fake_agent *agent, uint32_t channel, enum frame_type type,
                      const char *code, const char *message)
{
    struct buf fields = BUF_INIT(4096);
    fields_put_text(&fields, TAG_ERROR, code);
    fields_put_text(&fields, TAG_MESSAGE, message);
    fake_agent_tell(agent, channel, type, &fields);
}

static void say_offset(struct fake_agent *agent, uint32_t channel, enum frame_type type, int stream,
                       uint64_t offset, struct str data)
{
    struct buf payload = BUF_INIT(FRAME_PAYLOAD_MAX);
    uint8_t header[FRAME_DATA_HEADER];
    frame_data_header_write(header, (uint8_t)stream, offset);
    ck_assert(buf_append(&payload, header, sizeof(header)));
    ck_assert(buf_append(&payload, data.ptr, data.len));
    fake_agent_tell(agent, channel, type, &payload);
}

void fake_agent_data(struct fake_agent *agent, uint32_t channel, int stream, uint64_t offset,
                     const void *data, size_t len)
{
    say_offset(agent, channel, FRAME_DATA, stream, offset, (struct str){data, len});
}

void fake_agent_end(struct fake_agent *agent, uint32_t channel, int stream, uint64_t total)
{
    say_offset(agent, channel, FRAME_END, stream, total, STR(""));
}

void fake_agent_credit(struct fake_agent *agent, uint32_t channel, uint64_t done, uint64_t limit)
{
    uint8_t payload[FRAME_CREDIT_LEN];
    frame_credit_write(payload, 0, done, limit);
    fake_agent_say(agent, channel, FRAME_CREDIT, payload, sizeof(payload));
}

void fake_agent_greet(struct fake_agent *agent, const uint64_t *execs)
{
    struct buf fields = BUF_INIT(65536);
    (void)fake_agent_expect(agent, 0, FRAME_HELLO);
    fields_put_u64(&fields, TAG_VERSION, PROTO_VERSION);
    fields_put_text(&fields, TAG_AGENT, "0.1.0");
    for (; execs && *execs; execs++) {
        cleanup_free char *id = xasprintf("%llu", (unsigned long long)*execs);
        fields_put_text(&fields, TAG_EXEC_ID, id);
    }
    fake_agent_tell(agent, 0, FRAME_HELLO_OK, &fields);
}

void fake_agent_cut(struct fake_agent *agent, enum err_code code)
{
    struct fake_stream *fake = agent->stream;
    struct err why = {.code = code, .msg = "cut by the test"};
    ck_assert_ptr_nonnull(fake);
    agent->stream = NULL;
    fake->stream.handler->closed(fake->stream.arg, &why);
    free(fake);
}

uint64_t frame_u64(const struct frame *frame, uint16_t tag, uint64_t missing)
{
    (void)fields_u64(frame->payload, frame->len, tag, &missing);
    return missing;
}

char *frame_text(const struct frame *frame, uint16_t tag)
{
    return fields_text(frame->payload, frame->len, tag);
}
