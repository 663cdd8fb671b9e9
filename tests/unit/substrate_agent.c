/* The agents of the scripted substrate: each answers what its server says, on the loop. */
#include "tests/unit/substrate_agent.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sandbox/fields.h"

struct agent_stream {
    struct stream stream;
    struct substrate *substrate;
    size_t index; /* of the box */
    char box_uid[UID_LEN];
    unsigned holds;     /* tasks of the loop that have it in hand */
    bool opened, ended; /* ended: no callback follows */
    struct buf in;      /* from the server, not looked at yet */
    struct buf part;    /* the beginning of a long message */
    struct frame_decoder decoder;
};

static struct scripted_box *box_of(struct agent_stream *stream)
{
    return &stream->substrate->world->boxes[stream->index];
}

static void let_go(struct agent_stream *stream)
{
    if (--stream->holds > 0 || !stream->ended) {
        return;
    }
    buf_done(&stream->in);
    buf_done(&stream->part);
    free(stream);
}

static void hold(struct agent_stream *stream, void (*fn)(void *arg))
{
    stream->holds++;
    loop_post(stream->substrate->loop, fn, stream);
}

static void forget_stream(struct agent_stream *stream)
{
    if (stream->substrate->streams[stream->index] == stream) {
        stream->substrate->streams[stream->index] = NULL;
    }
    stream->ended = true;
}

/* --- saying ---------------------------------------------------------------------------------- */

