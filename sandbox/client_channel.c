#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sandbox/client_impl.h"

#define TABLE_MIN 8

/* --- the table of open channels ---------------------------------------------------------- */

static size_t home_of(const struct client *client, uint32_t number)
{
    return (number * 2654435769u >> 7) & (client->table_size - 1);
}

struct channel *client_find_channel(const struct client *client, uint32_t number)
{
    if (client->open_count == 0)
        return NULL;
    for (size_t at = home_of(client, number);; at = (at + 1) & (client->table_size - 1)) {
        struct channel *channel = client->table[at];
        if (!channel || channel->number == number)
            return channel;
    }
}

static void place(struct client *client, struct channel *channel)
{
    size_t at = home_of(client, channel->number);
    while (client->table[at])
        at = (at + 1) & (client->table_size - 1);
    client->table[at] = channel;
}

static void add_channel(struct client *client, struct channel *channel)
{
    if (client->open_count * 2 >= client->table_size) {
        struct channel **old = client->table;
        size_t old_size = client->table_size;
        client->table_size = old_size ? old_size * 2 : TABLE_MIN;
        client->table = xcalloc(client->table_size, sizeof(struct channel *));
        for (size_t i = 0; i < old_size; i++) {
            if (old[i])
                place(client, old[i]);
        }
        free(old);
    }
    place(client, channel);
    client->open_count++;
}

static void remove_channel(struct client *client, const struct channel *channel)
{
    size_t mask = client->table_size - 1;
    size_t hole = home_of(client, channel->number);
    while (client->table[hole] != channel)
        hole = (hole + 1) & mask;
    /* What follows moves up, unless that would put it before its home. */
    for (size_t at = (hole + 1) & mask; client->table[at]; at = (at + 1) & mask) {
        size_t home = home_of(client, client->table[at]->number);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            client->table[hole] = client->table[at];
            hole = at;
        }
    }
    client->table[hole] = NULL;
    client->open_count--;
}

/* --- channels ---------------------------------------------------------------------------- */

bool client_open(struct client *client, struct channel *channel, const void *fields, size_t len,
                 const uint64_t out_offset[2])
{
    assert(!channel->flow);
    if (client->closed || !client->up || len > PROTO_MESSAGE_MAX)
        return false;
    if (client_pending(client) > QUEUE_OPEN || client->last_number == UINT32_MAX) {
        client_wait_for_room(client, channel);
        return false;
    }
    client_wait_no_more(channel);
    struct channel_flow *flow = xcalloc(1, sizeof(*flow));
    for (int i = 0; i < 2; i++) {
        uint64_t from = out_offset ? out_offset[i] : 0;
        flow->in[i] = (struct inflow){from, from + PROTO_WINDOW, PROTO_WINDOW, false};
    }
    buf_init(&flow->part, PROTO_MESSAGE_MAX);
    channel->flow = flow;
    channel->client = client;
    channel->number = ++client->last_number;
    channel->stream_id = client->stream_id;
    add_channel(client, channel);
    client_put_message(client, channel->number, FRAME_OPEN, fields, len);
    return true;
}

bool channel_is_open(const struct channel *channel)
{
    return channel->flow != NULL;
}

void channel_close(struct channel *channel)
{
    struct client *client = channel->client;
    struct channel_flow *flow = channel->flow;
    client_wait_no_more(channel);
    if (!flow)
        return;
    remove_channel(client, channel);
    for (int i = 0; i < 2; i++) {
        if (client->shared)
            client->shared->window_bytes -= flow->in[i].window - PROTO_WINDOW;
    }
    client->part_bytes -= flow->part.len;
    buf_done(&flow->part);
    free(flow);
    channel->flow = NULL;
    channel->client = NULL;
}

size_t channel_send(struct channel *channel, uint64_t offset, const void *data, size_t len)
{
    struct channel_flow *flow = channel->flow;
    const char *at = data;
    size_t sent = 0;
    if (!flow || flow->ended)
        return 0;
    if (!flow->begun) {
        flow->begun = true;
        flow->sent = offset;
        if (flow->limit < offset + PROTO_WINDOW)
            flow->limit = offset + PROTO_WINDOW;
    }
    assert(offset == flow->sent);
    while (sent < len && flow->sent < flow->limit) {
        if (client_pending(channel->client) >= QUEUE_DATA) {
            client_wait_for_room(channel->client, channel);
            break;
        }
        size_t size = len - sent;
        if (size > FRAME_DATA_MAX)
            size = FRAME_DATA_MAX;
        if (size > flow->limit - flow->sent)
            size = (size_t)(flow->limit - flow->sent);
        uint8_t head[FRAME_DATA_HEADER];
        frame_data_header_write(head, 0, flow->sent);
        client_put_frame(channel->client, channel->number, FRAME_DATA,
                         (struct str){(const char *)head, sizeof(head)},
                         (struct str){at + sent, size});
        flow->sent += size;
        sent += size;
    }
    return sent;
}

