#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/frame.h"
#include "base/caps.h"
#include "base/mem.h"
#include "sandbox/client.h"

/* The server's side of the stream against an agent that says anything, while its owner opens,
 * feeds, credits and closes channels, from within callbacks too. The input is a list of steps. */

#define CHANNELS 4

struct input {
    const uint8_t *data;
    size_t len;
};

struct owned {
    struct channel channel;
    uint64_t received[2], sent;
};

struct owner {
    struct client *client;
    struct owned channels[CHANNELS];
    uint8_t mood; /* what the callbacks do */
};

static struct owner owner;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t take(struct input *input)
{
    if (input->len == 0)
        return 0;
    input->len--;
    return *input->data++;
}

static void open_channel(struct owned *owned);

static void react(struct channel *channel)
{
    if (owner.mood & 1)
        channel_close(channel);
    if (owner.mood & 2)
        channel_cancel(channel);
    if (owner.mood & 4)
        open_channel(&owner.channels[owner.mood >> 6]);
}

static void on_message(struct channel *channel, const void *fields, size_t len)
{
    (void)fields;
    (void)len;
    if (channel_is_open(channel))
        react(channel);
}

static void on_data(struct channel *channel, int stream, uint64_t offset, const void *data,
                    size_t len)
{
    struct owned *owned = container_of(channel, struct owned, channel);
    assert(stream == 1 || stream == 2);
    assert(offset >= owned->received[stream - 1]);
    assert(len > 0 && len <= FRAME_DATA_MAX && data);
    owned->received[stream - 1] = offset + len;
    if (owner.mood & 8)
        channel_credit(channel, stream, offset + len);
    if (owner.mood & 1)
        channel_close(channel);
}

static void on_end(struct channel *channel, int stream, uint64_t total)
{
    struct owned *owned = container_of(channel, struct owned, channel);
    assert(total >= owned->received[stream - 1]);
}

static void on_credit(struct channel *channel, uint64_t done, uint64_t limit)
{
    (void)done;
    (void)limit;
    if (owner.mood & 16)
        channel_close(channel);
}

static void on_lost(struct channel *channel, const struct err *why)
{
    assert(why && !channel_is_open(channel));
}

static void on_writable(struct channel *channel)
{
    if (owner.mood & 32)
        channel_close(channel);
}

static const struct channel_handler channel_handler = {
    .started = on_message,
    .data = on_data,
    .end = on_end,
    .credit = on_credit,
    .result = on_message,
    .lost = on_lost,
    .writable = on_writable,
};

static void end_client(void *arg)
{
    struct err why = {.code = ERR_STREAM_LOST};
    (void)arg;
    client_close(owner.client, &why);
}

static void on_hello(void *arg, const struct link_hello *hello)
{
    (void)arg;
    assert(hello->exec_count <= CAP_EXEC_IDS && hello->deadline_ms >= 0);
    for (size_t i = 0; i < hello->exec_count; i++)
        assert(hello->exec_ids[i] > 0);
}

static void on_refused(void *arg, const struct err *why)
{
    assert(why->code != ERR_NONE);
    end_client(arg);
}

static void on_bye(void *arg, const struct err *why, enum client_bye kind)
{
    (void)kind;
    assert(why->code != ERR_NONE);
    end_client(arg);
}

static void on_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    (void)arg;
    (void)seq;
    assert(deadline_ms >= 0 && (!why || why->code != ERR_NONE));
}

static void on_output(void *arg)
{
    (void)arg;
}

static const struct client_handler client_handler = {on_hello, on_refused, on_bye, on_configured,
                                                     on_output};

static void open_channel(struct owned *owned)
{
    if (channel_is_open(&owned->channel))
        return;
    channel_close(&owned->channel); /* it may wait for room */
    *owned = (struct owned){.channel.handler = &channel_handler};
    (void)client_open(owner.client, &owned->channel, "open", 4, NULL);
}

static void send_some(struct owned *owned, size_t len)
{
    static const char zeros[65536];
    owned->sent += channel_send(&owned->channel, owned->sent, zeros, len);
}

static int receive(struct input *input, size_t len, const uint8_t *header)
{
    struct err err;
    if (header && client_receive(owner.client, header, FRAME_HEADER_LEN, &err))
        return -1;
    if (len > input->len)
        len = input->len;
    int rc = client_receive(owner.client, input->data, len, &err);
    input->data += len;
    input->len -= len;
    return rc;
}

static int step(struct input *input)
{
    uint8_t op = take(input);
    struct owned *owned = &owner.channels[op >> 6];
    uint8_t header[FRAME_HEADER_LEN];
    size_t len;
    switch (op & 7) {
    case 0: /* bytes as they are */
        return receive(input, take(input), NULL);
    case 1: /* a frame whose header fits */
        len = take(input);
        frame_header_write(header, (op & 8) ? owned->channel.number : 0, take(input),
                           len < input->len ? len : input->len);
        return receive(input, len, header);
    case 2:
        open_channel(owned);
        break;
    case 3:
        send_some(owned, (size_t)take(input) << 8);
        break;
    case 4:
        channel_credit(&owned->channel, 1 + ((op & 8) != 0), owned->received[(op & 8) != 0]);
        break;
    case 5:
        (void)client_output(owner.client, &len);
        client_sent(owner.client, len < take(input) * (size_t)1024 ? len : len / 2);
        break;
    case 6:
        channel_close(&owned->channel);
        break;
    default:
        owner.mood = take(input);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct link_shared shared = {0};
    struct input input = {data, size};
    struct err why = {.code = ERR_STREAM_LOST};
    owner = (struct owner){.client = client_new(1, &shared, &client_handler, NULL)};
    for (size_t i = 0; i < CHANNELS; i++)
        owner.channels[i].channel.handler = &channel_handler;
    while (input.len > 0 && step(&input) == 0 && !client_overflowed(owner.client))
        ;
    client_close(owner.client, &why);
    for (size_t i = 0; i < CHANNELS; i++)
        assert(!channel_is_open(&owner.channels[i].channel));
    client_free(owner.client);
    assert(shared.window_bytes == 0);
    return 0;
}
