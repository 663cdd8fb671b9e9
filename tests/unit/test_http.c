#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/mem.h"
#include "tests/unit/http_support.h"

/* The HTTP core over raw sockets: what is refused, and what waits. */

START_TEST(test_plain)
{
    char *reply;

    start();
    assert_reply("GET /plain HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nplain");
    assert_reply("GET /quick HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nplain");
    assert_reply("GET /quick/memory HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nhere");
    assert_reply("GET /quick/here HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /quick/gone HTTP/1.1\r\n" LAST "\r\n", "410", "\"code\":\"gone\"");
    assert_reply("GET /slow/here HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /waits HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /inline HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nhere");
    assert_reply("GET /inline-moved HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /moved HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /quick-moved HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\npool");
    assert_reply("GET /quick-again HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nagain");
    assert_reply("GET / HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nplain");
    assert_reply("GET /silent HTTP/1.1\r\n" LAST "\r\n", "500", "\"internal\"");
    reply = talk("HEAD /plain HTTP/1.1\r\n" LAST "\r\n");
    ck_assert_ptr_nonnull(strstr(reply, "HTTP/1.1 200"));
    ck_assert_ptr_nonnull(strstr(reply, "Content-Length: 5\r\n"));
    ck_assert_str_eq(body_of(reply), "");
    ck_assert_ptr_nonnull(strstr(reply, "X-Content-Type-Options: nosniff\r\n"));
    ck_assert_ptr_nonnull(strstr(reply, "Cache-Control: no-store\r\n"));
    free(reply);
    assert_reply("GET /plain HTTP/1.1\r\nX-Request-ID: mine-1\r\n" LAST "\r\n", "200",
                 "X-Request-ID: mine-1\r\n");
    ck_assert_uint_eq(atomic_load(&http_metrics(http)->replies[500]), 1);
    stop();
}
END_TEST

START_TEST(test_keep_alive)
{
    start();
    int fd = dial();
    for (int i = 0; i < 20; i++) {
        send_text(fd, i % 2 ? "GET /again HTTP/1.1\r\n" HOST "\r\n"
                            : "POST /echo HTTP/1.1\r\nContent-Type: application/json\r\n"
                              "Content-Length: 7\r\n" HOST "\r\n{\"a\":1}");
        char *reply = read_reply(fd);
        ck_assert_str_eq(body_of(reply), i % 2 ? "again" : "{\"a\":1}");
        free(reply);
    }
    (void)close(fd);
    stop();
    ck_assert_int_eq(atomic_load(&states_freed), 10);
}
END_TEST

START_TEST(test_refusals)
{
    start();
    assert_reply("GET /nothing HTTP/1.1\r\n" LAST "\r\n", "404", "\"not_found\"");
    assert_reply("PUT /plain HTTP/1.1\r\n" LAST "\r\n", "405", "Allow: GET, HEAD\r\n");
    assert_reply("GET /plain?x=1 HTTP/1.1\r\n" LAST "\r\n", "400", "x: unknown");
    assert_reply("GET /wait?timeout=1&timeout=1 HTTP/1.1\r\n" LAST "\r\n", "400",
                 "timeout: given more than once");
    assert_reply("GET /wait?timeout=1Mi HTTP/1.1\r\n" LAST "\r\n", "400", "timeout: must be");
    assert_reply("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n" LAST "\r\n{}", "415",
                 "application/json");
    assert_reply("POST /echo HTTP/1.1\r\nContent-Type: application/json; charset=utf-8\r\n"
                 "Content-Length: 2\r\n" LAST "\r\n{}",
                 "200", "\r\n\r\n{}");
    assert_reply("POST /echo HTTP/1.1\r\nContent-Type: application/json\r\n"
                 "Content-Length: 2\r\n" LAST "\r\n[]",
                 "400", "JSON object");
    assert_reply("GET /plain HTTP/1.1\r\nContent-Length: 2\r\n" LAST "\r\n{}", "400",
                 "takes no body");
    assert_reply("DELETE /nothing HTTP/1.1\r\nContent-Length: 2\r\n" LAST "\r\n{}", "404",
                 "\"not_found\"");
    assert_reply("PATCH /nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" LAST
                 "\r\n2\r\n{}\r\n0\r\n\r\n",
                 "404", "\"not_found\"");
    assert_reply("GET /sandbox/none HTTP/1.1\r\n" LAST "\r\n", "404", "sandbox 'none'");
    assert_reply("GET /sandbox/gone HTTP/1.1\r\n" LAST "\r\n", "410", "\"reason\":\"ttl\"");
    assert_reply("GET /sandbox/gone HTTP/1.1\r\n" LAST "\r\n", "410",
                 "\"sandbox\":{\"id\":\"gone\"");
    assert_reply("HEAD /sandbox/gone HTTP/1.1\r\n" LAST "\r\n", "410", "problem+json");
    assert_reply("DELETE /sandbox/gone HTTP/1.1\r\n" LAST "\r\n", "200", "plain");
    stop();
}
END_TEST

