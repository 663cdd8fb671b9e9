#include "net/ws.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "net/ws_lws.h"

#define OPEN_TIMEOUT_MS 15000
#define PING_INTERVAL_MS 20000
#define SILENT_INTERVALS 2
#define LINGER_MS 5000 /* for what is queued when the owner closes */

/* libwebsockets 4.1 cuts the request line at 2048 bytes and the Host at 128, silently. */
#define PATH_MAX_LEN 2000
#define HOST_MAX_LEN 110
#define HEADERS_MAX (16 * KIB)

static void drop_queue(struct ws *ws)
{
    while (ws->first) {
        struct ws_message *message = ws->first;
        ws->first = message->next;
        free(message);
    }
    ws->last = NULL;
    ws->queued = 0;
}

static void drop_headers(struct ws *ws)
{
    free_secret(ws->headers, ws->headers ? strlen(ws->headers) : 0);
    ws->headers = NULL;
}

static void free_if_done(struct ws *ws)
{
    if (ws->handler || ws->wsi || ws->posted || ws->in_connect)
        return;
    timer_stop(&ws->timer);
    loop_release(ws->loop, &ws->item);
    drop_queue(ws);
    drop_headers(ws);
    ws_vhost_put(ws->vhost);
    text_list_done(&ws->addresses);
    free(ws->host);
    free(ws->host_header);
    free(ws->path);
    free(ws->protocols);
    free(ws->tls_reason);
    free(ws);
}

/* Stops telling the owner; what is left winds down by itself. */
static void detach(struct ws *ws)
{
    ws->handler = NULL;
    loop_release(ws->loop, &ws->item);
    timer_stop(&ws->timer);
    resolve_cancel(ws->lookup);
    ws->lookup = NULL;
}

static void tell_closed(struct ws *ws, const struct err *why)
{
    const struct ws_handler *handler = ws->handler;
    if (!handler)
        return;
    detach(ws);
    drop_queue(ws);
    handler->closed(ws->arg, ws->open ? 0 : ws->status, why);
}

/* Ends the connection from our side without a CLOSE, for WHY. */
static void give_up(struct ws *ws, const struct err *why)
{
    tell_closed(ws, why);
    ws_lws_kill(ws);
    free_if_done(ws);
}

/* --- what libwebsockets reports ----------------------------------------------------------------
 */

void ws_opened(struct ws *ws)
{
    drop_headers(ws);
    text_list_done(&ws->addresses);
    if (!ws->handler)
        return;
    timer_start(ws->loop, &ws->timer, ws->ping_ms);
    ws->handler->opened(ws->arg, ws->protocol);
}

static enum err_code status_code(int status)
{
    switch (status) {
    case 401:
        return ERR_BACKEND_UNAUTHORIZED;
    case 403:
        return ERR_BACKEND_FORBIDDEN;
    case 404:
        return ERR_BACKEND_NOT_FOUND;
    case 409:
        return ERR_BACKEND_CONFLICT;
    case 429:
        return ERR_BACKEND_THROTTLED;
    default:
        return status >= 500 ? ERR_BACKEND_UNAVAILABLE : ERR_BACKEND;
    }
}

static void describe_failure(const struct ws *ws, const char *message, struct err *ret_why)
{
    if (ws->open)
        err_set(ret_why, ERR_STREAM_LOST, "connection to %s:%d cut without a CLOSE", ws->host,
                ws->port);
    else if (ws->tls_reason)
        err_set(ret_why, ERR_BACKEND_UNAVAILABLE, "TLS to %s:%d: %s; " TLS_REMEDY, ws->host,
                ws->port, ws->tls_reason);
    else if (ws->status == 101)
        err_set(ret_why, ERR_BACKEND, "WebSocket handshake with %s:%d failed: %s", ws->host,
                ws->port, message ? message : "malformed reply");
    else if (ws->status != 0)
        err_set(ret_why, status_code(ws->status),
                "WebSocket handshake with %s:%d refused with HTTP status %d", ws->host, ws->port,
                ws->status);
    else if (!ws->tcp_connected)
        err_set(ret_why, ERR_BACKEND_UNAVAILABLE,
                "cannot connect to %s:%d: refused or not reachable", ws->host, ws->port);
    else
        err_set(ret_why, ERR_BACKEND_UNAVAILABLE, "no WebSocket handshake with %s:%d: %s", ws->host,
                ws->port, message ? message : "connection cut");
}

static bool has_other_address(const struct ws *ws)
{
    return ws->handler && !ws->tcp_connected && ws->next_address < ws->addresses.count;
}

void ws_failed(struct ws *ws, const char *message)
{
    if (!ws->handler || has_other_address(ws))
        return; /* ws_wsi_gone() goes on with the next address */
    struct err why;
    describe_failure(ws, message, &why);
    tell_closed(ws, &why);
}