void channel_send_end(struct channel *channel, uint64_t total)
{
    uint8_t head[FRAME_DATA_HEADER];
    if (!channel->flow || channel->flow->ended)
        return;
    channel->flow->ended = true;
    frame_data_header_write(head, 0, total);
    client_put_frame(channel->client, channel->number, FRAME_END,
                     (struct str){(const char *)head, sizeof(head)}, STR(""));
}

/* Doubles the window of a stream that used most of it, as far as the server's bound allows. */
static void grow_window(struct channel *channel, struct inflow *in)
{
    struct link_shared *shared = channel->client->shared;
    uint32_t max = channel->window_max ? channel->window_max : CAP_WINDOW_MAX;
    if (in->window >= max || in->limit - in->received >= in->window / 2)
        return;
    uint32_t more = in->window <= max - in->window ? in->window : max - in->window;
    if (shared && shared->window_bytes + more > CAP_WINDOWS)
        return;
    if (shared)
        shared->window_bytes += more;
    in->window += more;
}

void channel_credit(struct channel *channel, int stream, uint64_t done)
{
    if (!channel->flow)
        return;
    struct inflow *in = &channel->flow->in[stream - 1];
    if (in->ended)
        return;
    if (done >= in->received)
        grow_window(channel, in);
    uint64_t limit = done + in->window;
    /* Not for every byte: when half of the window has gone. */
    if (limit <= in->limit || (limit - in->limit) * 2 < in->window)
        return;
    in->limit = limit;
    uint8_t credit[FRAME_CREDIT_LEN];
    frame_credit_write(credit, (uint8_t)stream, done, limit);
    client_put_frame(channel->client, channel->number, FRAME_CREDIT,
                     (struct str){(const char *)credit, sizeof(credit)}, STR(""));
}

void channel_cancel(struct channel *channel)
{
    if (channel->flow)
        client_put_frame(channel->client, channel->number, FRAME_CANCEL, STR(""), STR(""));
}

void channel_signal(struct channel *channel, const void *fields, size_t len)
{
    if (channel->flow)
        client_put_message(channel->client, channel->number, FRAME_SIGNAL, fields, len);
}

void channel_resize(struct channel *channel, const void *fields, size_t len)
{
    if (channel->flow)
        client_put_message(channel->client, channel->number, FRAME_RESIZE, fields, len);
}

bool client_commit(struct client *client, const struct channel *channel)
{
    if (client->closed || channel->stream_id != client->stream_id || channel->number == 0)
        return false;
    client_put_frame(client, channel->number, FRAME_COMMIT, STR(""), STR(""));
    return true;
}

int client_take_data(struct channel *channel, const struct frame *frame, struct err *err)
{
    struct frame_data data;
    if (!frame_data_read(frame, &data) || data.stream < 1 || data.stream > 2)
        return client_broken(err, "malformed DATA");
    struct inflow *in = &channel->flow->in[data.stream - 1];
    if (data.len == 0 || data.offset + data.len <= in->received)
        return 0; /* empty or repeated */
    if (in->ended)
        return client_broken(err, "DATA after END");
    if (data.offset < in->received) {
        size_t known = (size_t)(in->received - data.offset);
        data.bytes += known;
        data.len -= known;
        data.offset = in->received;
    }
    /* Bytes that the agent has lost need no room here. */
    in->limit += data.offset - in->received;
    if (data.len > in->limit - data.offset)
        return client_broken(err, "DATA beyond its window");
    in->received = data.offset + data.len;
    if (channel->handler->data)
        channel->handler->data(channel, data.stream, data.offset, data.bytes, data.len);
    return 0;
}

int client_take_end(struct channel *channel, const struct frame *frame, struct err *err)
{
    struct frame_data end;
    if (!frame_data_read(frame, &end) || end.stream < 1 || end.stream > 2)
        return client_broken(err, "malformed END");
    struct inflow *in = &channel->flow->in[end.stream - 1];
    if (end.offset < in->received)
        return client_broken(err, "END before the end");
    if (in->ended)
        return 0;
    in->ended = true;
    if (channel->handler->end)
        channel->handler->end(channel, end.stream, end.offset);
    return 0;
}

int client_take_credit(struct channel *channel, const struct frame *frame, struct err *err)
{
    struct frame_credit credit;
    struct channel_flow *flow = channel->flow;
    if (!frame_credit_read(frame, &credit) || credit.stream != 0)
        return client_broken(err, "malformed CREDIT");
    if (flow->begun && credit.done > flow->sent)
        return client_broken(err, "CREDIT for bytes that were not sent");
    if (credit.limit > flow->limit)
        flow->limit = credit.limit;
    if (channel->handler->credit)
        channel->handler->credit(channel, credit.done, flow->limit);
    return 0;
}

void client_take_message(struct channel *channel, uint8_t type, struct str message)
{
    const struct channel_handler *handler = channel->handler;
    if (type == FRAME_STARTED) {
        if (handler->started)
            handler->started(channel, message.ptr, message.len);
    } else if (type == FRAME_RESULT) {
        channel_close(channel);
        if (handler->result)
            handler->result(channel, message.ptr, message.len);
    }
}
