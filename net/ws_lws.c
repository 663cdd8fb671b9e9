#include "net/ws_lws.h"

#include <libwebsockets.h>
#include <string.h>

#include "base/caps.h"

/* Bytes handed out at once. libwebsockets keeps a buffer of this size for each connection. It must
 * hold a whole TLS record: when a connection is paused while OpenSSL holds the rest of one, 4.1.6
 * turns in a loop for ever (rops_handle_POLLIN_ws). */
#define WS_PIECE 16384

size_t ws_lws_headroom(void)
{
    return LWS_PRE;
}

bool ws_lws_connect(struct ws *ws)
{
    /* off: ws.c has pings of its own, since these would count a paused stream as a dead one */
    static const lws_retry_bo_t no_pings = {.secs_since_valid_ping = 0};
    struct lws_client_connect_info info = {
        .context = loop_lws(ws->loop),
        .vhost = ws_vhost_lws(ws->vhost),
        .address = ws->addresses.items[ws->next_address++],
        .port = ws->port,
        .path = ws->path,
        .host = ws->host_header,
        .protocol = ws->protocols,
        .local_protocol_name = ws_lws_protocols()[0].name,
        .alpn = "http/1.1",
        .ietf_version_or_minus_one = -1,
        .ssl_connection = LCCSCF_HTTP_NO_FOLLOW_REDIRECT |
                          (ws->secure ? LCCSCF_USE_SSL | LCCSCF_SKIP_SERVER_CERT_HOSTNAME_CHECK
                                      : 0), /* the name is checked by the SSL_CTX: net/tls.c */
        .retry_and_idle_policy = &no_pings,
        .opaque_user_data = ws,
    };
    ws->in_connect = true;
    struct lws *wsi = lws_client_connect_via_info(&info);
    /* When it was destroyed in there, `in_connect` is off by now and WSI may even be dangling. */
    ws->wsi = ws->in_connect ? wsi : NULL;
    ws->in_connect = false;
    return ws->wsi != NULL;
}

void ws_lws_want_write(struct ws *ws)
{
    if (ws->wsi)
        lws_callback_on_writable(ws->wsi);
}

void ws_lws_pause(struct ws *ws, bool paused)
{
    if (ws->wsi)
        lws_rx_flow_control(ws->wsi, !paused);
}

