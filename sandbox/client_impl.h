#pragma once

#include "agent/frame.h"
#include "base/buf.h"
#include "base/caps.h"
#include "base/str.h"
#include "sandbox/client.h"

/* The inside of the agent client, for client.c (the connection), client_channel.c and
 * client_queue.c. */

/* Data is put into the send queue only up to here, so that control frames do not wait behind it. */
#define QUEUE_DATA (64 * KIB)
/* Beyond this no channel is opened. */
#define QUEUE_OPEN (1 * MIB)

/* A stream out of the sandbox. */
struct inflow {
    uint64_t received, limit;
    uint32_t window;
    bool ended;
};

struct channel_flow {
    uint64_t sent, limit; /* stream 0 */
    bool begun, ended;
    struct inflow in[2];
    struct buf part;
};

struct client {
    uint64_t stream_id;
    struct link_shared *shared;
    const struct client_handler *handler;
    void *arg;
    bool up, closed, overflowed;
    uint32_t last_number;
    struct frame_decoder *decoder; /* only while a frame is incomplete: it is large */
    struct buf part;               /* of channel 0 */
    size_t part_bytes;             /* of all channels */
    struct buf queue;
    size_t queue_sent;
    struct channel **table; /* open channels by number: linear probing, a power of two */
    size_t table_size, open_count;
    struct channel *first_waiting, *last_waiting;
};

/* --- the send queue --- */
size_t client_pending(const struct client *client);
/* One frame of HEAD and then DATA. */
void client_put_frame(struct client *client, uint32_t channel, enum frame_type type,
                      struct str head, struct str data);
/* A message of any length up to PROTO_MESSAGE_MAX. */
void client_put_message(struct client *client, uint32_t channel, enum frame_type type,
                        const void *fields, size_t len);
/* CHANNEL is told `writable` when there is room. */
void client_wait_for_room(struct client *client, struct channel *channel);
void client_wait_no_more(struct channel *channel);

/* --- channels --- */
struct channel *client_find_channel(const struct client *client, uint32_t number);
int client_take_data(struct channel *channel, const struct frame *frame,
                     struct err *err) must_check;
int client_take_end(struct channel *channel, const struct frame *frame, struct err *err) must_check;
int client_take_credit(struct channel *channel, const struct frame *frame,
                       struct err *err) must_check;
void client_take_message(struct channel *channel, uint8_t type, struct str message);

/* Sets ERR; -1. */
int client_broken(struct err *err, const char *what);
