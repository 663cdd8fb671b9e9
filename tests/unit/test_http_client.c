#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "net/http_client.h"
#include "tests/unit/net_support.h"

static struct net_certs certs;
static struct net_server server;

static void setup(void)
{
    net_certs_make(&certs);
    net_server_start(&server, &certs);
}

static void teardown(void)
{
    net_server_stop(&server);
    net_certs_done(&certs);
}

static struct http_client *new_client(const struct http_tls *tls)
{
    struct err err;
    struct http_client *client = http_client_new(tls, &err);
    ck_assert_msg(client != NULL, "%s", err.msg);
    return client;
}

static char *plain_url(const char *path)
{
    return xasprintf("http://127.0.0.1:%d%s", server.http, path);
}

static struct http_reply call(struct http_client *client, struct http_request request,
                              const char *path)
{
    cleanup_free char *url = plain_url(path);
    struct http_reply reply;
    struct err err;
    request.url = url;
    ck_assert_msg(http_call(client, &request, &reply, &err) == 0, "%s: %s", path, err.msg);
    return reply;
}

/* The reply to a request that must fail. */
static struct err call_fails(struct http_client *client, struct http_request request,
                             const char *path)
{
    cleanup_free char *url = plain_url(path);
    struct http_reply reply;
    struct err err = {.code = ERR_NONE};
    request.url = url;
    ck_assert_int_eq(http_call(client, &request, &reply, &err), -1);
    return err;
}

static void expect_text(const struct http_reply *reply, const char *line, bool there)
{
    const char *text = buf_text(&reply->body);
    ck_assert_msg((strstr(text, line) != NULL) == there, "%s in:\n%s", line, text);
}

/* --- requests ------------------------------------------------------------------------------------
 */

static const struct method {
    const char *method, *body;
    const char *first_line;
    const char *last_line;
} methods[] = {
    {NULL, NULL, "GET\n/echo?a=%2F\n", "\n\n"},
    {"GET", NULL, "GET\n", "\n\n"},
    {"POST", "{}", "POST\n", "Content-Length: 2\n"},
    {"POST", NULL, "POST\n", "Content-Length: 0\n"},
    {"PUT", "data", "PUT\n", "\n\ndata"},
    {"PATCH", "data", "PATCH\n", "\n\ndata"},
    {"DELETE", NULL, "DELETE\n", "\n\n"},
    {"DELETE", "{\"x\":1}", "DELETE\n", "\n\n{\"x\":1}"},
};