void ws_lws_kill(struct ws *ws)
{
    if (ws->wsi)
        lws_set_timeout(ws->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
}

static int append_headers(struct ws *ws, char **at, size_t room)
{
    size_t len = ws->headers ? strlen(ws->headers) : 0;
    if (len > room)
        return -1;
    memcpy(*at, ws->headers ? ws->headers : "", len);
    *at += len;
    return 0;
}

static int verify(struct lws *wsi, void *store_context, bool verified)
{
    struct ws *ws = lws_get_opaque_user_data(wsi);
    if (!ws)
        return verified ? 0 : 1;
    bool insecure = ws_vhost_insecure(ws->vhost);
    return tls_accept_server(store_context, verified, insecure, &ws->tls_reason) ? 0 : 1;
}

/* An owner that has gone away asked for a kill or (then `close_due` is set) a CLOSE. A kill is lost
 * when the handshake ends in the same turn, which resets libwebsockets' timer: so -1 here. */
static bool is_killed(const struct ws *ws)
{
    return !ws->handler && !ws->close_due;
}

static int established(struct ws *ws)
{
    if (is_killed(ws))
        return -1;
    ws->open = true;
    if (ws->paused)
        ws_lws_pause(ws, true);
    ws_opened(ws);
    return 0;
}

static int received(struct ws *ws, const uint8_t *data, size_t len)
{
    bool first = !ws->in_message;
    bool last = lws_is_final_fragment(ws->wsi) != 0;
    ws->in_message = !last;
    ws->silent = 0;
    if (ws->handler)
        ws->handler->received(ws->arg, data, len, first, last);
    return is_killed(ws) ? -1 : 0;
}

static bool write_ping(struct ws *ws)
{
    uint8_t frame[LWS_PRE + 1];
    ws->ping_due = false;
    return lws_write(ws->wsi, frame + LWS_PRE, 0, LWS_WRITE_PING) >= 0;
}

static bool write_message(struct ws *ws)
{
    struct ws_message *message = ws->first;
    int written = lws_write(ws->wsi, message->bytes + LWS_PRE, message->len, LWS_WRITE_BINARY);
    ws->first = message->next;
    if (!ws->first)
        ws->last = NULL;
    ws->queued -= message->len + WS_MESSAGE_COST;
    bool ok = written >= (int)message->len;
    free(message);
    return ok;
}

static int writable(struct ws *ws)
{
    if (is_killed(ws))
        return -1;
    if (ws->ping_due && !write_ping(ws))
        return -1;
    while (ws->first && !lws_send_pipe_choked(ws->wsi)) {
        if (!write_message(ws))
            return -1;
    }
    if (ws->first) {
        lws_callback_on_writable(ws->wsi);
    } else if (ws->close_due) {
        lws_close_reason(ws->wsi, LWS_CLOSE_STATUS_NORMAL, NULL, 0);
        return -1; /* which sends that CLOSE, waits for the peer's, and ends with WSI_DESTROY */
    }
    ws_drained(ws);
    return 0;
}

static void destroyed(struct ws *ws)
{
    bool was_connecting = ws->in_connect;
    ws->in_connect = false;
    ws->wsi = NULL;
    if (!was_connecting)
        ws_wsi_gone(ws);
}

static void failed(struct ws *ws, const char *reason, size_t len)
{
    cleanup_free char *text = reason ? xstrndup(reason, strnlen(reason, len)) : NULL;
    ws_failed(ws, text);
}

/* Callbacks about one connection. */
static int on_connection(struct lws *wsi, struct ws *ws, enum lws_callback_reasons reason, void *in,
                         size_t len)
{
    switch (reason) {
    case LWS_CALLBACK_WSI_CREATE:
        ws->tcp_connected = true;
        return 0;
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
        return append_headers(ws, in, len);
    case LWS_CALLBACK_ESTABLISHED_CLIENT_HTTP: /* the reply's header, whatever it says */
        ws->status = (int)lws_http_client_http_response(wsi);
        return 0;
    case LWS_CALLBACK_CLIENT_FILTER_PRE_ESTABLISH:
        if (lws_hdr_copy(wsi, ws->protocol, sizeof(ws->protocol), WSI_TOKEN_PROTOCOL) < 0)
            ws->protocol[0] = '\0';
        return 0;
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        return established(ws);
    case LWS_CALLBACK_CLIENT_RECEIVE:
        return received(ws, in, len);
    case LWS_CALLBACK_CLIENT_RECEIVE_PONG:
        ws->silent = 0;
        return 0;
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return writable(ws);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        ws_peer_closed(ws, in, len);
        return 0; /* libwebsockets answers it */
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        failed(ws, in, len);
        return 0;
    case LWS_CALLBACK_CLIENT_CLOSED:
        failed(ws, NULL, 0);
        return 0;
    case LWS_CALLBACK_WSI_DESTROY:
        destroyed(ws);
        return 0;
    default:
        return 0;
    }
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                    size_t len)
{
    switch (reason) {
    case LWS_CALLBACK_OPENSSL_PERFORM_SERVER_CERT_VERIFICATION:
        return verify(wsi, user, len != 0);
    case LWS_CALLBACK_WSI_CREATE:
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
    case LWS_CALLBACK_ESTABLISHED_CLIENT_HTTP:
    case LWS_CALLBACK_CLIENT_FILTER_PRE_ESTABLISH:
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
    case LWS_CALLBACK_CLIENT_RECEIVE:
    case LWS_CALLBACK_CLIENT_RECEIVE_PONG:
    case LWS_CALLBACK_CLIENT_WRITEABLE:
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
    case LWS_CALLBACK_CLIENT_CLOSED:
    case LWS_CALLBACK_WSI_DESTROY: {
        struct ws *ws = lws_get_opaque_user_data(wsi);
        return ws ? on_connection(wsi, ws, reason, in, len) : 0;
    }
    default: /* about the vhost or the context, with a WSI that is none */
        return 0;
    }
}

const struct lws_protocols *ws_lws_protocols(void)
{
    static const struct lws_protocols protocols[] = {
        {.name = "podsandbox-ws", .callback = on_event, .rx_buffer_size = WS_PIECE},
        {.name = NULL},
    };
    return protocols;
}