void ws_peer_closed(struct ws *ws, const uint8_t *payload, size_t len)
{
    struct err why = {.code = ERR_NONE};
    unsigned code = len >= 2 ? (unsigned)payload[0] << 8 | payload[1] : 1005;
    const char *text = len > 2 ? (const char *)payload + 2 : "";
    int text_len = len > 2 && str_is_printable(text, len - 2) ? (int)(len - 2) : 0;
    if (code == 1000 || code == 1001 || code == 1005)
        snprintf(why.msg, sizeof(why.msg), "closed by the peer (%u)", code);
    else
        err_set(&why, ERR_STREAM_LOST, "closed by the peer (%u%s%.*s)", code, text_len ? ": " : "",
                text_len, text);
    tell_closed(ws, &why);
}

void ws_drained(struct ws *ws)
{
    if (!ws->want_writable || ws->queued > WS_QUEUE_MAX / 2 || !ws->handler)
        return;
    ws->want_writable = false;
    ws->handler->writable(ws->arg);
}

/* --- connecting --------------------------------------------------------------------------------
 */

static void start(void *arg)
{
    struct ws *ws = arg;
    ws->posted = false;
    while (ws->handler && ws->next_address < ws->addresses.count) {
        if (ws_lws_connect(ws))
            return;
        if (ws->tcp_connected)
            break;
    }
    ws_failed(ws, NULL);
    free_if_done(ws);
}

static void post_start(struct ws *ws)
{
    ws->posted = true;
    loop_post(ws->loop, start, ws);
}

void ws_wsi_gone(struct ws *ws)
{
    if (has_other_address(ws)) {
        post_start(ws);
        return;
    }
    ws_failed(ws, NULL);
    free_if_done(ws);
}

static void resolved(void *arg, const struct text_list *addresses, const struct err *why)
{
    struct ws *ws = arg;
    ws->lookup = NULL;
    if (addresses->count == 0) {
        give_up(ws, why);
        return;
    }
    text_list_copy(&ws->addresses, addresses);
    start(ws);
}

static void timer_fired(struct timer *timer)
{
    struct ws *ws = container_of(timer, struct ws, timer);
    struct err why;
    if (!ws->handler) { /* lingered long enough */
        ws_lws_kill(ws);
        return;
    }
    if (!ws->open) {
        err_set(&why, ERR_BACKEND_UNAVAILABLE, "no WebSocket with %s:%d in time (%s)", ws->host,
                ws->port,
                ws->lookup          ? "resolving the name"
                : ws->tcp_connected ? "waiting for the handshake"
                                    : "connecting");
        give_up(ws, &why);
        return;
    }
    /* nothing is read while paused, so silence says nothing */
    ws->silent = ws->paused ? 0 : ws->silent + 1;
    if (ws->silent > SILENT_INTERVALS) {
        err_set(&why, ERR_STREAM_LOST, "no answer from %s:%d to %d pings", ws->host, ws->port,
                SILENT_INTERVALS);
        give_up(ws, &why);
        return;
    }
    ws->ping_due = true;
    ws_lws_want_write(ws);
    timer_start(ws->loop, &ws->timer, ws->ping_ms);
}

static void end_item(struct loop_item *item)
{
    struct ws *ws = container_of(item, struct ws, item);
    struct err why;
    err_set(&why, ERR_STOPPING, "the I/O loop stops");
    give_up(ws, &why);
}

/* --- the target --------------------------------------------------------------------------------
 */

static int part(CURLU *url, CURLUPart what, char **ret_text)
{
    char *text = NULL;
    if (curl_url_get(url, what, &text, what == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) !=
        CURLUE_OK)
        return -1;
    *ret_text = xstrdup(text);
    curl_free(text);
    return 0;
}

static void set_host(struct ws *ws, char *host)
{
    size_t len = strlen(host);
    bool plain = ws->port == (ws->secure ? 443 : 80);
    ws->host_header = plain ? xstrdup(host) : xasprintf("%s:%d", host, ws->port);
    ws->host = host[0] == '[' && len > 2 ? xstrndup(host + 1, len - 2) : xstrdup(host);
}

static int read_url(struct ws *ws, CURLU *url, const char *text)
{
    cleanup_free char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *query = NULL;
    if (curl_url_set(url, CURLUPART_URL, text, CURLU_PATH_AS_IS | CURLU_NON_SUPPORT_SCHEME) !=
            CURLUE_OK ||
        part(url, CURLUPART_SCHEME, &scheme) < 0 || part(url, CURLUPART_HOST, &host) < 0 ||
        part(url, CURLUPART_PATH, &path) < 0)
        return -1;
    ws->secure = strcmp(scheme, "https") == 0 || strcmp(scheme, "wss") == 0;
    if (!ws->secure && strcmp(scheme, "http") != 0 && strcmp(scheme, "ws") != 0)
        return -1;
    uint64_t number = ws->secure ? 443 : 80;
    if (part(url, CURLUPART_PORT, &port) == 0 && !str_to_u64(str_of(port), 65535, &number))
        return -1;
    ws->port = (int)number;
    bool has_query = part(url, CURLUPART_QUERY, &query) == 0;
    ws->path = has_query ? xasprintf("%s?%s", path, query) : xstrdup(path);
    set_host(ws, host);
    return 0;
}

