#include "net/ws_server.h"

#include <assert.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

#include "base/buf.h"
#include "base/mem.h"

#define KEY_LEN 24 /* 16 bytes as base64 */

/* What wslay's frame reader itself cannot make sense of (a length that is not the shortest, a
 * control frame that is too long) it closes without a code. */
static const uint8_t protocol_error[] = {0x88, 0x02, 0x03, 0xea}; /* 1002 */

struct ws_server {
    wslay_event_context_ptr wslay;
    ws_server_message *message;
    void *arg;
    const uint8_t *in; /* during a call */
    size_t in_len;
    uint8_t *out;
    size_t out_room, out_len;
    bool closing;        /* nothing more is sent */
    unsigned close_code; /* queued when all before it was taken: wslay prefers a close; 0: none */
    bool broken;         /* nothing is read any more */
    size_t last_at;      /* of protocol_error, when wslay has nothing to say */
    bool last;
};

/* --- wslay's callbacks; their signatures are its own ---------------------------------------------
 */

static ssize_t give_in(wslay_event_context_ptr wslay, uint8_t *data, size_t max, int flags,
                       void *arg)
{
    struct ws_server *peer = arg;
    size_t len = peer->in_len < max ? peer->in_len : max;

    (void)flags;
    if (len == 0) {
        wslay_event_set_error(wslay, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    memcpy(data, peer->in, len);
    peer->in += len;
    peer->in_len -= len;
    return (ssize_t)len;
}

static ssize_t take_out(wslay_event_context_ptr wslay, const uint8_t *data, size_t len, int flags,
                        void *arg)
{
    struct ws_server *peer = arg;
    size_t room = peer->out_room - peer->out_len;

    (void)flags;
    if (room == 0) {
        wslay_event_set_error(wslay, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    if (len > room)
        len = room;
    memcpy(peer->out + peer->out_len, data, len);
    peer->out_len += len;
    return (ssize_t)len;
}

static void on_message(wslay_event_context_ptr wslay,
                       const struct wslay_event_on_msg_recv_arg *message, void *arg)
{
    struct ws_server *peer = arg;

    (void)wslay;
    if (message->opcode == WSLAY_CONNECTION_CLOSE)
        peer->closing = true;
    else if (message->opcode == WSLAY_TEXT_FRAME || message->opcode == WSLAY_BINARY_FRAME)
        peer->message(peer->arg, message->opcode == WSLAY_TEXT_FRAME, message->msg,
                      message->msg_length);
}

/* --- life --------------------------------------------------------------------------------------
 */

struct ws_server *ws_server_new(size_t message_max, ws_server_message *message, void *arg)
{
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = give_in, .send_callback = take_out, .on_msg_recv_callback = on_message};
    struct ws_server *peer = xcalloc(1, sizeof(*peer));

    peer->message = message;
    peer->arg = arg;
    if (wslay_event_context_server_init(&peer->wslay, &callbacks, peer))
        abort(); /* out of memory, as in xmalloc */
    wslay_event_config_set_max_recv_msg_length(peer->wslay, message_max);
    return peer;
}

void ws_server_free(struct ws_server *peer)
{
    if (!peer)
        return;
    wslay_event_context_free(peer->wslay);
    free(peer);
}

/* --- from the client ----------------------------------------------------------------------------
 */

bool ws_server_wants(const struct ws_server *peer)
{
    return !peer->broken && wslay_event_get_read_enabled(peer->wslay) &&
           !wslay_event_get_close_received(peer->wslay);
}

void ws_server_receive(struct ws_server *peer, const void *data, size_t len)
{
    if (!ws_server_wants(peer))
        return;
    peer->in = data;
    peer->in_len = len;
    if (wslay_event_recv(peer->wslay)) {
        peer->broken = true;
        /* Behind frames of ours only wslay can close. */
        peer->last = wslay_event_get_queued_msg_count(peer->wslay) == 1 && !peer->closing;
        peer->closing = true;
    }
    peer->in_len = 0;
}

/* --- to the client ------------------------------------------------------------------------------
 */

void ws_server_send(struct ws_server *peer, bool text, const void *data, size_t len)
{
    const struct wslay_event_msg message = {
        .opcode = text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, .msg = data, .msg_length = len};

    if (!peer->closing)
        (void)wslay_event_queue_msg(peer->wslay, &message); /* else it is closing by itself */
}

void ws_server_ping(struct ws_server *peer)
{
    const struct wslay_event_msg ping = {.opcode = WSLAY_PING};

    if (!peer->closing)
        (void)wslay_event_queue_msg(peer->wslay, &ping); /* as above */
}

void ws_server_close(struct ws_server *peer, unsigned code)
{
    if (!peer->closing)
        peer->close_code = code;
    peer->closing = true;
}

size_t ws_server_queued(const struct ws_server *peer)
{
    return wslay_event_get_queued_msg_count(peer->wslay);
}

static size_t take_last(struct ws_server *peer, void *data, size_t max)
{
    size_t left = sizeof(protocol_error) - peer->last_at;
    size_t len = left < max ? left : max;

    memcpy(data, protocol_error + peer->last_at, len);
    peer->last_at += len;
    return len;
}

size_t ws_server_take(struct ws_server *peer, void *data, size_t max)
{
    if (peer->last)
        return take_last(peer, data, max);
    peer->out = data;
    peer->out_room = max;
    peer->out_len = 0;
    (void)wslay_event_send(peer->wslay); /* it fails by its callback alone: no room */
    if (peer->close_code && !wslay_event_want_write(peer->wslay)) {
        (void)wslay_event_queue_close(peer->wslay, (uint16_t)peer->close_code, NULL, 0);
        peer->close_code = 0; /* or the client's close was answered before */
        (void)wslay_event_send(peer->wslay);
    }
    return peer->out_len;
}

bool ws_server_closed(const struct ws_server *peer)
{
    return peer->last ? peer->last_at == sizeof(protocol_error)
                      : wslay_event_get_close_sent(peer->wslay);
}

bool ws_server_over(const struct ws_server *peer)
{
    return ws_server_closed(peer) && wslay_event_get_close_received(peer->wslay);
}

/* --- the handshake ------------------------------------------------------------------------------
 */

bool ws_server_accept(const char *key, char ret_accept[WS_ACCEPT_LEN])
{
    static const char magic[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[KEY_LEN + sizeof(magic)];
    unsigned char hash[SHA_DIGEST_LENGTH];
    struct buf bytes = BUF_INIT(KEY_LEN), accept = BUF_INIT(WS_ACCEPT_LEN);
    bool good = strlen(key) == KEY_LEN && base64_decode(&bytes, str_of(key)) && bytes.len == 16;

    buf_done(&bytes);
    if (!good)
        return false;
    memcpy(text, key, KEY_LEN);
    memcpy(text + KEY_LEN, magic, sizeof(magic));
    (void)SHA1((const unsigned char *)text, sizeof(text) - 1, hash);
    bool fits = base64_encode(&accept, hash, sizeof(hash));
    assert(fits && accept.len == WS_ACCEPT_LEN - 1);
    memcpy(ret_accept, buf_text(&accept), WS_ACCEPT_LEN);
    buf_done(&accept);
    return fits;
}
