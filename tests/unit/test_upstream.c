#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/upstream_parser.h"
#include "server/upstream_request.h"
#include "tests/unit/header_fields.h"
#include "tests/unit/suite.h"

/* --- answers -------------------------------------------------------------------------------------
 */

/* In memory of its own: a byte too far is seen. */
static char *copy(const char *data, size_t len)
{
    char *room = xmalloc(len);

    memcpy(room, data, len);
    return room;
}

/* What comes of the head that TEXT begins with, given in pieces of SIZE; RET_USED: its length. */
static int parse(struct upstream_parser *parser, const char *text, size_t len, size_t size,
                 size_t *ret_used, struct err *err)
{
    int rc = 0;

    *ret_used = 0;
    while (rc == 0 && *ret_used < len) {
        size_t count = size < len - *ret_used ? size : len - *ret_used, used;
        cleanup_free char *piece = copy(text + *ret_used, count);

        rc = upstream_parse_head(parser, piece, count, &used, err);
        if (rc < 0)
            break;
        ck_assert(rc == 1 ? used <= count : used == count);
        *ret_used += used;
    }
    return rc;
}

START_TEST(test_heads)
{
    static const struct {
        const char *text;
        bool to_head;
        int status;
        enum body_kind kind;
        int64_t length;
        bool persistent;
        size_t fields;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\n", false, 200, BODY_LENGTH, 5, true,
         1},
        {"HTTP/1.1 200\r\nContent-Length:0\r\n\r\n", false, 200, BODY_LENGTH, 0, true, 0},
        {"HTTP/1.1 200 OK\nA: b\n\n", false, 200, BODY_TO_END, -1, false, 1},
        {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false, 200, BODY_LENGTH, 5, false, 0},
        {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", false, 200, BODY_CHUNKED, -1,
         true, 0},
        {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n", false, 200,
         BODY_LENGTH, 5, true, 0},
        {"HTTP/1.1 200 OK\r\nConnection: closed\r\nContent-Length: 5\r\n\r\n", false, 200,
         BODY_LENGTH, 5, true, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5 \r\n\r\n", false, 200, BODY_LENGTH, 5, true, 0},
        {"HTTP/1.1  200 OK\r\nContent-Length: 5\r\n\r\n", false, 200, BODY_LENGTH, 5, true, 0},
        {"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\n",
         false, 200, BODY_LENGTH, 5, true, 0},
        {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", false, 204, BODY_EMPTY, 5, true,
         0},
        {"HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n", false, 304, BODY_EMPTY, -1, true,
         0},
        {"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n", false, 100, BODY_EMPTY, 5, true, 0},
        {"HTTP/1.1 101 So\r\nContent-Length: 5\r\n\r\n", false, 101, BODY_EMPTY, 5, true, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n", false, 200, BODY_LENGTH,
         INT64_MAX, true, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, 200, BODY_EMPTY, 5, false, 0},
        {"HTTP/1.1 204 No Content\r\n\r\n", false, 204, BODY_EMPTY, -1, true, 0},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nETag: x\r\n\r\n", false, 304,
         BODY_EMPTY, 9, true, 1},
        {"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\n", false, 200,
         BODY_LENGTH, 1, false, 0},
        {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nS: "
         "1\r\n\r\n",
         false, 101, BODY_EMPTY, -1, true, 2},
        {"HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nX: \r\n\r\n", false,
         200, BODY_TO_END, -1, false, 1},
        {"HTTP/1.1 999 Odd reason \xff\r\nX: \xff\tb \r\n\r\n", false, 999, BODY_TO_END, -1, false,
         1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_free char *more = xasprintf("%sbody", cases[i].text);
        size_t full = strlen(cases[i].text);

        for (size_t size = 1; size <= full + 4; size++) {
            struct upstream_parser parser;
            struct err err = {0};
            size_t used;

            upstream_parser_init(&parser, cases[i].to_head);
            ck_assert_msg(parse(&parser, more, full + 4, size, &used, &err) == 1, "%zu by %zu: %s",
                          i, size, err.msg);
            const struct upstream_head *head = &parser.head;
            ck_assert_uint_eq(used, full);
            ck_assert_int_eq(head->status, cases[i].status);
            ck_assert_int_eq(head->kind, cases[i].kind);
            ck_assert_int_eq(head->length, cases[i].length);
            ck_assert_msg(head->persistent == cases[i].persistent, "%zu", i);
            ck_assert_uint_eq(head->count, cases[i].fields);
            ck_assert_int_eq(parser.ended, head->kind == BODY_EMPTY || head->length == 0);
            upstream_parser_done(&parser);
        }
    }
}
END_TEST