START_TEST(test_method)
{
    const struct method *method = &methods[_i];
    struct http_client *client = new_client(NULL);
    struct text_list headers = {0};
    text_list_add(&headers, "Authorization: Bearer secret");
    struct http_request request = {
        .method = method->method, .headers = &headers, .body = str_of(method->body)};
    struct http_reply reply = call(client, request, "/echo?a=%2F");
    ck_assert_int_eq(reply.status, 200);
    ck_assert_int_eq(reply.retry_after_ms, -1);
    expect_text(&reply, method->first_line, true);
    expect_text(&reply, method->last_line, true);
    expect_text(&reply, "Authorization: Bearer secret\n", true);
    expect_text(&reply, "Content-Type", false);
    expect_text(&reply, "Expect", false);
    text_list_done(&headers);
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

START_TEST(test_head_has_no_body)
{
    struct http_client *client = new_client(NULL);
    struct http_reply reply =
        call(client, (struct http_request){.method = "HEAD"}, "/status?code=204");
    ck_assert_int_eq(reply.status, 204);
    ck_assert_uint_eq(reply.body.len, 0);
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

START_TEST(test_content_type_of_the_caller)
{
    struct http_client *client = new_client(NULL);
    struct text_list headers = {0};
    text_list_add(&headers, "content-type: application/json");
    struct http_reply reply =
        call(client,
             (struct http_request){.method = "POST", .headers = &headers, .body = STR("\0binary")},
             "/echo");
    expect_text(&reply, "content-type: application/json\n", true);
    expect_text(&reply, "Content-Length: 7\n", true);
    text_list_done(&headers);
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

START_TEST(test_large_body_is_sent_without_asking)
{
    struct http_client *client = new_client(NULL);
    cleanup_free char *body = xmalloc(3 * MIB);
    memset(body, 'b', 3 * MIB);
    struct http_request request = {.method = "PUT", .body = {body, 3 * MIB}, .max_reply = 4 * MIB};
    struct http_reply reply = call(client, request, "/echo");
    ck_assert_uint_gt(reply.body.len, 3 * MIB);
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

static const struct status {
    const char *query;
    int status;
    int64_t retry_after_ms;
} statuses[] = {
    {"code=200", 200, -1},
    {"code=401", 401, -1},
    {"code=404", 404, -1},
    {"code=429&retry=7", 429, 7000},
    {"code=429&retry=0", 429, 0},
    {"code=503&retry=nonsense", 503, -1},
    {"code=503&retry=999999999", 503, -1},
};

START_TEST(test_status)
{
    struct http_client *client = new_client(NULL);
    cleanup_free char *path = xasprintf("/status?%s", statuses[_i].query);
    struct http_reply reply = call(client, (struct http_request){.method = NULL}, path);
    ck_assert_int_eq(reply.status, statuses[_i].status);
    ck_assert_int_eq(reply.retry_after_ms, statuses[_i].retry_after_ms);
    ck_assert_str_eq(buf_text(&reply.body), "{}");
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

START_TEST(test_redirect_is_not_followed)
{
    struct http_client *client = new_client(NULL);
    struct http_reply reply = call(client, (struct http_request){.method = NULL}, "/redirect");
    ck_assert_int_eq(reply.status, 301);
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

START_TEST(test_reply_cap)
{
    struct http_client *client = new_client(NULL);
    struct http_request request = {.max_reply = 100000};
    struct http_reply reply = call(client, request, "/big?bytes=100000");
    ck_assert_uint_eq(reply.body.len, 100000);
    http_reply_done(&reply);
    struct err err = call_fails(client, request, "/big?bytes=100001");
    ck_assert_int_eq(err.code, ERR_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.msg, "100000"));
    reply = call(client, request, "/status?code=200"); /* the client is usable after that */
    http_reply_done(&reply);
    http_client_free(client);
}
END_TEST

/* --- connections ---------------------------------------------------------------------------------
 */

static int request_number(const struct http_reply *reply)
{
    const char *line = strchr(strchr(buf_text(&reply->body), '\n') + 1, '\n') + 1;
    uint64_t number = 0;
    ck_assert(str_to_u64((struct str){line, strcspn(line, "\n")}, 1000, &number));
    return (int)number;
}

START_TEST(test_connection_is_kept_but_not_for_post)
{
    struct http_client *client = new_client(NULL);
    static const struct {
        const char *method;
        int number; /* of the request on its connection */
    } steps[] = {{"GET", 1}, {"GET", 2}, {"DELETE", 3}, {"POST", 1}, {"GET", 2}, {"POST", 1}};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct http_reply reply =
            call(client, (struct http_request){.method = steps[i].method}, "/echo");
        ck_assert_int_eq(request_number(&reply), steps[i].number);
        http_reply_done(&reply);
    }
    http_client_free(client);
}
END_TEST

/* The server takes a second request on a kept connection and closes without an answer. */
START_TEST(test_post_is_sent_once)
{
    struct http_client *client = new_client(NULL);
    free(net_server_log(&server, true));
    struct http_reply reply = call(client, (struct http_request){.method = "GET"}, "/once?tag=a");
    http_reply_done(&reply);
    reply = call(client, (struct http_request){.method = "POST"}, "/once?tag=b");
    http_reply_done(&reply);
    /* a GET may be sent again: nobody saw an answer to it */
    reply = call(client, (struct http_request){.method = "GET"}, "/once?tag=c");
    ck_assert_str_eq(buf_text(&reply.body), "once");
    http_reply_done(&reply);
    cleanup_free char *log = net_server_log(&server, false);
    ck_assert_str_eq(log, "GET a\nPOST b\nGET c\nGET c");
    http_client_free(client);
}
END_TEST

static const struct failure {
    const char *path;
    enum err_code code;
    const char *words;
} failures[] = {
    {"/cut", ERR_BACKEND_UNAVAILABLE, ""},
    {"/nothing", ERR_BACKEND_UNAVAILABLE, "Empty reply"},
    {"/garbage", ERR_BACKEND_UNAVAILABLE, "HTTP/0.9"},
    {"/reset", ERR_BACKEND_UNAVAILABLE, "reset"},
    {"/hang", ERR_BACKEND_UNAVAILABLE, "timed out"},
};

START_TEST(test_no_whole_reply)
{
    struct http_client *client = new_client(NULL);
    struct err err =
        call_fails(client, (struct http_request){.timeout_ms = 200}, failures[_i].path);
    ck_assert_msg(err.code == failures[_i].code, "%s", err.msg);
    ck_assert_msg(strstr(err.msg, failures[_i].words) != NULL, "%s", err.msg);
    http_client_free(client);
}
END_TEST

static const struct bad_request {
    const char *url, *header;
    enum err_code code;
    const char *words;
} bad_requests[] = {
    {"http://127.0.0.1:1/", NULL, ERR_BACKEND_UNAVAILABLE, "Connection refused"},
    /* a label too long: fails to resolve without a question to any server */
    {"http://x123456789x123456789x123456789x123456789x123456789x123456789x123456789.test/", NULL,
     ERR_BACKEND_UNAVAILABLE, "resolve"},
    {"file:///etc/passwd", NULL, ERR_CONFIG, "URL"},
    {"http://127.0.0.1:99999/", NULL, ERR_CONFIG, ""},
    {"http://127.0.0.1:1/", "Authorization: Bearer a\r\nX: y", ERR_CONFIG, "header"},
};

START_TEST(test_bad_request)
{
    const struct bad_request *bad = &bad_requests[_i];
    struct http_client *client = new_client(NULL);
    struct text_list headers = {0};
    if (bad->header)
        text_list_add(&headers, bad->header);
    struct http_reply reply;
    struct err err;
    struct http_request request = {.url = bad->url, .headers = &headers};
    ck_assert_int_eq(http_call(client, &request, &reply, &err), -1);
    ck_assert_msg(err.code == bad->code, "%s: %s", err_code_name(err.code), err.msg);
    ck_assert_msg(strstr(err.msg, bad->words) != NULL, "%s", err.msg);
    text_list_done(&headers);
    http_client_free(client);
}
END_TEST

#define CALLERS 6
#define CALLS 50

static void *call_many(void *arg)
{
    for (int i = 0; i < CALLS; i++) {
        struct http_reply reply =
            call(arg, (struct http_request){.method = i % 5 ? "GET" : "POST"}, "/status?code=200");
        ck_assert_int_eq(reply.status, 200);
        http_reply_done(&reply);
    }
    return NULL;
}

START_TEST(test_calls_from_many_threads)
{
    struct http_client *client = new_client(NULL);
    pthread_t threads[CALLERS];
    struct err err;
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&threads[i], NULL, call_many, client);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(http_client_set_tls(client, NULL, &err), 0);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    http_client_free(client);
}
END_TEST

/* --- TLS -----------------------------------------------------------------------------------------
 */

/* Expects WORDS in the failure, or success when NULL. */
static void expect_tls(struct http_client *client, const char *host, int port, const char *words)
{
    cleanup_free char *url = xasprintf("https://%s:%d/echo", host, port);
    struct http_request request = {.url = url};
    struct http_reply reply;
    struct err err;
    int code = http_call(client, &request, &reply, &err);
    if (!words) {
        ck_assert_msg(code == 0, "%s", err.msg);
        http_reply_done(&reply);
        return;
    }
    ck_assert_int_eq(code, -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_msg(strstr(err.msg, words) != NULL, "%s", err.msg);
}

static void expect_settings(struct http_tls tls, const char *host, int port, const char *words)
{
    struct http_client *client = new_client(&tls);
    expect_tls(client, host, port, words);
    http_client_free(client);
}

START_TEST(test_tls)
{
    struct http_tls good = {.ca_pem = certs.ca};
    expect_settings(good, "127.0.0.1", server.https, NULL);
    expect_settings(good, "localhost", server.https, NULL);
    expect_settings((struct http_tls){.ca_pem = certs.other_ca}, "127.0.0.1", server.https,
                    "certificate-authority");
    expect_settings((struct http_tls){.ca_pem = NULL}, "127.0.0.1", server.https,
                    "certificate-authority");
    expect_settings((struct http_tls){.insecure = true}, "127.0.0.1", server.https, NULL);
    good.server_name = "api.test";
    expect_settings(good, "127.0.0.1", server.https, NULL);
    good.server_name = "wrong.test";
    expect_settings(good, "127.0.0.1", server.https, "tls-server-name");
    expect_settings((struct http_tls){.ca_pem = certs.ca}, "127.0.0.1", server.http, "SSL");
}
END_TEST

START_TEST(test_tls_client_certificate)
{
    struct http_tls tls = {
        .ca_pem = certs.ca, .cert_pem = certs.client_cert, .key_pem = certs.client_key};
    expect_settings(tls, "127.0.0.1", server.mutual, NULL);
    tls.cert_pem = tls.key_pem = NULL;
    expect_settings(tls, "127.0.0.1", server.mutual, "");
}
END_TEST

START_TEST(test_set_tls_counts_from_the_next_call)
{
    struct http_client *client = new_client(&(struct http_tls){.ca_pem = certs.ca});
    struct err err;
    expect_tls(client, "127.0.0.1", server.https, NULL);
    ck_assert_int_eq(
        http_client_set_tls(client, &(struct http_tls){.ca_pem = certs.other_ca}, &err), 0);
    expect_tls(client, "127.0.0.1", server.https, "certificate-authority");
    /* a file that cannot be read changes nothing */
    ck_assert_int_eq(
        http_client_set_tls(client, &(struct http_tls){.ca_file = "/nonexistent"}, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    cleanup_free char *path = xasprintf("%s/ca.crt", certs.folder);
    ck_assert_int_eq(http_client_set_tls(client, &(struct http_tls){.ca_file = path}, &err), 0);
    expect_tls(client, "127.0.0.1", server.https, NULL);
    http_client_free(client);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_unchecked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static void add_call_tests(Suite *suite)
{
    TCase *tcase = add_case(suite, "call");
    tcase_add_loop_test(tcase, test_method, 0, ARRAY_LEN(methods));
    tcase_add_test(tcase, test_head_has_no_body);
    tcase_add_test(tcase, test_content_type_of_the_caller);
    tcase_add_test(tcase, test_large_body_is_sent_without_asking);
    tcase_add_loop_test(tcase, test_status, 0, ARRAY_LEN(statuses));
    tcase_add_test(tcase, test_redirect_is_not_followed);
    tcase_add_test(tcase, test_reply_cap);
    tcase_add_test(tcase, test_connection_is_kept_but_not_for_post);
    tcase_add_test(tcase, test_post_is_sent_once);
    tcase_add_loop_test(tcase, test_no_whole_reply, 0, ARRAY_LEN(failures));
    tcase_add_loop_test(tcase, test_bad_request, 0, ARRAY_LEN(bad_requests));
    tcase_add_test(tcase, test_calls_from_many_threads);
    tcase_add_test(tcase, test_tls);
    tcase_add_test(tcase, test_tls_client_certificate);
    tcase_add_test(tcase, test_set_tls_counts_from_the_next_call);
}

int main(void)
{
    Suite *suite = suite_create("http_client");
    add_call_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