static int set_url(struct ws *ws, const char *text, struct err *err)
{
    CURLU *url = curl_url();
    int code = url ? read_url(ws, url, text) : -1;
    curl_url_cleanup(url);
    if (code < 0)
        return err_set(err, ERR_CONFIG, "malformed URL for a WebSocket");
    if (strlen(ws->path) > PATH_MAX_LEN)
        return err_set(err, ERR_TOO_LARGE, "URL path of %zu bytes for a WebSocket, at most %d",
                       strlen(ws->path), PATH_MAX_LEN);
    if (strlen(ws->host_header) > HOST_MAX_LEN)
        return err_set(err, ERR_TOO_LARGE, "host name of %zu bytes for a WebSocket, at most %d",
                       strlen(ws->host_header), HOST_MAX_LEN);
    return 0;
}

static int set_headers(struct ws *ws, const struct text_list *headers, struct err *err)
{
    struct buf text = BUF_INIT(HEADERS_MAX);
    for (size_t i = 0; headers && i < headers->count; i++) {
        const char *line = headers->items[i];
        if (!str_is_printable(line, strlen(line)) || !buf_append_str(&text, line) ||
            !buf_append_str(&text, "\r\n")) {
            int code = text.overflow ? ERR_TOO_LARGE : ERR_CONFIG;
            buf_wipe(&text);
            return err_set(err, (enum err_code)code, "header %zu of a WebSocket: %s", i + 1,
                           code == ERR_CONFIG ? "not printable" : "too long");
        }
    }
    ws->headers = xstrndup(buf_text(&text), text.len);
    buf_wipe(&text);
    return 0;
}

static int prepare(struct ws *ws, const struct ws_target *target, struct err *err)
{
    if (set_url(ws, target->url, err) < 0 || set_headers(ws, target->headers, err) < 0)
        return -1;
    ws->protocols = target->protocols ? xstrdup(target->protocols) : NULL;
    ws->vhost = ws_vhost_get(ws->loop, ws->secure, target->tls, ws->host, err);
    if (!ws->vhost)
        return -1;
    if (resolve_literal(ws->host)) {
        text_list_add(&ws->addresses, ws->host);
        return 0;
    }
    ws->lookup = resolve_start(loop_resolver(ws->loop), ws->host, resolved, ws, err);
    return ws->lookup ? 0 : -1;
}

struct ws *ws_connect(struct loop *loop, const struct ws_target *target,
                      const struct ws_handler *handler, void *arg, struct err *err)
{
    if (loop_is_ending(loop)) {
        err_set(err, ERR_STOPPING, "the I/O loop stops");
        return NULL;
    }
    struct ws *ws = xcalloc(1, sizeof(*ws));
    ws->loop = loop;
    ws->item.end = end_item;
    ws->timer.fire = timer_fired;
    ws->ping_ms = target->ping_ms > 0 ? target->ping_ms : PING_INTERVAL_MS;
    if (prepare(ws, target, err) < 0) {
        free_if_done(ws);
        return NULL;
    }
    ws->handler = handler;
    ws->arg = arg;
    loop_hold(loop, &ws->item);
    timer_start(loop, &ws->timer, target->timeout_ms > 0 ? target->timeout_ms : OPEN_TIMEOUT_MS);
    if (!ws->lookup)
        post_start(ws);
    return ws;
}

/* --- the owner's calls -------------------------------------------------------------------------
 */

size_t ws_space(const struct ws *ws)
{
    return ws->open && ws->queued < WS_QUEUE_MAX ? WS_QUEUE_MAX - ws->queued : 0;
}

int ws_send(struct ws *ws, const void *head, size_t head_len, const void *data, size_t len)
{
    size_t total = head_len + len;
    size_t space = ws_space(ws);
    if (space == 0 || total > space) {
        ws->want_writable = true;
        return 0;
    }
    size_t pre = ws_lws_headroom();
    struct ws_message *message = xmalloc(sizeof(*message) + pre + total);
    message->next = NULL;
    message->len = total;
    if (head_len > 0)
        memcpy(message->bytes + pre, head, head_len);
    if (len > 0)
        memcpy(message->bytes + pre + head_len, data, len);
    if (ws->last)
        ws->last->next = message;
    else
        ws->first = message;
    ws->last = message;
    ws->queued += total + WS_MESSAGE_COST;
    ws_lws_want_write(ws);
    return 1;
}

void ws_pause(struct ws *ws, int paused)
{
    if (ws->paused == (paused != 0))
        return;
    ws->paused = paused != 0;
    ws->silent = 0;
    if (ws->open)
        ws_lws_pause(ws, ws->paused);
}

void ws_close(struct ws *ws)
{
    if (!ws)
        return;
    detach(ws);
    if (!ws->open) {
        ws_lws_kill(ws);
        free_if_done(ws);
        return;
    }
    ws->close_due = true;
    ws_lws_pause(ws, false); /* the peer's CLOSE must be read */
    ws_lws_want_write(ws);
    timer_start(ws->loop, &ws->timer, LINGER_MS);
}
