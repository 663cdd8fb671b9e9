#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "net/ws_server.h"

/* What a client says on a WebSocket, in pieces of two sizes: the messages must come out alike, and
 * all answers must be frames (which they are depends on how soon a wrong one is seen). The first
 * byte chooses the second size. */

#define MESSAGE_MAX 300

static void require(bool holds)
{
    if (!holds)
        abort();
}

struct side {
    struct ws_server *server;
    struct buf seen, out;
};

static void on_message(void *arg, bool text, const void *data, size_t len)
{
    struct side *side = arg;
    char *copy = xmalloc(len); /* a byte too far is seen */

    require(len <= MESSAGE_MAX);
    if (len)
        memcpy(copy, data, len);
    require(buf_append_str(&side->seen, text ? "t" : "b") && buf_append(&side->seen, copy, len));
    if (len % 3 == 0)
        ws_server_send(side->server, text, copy, len);
    if (len == 7)
        ws_server_close(side->server, 1008);
    free(copy);
}

static void hear(struct side *side, const uint8_t *data, size_t len, size_t piece)
{
    for (size_t at = 0; at < len; at += piece) {
        size_t part = len - at < piece ? len - at : piece;
        uint8_t *copy = xmalloc(part);

        memcpy(copy, data + at, part);
        ws_server_receive(side->server, copy, part);
        free(copy);
    }
}

static void begin(struct side *side)
{
    *side = (struct side){.seen = BUF_INIT(1 << 24), .out = BUF_INIT(1 << 24)};
    side->server = ws_server_new(MESSAGE_MAX, on_message, side);
}

static void take(struct side *side, size_t piece)
{
    char room[512];
    size_t len;

    while ((len = ws_server_take(side->server, room, piece)) > 0)
        require(len <= piece && buf_append(&side->out, room, len));
}

/* Whole frames, none masked, and no one behind a close. */
static void check_out(const struct side *side)
{
    const uint8_t *at = (const uint8_t *)buf_text(&side->out), *end = at + side->out.len;

    while (at < end) {
        require(end - at >= 2 && (at[0] & 0xf0) == 0x80 && at[1] <= 126);
        size_t len = at[1], head = 2;
        if (len == 126) {
            require(end - at >= 4);
            len = (size_t)at[2] << 8 | at[3];
            head = 4;
        }
        require((size_t)(end - at) >= head + len);
        bool closes = (at[0] & 15) == 8;
        at += head + len;
        require(!closes || at == end);
    }
}

static void end(struct side *side)
{
    ws_server_free(side->server);
    buf_done(&side->seen);
    buf_done(&side->out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct side a, b;

    if (size == 0)
        return 0;
    begin(&a);
    begin(&b);
    hear(&a, bytes + 1, size - 1, 1);
    hear(&b, bytes + 1, size - 1, bytes[0] + 2u);
    take(&a, 1);
    take(&b, sizeof(char[512]));
    check_out(&a);
    check_out(&b);
    require(a.seen.len == b.seen.len);
    require(memcmp(buf_text(&a.seen), buf_text(&b.seen), a.seen.len) == 0);
    end(&a);
    end(&b);
    return 0;
}
