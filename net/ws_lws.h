#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/loop_lws.h"
#include "net/resolve.h"
#include "net/ws.h"
#include "net/ws_vhost.h"

/* Inside of a WebSocket, shared by ws.c (its life) and ws_lws.c (what libwebsockets calls). */
struct lws;
struct lws_protocols;

/* Counted for each message in the queue, so that empty ones are bounded too. */
#define WS_MESSAGE_COST 64

struct ws_message {
    struct ws_message *next;
    size_t len;
    uint8_t bytes[]; /* LWS_PRE of room, then the payload */
};

/* Who is told: `handler` until `closed` was called or the owner closed; then NULL, and what is left
 * only winds the connection down. Freed when nothing refers to it: no wsi, no posted task. */
struct ws {
    struct loop_item item;
    struct loop *loop;
    const struct ws_handler *handler;
    void *arg;

    /* the target */
    struct ws_vhost *vhost;
    bool secure;
    char *host, *host_header, *path, *protocols;
    int port;
    char *headers; /* "Name: value\r\n"…; may hold a token: wiped when the handshake is over */

    struct lookup *lookup;
    struct text_list addresses; /* to try, in order */
    size_t next_address;
    bool posted;        /* ws_start is in the loop's queue */
    bool in_connect;    /* inside lws_client_connect_via_info */
    bool tcp_connected; /* then no other address is tried */
    struct lws *wsi;    /* NULL when there is none */
    int64_t ping_ms;

    bool open;
    int status;       /* of the handshake, once known */
    char *tls_reason; /* why the server's certificate was refused */
    char protocol[64];

    bool in_message; /* between the first and the last piece of one */
    bool paused, want_writable, ping_due, close_due;
    int silent;         /* intervals without a byte */
    struct timer timer; /* the handshake, then pings, then the winding down */
    struct ws_message *first, *last;
    size_t queued;
};

const struct lws_protocols *ws_lws_protocols(void);

/* Starts connecting to the next address; false when that failed at once. Not from inside a callback
 * of libwebsockets, whose scratch buffer it writes to. */
bool ws_lws_connect(struct ws *ws);
void ws_lws_want_write(struct ws *ws);
void ws_lws_pause(struct ws *ws, bool paused);
void ws_lws_kill(struct ws *ws); /* soon, without a CLOSE; safe in any callback */
size_t ws_lws_headroom(void);    /* before a message's payload */

/* What ws_lws.c reports to ws.c. */
void ws_opened(struct ws *ws);
/* The connection is of no more use. MESSAGE may be NULL. */
void ws_failed(struct ws *ws, const char *message);
void ws_peer_closed(struct ws *ws, const uint8_t *payload, size_t len);
void ws_drained(struct ws *ws);  /* some queued messages were written */
void ws_wsi_gone(struct ws *ws); /* may free WS */
