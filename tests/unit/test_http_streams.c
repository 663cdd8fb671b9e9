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

/* Bodies and replies through pipes. */

START_TEST(test_upload)
{
    static const size_t sizes[] = {0, 1, 65536, 300000, 1154321};

    start();
    for (size_t i = 0; i < ARRAY_LEN(sizes) * 2; i++) {
        size_t size = sizes[i / 2];
        bool chunked = i % 2;
        char head[160], expected[64];
        int fd = dial();

        if (chunked)
            (void)snprintf(head, sizeof(head),
                           "PUT /upload HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" LAST "\r\n");
        else
            (void)snprintf(head, sizeof(head),
                           "PUT /upload HTTP/1.1\r\nContent-Length: %zu\r\n" LAST "\r\n", size);
        send_text(fd, head);
        uint32_t sum = send_pattern(fd, size, chunked);
        char *reply = read_all(fd);
        (void)snprintf(expected, sizeof(expected), "%zu %u", size, sum);
        ck_assert_str_eq(body_of(reply), expected);
        free(reply);
    }
    stop();
    ck_assert_int_eq(atomic_load(&states_freed), ARRAY_LEN(sizes) * 2);
}
END_TEST

/* Nobody takes the body: the connection is suspended with a full pipe, and goes on when somebody
 * does. */
START_TEST(test_upload_held)
{
    enum { SIZE = 600000 };
    char head[160], expected[64];

    start();
    uint64_t seen = event_count(&arrived);
    int fd = dial();
    (void)snprintf(head, sizeof(head),
                   "PUT /upload-held HTTP/1.1\r\nContent-Length: %d\r\n" LAST "\r\n", SIZE);
    send_text(fd, head);
    wait_arrived(seen);
    uint32_t sum = send_pattern(fd, SIZE, false);
    while (pipe_space(kept_pipe)) {
        uint64_t changed = event_count(pipe_readable(kept_pipe));

        if (pipe_space(kept_pipe))
            (void)event_block(pipe_readable(kept_pipe), changed, clock_now_ms() + 100);
    }
    event_fire(&gate);
    char *reply = read_all(fd);
    (void)snprintf(expected, sizeof(expected), "%d %u", SIZE, sum);
    ck_assert_str_eq(body_of(reply), expected);
    free(reply);

    /* and when the client leaves instead, the handler is told */
    seen = event_count(&arrived);
    fd = dial();
    send_text(fd, head);
    wait_arrived(seen);
    (void)send_pattern(fd, SIZE / 2, false);
    leave(fd, true);
    wait_count(&gone_seen, 1);
    stop();
}
END_TEST

/* A body that is cut short is not a whole one; nor is one whose FIN came with its last bytes. */
START_TEST(test_upload_cut)
{
    start();
    for (int i = 0; i < 40; i++) {
        uint64_t seen = event_count(&arrived);
        bool reset = i % 4 > 1;
        int fd = dial();

        send_text(fd, i % 2 ? "PUT /upload HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" HOST
                              "\r\n5\r\nabcde\r\n"
                            : "PUT /upload HTTP/1.1\r\nContent-Length: 10\r\n" HOST "\r\nabcde");
        if (reset)
            wait_arrived(seen);
        leave(fd, reset);
        wait_count(&gone_seen, i + 1);
    }
    stop();
}
END_TEST

/* The handler answers before the body has come: the client that sends on still gets the answer. */
START_TEST(test_upload_refused)
{
    enum { SIZE = 1500000 };
    char head[160];

    start();
    (void)snprintf(head, sizeof(head),
                   "PUT /upload-refused HTTP/1.1\r\nContent-Length: %d\r\n" HOST "\r\n", SIZE);
    int fd = dial();
    for (int i = 0; i < 3; i++) {
        send_text(fd, head);
        (void)send_pattern(fd, SIZE, false);
        char *reply = read_reply(fd);
        ck_assert_ptr_nonnull(strstr(reply, "507"));
        ck_assert_ptr_nonnull(strstr(reply, "\"no_space\""));
        free(reply);
    }
    (void)close(fd);
    stop();
}
END_TEST

