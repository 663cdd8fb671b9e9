#include "tests/unit/client_probe.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/mem.h"
#include "sandbox/fields.h"

struct log seen;
struct client *client;
struct link_shared shared;

static void on_hello(void *arg, const struct link_hello *hello)
{
    (void)arg;
    seen.hellos++;
    seen.hello = *hello;
    snprintf(seen.agent, sizeof(seen.agent), "%s", hello->agent_version);
    ck_assert_uint_lt(hello->blob_len, sizeof(seen.blob));
    if (hello->blob_len > 0)
        memcpy(seen.blob, hello->blob, hello->blob_len);
    for (size_t i = 0; i < hello->exec_count && i < ARRAY_LEN(seen.exec_ids); i++)
        seen.exec_ids[i] = hello->exec_ids[i];
}

static void on_refused(void *arg, const struct err *why)
{
    (void)arg;
    seen.refusals++;
    seen.why = *why;
}

static void on_bye(void *arg, const struct err *why, enum client_bye kind)
{
    (void)arg;
    seen.byes++;
    seen.bye = kind;
    seen.why = *why;
}

static void on_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    (void)arg;
    (void)deadline_ms;
    seen.configured++;
    seen.seq = seq;
    seen.why = why ? *why : (struct err){0};
}

static void on_output(void *arg)
{
    (void)arg;
    seen.outputs++;
}

static const struct client_handler handler = {on_hello, on_refused, on_bye, on_configured,
                                              on_output};

/* --- a channel that remembers ------------------------------------------------------------ */

static struct probe *probe_of(struct channel *channel)
{
    return container_of(channel, struct probe, channel);
}

static void probe_started(struct channel *channel, const void *fields, size_t len)
{
    (void)fields;
    (void)len;
    probe_of(channel)->started++;
}

static void probe_data(struct channel *channel, int stream, uint64_t offset, const void *data,
                       size_t len)
{
    struct probe *probe = probe_of(channel);
    ck_assert_int_ge(stream, 1);
    if (offset != probe->received)
        probe->gap += offset - probe->received;
    probe->received = offset + len;
    ck_assert(buf_append(&probe->bytes, data, len));
    if (probe->close_in_data)
        channel_close(channel);
    else if (probe->credit_at_once)
        channel_credit(channel, stream, probe->received);
}

static void probe_end(struct channel *channel, int stream, uint64_t total)
{
    (void)stream;
    probe_of(channel)->ends++;
    probe_of(channel)->total = total;
}

static void probe_credit(struct channel *channel, uint64_t done, uint64_t limit)
{
    probe_of(channel)->done = done;
    probe_of(channel)->limit = limit;
}

static void probe_result(struct channel *channel, const void *fields, size_t len)
{
    struct probe *probe = probe_of(channel);
    ck_assert(!channel_is_open(channel));
    probe->results++;
    buf_reset(&probe->result);
    ck_assert(buf_append(&probe->result, fields, len));
}

static void probe_lost(struct channel *channel, const struct err *why)
{
    (void)why;
    ck_assert(!channel_is_open(channel));
    probe_of(channel)->losts++;
}

static void probe_writable(struct channel *channel)
{
    probe_of(channel)->writables++;
}

static const struct channel_handler probe_handler = {
    .started = probe_started,
    .data = probe_data,
    .end = probe_end,
    .credit = probe_credit,
    .result = probe_result,
    .lost = probe_lost,
    .writable = probe_writable,
};

void probe_init(struct probe *probe)
{
    *probe = (struct probe){.channel.handler = &probe_handler};
    buf_init(&probe->bytes, (size_t)64 << 20);
    buf_init(&probe->result, (size_t)8 << 20);
}

void probe_done(struct probe *probe)
{
    channel_close(&probe->channel);
    buf_done(&probe->bytes);
    buf_done(&probe->result);
}

/* --- the other side ---------------------------------------------------------------------- */

int give(uint32_t channel, int type, const void *payload, size_t len)
{
    struct buf bytes = BUF_INIT((size_t)1 << 20);
    struct err err = {0};
    uint8_t header[FRAME_HEADER_LEN];
    frame_header_write(header, channel, (uint8_t)type, len);
    ck_assert(buf_append(&bytes, header, sizeof(header)));
    ck_assert(buf_append(&bytes, payload ? payload : "", len));
    int rc = client_receive(client, (const uint8_t *)bytes.ptr, bytes.len, &err);
    if (rc)
        ck_assert_int_eq(err.code, ERR_AGENT_FAILED);
    buf_done(&bytes);
    return rc;
}

int give_offset(uint32_t channel, int type, int stream, uint64_t offset, const void *data,
                size_t len)
{
    struct buf payload = BUF_INIT(FRAME_PAYLOAD_MAX);
    uint8_t header[FRAME_DATA_HEADER];
    frame_data_header_write(header, (uint8_t)stream, offset);
    ck_assert(buf_append(&payload, header, sizeof(header)));
    ck_assert(buf_append(&payload, data ? data : "", len));
    int rc = give(channel, type, payload.ptr, payload.len);
    buf_done(&payload);
    return rc;
}

int give_credit(uint32_t channel, uint8_t stream, uint64_t done, uint64_t limit)
{
    uint8_t payload[FRAME_CREDIT_LEN];
    frame_credit_write(payload, stream, done, limit);
    return give(channel, FRAME_CREDIT, payload, sizeof(payload));
}

/* The next frame the client wants sent. */
bool take(struct frame *ret_frame)
{
    static uint8_t bytes[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    size_t len;
    const uint8_t *data = client_output(client, &len);
    if (len == 0)
        return false;
    size_t size = FRAME_HEADER_LEN + wire_u32(data);
    ck_assert_uint_le(size, len);
    memcpy(bytes, data, size);
    client_sent(client, size);
    *ret_frame = (struct frame){wire_u32(bytes + 4), bytes[8], bytes + FRAME_HEADER_LEN,
                                size - FRAME_HEADER_LEN};
    return true;
}

struct frame expect(uint32_t channel, int type)
{
    struct frame frame;
    ck_assert_msg(take(&frame), "no frame, expected type %d", type);
    ck_assert_int_eq(frame.type, type);
    ck_assert_uint_eq(frame.channel, channel);
    return frame;
}

void expect_nothing(void)
{
    struct frame frame;
    ck_assert(!take(&frame));
}

void drain(void)
{
    size_t len;
    (void)client_output(client, &len);
    while (len > 0) {
        client_sent(client, len);
        (void)client_output(client, &len);
    }
}

void greet(void)
{
    struct buf fields = BUF_INIT(4096);
    fields_put_u64(&fields, TAG_VERSION, 1);
    ck_assert_int_eq(give(0, FRAME_HELLO_OK, fields.ptr, fields.len), 0);
    buf_done(&fields);
    ck_assert_uint_eq(seen.hellos, 1);
}

void client_probe_setup(void)
{
    seen = (struct log){0};
    shared = (struct link_shared){0};
    client = client_new(77, &shared, &handler, NULL);
}

void client_probe_teardown(void)
{
    struct err why = {.code = ERR_STREAM_LOST};
    client_close(client, &why);
    client_free(client);
    ck_assert_uint_eq(shared.window_bytes, 0);
}

void open_probe(struct probe *probe)
{
    static const char fields[] = "x";
    probe_init(probe);
    ck_assert(client_open(client, &probe->channel, fields, 1, NULL));
}