static void check_no_head(const char *text, size_t len, size_t size, size_t i)
{
    struct upstream_parser parser;
    struct err err = {0};
    size_t used;

    upstream_parser_init(&parser, false);
    ck_assert_msg(parse(&parser, text, len, size, &used, &err) < 0, "%zu by %zu: %s", i, size,
                  text);
    ck_assert_int_eq(err.code, ERR_BAD_ANSWER);
    upstream_parser_done(&parser);
}

START_TEST(test_what_is_no_head)
{
    static const char *const cases[] = {
        "\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "HTTP/1.2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 X\r\n\r\n",
        "HTTP/1.1 2000 X\r\n\r\n",
        "HTTP/2.0 200 X\r\n\r\n",
        "HTTP/1.1 200X\r\n\r\n",
        "HTTP/1.1 200\r\r\n\r\n",
        "HTTP/1.1 200 OK\rXA: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: x\r\n\rXmore",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA : x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA b: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: x\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: x\ry\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \x7f\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t size = 1; size <= strlen(cases[i]); size++)
            check_no_head(cases[i], strlen(cases[i]), size, i);
    }
}
END_TEST

START_TEST(test_a_nul_in_the_head)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n";
    size_t len = sizeof(text) - 1;

    for (size_t at = 0; at < len; at++) {
        char changed[sizeof(text)];

        memcpy(changed, text, sizeof(text));
        changed[at] = '\0';
        check_no_head(changed, len, len, at);
        check_no_head(changed, len, 1, at);
    }
}
END_TEST

/* A head of LEN bytes with COUNT fields. */
static char *head_of(size_t len, size_t count)
{
    struct buf text = BUF_INIT(CAP_SMALL);
    size_t end = 0;

    ck_assert(buf_append_str(&text, "HTTP/1.1 200 OK\r\n"));
    for (size_t i = 1; i < count; i++)
        ck_assert(buf_append_str(&text, "X: y\r\n"));
    ck_assert(buf_append_str(&text, "Y: "));
    while (text.len < len - 4)
        ck_assert(buf_append_char(&text, 'z'));
    ck_assert(buf_append_str(&text, "\r\n\r\n"));
    return buf_take(&text, &end);
}

START_TEST(test_limits_of_heads)
{
    static const size_t sizes[] = {1, 100, UPSTREAM_HEAD_MAX - 1, UPSTREAM_HEAD_MAX,
                                   2 * UPSTREAM_HEAD_MAX};
    cleanup_free char *longest = head_of(UPSTREAM_HEAD_MAX, UPSTREAM_FIELDS_MAX);
    cleanup_free char *longer = head_of(UPSTREAM_HEAD_MAX + 1, 1);
    cleanup_free char *more = head_of(UPSTREAM_HEAD_MAX / 2, UPSTREAM_FIELDS_MAX + 1);

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct upstream_parser parser;
        struct err err;
        size_t used;

        upstream_parser_init(&parser, false);
        ck_assert_int_eq(parse(&parser, longest, UPSTREAM_HEAD_MAX, sizes[i], &used, &err), 1);
        ck_assert_uint_eq(used, UPSTREAM_HEAD_MAX);
        ck_assert_uint_eq(parser.head.count, UPSTREAM_FIELDS_MAX);
        upstream_parser_done(&parser);
        check_no_head(longer, strlen(longer), sizes[i], i);
        check_no_head(more, strlen(more), sizes[i], i);
    }
}
END_TEST