START_TEST(test_too_large)
{
    char head[160];

    start();
    (void)snprintf(head, sizeof(head), "POST /echo HTTP/1.1\r\nContent-Length: %zu\r\n" LAST "\r\n",
                   (size_t)CAP_JSON_BODY + 1);
    int fd = dial();
    send_text(fd, head);
    (void)send_pattern(fd, CAP_JSON_BODY + 1, false);
    char *reply = read_all(fd);
    ck_assert_ptr_nonnull(strstr(reply, "HTTP/1.1 413"));
    free(reply);
    fd = dial();
    send_text(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" LAST "\r\n");
    (void)send_pattern(fd, CAP_JSON_BODY + 1, true);
    reply = read_all(fd);
    ck_assert_ptr_nonnull(strstr(reply, "HTTP/1.1 413"));
    free(reply);
    stop();
}
END_TEST

START_TEST(test_expect_continue)
{
    char byte;

    start();
    int fd = dial();
    send_text(fd,
              "PUT /upload HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n" LAST "\r\n");
    struct buf text = BUF_INIT(4096);
    while (!strstr(buf_text(&text), "HTTP/1.1 100 Continue\r\n\r\n")) {
        ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
        (void)buf_append_char(&text, byte);
    }
    buf_done(&text);
    send_text(fd, "abc");
    char *reply = read_all(fd);
    ck_assert_ptr_nonnull(strstr(reply, "HTTP/1.1 200"));
    free(reply);
    /* refused without a 100 */
    assert_reply("PUT /nothing HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n" LAST
                 "\r\n",
                 "404", "\"not_found\"");
    stop();
}
END_TEST

static void assert_pattern(const char *body, size_t len)
{
    size_t same = 0;

    while (same < len && body[same] == pattern_at(same))
        same++;
    ck_assert_uint_eq(same, len);
}

START_TEST(test_download)
{
    static const size_t sizes[] = {0, 1, 65536, 300000, 1199999};
    char request[160];

    start();
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        (void)snprintf(request, sizeof(request),
                       "GET /download?known=true&size=%zu HTTP/1.1\r\n" LAST "\r\n", sizes[i]);
        char *reply = talk(request);
        ck_assert_uint_eq(strlen(body_of(reply)), sizes[i]);
        assert_pattern(body_of(reply), sizes[i]);
        free(reply);

        (void)snprintf(request, sizeof(request), "GET /download?size=%zu HTTP/1.1\r\n" LAST "\r\n",
                       sizes[i]);
        reply = talk(request);
        ck_assert_ptr_nonnull(strstr(reply, "Transfer-Encoding: chunked\r\n"));
        ck_assert_str_eq(reply + strlen(reply) - 5, "0\r\n\r\n");
        ck_assert_uint_ge(strlen(body_of(reply)), sizes[i]);
        free(reply);
    }
    char *reply = talk("HEAD /download?known=true&size=5000 HTTP/1.1\r\n" LAST "\r\n");
    ck_assert_ptr_nonnull(strstr(reply, "Content-Length: 5000\r\n"));
    ck_assert_str_eq(body_of(reply), "");
    free(reply);
    stop();
}
END_TEST

/* What fails midway must not look whole: no last chunk, or fewer bytes than announced. */
START_TEST(test_download_fails)
{
    start();
    char *reply = talk("GET /download?size=400000&fail=true HTTP/1.1\r\n" HOST "\r\n");
    ck_assert_ptr_nonnull(strstr(reply, "200 OK"));
    ck_assert_ptr_null(strstr(reply, "0\r\n\r\n"));
    free(reply);
    reply = talk("GET /download?size=400000&fail=true&known=true HTTP/1.1\r\n" HOST "\r\n");
    ck_assert_uint_lt(strlen(body_of(reply)), 400000);
    free(reply);
    stop();
}
END_TEST

/* The client leaves while the reply has nothing to send: the writer learns of it. */
START_TEST(test_download_left)
{
    start();
    for (int i = 0; i < 20; i++) {
        int fd = dial();
        char byte;

        send_text(fd, "GET /download?size=10&hold=true HTTP/1.1\r\n" HOST "\r\n");
        ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
        leave(fd, i % 2);
        wait_count(&gone_seen, i + 1);
    }
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_streams");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, test_upload);
    tcase_add_test(cases, test_upload_held);
    tcase_add_test(cases, test_upload_cut);
    tcase_add_test(cases, test_upload_refused);
    tcase_add_test(cases, test_too_large);
    tcase_add_test(cases, test_expect_continue);
    tcase_add_test(cases, test_download);
    tcase_add_test(cases, test_download_fails);
    tcase_add_test(cases, test_download_left);
    suite_add_tcase(suite, cases);
    return run_tests(suite);
}
