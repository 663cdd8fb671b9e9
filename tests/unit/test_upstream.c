#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/upstream_head.h"
#include "server/upstream_request.h"
#include "tests/unit/header_fields.h"
#include "tests/unit/suite.h"

/* --- answers -------------------------------------------------------------------------------------
 */

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
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", false, 200,
         BODY_CHUNKED, -1, false, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", false, 200,
         BODY_LENGTH, 5, true, 0},
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
        struct upstream_head head;
        struct err err = {0};
        size_t len, full = strlen(cases[i].text);

        for (size_t part = 0; part < full; part++) {
            ck_assert_int_eq(
                upstream_head_parse(cases[i].text, part, cases[i].to_head, &head, &len, &err), 0);
            ck_assert_uint_eq(len, 0);
        }
        cleanup_free char *more = xasprintf("%sbody", cases[i].text);
        ck_assert_msg(upstream_head_parse(more, full + 4, cases[i].to_head, &head, &len, &err) == 0,
                      "%zu: %s", i, err.msg);
        ck_assert_uint_eq(len, full);
        ck_assert_int_eq(head.status, cases[i].status);
        ck_assert_int_eq(head.kind, cases[i].kind);
        ck_assert_int_eq(head.length, cases[i].length);
        ck_assert_msg(head.persistent == cases[i].persistent, "%zu", i);
        ck_assert_uint_eq(head.count, cases[i].fields);
        upstream_head_done(&head);
    }
}
END_TEST

START_TEST(test_what_is_no_head)
{
    static const char *const cases[] = {
        "\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "HTTP/1.2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 X\r\n\r\n",
        "HTTP/1.1 2000 X\r\n\r\n",
        "HTTP/1.1  200 X\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA : x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: x\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: x\ry\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct upstream_head head;
        struct err err = {0};
        size_t len;

        ck_assert_msg(upstream_head_parse(cases[i], strlen(cases[i]), false, &head, &len, &err) < 0,
                      "%s", cases[i]);
        ck_assert_int_eq(err.code, ERR_BAD_ANSWER);
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
        struct upstream_head head;
        struct err err;
        size_t len;

        ck_assert_int_eq(upstream_head_parse(text, strlen(text), false, &head, &len, &err), 0);
        ck_assert_str_eq(head.fields[0].value, cases[i].kept);
        upstream_head_done(&head);
    }
}
END_TEST

/* Decodes TEXT in pieces of SIZE; the body goes to OUT. */
static struct upstream_body decode(const char *text, size_t size, struct buf *out, size_t *ret_used)
{
    struct upstream_body body = {.kind = BODY_CHUNKED};
    size_t total = 0, full = strlen(text);
    char piece[256];

    while (total < full && !body.ended && !body.broken) {
        size_t len = size < full - total ? size : full - total, used;

        memcpy(piece, text + total, len);
        size_t kept = upstream_body_decode(&body, piece, len, &used);
        ck_assert_uint_le(kept, len);
        ck_assert(used == len || body.ended || body.broken);
        ck_assert(buf_append(out, piece, kept));
        total += used;
    }
    *ret_used = total;
    return body;
}

START_TEST(test_chunks)
{
    static const struct {
        const char *text, *body;
        bool ended, broken;
        size_t left; /* behind the end */
    } cases[] = {
        {"0\r\n\r\n", "", true, false, 0},
        {"5\r\nhello\r\n0\r\n\r\n", "hello", true, false, 0},
        {"5\nhello\n0\n\n", "hello", true, false, 0},
        {"5;a=b;c\r\nhello\r\n00A \r\n0123456789\r\n000\r\nX: y\r\nZ:\r\n\r\nmore",
         "hello0123456789", true, false, 4},
        {"5\r\nhel", "hel", false, false, 0},
        {"5\r\nhelloX", "hello", false, true, 0},
        {"5\r\nhello\r\r\n", "hello", false, true, 1},
        {"\r\n", "", false, true, 1},
        {"g\r\n", "", false, true, 2},
        {"-1\r\n", "", false, true, 3},
        {" 5\r\n", "", false, true, 3},
        {"1234567890abcdef\r\n", "", false, true, 2},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t size = 1; size < 40; size++) {
            cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
            size_t used;
            struct upstream_body body = decode(cases[i].text, size, &out, &used);

            ck_assert_msg(body.ended == cases[i].ended && body.broken == cases[i].broken, "%zu", i);
            ck_assert_str_eq(buf_text(&out), cases[i].body);
            ck_assert_uint_eq(strlen(cases[i].text) - used, cases[i].left);
        }
    }
}
END_TEST

START_TEST(test_endless_framing)
{
    static const char *const beginnings[] = {"1;", "0\r\n", "0\r\nX: y"};

    for (size_t i = 0; i < ARRAY_LEN(beginnings); i++) {
        struct upstream_body body = {.kind = BODY_CHUNKED};
        char piece[256];
        size_t used, total = 0;

        memcpy(piece, beginnings[i], strlen(beginnings[i]));
        (void)upstream_body_decode(&body, piece, strlen(beginnings[i]), &used);
        for (; !body.broken && total < 1 << 20; total += sizeof(piece)) {
            memset(piece, 'x', sizeof(piece));
            (void)upstream_body_decode(&body, piece, sizeof(piece), &used);
        }
        ck_assert(body.broken);
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
    const TTest *const tests[] = {
        test_heads,           test_what_is_no_head, test_cookies_lose_their_domain,   test_chunks,
        test_endless_framing, test_requests,        test_a_request_that_is_too_large, NULL};

    return run_suite("upstream", tests, NULL, NULL);
}