START_TEST(test_cookies_lose_their_domain)
{
    static const struct {
        const char *given, *kept;
    } cases[] = {
        {"a=1", "a=1"},
        {"a=1; Domain=.localhost; Path=/", "a=1; Path=/"},
        {"a=1;domain=x", "a=1"},
        {"a=1; Path=/; DOMAIN = x;Secure; Domain", "a=1; Path=/;Secure"},
        {"domain=1; Domains=2", "domain=1; Domains=2"},
        {"a=1;;  ; Domain=x", "a=1;;  "},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_free char *text =
            xasprintf("HTTP/1.1 200 OK\r\nset-cookie: %s\r\n\r\n", cases[i].given);
        struct upstream_parser parser;
        struct err err;
        size_t used;

        upstream_parser_init(&parser, false);
        ck_assert_int_eq(upstream_parse_head(&parser, text, strlen(text), &used, &err), 1);
        ck_assert_str_eq(parser.head.fields[0].value, cases[i].kept);
        upstream_parser_done(&parser);
    }
}
END_TEST

START_TEST(test_fields_come_as_they_are)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nset-COOKIE: a=1\r\nX-\xff: never\r\n\r\n";
    static const char good[] = "HTTP/1.1 200 OK\r\nset-COOKIE: a=1\r\nX!:  \xff\tb \r\n"
                               "Set-Cookie:b=2\r\nE:\r\nSet-Cookie: a=1\r\n\r\n";
    static const char *const want[] = {"set-COOKIE", "a=1", "X!", "\xff b",     "Set-Cookie",
                                       "b=2",        "E",   "",   "Set-Cookie", "a=1"};

    check_no_head(text, sizeof(text) - 1, 7, 0);
    for (size_t size = 1; size < sizeof(good); size++) {
        struct upstream_parser parser;
        struct err err;
        size_t used;

        upstream_parser_init(&parser, false);
        ck_assert_int_eq(parse(&parser, good, sizeof(good) - 1, size, &used, &err), 1);
        ck_assert_uint_eq(parser.head.count, ARRAY_LEN(want) / 2);
        for (size_t i = 0; i < parser.head.count; i++) {
            ck_assert_str_eq(parser.head.fields[i].name, want[i * 2]);
            ck_assert_str_eq(parser.head.fields[i].value, want[i * 2 + 1]);
        }
        upstream_parser_done(&parser);
    }
}
END_TEST

/* Ready for a body behind HEAD. */
static void begin(struct upstream_parser *parser, const char *head)
{
    struct err err = {0};
    size_t used;

    upstream_parser_init(parser, false);
    ck_assert_msg(upstream_parse_head(parser, head, strlen(head), &used, &err) == 1, "%s", err.msg);
    ck_assert_uint_eq(used, strlen(head));
}

/* Decodes TEXT in pieces of SIZE, in place in memory of their own; the body goes to OUT. Returns
 * how much was looked at. */
static size_t decode(struct upstream_parser *parser, const char *text, size_t size, struct buf *out)
{
    size_t total = 0, full = strlen(text);

    while (total < full && !parser->ended && !parser->broken) {
        size_t len = size < full - total ? size : full - total, used;
        cleanup_free char *piece = copy(text + total, len);
        size_t kept = upstream_parse_body(parser, piece, len, &used);
        ck_assert_uint_le(kept, len);
        ck_assert(used == len || parser->ended || parser->broken);
        ck_assert(buf_append(out, piece, kept));
        total += used;
    }
    return total;
}

#define HEAD_CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#define HEAD_LENGTH "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"

