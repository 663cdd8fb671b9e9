#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "net/http_client.h"
#include "net/loop.h"

/* A WebSocket client connection on the loop thread (libwebsockets). Messages are binary. Connects
 * directly: unlike the HTTP client it knows no proxy. */
struct ws;

struct ws_handler {
    /* PROTOCOL is what the server chose, or "". */
    void (*opened)(void *arg, const char *protocol);
    /* A piece of a message. FIRST: it begins one. LAST: it ends one. May be empty. */
    void (*received)(void *arg, const uint8_t *data, size_t len, int first, int last);
    void (*writable)(void *arg);
    /* Last callback. STATUS is the HTTP status of a refused handshake (0: it got no answer, or was
     * open), WHY says the rest. */
    void (*closed)(void *arg, int status, const struct err *why);
};

struct ws_target {
    const char *url;                 /* https://host:port/path?query (or http for tests) */
    const char *protocols;           /* comma list for Sec-WebSocket-Protocol */
    const struct text_list *headers; /* "Name: value", copied */
    const struct http_tls *tls;      /* copied; connections with equal TLS share a context */
    int64_t timeout_ms;              /* until opened; 0: 15 s */
    int64_t ping_ms;                 /* 0: 20 s */
};

/* Messages that wait to be written, together; none may be longer. */
#define WS_QUEUE_MAX ((size_t)256 * 1024)

/* Pings every 20 s, gives up after two silent intervals (not counted while paused, since the peer's
 * answers are not read then). Never calls back before it returns. Loop thread only. */
struct ws *ws_connect(struct loop *loop, const struct ws_target *target,
                      const struct ws_handler *handler, void *arg, struct err *err) must_check;

/* Queues one whole binary message made of HEAD and DATA; false when it does not fit into what may
 * wait (`writable` follows when there is room again). Works only after `opened`. */
int ws_send(struct ws *ws, const void *head, size_t head_len, const void *data, size_t len);
size_t ws_space(const struct ws *ws); /* the longest message that may be queued now */
void ws_pause(struct ws *ws, int paused);
/* No callback follows. Sends what is queued (for at most 5 s) and CLOSE, and frees. */
void ws_close(struct ws *ws);