/* A smuggled request must not be served: an error, and the connection closed. */
START_TEST(test_b11_smuggling)
{
    static const char *const requests[] = {
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\nContent-Length: 40\r\n\r\n"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /plain HTTP/1.1\r\n" HOST "Content-Length: 0\r\nContent-Length: 40\r\n\r\n"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length : 40\r\n\r\n"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PATCH /echo HTTP/1.1\r\n" HOST "Content-Length : 40\r\n\r\n"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PATCH /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\t\r\nContent-Length: 5\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n chunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: \r\n\tchunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /plain HTTP/1.1\r\n" HOST HOST "\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /plain HTTP/1.1\r\n\r\nGET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: +2\r\n\r\n{}"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2, 2\r\n\r\n{}"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "DELETE /plain HTTP/1.1\r\n" HOST "X\x01Y: 2\r\nContent-Length: 40\r\n\r\n"
        "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };

    start();
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        char *reply = talk(requests[i]);

        ck_assert_msg(strncmp(reply, "HTTP/1.1 4", 10) == 0 ||
                          strncmp(reply, "HTTP/1.0 4", 10) == 0,
                      "%zu: %s\n=> %s", i, requests[i], reply);
        ck_assert_msg(!strstr(reply + 1, "HTTP/1.1 200"), "%s\n=> %s", requests[i], reply);
        free(reply);
    }
    ck_assert_int_eq(atomic_load(&evil_served), 0);
    stop();
}
END_TEST

START_TEST(test_b12_paths)
{
    static const char *const bad[] = {
        "/sandbox/here%2f..%2fother",
        "/sandbox/%2e%2e",
        "/sandbox/..",
        "/sandbox/.",
        "/sandbox/a%00b",
        "/sandbox//here",
        "//plain",
        "/sandbox/%ff",
        "/sandbox/%e2%28",
        "/sandbox/a%0ab",
        "/sandbox/%zz",
        "/sandbox/here/",
        "/sandbox/%",
        "/sandbox/%2E",
        "/a#b",
        "http://localhost/plain",
        "*",
    };
    char request[256];

    start();
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        (void)snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\n" LAST "\r\n", bad[i]);
        assert_reply(request, "400", "\"invalid_path\"");
    }
    assert_reply("GET /sandbox/here?path=a%00b HTTP/1.1\r\n" LAST "\r\n", "400", "path: malformed");
    assert_reply("GET /sandbox/he%72e?path=%2e%2e%2fx%ff+y%2B HTTP/1.1\r\n" LAST "\r\n", "200",
                 "\r\n\r\n../x\xff y+");
    assert_reply("GET /pla%69n HTTP/1.1\r\n" LAST "\r\n", "200", "plain");

    static const char with_nul[] = "GET /plain\0x HTTP/1.1\r\n" LAST "\r\n";
    int fd = dial();
    send_bytes(fd, with_nul, sizeof(with_nul) - 1);
    char *reply = read_all(fd);
    ck_assert_msg(strncmp(reply, "HTTP/1.1 400", 12) == 0, "%s", reply);
    free(reply);
    stop();
}
END_TEST