START_TEST(test_bodies)
{
    static const struct {
        const char *head, *text, *body;
        bool ended, broken;
        size_t left; /* behind the end */
    } cases[] = {
        {HEAD_CHUNKED, "0\r\n\r\n", "", true, false, 0},
        {HEAD_CHUNKED, "5\r\nhello\r\n0\r\n\r\n", "hello", true, false, 0},
        {HEAD_CHUNKED, "5;a=b;c\r\nhello\r\n00A \r\n0123456789\r\n000\r\nX: y\r\nZ:\r\n\r\nmore",
         "hello0123456789", true, false, 4},
        {HEAD_CHUNKED, "000000000000000000005\r\nhello\r\n0\r\n\r\n", "hello", true, false, 0},
        {HEAD_CHUNKED, "0\r\nContent-Length: 7\r\nTransfer-Encoding: x\r\n\r\nm", "", true, false,
         1},
        {HEAD_CHUNKED, "5\r\nhel", "hel", false, false, 0},
        {HEAD_CHUNKED, "5\nhello\n0\n\n", "", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhello\n0\r\n\r\n", "hello", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhello\r\n0\n\n", "hello", false, true, 0},
        {HEAD_CHUNKED, "5;a\nb\r\nhello\r\n0\r\n\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "5\rXhello\r\n0\r\n\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "0\r\n\rX", "", false, true, 0},
        {HEAD_CHUNKED, "0\r\nX: y\n\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhelloX", "hello", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhelloXX0\r\n\r\n", "hello", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhello\rX0\r\n\r\n", "hello", false, true, 0},
        {HEAD_CHUNKED, "5\r\nhello\r\r\n", "hello", false, true, 0},
        {HEAD_CHUNKED, "\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "g\r\n", "", false, true, 0},
        {HEAD_CHUNKED, ";a\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "-1\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "0x5\r\nhello", "", false, true, 0},
        {HEAD_CHUNKED, " 5\r\n", "", false, true, 0},
        {HEAD_CHUNKED, "ffffffffffffffff\r\nhello", "", false, true, 0},
        {HEAD_CHUNKED, "10000000000000005\r\nhello\r\n0\r\n\r\n", "", false, true, 0},
        {HEAD_LENGTH, "hellomore", "hello", true, false, 4},
        {HEAD_LENGTH, "hell", "hell", false, false, 0},
        {"HTTP/1.1 200 OK\r\n\r\n", "5\r\nhello\n\rX", "5\r\nhello\n\rX", false, false, 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t size = 1; size < 70; size++) {
            cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
            struct upstream_parser parser;

            begin(&parser, cases[i].head);
            size_t used = decode(&parser, cases[i].text, size, &out);
            ck_assert_msg(parser.ended == cases[i].ended && parser.broken == cases[i].broken,
                          "%zu by %zu: %s", i, size, parser.why ? parser.why : "");
            ck_assert_str_eq(buf_text(&out), cases[i].body);
            ck_assert(cases[i].broken || strlen(cases[i].text) - used == cases[i].left);
            upstream_parser_done(&parser);
        }
    }
}
END_TEST

START_TEST(test_endless_framing)
{
    static const char *const beginnings[] = {"1;", "0\r\n", "0\r\nX: y", "00"};

    for (size_t i = 0; i < ARRAY_LEN(beginnings); i++) {
        struct upstream_parser parser;
        size_t used, total = 0;
        char piece[256];

        begin(&parser, HEAD_CHUNKED);
        memcpy(piece, beginnings[i], strlen(beginnings[i]));
        (void)upstream_parse_body(&parser, piece, strlen(beginnings[i]), &used);
        ck_assert(!parser.broken);
        for (; !parser.broken && total < 1 << 20; total += sizeof(piece)) {
            memset(piece, beginnings[i][1] == '0' ? '0' : 'x', sizeof(piece));
            (void)upstream_parse_body(&parser, piece, sizeof(piece), &used);
        }
        ck_assert(parser.broken);
        upstream_parser_done(&parser);
    }
}
END_TEST

/* --- requests ------------------------------------------------------------------------------------
 */

#define HEADERS_MAX 12

START_TEST(test_requests)
{
    static const struct {
        const char *pairs[HEADERS_MAX * 2];
        int64_t length;
        bool own;
        const char *kept;
    } cases[] = {
        {{"Host", "a:1"}, 0, false, "Host: a:1\r\n"},
        {{"Host", "a", "Content-Length", "0"}, 0, false, "Host: a\r\nContent-Length: 0\r\n"},
        {{"Host", "a", "Content-Length", "7"}, 7, false, "Host: a\r\nContent-Length: 7\r\n"},
        {{"Host", "a", "Transfer-Encoding", "chunked", "Trailer", "x"},
         -1,
         false,
         "Host: a\r\nTransfer-Encoding: chunked\r\n"},
        {{"Host", "a", "Authorization", "Bearer k"}, 0, true, "Host: a\r\n"},
        {{"Host", "a", "authorization", "Basic k"},
         0,
         false,
         "Host: a\r\nauthorization: Basic k\r\n"},
        {{"Host", "a", "x-api-key", "k", "Forwarded", "x", "x-forwarded-anything", "y", "Expect",
          "z"},
         0,
         false,
         "Host: a\r\n"},
        {{"Host", "a", "Connection", "host, x-a ,, Content-Length", "X-A", "1", "X-B", "2"},
         0,
         false,
         "Host: a\r\nX-B: 2\r\n"},
        {{"Host", "a", "Connection", "keep-alive", "Connection", "X-A", "X-A", "1"},
         0,
         false,
         "Host: a\r\n"},
        {{"Host", "a", "Cookie", "podsandbox-preview=x"}, 0, false, "Host: a\r\n"},
        {{"Host", "a", "cookie", "a=1;podsandbox-preview=x ;  b=2;"},
         0,
         false,
         "Host: a\r\ncookie: a=1; b=2\r\n"},
        {{"Host", "a", "Cookie", "podsandbox-preview; podsandbox-preview2=x; y"},
         0,
         false,
         "Host: a\r\nCookie: podsandbox-preview2=x; y\r\n"},
        {{"Host", "a", "Cookie", ""}, 0, false, "Host: a\r\n"},
        {{"Host", "a", "Connection", "Upgrade", "Upgrade", "h2c"},
         9,
         false,
         "Host: a\r\nContent-Length: 9\r\n"},
        {{"Host", "a", "Connection", "keep-alive, upgrade", "Upgrade", "websocket", "Sec-X", "1"},
         0,
         false,
         "Host: a\r\nSec-X: 1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"},
        {{"Host", "a", "Upgrade", "websocket"}, 0, false, "Host: a\r\n"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text_field fields[HEADERS_MAX];
        cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
        struct err err;
        struct upstream_request request = {
            .method = "POST",
            .target = "//a%20b?c",
            .headers = fields,
            .header_count = fields_of(cases[i].pairs, fields),
            .body_length = cases[i].length,
            .own_credentials = cases[i].own,
            .client_address = "::1",
            .scheme = "https",
        };
        request.upgrade = upstream_wants_upgrade(fields, request.header_count, request.body_length);
        cleanup_free char *want =
            xasprintf("POST //a%%20b?c HTTP/1.1\r\n%sX-Forwarded-For: ::1\r\nX-Forwarded-Proto: "
                      "https\r\nX-Forwarded-Host: %s\r\n\r\n",
                      cases[i].kept, cases[i].pairs[1]);

        ck_assert_int_eq(upstream_request_write(&request, &out, &err), 0);
        ck_assert_str_eq(buf_text(&out), want);
    }
}
END_TEST

START_TEST(test_a_request_that_is_too_large)
{
    struct text_field field = {.name = (char *)(uintptr_t) "Cookie"};
    cleanup_free char *value = xasprintf("a=%01000d", 1);
    struct upstream_request request = {.method = "GET",
                                       .target = "/",
                                       .headers = &field,
                                       .header_count = 1,
                                       .client_address = "x",
                                       .scheme = "http"};
    field.value = value;
    for (size_t max = 0; max < 1000; max += 7) {
        cleanup_buf struct buf out = BUF_INIT(max);
        struct err err;

        ck_assert_int_lt(upstream_request_write(&request, &out, &err), 0);
        ck_assert_int_eq(err.code, ERR_TOO_LARGE);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_heads,
                                  test_what_is_no_head,
                                  test_a_nul_in_the_head,
                                  test_limits_of_heads,
                                  test_fields_come_as_they_are,
                                  test_cookies_lose_their_domain,
                                  test_bodies,
                                  test_endless_framing,
                                  test_requests,
                                  test_a_request_that_is_too_large,
                                  NULL};

    return run_suite("upstream", tests, NULL, NULL);
}
