#include "server/web_socket.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "net/ws_server.h"
#include "server/exchange.h"
#include "server/reply.h"
#include "server/upstream_request.h"

#define PROTOCOL_HEADER "Sec-WebSocket-Protocol"
#define BEARER "podsandbox.bearer."
#define KEY_MAX 1024

/* --- subprotocols -------------------------------------------------------------------------------
 */

/* The first that begins with PREFIX, from all headers of that name. */
static bool find_offer(const struct request *request, const char *prefix, struct str *ret_offer)
{
    size_t len = strlen(prefix);

    for (size_t i = 0; i < request->header_count; i++) {
        const char *list = request->headers[i].value;

        if (strcasecmp(request->headers[i].name, PROTOCOL_HEADER) != 0)
            continue;
        while (framing_element(&list, ret_offer)) {
            if (ret_offer->len >= len && memcmp(ret_offer->ptr, prefix, len) == 0)
                return true;
        }
    }
    return false;
}

static bool offers_ours(const struct request *request)
{
    struct str offer;

    return find_offer(request, WEB_SOCKET_PROTOCOL, &offer) &&
           offer.len == strlen(WEB_SOCKET_PROTOCOL);
}

/* The alphabet of base64url, and no padding. */
static bool decode_key(struct str text, struct buf *out)
{
    struct buf padded = BUF_INIT(2 * KEY_MAX);
    bool good = buf_append(&padded, text.ptr, text.len);

    for (size_t i = 0; good && i < padded.len; i++) {
        if (padded.ptr[i] == '-')
            padded.ptr[i] = '+';
        else if (padded.ptr[i] == '_')
            padded.ptr[i] = '/';
        else if (padded.ptr[i] == '+' || padded.ptr[i] == '/' || padded.ptr[i] == '=')
            good = false;
    }
    while (good && padded.len % 4)
        good = buf_append_str(&padded, "=");
    good = good && base64_decode(out, (struct str){padded.ptr, padded.len}) &&
           memchr(out->ptr, '\0', out->len) == NULL;
    buf_wipe(&padded);
    return good;
}

char *web_socket_key(const struct request *request)
{
    struct buf key = BUF_INIT(KEY_MAX);
    struct str offer;
    char *text = NULL;

    if (!find_offer(request, BEARER, &offer))
        return NULL;
    offer.ptr += strlen(BEARER);
    offer.len -= strlen(BEARER);
    if (offer.len && decode_key(offer, &key))
        text = xstrndup(key.ptr, key.len);
    buf_wipe(&key);
    return text;
}

/* --- the handshake ------------------------------------------------------------------------------
 */

int web_socket_check(struct request *request, struct err *err)
{
    const char *upgrade = request_header(request, "Upgrade");
    const char *version = request_header(request, "Sec-WebSocket-Version");
    const char *key = request_header(request, "Sec-WebSocket-Key");
    char accept[WS_ACCEPT_LEN];
    bool wanted =
        upgrade && strcasecmp(upgrade, "websocket") == 0 &&
        upstream_wants_upgrade(request->headers, request->header_count, request->body_length);

    if (!wanted || strcmp(request->method, "GET") != 0 || !version || strcmp(version, "13") != 0) {
        reply_header(request, "Upgrade", "websocket");
        reply_header(request, "Sec-WebSocket-Version", "13");
        return err_set(err, ERR_UPGRADE_REQUIRED, "this is a WebSocket: connect to it as to one");
    }
    if (!key || !ws_server_accept(key, accept))
        return err_set(err, ERR_INVALID_REQUEST,
                       "the header Sec-WebSocket-Key must be 16 bytes as base64");
    return 0;
}

enum verdict reply_web_socket(struct request *request, struct session *session)
{
    const char *key = request_header(request, "Sec-WebSocket-Key");
    char accept[WS_ACCEPT_LEN] = "";
    bool good = key && ws_server_accept(key, accept);

    assert(good);
    reply_header(request, "Upgrade", "websocket");
    reply_header(request, "Sec-WebSocket-Accept", accept);
    if (offers_ours(request))
        reply_header(request, PROTOCOL_HEADER, WEB_SOCKET_PROTOCOL);
    return good ? reply_switched(request, session) : DONE;
}
