#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The server's end of one WebSocket (RFC 6455), over wslay: bytes of the client in, messages out,
 * and the other way round. It has no descriptor and no thread. Fragments are put together, pings
 * and closes answered, and whatever the RFC forbids closes it with the code that the RFC names. */
struct ws_server;

/* A whole message, which is UTF-8 when TEXT; valid during the call. It may send, and close. */
typedef void ws_server_message(void *arg, bool text, const void *data, size_t len);

/* A longer message closes with 1009. */
struct ws_server *ws_server_new(size_t message_max, ws_server_message *message, void *arg);
void ws_server_free(struct ws_server *peer); /* NULL is allowed */

/* Bytes as they came, in any pieces. They are thrown away when it wants none any more. */
void ws_server_receive(struct ws_server *peer, const void *data, size_t len);
bool ws_server_wants(const struct ws_server *peer);

/* Copied. Nothing is sent after a close. TEXT: DATA is UTF-8. */
void ws_server_send(struct ws_server *peer, bool text, const void *data, size_t len);
void ws_server_ping(struct ws_server *peer);
/* Behind all that was sent before; the first one counts. */
void ws_server_close(struct ws_server *peer, unsigned code);

/* How many messages are not taken yet, answers to pings included. */
size_t ws_server_queued(const struct ws_server *peer);
/* The next bytes for the client, up to MAX; 0: none now. */
size_t ws_server_take(struct ws_server *peer, void *data, size_t max);
/* Its close was taken; and the client's has come, so that nothing is left to wait for. */
bool ws_server_closed(const struct ws_server *peer);
bool ws_server_over(const struct ws_server *peer);

/* Sec-WebSocket-Accept for the client's key. */
#define WS_ACCEPT_LEN 29
bool ws_server_accept(const char *key, char ret_accept[WS_ACCEPT_LEN]);
