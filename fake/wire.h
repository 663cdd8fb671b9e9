#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/message.h"
#include "base/buf.h"
#include "base/err.h"
#include "net/loop.h"
#include "net/stream.h"

struct fake_box;

/* One stream between the server and the agent of a box, in memory: bytes of the server come apart
 * into frames, frames of the agent become bytes. Loop thread only. Nothing is handed over from
 * within a call of the other side, but in a turn of the loop of its own. */
struct wire {
    struct stream base;
    struct loop *loop;
    struct fake_box *box; /* NULL: there is none, or it has ended */
    struct wire *next;    /* in box->wires */
    struct buf in, out;
    struct frame_decoder *decoder; /* while a frame is not whole */
    struct wire_part *parts;       /* beginnings of messages of several frames */
    size_t parts_len;
    struct err *why; /* it ends when all is handed over, with this */
    bool opened, greeted, paused, wants_room, overflowed;
    bool scheduled, running; /* a turn is to come; it is in one */
    bool closed;             /* by the server: no callback follows */
};

/* WHY: it cannot be opened, which is told in its first turn; NULL: it can. */
struct wire *wire_new(struct loop *loop, struct fake_box *box, const struct stream_handler *handler,
                      void *arg, const struct err *why);
/* There is something to send, or to take. */
void wire_wake(struct wire *wire);
/* Hands over what is there and ends. The wire is not the box's any more. */
void wire_end(struct wire *wire, enum err_code code, const char *why);

bool wire_has_room(const struct wire *wire);
void wire_send(struct wire *wire, uint32_t channel, uint8_t type, const void *payload, size_t len);
void wire_send_reply(struct wire *wire, uint32_t channel, uint8_t type, const struct reply *reply);
void wire_send_error(struct wire *wire, uint32_t channel, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Bytes of the agent's for one stream of a channel, sent as the server has credit for them. */
struct outflow {
    const uint8_t *bytes; /* borrowed */
    size_t len;
    uint64_t sent, limit;
    bool end_sent;
};
void outflow_follow(struct outflow *flow, uint64_t offset);
void outflow_credit(struct outflow *flow, uint64_t limit);
/* Sends one DATA, or the END; false when there is nothing to send now. */
bool outflow_send(struct outflow *flow, struct wire *wire, uint32_t channel, uint8_t stream);
