#include <assert.h>
#include <string.h>

#include "sandbox/client_impl.h"

size_t client_pending(const struct client *client)
{
    return client->queue.len - client->queue_sent;
}

/* One frame of HEAD and then DATA. */
void client_put_frame(struct client *client, uint32_t channel, enum frame_type type,
                      struct str head, struct str data)
{
    size_t len = FRAME_HEADER_LEN + head.len + data.len;
    assert(head.len + data.len <= FRAME_PAYLOAD_MAX);
    if (client->closed)
        return;
    bool was_empty = client_pending(client) == 0;
    char *at = buf_reserve(&client->queue, len);
    if (!at) {
        client->overflowed = true;
        return;
    }
    frame_header_write((uint8_t *)at, channel, (uint8_t)type, head.len + data.len);
    memcpy(at + FRAME_HEADER_LEN, head.ptr, head.len);
    memcpy(at + FRAME_HEADER_LEN + head.len, data.ptr, data.len);
    buf_grew(&client->queue, len);
    if (client_pending(client) > CAP_SEND_QUEUE)
        client->overflowed = true;
    if (was_empty)
        client->handler->output(client->arg);
}

/* A message of any length up to PROTO_MESSAGE_MAX. */
void client_put_message(struct client *client, uint32_t channel, enum frame_type type,
                        const void *fields, size_t len)
{
    const char *at = len > 0 ? fields : "";
    while (len > FRAME_PAYLOAD_MAX) {
        client_put_frame(client, channel, FRAME_PART, STR(""), (struct str){at, FRAME_PAYLOAD_MAX});
        at += FRAME_PAYLOAD_MAX;
        len -= FRAME_PAYLOAD_MAX;
    }
    client_put_frame(client, channel, type, STR(""), (struct str){at, len});
}

const uint8_t *client_output(const struct client *client, size_t *ret_len)
{
    *ret_len = client_pending(client);
    return (const uint8_t *)buf_text(&client->queue) + client->queue_sent;
}

void client_wait_for_room(struct client *client, struct channel *channel)
{
    if (channel->waiting)
        return;
    channel->client = client;
    channel->waiting = true;
    channel->next = NULL;
    channel->prev = client->last_waiting;
    if (client->last_waiting)
        client->last_waiting->next = channel;
    else
        client->first_waiting = channel;
    client->last_waiting = channel;
}

void client_wait_no_more(struct channel *channel)
{
    struct client *client = channel->client;
    if (!channel->waiting)
        return;
    if (channel->prev)
        channel->prev->next = channel->next;
    else
        client->first_waiting = channel->next;
    if (channel->next)
        channel->next->prev = channel->prev;
    else
        client->last_waiting = channel->prev;
    channel->waiting = false;
    channel->next = channel->prev = NULL;
    if (!channel->flow)
        channel->client = NULL;
}

/* Each waiting channel is called once; who still lacks room waits again, behind the others. */
static void wake_waiting(struct client *client)
{
    const struct channel *last = client->last_waiting;
    while (!client->closed && client->first_waiting && client_pending(client) < QUEUE_DATA) {
        struct channel *channel = client->first_waiting;
        bool was_last = channel == last;
        client_wait_no_more(channel);
        if (channel->handler->writable)
            channel->handler->writable(channel);
        if (was_last)
            break;
    }
}

void client_sent(struct client *client, size_t len)
{
    assert(len <= client_pending(client));
    client->queue_sent += len;
    if (client_pending(client) == 0) {
        client->queue_sent = 0;
        buf_reset(&client->queue);
        if (client->queue.cap > 4 * KIB)
            buf_done(&client->queue);
    } else if (client->queue_sent > client->queue.len / 2) {
        buf_consume(&client->queue, client->queue_sent);
        client->queue_sent = 0;
    }
    if (client_pending(client) < QUEUE_DATA / 2)
        wake_waiting(client);
}

bool client_overflowed(const struct client *client)
{
    return client->overflowed;
}