START_TEST(test_local_only)
{
    start();
    assert_reply("GET /plain HTTP/1.1\r\nConnection: close\r\nHost: evil.example\r\n\r\n", "421",
                 "\"misdirected\"");
    assert_reply("GET /plain HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1.nip.io\r\n\r\n",
                 "421", "\"misdirected\"");
    assert_reply("GET /plain HTTP/1.1\r\nConnection: close\r\nHost: [::1]:99\r\n\r\n", "200",
                 "plain");
    assert_reply("GET /plain HTTP/1.1\r\nOrigin: http://evil.example\r\n" LAST "\r\n", "403",
                 "\"forbidden\"");
    assert_reply("GET /plain HTTP/1.1\r\nOrigin: null\r\n" LAST "\r\n", "403", "\"forbidden\"");
    assert_reply("GET /plain HTTP/1.1\r\nOrigin: http://localhost\r\n" LAST "\r\n", "200", "plain");
    assert_reply("GET /whoami HTTP/1.1\r\n" LAST "\r\n", "200", "\r\n\r\nlocal");
    assert_reply("GET /admin HTTP/1.1\r\n" LAST "\r\n", "200", "plain");
    stop();

    const struct http_config open = {
        .listen = "0.0.0.0:0", .workers = 1, .local_only = true, .routes = http_test_routes};
    struct http *none = NULL;
    struct err err;
    ck_assert_int_eq(http_start(&open, &app, &none, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(err.msg, "--api-keys-file"));
}
END_TEST

START_TEST(test_keys)
{
    char path[] = "/tmp/podsandbox-keys-XXXXXX";
    int fd = mkstemp(path);
    /* BLAKE2b-256 of "alice-key" and "root-key" */
    struct buf text = BUF_INIT(4096);
    uint8_t hash[CRYPTO_HASH_LEN];
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    crypto_digest("alice-key", 9, hash);
    (void)hex_encode(&text, hash, sizeof(hash));
    (void)buf_append_str(&text, " alice user\n");
    crypto_digest("root-key", 8, hash);
    (void)hex_encode(&text, hash, sizeof(hash));
    (void)buf_append_str(&text, " root admin\n");
    send(fd, "", 0, 0);
    ck_assert_int_eq(write(fd, text.ptr, text.len), (ssize_t)text.len);
    buf_done(&text);
    start_with(2, 10, path);
    assert_reply("GET /plain HTTP/1.1\r\n" LAST "\r\n", "401", "WWW-Authenticate: Bearer");
    assert_reply("GET /plain HTTP/1.1\r\nAuthorization: Bearer nobody\r\n" LAST "\r\n", "401",
                 "\"unauthenticated\"");
    assert_reply("GET / HTTP/1.1\r\n" LAST "\r\n", "200", "plain");
    assert_reply("GET /whoami HTTP/1.1\r\nAuthorization: Bearer alice-key\r\n" LAST "\r\n", "200",
                 "\r\n\r\nalice");
    assert_reply("GET /whoami HTTP/1.1\r\nX-API-Key: root-key\r\n" LAST "\r\n", "200",
                 "\r\n\r\nroot");
    assert_reply("GET /admin HTTP/1.1\r\nX-API-Key: alice-key\r\n" LAST "\r\n", "403",
                 "\"forbidden\"");
    assert_reply("GET /admin HTTP/1.1\r\nX-API-Key: root-key\r\n" LAST "\r\n", "200", "plain");
    assert_reply("GET /whoami HTTP/1.1\r\nX-API-Key: root-key\r\nConnection: close\r\n"
                 "Host: sandboxes.example\r\n\r\n",
                 "200", "root");
    stop();
    (void)unlink(path);
    (void)close(fd);
}
END_TEST

START_TEST(test_wait)
{
    start();
    uint64_t seen = event_count(&arrived);
    int fd = dial();
    send_text(fd, "GET /wait?timeout=20 HTTP/1.1\r\n" LAST "\r\n");
    wait_arrived(seen);
    event_fire(&gate);
    char *reply = read_all(fd);
    ck_assert_str_eq(body_of(reply), "fired");
    free(reply);
    assert_reply("GET /wait?timeout=0.05 HTTP/1.1\r\n" LAST "\r\n", "200", "late");
    stop();
}
END_TEST

/* Many wait at once on few threads, and each gets its answer. */
START_TEST(test_many_wait)
{
    enum { MANY = 300 };
    int fds[MANY];

    start_with(2, 1000, NULL);
    for (int i = 0; i < MANY; i++) {
        uint64_t seen = event_count(&arrived);

        fds[i] = dial();
        send_text(fds[i], i % 3 ? "GET /wait HTTP/1.1\r\n" LAST "\r\n"
                                : "POST /wait?timeout=0.5 HTTP/1.1\r\nContent-Length: 2\r\n" LAST
                                  "\r\n{}");
        wait_arrived(seen);
    }
    ck_assert_int_eq(atomic_load(&http_metrics(http)->running), MANY);
    event_fire(&gate);
    for (int i = 0; i < MANY; i++) {
        char *reply = read_all(fds[i]);

        ck_assert_msg(strcmp(body_of(reply), "fired") == 0 ||
                          (i % 3 == 0 && strcmp(body_of(reply), "late") == 0),
                      "%s", reply);
        free(reply);
    }
    stop();
}
END_TEST

/* B09: the client leaves while its request waits. */
START_TEST(test_b09_client_leaves)
{
    start();
    for (int i = 0; i < 50; i++) {
        uint64_t seen = event_count(&arrived);
        int fd = dial();

        send_text(fd, "GET /wait HTTP/1.1\r\n" HOST "\r\n");
        wait_arrived(seen);
        leave(fd, i % 2);
        wait_count(&gone_seen, i + 1);
    }
    stop();
}
END_TEST

/* A next request on the connection makes it readable; that is no leaving. */
START_TEST(test_pipelined)
{
    start();
    uint64_t seen = event_count(&arrived);
    int fd = dial();
    send_text(fd, "GET /wait HTTP/1.1\r\n" HOST "\r\n");
    wait_arrived(seen);
    send_text(fd, "GET /plain HTTP/1.1\r\n" LAST "\r\n");
    ck_assert_int_eq(atomic_load(&gone_seen), 0);
    event_fire(&gate);
    char *reply = read_all(fd);
    ck_assert_ptr_nonnull(strstr(reply, "\r\n\r\nfired"));
    ck_assert_ptr_nonnull(strstr(reply, "\r\n\r\nplain"));
    free(reply);
    stop();
}
END_TEST

START_TEST(test_busy)
{
    enum { MANY = 40 };
    int fds[MANY], busy = 0, served = 0;

    /* One worker that is kept busy, and a queue of two. */
    start_with(1, 2, NULL);
    for (int i = 0; i < MANY; i++) {
        fds[i] = dial();
        send_text(fds[i], "GET /download?size=20000000&known=true HTTP/1.1\r\n" LAST "\r\n");
    }
    for (int i = 0; i < MANY; i++) {
        char *reply = read_all(fds[i]);

        busy += strncmp(reply, "HTTP/1.1 503", 12) == 0 && strstr(reply, "Retry-After: ");
        served += strncmp(reply, "HTTP/1.1 200", 12) == 0;
        free(reply);
    }
    ck_assert_int_eq(busy + served, MANY);
    ck_assert_int_gt(served, 0);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, test_plain);
    tcase_add_test(cases, test_keep_alive);
    tcase_add_test(cases, test_refusals);
    tcase_add_test(cases, test_b11_smuggling);
    tcase_add_test(cases, test_b12_paths);
    tcase_add_test(cases, test_local_only);
    tcase_add_test(cases, test_keys);
    tcase_add_test(cases, test_wait);
    tcase_add_test(cases, test_many_wait);
    tcase_add_test(cases, test_b09_client_leaves);
    tcase_add_test(cases, test_pipelined);
    tcase_add_test(cases, test_busy);
    suite_add_tcase(suite, cases);
    return run_tests(suite);
}
