#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/agent.h"
#include "agent/frame.h"
#include "agent/loop.h"
#include "agent/message.h"

/* One stream from a server. Output is pulled: whoever has something to send is a `source` that is
 * asked when there is room, in turn, one frame at a time. Answers that are short and single go
 * straight into the output; while that is full, nothing more is read from the peer. */
struct source {
    struct conn *conn; /* where it is queued; NULL: nowhere */
    struct source *next, *prev;
    /* Sends at most one frame, and takes itself off (source_remove) when there is no more at hand;
     * it may free itself then. */
    void (*pump)(struct source *source);
};

struct part { /* the beginning of a message of more than one frame */
    uint32_t channel;
    uint8_t *data;
    size_t len;
    struct part *next;
};

struct conn {
    struct agent *agent;
    struct conn *next; /* in agent->pending */
    struct watch watch;
    struct timer hello_timer;
    pid_t peer;
    bool greeted;
    bool lost;    /* to be freed at the end of the turn */
    bool stalled; /* output is full: not reading */
    struct frame_decoder decoder;
    struct part *parts;
    size_t parts_len, parts_count;
    uint8_t *out;
    size_t out_start, out_len, out_cap;
    struct source *sources; /* ring; the next to be asked */
};

/* Takes over FD. NULL when memory is out. */
struct conn *conn_new(struct agent *agent, int fd, pid_t peer);
/* Says BYE with that code, as far as the socket takes it, and drops the stream. */
void conn_bye(struct conn *conn, const char *code, const char *why);
/* Marks the stream as gone and lets go of all that hangs on it; conn_sweep() frees it. */
void conn_lose(struct conn *conn);
void conn_sweep(struct agent *agent);
/* Sends what is there; called at the end of each turn. */
void conn_flush(struct conn *conn);

void conn_send(struct conn *conn, uint32_t channel, uint8_t type, const void *payload, size_t len);
void conn_send_reply(struct conn *conn, uint32_t channel, uint8_t type, const struct reply *reply);
void conn_send_error(struct conn *conn, uint32_t channel, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Room for one frame at the end of the output, NULL when memory is out (the stream is lost then);
 * conn_commit() keeps its first LEN bytes. */
uint8_t *conn_reserve(struct conn *conn, size_t len);
void conn_commit(struct conn *conn, size_t len);

void source_wake(struct conn *conn, struct source *source);
void source_remove(struct source *source);
