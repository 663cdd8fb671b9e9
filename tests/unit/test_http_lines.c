#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "net/http_client.h"
#include "tests/unit/net_support.h"

static struct net_server server;

static void setup(void)
{
    net_server_start(&server, NULL);
}

static void teardown(void)
{
    net_server_stop(&server);
}

struct lines {
    struct buf text; /* each line and '|' */
    int count, stop_after;
    _Atomic bool stop;
    const char *stop_at; /* sets `stop` at a line that has this */
};

static bool take_line(void *arg, const char *text, size_t len)
{
    struct lines *lines = arg;
    (void)buf_append(&lines->text, text, len);
    (void)buf_append_char(&lines->text, '|');
    lines->count++;
    if (lines->stop_at && memmem(text, len, lines->stop_at, strlen(lines->stop_at)))
        atomic_store(&lines->stop, true);
    return lines->stop_after == 0 || lines->count < lines->stop_after;
}

static int read_lines(struct lines *lines, const char *path, struct http_lines how,
                      struct http_reply *ret_reply, struct err *err)
{
    struct http_client *client = http_client_new(NULL, err);
    ck_assert_ptr_nonnull(client);
    cleanup_free char *url = xasprintf("http://127.0.0.1:%d%s", server.http, path);
    buf_init(&lines->text, 4 * MIB);
    how.line = take_line;
    how.arg = lines;
    how.stop = &lines->stop;
    if (how.max_line == 0)
        how.max_line = 1000;
    int code = http_lines(client, &(struct http_request){.url = url}, &how, ret_reply, err);
    http_client_free(client);
    return code;
}

START_TEST(test_lines_in_any_chunks)
{
    static const char *const chunks[] = {"1", "7", "29", "30", "31", "100000"};
    cleanup_free char *path = xasprintf("/lines?n=200&chunk=%s", chunks[_i]);
    struct lines lines = {.count = 0};
    struct http_reply reply;
    struct err err;
    ck_assert_msg(read_lines(&lines, path, (struct http_lines){.idle_ms = 30000}, &reply, &err) ==
                      0,
                  "%s", err.msg);
    ck_assert_int_eq(reply.status, 200);
    ck_assert_int_eq(lines.count, 200);
    const char *at = buf_text(&lines.text);
    for (int i = 0; i < 200; i++) {
        cleanup_free char *start = xasprintf("{\"line\":%d,\"pad\":\"", i);
        ck_assert_msg(strncmp(at, start, strlen(start)) == 0, "%s", at);
        at += strlen(start);
        at += strspn(at, "x");
        ck_assert(strncmp(at, "\"}|", 3) == 0);
        at += 3;
    }
    ck_assert_str_eq(at, "");
    buf_done(&lines.text);
    http_reply_done(&reply);
}
END_TEST

START_TEST(test_last_line_without_an_end)
{
    struct lines lines = {.count = 0};
    struct http_reply reply;
    struct err err;
    ck_assert_int_eq(
        read_lines(&lines, "/lines?n=3&end=open", (struct http_lines){.idle_ms = 0}, &reply, &err),
        0);
    ck_assert_int_eq(lines.count, 3);
    buf_done(&lines.text);
    http_reply_done(&reply);
}
END_TEST

START_TEST(test_line_callback_stops)
{
    struct lines lines = {.stop_after = 2};
    struct http_reply reply;
    struct err err;
    ck_assert_int_eq(
        read_lines(&lines, "/lines?n=5&then=hang", (struct http_lines){.idle_ms = 0}, &reply, &err),
        0);
    ck_assert_int_eq(lines.count, 2);
    ck_assert_int_eq(reply.status, 200);
    buf_done(&lines.text);
    http_reply_done(&reply);
}
END_TEST

START_TEST(test_stop_flag)
{
    struct lines lines = {.stop_at = "\"line\":1,"};
    struct http_reply reply;
    struct err err;
    ck_assert_int_eq(
        read_lines(&lines, "/lines?n=2&then=hang", (struct http_lines){.idle_ms = 0}, &reply, &err),
        -1);
    ck_assert_int_eq(err.code, ERR_CANCELLED);
    ck_assert_int_eq(lines.count, 2);
    buf_done(&lines.text);
}
END_TEST

static const struct line_failure {
    const char *path;
    int64_t idle_ms;
    size_t max_line;
    enum err_code code;
    const char *words;
} line_failures[] = {
    {"/lines?n=3&then=hang", 300, 0, ERR_BACKEND_UNAVAILABLE, "not a byte"},
    {"/hang", 300, 0, ERR_BACKEND_UNAVAILABLE, "not a byte"},
    {"/lines?n=3&then=cut", 0, 0, ERR_BACKEND_UNAVAILABLE, ""},
    {"/nothing", 0, 0, ERR_BACKEND_UNAVAILABLE, "Empty reply"},
    {"/lines?n=50", 0, 40, ERR_TOO_LARGE, "40"},
    {"/lines?n=50&chunk=100000", 0, 40, ERR_TOO_LARGE, "40"},
};

START_TEST(test_lines_fail)
{
    const struct line_failure *failure = &line_failures[_i];
    struct lines lines = {.count = 0};
    struct http_reply reply;
    struct err err;
    struct http_lines how = {.idle_ms = failure->idle_ms, .max_line = failure->max_line};
    ck_assert_int_eq(read_lines(&lines, failure->path, how, &reply, &err), -1);
    ck_assert_msg(err.code == failure->code, "%s", err.msg);
    ck_assert_msg(strstr(err.msg, failure->words) != NULL, "%s", err.msg);
    buf_done(&lines.text);
}
END_TEST

START_TEST(test_lines_of_another_status)
{
    struct lines lines = {.count = 0};
    struct http_reply reply;
    struct err err;
    ck_assert_int_eq(
        read_lines(&lines, "/status?code=410", (struct http_lines){.idle_ms = 0}, &reply, &err), 0);
    ck_assert_int_eq(reply.status, 410);
    ck_assert_str_eq(buf_text(&reply.body), "{}");
    ck_assert_int_eq(lines.count, 0);
    buf_done(&lines.text);
    http_reply_done(&reply);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_lines");
    TCase *tcase = tcase_create("http_lines");
    tcase_add_unchecked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, test_lines_in_any_chunks, 0, 6);
    tcase_add_test(tcase, test_last_line_without_an_end);
    tcase_add_test(tcase, test_line_callback_stops);
    tcase_add_test(tcase, test_stop_flag);
    tcase_add_loop_test(tcase, test_lines_fail, 0, ARRAY_LEN(line_failures));
    tcase_add_test(tcase, test_lines_of_another_status);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
