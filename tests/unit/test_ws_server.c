#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "net/ws_server.h"
#include "tests/unit/suite.h"

/* What came out for the client, and what messages came in. */
struct side {
    struct ws_server *server;
    struct buf out, seen;
    bool echoes;
};

static void on_message(void *arg, bool text, const void *data, size_t len)
{
    struct side *side = arg;
    ck_assert(buf_printf(&side->seen, "%s:", text ? "text" : "bytes"));
    ck_assert(buf_append(&side->seen, data, len));
    ck_assert(buf_append_str(&side->seen, "|"));
    if (side->echoes)
        ws_server_send(side->server, text, data, len);
}

static void begin(struct side *side)
{
    *side = (struct side){.out = BUF_INIT(1 << 20), .seen = BUF_INIT(1 << 20)};
    side->server = ws_server_new(100, on_message, side);
}

static void end(struct side *side)
{
    ws_server_free(side->server);
    buf_done(&side->out);
    buf_done(&side->seen);
}

/* In pieces of SIZE. */
static void take(struct side *side, size_t size)
{
    char piece[4096];
    size_t len;
    ck_assert_uint_le(size, sizeof(piece));
    while ((len = ws_server_take(side->server, piece, size)) > 0)
        ck_assert(buf_append(&side->out, piece, len));
}

/* FRAME is masked with zeros, so that it can be read. */
static void receive(struct side *side, const char *frame, size_t len, size_t size)
{
    for (size_t at = 0; at < len; at += size)
        ws_server_receive(side->server, frame + at, len - at < size ? len - at : size);
}

#define M "\0\0\0\0"

static const struct {
    const char *in;
    size_t in_len;
    const char *seen; /* messages */
    const char *out;
    size_t out_len;
    bool wants;
} frames[] = {
#define CASE(in, seen, out, wants)                                                                 \
    {                                                                                              \
        in, sizeof(in) - 1, seen, out, sizeof(out) - 1, wants                                      \
    }
    CASE("\x81\x82" M "hi", "text:hi|", "", true),
    CASE("\x82\x81" M "x"
         "\x82\x80" M,
         "bytes:x|bytes:|", "", true),
    CASE("\x01\x81" M "a"
         "\x89\x81" M "p"
         "\x80\x81" M "b",
         "text:ab|", "\x8a\x01p", true),
    CASE("\x88\x82" M "\x03\xe8", "", "\x88\x02\x03\xe8", false), /* answered */
    CASE("\x88\x80" M, "", "\x88\x00", false),
    CASE("\x81\x02hi", "", "\x88\x02\x03\xea", false),             /* not masked: 1002 */
    CASE("\x83\x80" M, "", "\x88\x02\x03\xea", false),             /* no such opcode */
    CASE("\x8b\x80" M, "", "\x88\x02\x03\xea", false),             /* nor such a control */
    CASE("\xc1\x80" M, "", "\x88\x02\x03\xea", false),             /* a reserved bit */
    CASE("\x80\x80" M, "", "\x88\x02\x03\xea", false),             /* goes on with nothing */
    CASE("\x89\xfe\x00\x80" M, "", "\x88\x02\x03\xea", false),     /* a long ping */
    CASE("\x82\xfe\x00\x01" M "x", "", "\x88\x02\x03\xea", false), /* a length too long */
    CASE("\x82\xff\x80\0\0\0\0\0\0\0" M, "", "\x88\x02\x03\xea", false),
    CASE("\x81\x81" M "\xff", "", "\x88\x02\x03\xef", false), /* no UTF-8: 1007 */
    CASE("\x82\xe5" M "x", "", "\x88\x02\x03\xf1", false),    /* 101 bytes: 1009 */
};

/* In pieces of SIZE both ways. */
static void check(size_t index, size_t size)
{
    struct side side;
    begin(&side);
    receive(&side, frames[index].in, frames[index].in_len, size);
    take(&side, size);
    ck_assert_str_eq(buf_text(&side.seen), frames[index].seen);
    ck_assert_uint_eq(side.out.len, frames[index].out_len);
    ck_assert_mem_eq(side.out.ptr ? side.out.ptr : "", frames[index].out, side.out.len);
    ck_assert_int_eq(ws_server_wants(side.server), frames[index].wants);
    ck_assert_int_eq(ws_server_closed(side.server), !frames[index].wants);
    /* Nothing more is said, nor heard. */
    if (!frames[index].wants) {
        receive(&side, "\x81\x82" M "hi", 8, 8);
        ws_server_send(side.server, true, "late", 4);
        ws_server_ping(side.server);
        ws_server_close(side.server, 1000);
        take(&side, 4096);
        ck_assert_uint_eq(side.out.len, frames[index].out_len);
        ck_assert_str_eq(buf_text(&side.seen), frames[index].seen);
    }
    end(&side);
}

START_TEST(test_frames)
{
    for (size_t i = 0; i < ARRAY_LEN(frames); i++) {
        check(i, 1);
        check(i, 3);
        check(i, 4096);
    }
}
END_TEST

START_TEST(test_a_close_comes_last)
{
    struct side side;
    char piece[1];
    begin(&side);
    ws_server_send(side.server, true, "one", 3);
    ws_server_send(side.server, false, "two", 3);
    ws_server_close(side.server, 1011);
    ws_server_close(side.server, 1000);
    ws_server_send(side.server, true, "late", 4);
    ck_assert_uint_eq(ws_server_queued(side.server), 2);
    /* Not even when it is broken meanwhile, in the midst of a frame. */
    ck_assert_uint_eq(ws_server_take(side.server, piece, 1), 1);
    ck_assert(buf_append(&side.out, piece, 1));
    receive(&side, "\x89\x80" M, 6, 6);
    take(&side, 2);
    ck_assert_mem_eq(side.out.ptr, "\x81\x03one", 5);
    ck_assert_mem_eq(side.out.ptr + side.out.len - 4, "\x88\x02\x03\xf3", 4);
    ck_assert(ws_server_closed(side.server));
    ck_assert(!ws_server_over(side.server));
    ck_assert(ws_server_wants(side.server));
    receive(&side, "\x88\x82" M "\x03\xf3", 8, 8);
    ck_assert(ws_server_over(side.server));
    end(&side);
}
END_TEST

START_TEST(test_answers_from_within)
{
    struct side side;
    begin(&side);
    side.echoes = true;
    receive(&side, "\x81\x82" M "hi", 8, 8);
    take(&side, 4096);
    ck_assert_uint_eq(side.out.len, 4);
    ck_assert_mem_eq(side.out.ptr, "\x81\x02hi", 4);
    ws_server_ping(side.server);
    take(&side, 4096);
    ck_assert_mem_eq(side.out.ptr + 4, "\x89\x00", 2);
    end(&side);
}
END_TEST

START_TEST(test_accept)
{
    char accept[WS_ACCEPT_LEN];
    ck_assert(ws_server_accept("dGhlIHNhbXBsZSBub25jZQ==", accept)); /* RFC 6455, 1.3 */
    ck_assert_str_eq(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    static const char *const bad[] = {"",
                                      "AAAA",
                                      "dGhlIHNhbXBsZSBub25jZQ=",
                                      "AAAAAAAAAAAAAAAAAAAAAAAA",
                                      "dGhlIHNhbXBsZSBub25jZ===",
                                      "****************************"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert(!ws_server_accept(bad[i], accept));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_frames, test_a_close_comes_last, test_answers_from_within,
                                  test_accept, NULL};
    return run_suite("ws_server", tests, NULL, NULL);
}