static void say_frame(struct agent_stream *stream, uint32_t channel, uint8_t type, const void *data,
                      size_t len)
{
    uint8_t bytes[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    if (stream->ended) {
        return;
    }
    frame_header_write(bytes, channel, type, len);
    if (len > 0) {
        memcpy(bytes + FRAME_HEADER_LEN, data, len);
    }
    stream->stream.handler->received(stream->stream.arg, bytes, FRAME_HEADER_LEN + len);
}

/* FIELDS are said and emptied. */
static void say(struct agent_stream *stream, uint32_t channel, uint8_t type, struct buf *fields)
{
    const char *at = buf_text(fields);
    size_t left = fields->len;
    while (left > FRAME_PAYLOAD_MAX) {
        say_frame(stream, channel, FRAME_PART, at, FRAME_PAYLOAD_MAX);
        at += FRAME_PAYLOAD_MAX;
        left -= FRAME_PAYLOAD_MAX;
    }
    say_frame(stream, channel, type, at, left);
    buf_done(fields);
}

static struct buf message(void)
{
    return BUF_INIT(PROTO_MESSAGE_MAX);
}

static void say_error(struct agent_stream *stream, uint32_t channel, uint8_t type,
                      enum err_code code)
{
    struct buf fields = message();
    fields_put_text(&fields, TAG_ERROR, err_code_name(code));
    fields_put_text(&fields, TAG_MESSAGE, "the agent says no");
    say(stream, channel, type, &fields);
}

static uint64_t left_of(const struct scripted_box *box)
{
    int64_t left = box->deadline_ms - clock_now_ms();
    return !box->deadline_ms ? 0 : left > 0 ? (uint64_t)left : 1;
}

/* --- channel 0 ------------------------------------------------------------------------------- */

static void on_hello(struct agent_stream *stream, const void *data, size_t len)
{
    struct scripted_box *box = box_of(stream);
    struct field token;
    ck_assert(fields_find(data, len, TAG_TOKEN, &token));
    ck_assert_uint_eq(token.len, PROTO_TOKEN_LEN);
    bool fresh = !box->token_set;
    if (stream->substrate->dumb) {
        return;
    }
    if (fresh) {
        memcpy(box->token, token.data, PROTO_TOKEN_LEN);
        box->token_set = true;
    } else if (memcmp(box->token, token.data, PROTO_TOKEN_LEN) != 0) {
        say_error(stream, 0, FRAME_HELLO_NO, ERR_FORBIDDEN);
        return;
    }
    struct buf fields = message();
    fields_put_u64(&fields, TAG_VERSION, PROTO_VERSION);
    fields_put_text(&fields, TAG_AGENT, "scripted");
    fields_put_u64(&fields, TAG_FRESH, fresh);
    fields_put_u64(&fields, TAG_CONFIGURED, box->configured);
    fields_put_u64(&fields, TAG_DEADLINE_MS, left_of(box));
    fields_put_u64(&fields, TAG_UPTIME_MS, (uint64_t)(clock_now_ms() - box->started_ms) + 1);
    fields_put_u64(&fields, TAG_MEMORY_LIMIT, 1 << 30);
    if (box->configured) {
        fields_put(&fields, TAG_BLOB, box->blob, box->blob_len);
        fields_put_u64(&fields, TAG_BLOB_VERSION, box->blob_version);
    }
    for (size_t i = 0; i < BOX_EXECS; i++) {
        if (box->execs[i].id) {
            cleanup_free char *id = xasprintf("%llu", (unsigned long long)box->execs[i].id);
            fields_put_text(&fields, TAG_EXEC_ID, id);
            box->execs[i].channel = 0;
        }
    }
    say(stream, 0, FRAME_HELLO_OK, &fields);
}

static void count_env(struct scripted_box *box, const void *data, size_t len)
{
    struct field_reader reader;
    struct field field;
    uint64_t set = 0;
    if (!fields_u64(data, len, TAG_ENV_SET, &set)) {
        return;
    }
    box->envs = 0;
    field_reader_init(&reader, data, len);
    while (field_next(&reader, &field)) {
        box->envs += field.tag == TAG_ENV;
    }
}

static void take_blob(struct scripted_box *box, const void *data, size_t len)
{
    struct field blob;
    if (fields_find(data, len, TAG_BLOB, &blob)) {
        ck_assert_uint_le(blob.len, sizeof(box->blob));
        memcpy(box->blob, blob.data, blob.len);
        box->blob_len = blob.len;
        (void)fields_u64(data, len, TAG_BLOB_VERSION, &box->blob_version);
    }
}

static void on_configure(struct agent_stream *stream, const void *data, size_t len)
{
    struct scripted_box *box = box_of(stream);
    uint64_t seq = 0, deadline = 0, version = 0;
    struct buf reply = message();
    ck_assert(fields_u64(data, len, TAG_SEQ, &seq));
    (void)fields_u64(data, len, TAG_BLOB_VERSION, &version);
    fields_put_u64(&reply, TAG_SEQ, seq);
    if (stream->substrate->hold_ack) {
        buf_done(&reply);
        return;
    }
    if (stream->substrate->refuse_config || version < box->blob_version) {
        fields_put_text(&reply, TAG_ERROR, err_code_name(ERR_CONFLICT));
        fields_put_text(&reply, TAG_MESSAGE, "an older one");
        say(stream, 0, FRAME_CONFIGURED, &reply);
        return;
    }
    take_blob(box, data, len);
    count_env(box, data, len);
    if (fields_u64(data, len, TAG_DEADLINE_MS, &deadline)) {
        box->deadline_ms = deadline ? clock_now_ms() + (int64_t)deadline : 0;
    }
    box->configured = true;
    box->configurations++;
    fields_put_u64(&reply, TAG_DEADLINE_MS, left_of(box));
    say(stream, 0, FRAME_CONFIGURED, &reply);
}

/* --- channels -------------------------------------------------------------------------------- */

static struct scripted_exec *exec_of(struct scripted_box *box, uint64_t id, uint32_t channel)
{
    for (size_t i = 0; i < BOX_EXECS; i++) {
        struct scripted_exec *exec = &box->execs[i];
        if (exec->id && (exec->id == id || (!id && exec->channel == channel))) {
            return exec;
        }
    }
    return NULL;
}

static void say_result(struct agent_stream *stream, struct scripted_exec *exec)
{
    struct buf fields = message();
    uint8_t end[FRAME_DATA_HEADER];
    for (uint8_t number = 1; number <= 2; number++) {
        frame_data_header_write(end, number, 0);
        say_frame(stream, exec->channel, FRAME_END, end, sizeof(end));
    }
    fields_put_u64(&fields, exec->exit_code < 0 ? TAG_SIGNAL : TAG_EXIT_CODE,
                   (uint64_t)(exec->exit_code < 0 ? -exec->exit_code : exec->exit_code));
    say(stream, exec->channel, FRAME_RESULT, &fields);
}

static void on_exec(struct agent_stream *stream, uint32_t channel, const void *data, size_t len)
{
    struct scripted_box *box = box_of(stream);
    cleanup_free char *id = fields_text(data, len, TAG_EXEC_ID);
    uint64_t number = 0, join = 0;
    ck_assert(id && str_to_u64(str_of(id), UINT64_MAX, &number) && number > 0);
    (void)fields_u64(data, len, TAG_JOIN, &join);
    struct scripted_exec *exec = exec_of(box, number, 0);
    bool joined = exec != NULL;
    if (!exec && join) {
        say_error(stream, channel, FRAME_RESULT, ERR_NOT_FOUND);
        return;
    }
    for (size_t i = 0; i < BOX_EXECS && !exec; i++) {
        exec = box->execs[i].id ? NULL : &box->execs[i];
    }
    ck_assert_ptr_nonnull(exec);
    if (!joined) {
        *exec = (struct scripted_exec){.id = number};
    }
    exec->channel = channel;
    struct buf fields = message();
    fields_put_u64(&fields, TAG_PID, 10);
    fields_put_u64(&fields, TAG_JOINED, joined);
    say(stream, channel, FRAME_STARTED, &fields);
    if (exec->ended) {
        say_result(stream, exec);
    }
}

static void on_open(struct agent_stream *stream, uint32_t channel, const void *data, size_t len)
{
    uint64_t op = 0;
    struct buf fields = message();
    (void)fields_u64(data, len, TAG_OP, &op);
    switch (op) {
    case OP_EXEC:
        on_exec(stream, channel, data, len);
        break;
    case OP_PORT_WAIT:
        fields_put_u64(&fields, TAG_READY, stream->substrate->port_ready);
        say(stream, channel, FRAME_RESULT, &fields);
        break;
    case OP_PORT_CLOSE:
        say(stream, channel, FRAME_RESULT, &fields);
        break;
    default:
        say_error(stream, channel, FRAME_RESULT, ERR_NOT_SUPPORTED);
    }
    buf_done(&fields);
}

static void on_signal(struct agent_stream *stream, uint32_t channel)
{
    struct scripted_exec *exec = exec_of(box_of(stream), 0, channel);
    if (exec && !exec->ended) {
        exec->ended = true;
        exec->exit_code = -15;
        say_result(stream, exec);
    }
}

static void on_commit(struct agent_stream *stream, uint32_t channel)
{
    struct scripted_exec *exec = exec_of(box_of(stream), 0, channel);
    if (exec) {
        *exec = (struct scripted_exec){0};
    }
}

/* --- frames ---------------------------------------------------------------------------------- */

static void on_frame(struct agent_stream *stream, const struct frame *frame)
{
    if (frame->type == FRAME_PART) {
        ck_assert(buf_append(&stream->part, frame->payload, frame->len));
        return;
    }
    struct buf whole = stream->part;
    stream->part = message();
    ck_assert(buf_append(&whole, frame->payload, frame->len));
    switch (frame->type) {
    case FRAME_HELLO:
        on_hello(stream, whole.ptr, whole.len);
        break;
    case FRAME_CONFIGURE:
        on_configure(stream, whole.ptr, whole.len);
        break;
    case FRAME_OPEN:
        on_open(stream, frame->channel, whole.ptr, whole.len);
        break;
    case FRAME_SIGNAL:
        on_signal(stream, frame->channel);
        break;
    case FRAME_COMMIT:
        on_commit(stream, frame->channel);
        break;
    default:
        break;
    }
    buf_done(&whole);
}

static void serve(void *arg)
{
    struct agent_stream *stream = arg;
    struct buf in = stream->in;
    stream->in = message();
    const uint8_t *data = (const uint8_t *)buf_text(&in);
    size_t left = in.len;
    struct frame frame;
    while (!stream->ended && frame_decode(&stream->decoder, &data, &left, &frame) == FRAME_READY) {
        on_frame(stream, &frame);
    }
    buf_done(&in);
    let_go(stream);
}

static size_t stream_take(struct stream *stream, const void *data, size_t len)
{
    struct agent_stream *agent = (struct agent_stream *)(void *)stream;
    ck_assert(agent->opened && !agent->ended);
    ck_assert(buf_append(&agent->in, data, len));
    hold(agent, serve);
    return len;
}

static void stream_hold(struct stream *stream, int paused)
{
    (void)stream;
    (void)paused;
}

static void stream_end(struct stream *stream)
{
    struct agent_stream *agent = (struct agent_stream *)(void *)stream;
    forget_stream(agent);
    agent->holds++;
    let_go(agent);
}

static const struct stream_ops stream_ops = {stream_take, stream_hold, stream_end};

static void end_with(struct agent_stream *stream, enum err_code code)
{
    struct err why;
    if (stream->ended) {
        return;
    }
    (void)err_set(&why, code, "the stream was cut by the test");
    forget_stream(stream);
    stream->stream.handler->closed(stream->stream.arg, &why);
}

static void open_now(void *arg)
{
    struct agent_stream *stream = arg;
    struct substrate *substrate = stream->substrate;
    pthread_mutex_lock(&substrate->lock);
    bool there = box_of(stream)->there;
    pthread_mutex_unlock(&substrate->lock);
    if (stream->ended) {
        let_go(stream);
        return;
    }
    if (substrate->refuse_stream) {
        end_with(stream, substrate->refuse_stream);
    } else if (!there) {
        end_with(stream, ERR_SANDBOX_GONE);
    } else {
        stream->opened = true;
        stream->stream.handler->opened(stream->stream.arg);
    }
    let_go(stream);
}

struct stream *agent_open(void *self, const char *id, const char *box_uid,
                          const struct stream_handler *handler, void *arg)
{
    struct substrate *substrate = self;
    struct scripted_box *box = substrate_box(substrate, id);
    pthread_mutex_lock(&substrate->lock);
    bool there = box && strcmp(box->info.box_uid, box_uid) == 0;
    pthread_mutex_unlock(&substrate->lock);
    substrate->opens++;
    if (!there) {
        struct err why;
        (void)err_set(&why, ERR_SANDBOX_GONE, "there is no such box");
        handler->closed(arg, &why);
        return NULL;
    }
    size_t index = (size_t)(box - substrate->world->boxes);
    struct agent_stream *stream = xcalloc(1, sizeof(*stream));
    *stream = (struct agent_stream){.substrate = substrate, .index = index};
    stream->stream = (struct stream){.ops = &stream_ops, .handler = handler, .arg = arg};
    (void)snprintf(stream->box_uid, sizeof(stream->box_uid), "%s", box_uid);
    stream->in = message();
    stream->part = message();
    substrate->streams[index] = stream;
    hold(stream, open_now);
    return &stream->stream;
}

/* --- what happens to agents ------------------------------------------------------------------ */

struct cutting {
    struct substrate *substrate;
    size_t index;
    char box_uid[UID_LEN]; /* another box may have the place by then */
    enum err_code code;
};

static void cut_now(void *arg)
{
    struct cutting *cutting = arg;
    struct agent_stream *stream = cutting->substrate->streams[cutting->index];
    if (stream && strcmp(stream->box_uid, cutting->box_uid) == 0) {
        stream->holds++;
        end_with(stream, cutting->code);
        let_go(stream);
    }
    free(cutting);
}

void agent_cut_later(struct substrate *substrate, size_t index, enum err_code code)
{
    struct cutting *cutting = xmalloc(sizeof(*cutting));
    *cutting = (struct cutting){.substrate = substrate, .index = index, .code = code};
    memcpy(cutting->box_uid, substrate->world->boxes[index].info.box_uid, UID_LEN);
    loop_post(substrate->loop, cut_now, cutting);
}

void substrate_cut(struct substrate *substrate, const char *id, enum err_code code)
{
    struct scripted_box *box = substrate_box(substrate, id);
    ck_assert_ptr_nonnull(box);
    agent_cut_later(substrate, (size_t)(box - substrate->world->boxes), code);
}

void substrate_tick(struct substrate *substrate)
{
    for (size_t i = 0; i < BOXES; i++) {
        struct scripted_box *box = &substrate->world->boxes[i];
        struct agent_stream *stream = substrate->streams[i];
        if (!box->there || !box->deadline_ms || clock_now_ms() < box->deadline_ms ||
            box->info.state == BOX_FAILED) {
            continue;
        }
        if (stream && stream->opened) {
            struct buf fields = message();
            fields_put_text(&fields, TAG_ERROR, "deadline");
            stream->holds++;
            say(stream, 0, FRAME_BYE, &fields);
            let_go(stream);
        }
        substrate_fail(substrate, box->info.id, ERR_CONTAINER_EXITED, true,
                       "the agent ended with exit code 3: the deadline has passed");
    }
}

int64_t substrate_next_deadline(struct substrate *substrate)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < BOXES; i++) {
        const struct scripted_box *box = &substrate->world->boxes[i];
        int64_t left = box->deadline_ms - clock_now_ms();
        if (box->there && box->deadline_ms && left < next) {
            next = left > 1 ? left : 1;
        }
    }
    return next;
}

void substrate_end_exec(struct substrate *substrate, const char *id, uint64_t number, int exit_code)
{
    struct scripted_box *box = substrate_box(substrate, id);
    ck_assert_ptr_nonnull(box);
    struct scripted_exec *exec = exec_of(box, number, 0);
    ck_assert_ptr_nonnull(exec);
    exec->ended = true;
    exec->exit_code = exit_code;
    struct agent_stream *stream = substrate->streams[box - substrate->world->boxes];
    if (stream && exec->channel) {
        stream->holds++;
        say_result(stream, exec);
        let_go(stream);
    }
}

bool substrate_has_exec(struct substrate *substrate, const char *id, uint64_t number)
{
    struct scripted_box *box = substrate_box(substrate, id);
    return box && exec_of(box, number, 0);
}
