#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"
#include "net/ws.h"
#include "tests/unit/net_ws_client.h"

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

static char *plain_url(const char *path)
{
    return xasprintf("http://127.0.0.1:%d%s", server.http, path);
}

/* --- how it ends ---------------------------------------------------------------------------------
 */

static const struct ending {
    const char *path;
    enum err_code code;
    const char *words;
    const char *logged; /* by the server, or NULL */
    int messages;
} endings[] = {
    {"/ws/close/1000", ERR_NONE, "1000", "answer 8 1000", 1},
    {"/ws/close/1001", ERR_NONE, "1001", "answer 8 1001", 1},
    {"/ws/close/none", ERR_NONE, "1005", "answer 8 none", 1},
    {"/ws/close/1011", ERR_STREAM_LOST, "1011: because", "answer 8 1011", 1},
    {"/ws/close/4001", ERR_STREAM_LOST, "4001: because", "answer 8 4001", 1},
    {"/ws/fin", ERR_STREAM_LOST, "without a CLOSE", NULL, 3},
    {"/ws/partial", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
    {"/ws/broken/opcode", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
    {"/ws/broken/reserved", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
    {"/ws/broken/continuation", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
    {"/ws/broken/control", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
    {"/ws/broken/length", ERR_STREAM_LOST, "without a CLOSE", NULL, 0},
};

START_TEST(test_ending)
{
    const struct ending *ending = &endings[_i];
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url(ending->path);
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert(client.opened);
    ck_assert_int_eq(client.status, 0);
    ck_assert_int_eq(client.messages, ending->messages);
    ck_assert_msg(client.why.code == ending->code, "%s", client.why.msg);
    ck_assert_msg(strstr(client.why.msg, ending->words) != NULL, "%s", client.why.msg);
    if (ending->logged) {
        ck_assert(net_server_logged(&server, ending->logged, 1));
        ck_assert(net_server_logged(&server, "over", 1)); /* and closed the socket */
    }
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_reset_while_open)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/reset");
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 2));
    struct sender sender = {.client = &client, .data = (const uint8_t *)"x", .len = 1};
    loop_post(loop, sender_task, &sender);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.why.code, ERR_STREAM_LOST);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_silent_peer_is_given_up)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/silent");
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client.target.ping_ms = 20;
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.why.code, ERR_STREAM_LOST);
    ck_assert_ptr_nonnull(strstr(client.why.msg, "pings"));
    ck_assert(net_server_logged(&server, "silent 9", 2));
    ck_assert(net_server_logged(&server, "over", 1));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_answering_peer_is_kept)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/echo");
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client.target.ping_ms = 250; /* a busy peer may take its time over an answer */
    client_connect(&client);
    ck_assert(net_server_logged(&server, "ping", 4));
    ck_assert(!client.closed);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

enum close_when { CLOSE_OPENING, CLOSE_ON_OPEN, CLOSE_ON_MESSAGE, CLOSE_LATER };

static void connect_and_close(void *arg)
{
    client_connect_task(arg);
    client_close_task(arg);
}

START_TEST(test_close_at_any_time)
{
    enum close_when when = (enum close_when)_i;
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/burst");
    cleanup_free char *name = xasprintf("http://localhost:%d/ws/burst", server.http);
    free(net_server_log(&server, true));
    for (int i = 0; i < 30; i++) {
        struct client client;
        client_init(&client, loop, i % 2 ? url : name);
        client.close_on_open = when == CLOSE_ON_OPEN;
        client.close_on_message = when == CLOSE_ON_MESSAGE;
        if (when == CLOSE_OPENING) {
            loop_post(loop, connect_and_close, &client);
        } else {
            client_connect(&client);
            if (when == CLOSE_LATER)
                loop_post(loop, client_close_task, &client);
        }
        ck_assert(client_await(&client, &client.closed));
        client_done(&client);
    }
    if (when == CLOSE_ON_OPEN || when == CLOSE_ON_MESSAGE)
        ck_assert(net_server_logged(&server, "close 1000", 30));
    loop_stop(loop);
}
END_TEST

START_TEST(test_loop_stops_with_open_and_opening_ones)
{
    static const char *const paths[] = {"/ws/echo", "/ws/hang", "/ws/flood/100000000", "/ws/burst"};
    struct loop *loop = start_loop();
    struct client clients[16];
    char *urls[16];
    for (size_t i = 0; i < 16; i++) {
        urls[i] = i < 12 ? plain_url(paths[i % 4])
                         : xasprintf("http://localhost:%d%s", server.http, paths[i % 4]);
        client_init(&clients[i], loop, urls[i]);
        loop_post(loop, client_connect_task, &clients[i]);
        if (i == 7)
            ck_assert(client_await(&clients[4], &clients[4].opened));
    }
    loop_stop(loop);
    for (size_t i = 0; i < 16; i++) {
        /* one that came too late was refused */
        const struct err *why = clients[i].closed ? &clients[i].why : &clients[i].connect_err;
        ck_assert_int_eq(why->code, ERR_STOPPING);
        client_done(&clients[i]);
        free(urls[i]);
    }
}
END_TEST

static void reconnect(void *arg)
{
    struct client *client = arg;
    struct err err;
    ck_assert_ptr_null(ws_connect(client->loop, &client->target, NULL, client, &err));
    ck_assert_int_eq(err.code, ERR_STOPPING);
    client->pieces++;
}

static void post_reconnect(void *arg, int status, const struct err *why)
{
    struct client *client = arg;
    (void)status, (void)why;
    reconnect(client);
    loop_post(client->loop, reconnect, client);
}

static void connect_doggedly(void *arg)
{
    static const struct ws_handler dogged = {.closed = post_reconnect};
    struct client *client = arg;
    client->ws = ws_connect(client->loop, &client->target, &dogged, client, &client->connect_err);
}

/* Who reconnects on `closed` does not keep the loop from stopping. */
START_TEST(test_no_connect_while_the_loop_stops)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/hang");
    struct client client;
    client_init(&client, loop, url);
    free(net_server_log(&server, true));
    loop_post(loop, connect_doggedly, &client);
    ck_assert(net_server_logged(&server, "hanging", 1));
    loop_stop(loop);
    ck_assert_int_eq(client.pieces, 2);
    client_done(&client);
}
END_TEST

#define MANY 200

START_TEST(test_many_at_once)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/burst");
    struct client *clients = xcalloc(MANY, sizeof(*clients));
    for (int i = 0; i < MANY; i++) {
        client_init(&clients[i], loop, url);
        loop_post(loop, client_connect_task, &clients[i]);
    }
    for (int i = 0; i < MANY; i++) {
        ck_assert(client_await_count(&clients[i], &clients[i].messages, 3));
        loop_post(loop, client_close_task, &clients[i]);
    }
    loop_stop(loop);
    for (int i = 0; i < MANY; i++)
        client_done(&clients[i]);
    free(clients);
}
END_TEST

/* --- TLS -----------------------------------------------------------------------------------------
 */

static struct client tls_client(struct loop *loop, const char *host, int port,
                                const struct http_tls *tls, char **ret_url)
{
    struct client client;
    *ret_url = xasprintf("https://%s:%d/ws/burst", host, port);
    client_init(&client, loop, *ret_url);
    client.target.tls = tls;
    return client;
}

/* Expects WORDS in the failure, or three messages when NULL. */
static void expect_tls(struct loop *loop, const char *host, int port, const struct http_tls *tls,
                       const char *words)
{
    char *url;
    struct client client = tls_client(loop, host, port, tls, &url);
    client_connect(&client);
    if (words) {
        ck_assert(client_await(&client, &client.closed));
        ck_assert(!client.opened);
        ck_assert_int_eq(client.why.code, ERR_BACKEND_UNAVAILABLE);
        ck_assert_msg(strstr(client.why.msg, words) != NULL, "%s", client.why.msg);
    } else {
        ck_assert_msg(client_await_count(&client, &client.messages, 3), "%s", client.why.msg);
        ck_assert_str_eq(buf_text(&client.text), "\1|\1hello|\2oops|");
        loop_post(loop, client_close_task, &client);
        ck_assert(client_await(&client, &client.closed));
    }
    free(url);
    client_done(&client);
}

START_TEST(test_tls_accepts_the_right_server)
{
    struct loop *loop = start_loop();
    struct http_tls tls = {.ca_pem = certs.ca};
    free(net_server_log(&server, true));
    for (int i = 0; i < 20; i++)
        expect_tls(loop, "127.0.0.1", server.https, &tls, NULL);
    expect_tls(loop, "localhost", server.https, &tls, NULL);
    tls.server_name = "api.test";
    expect_tls(loop, "127.0.0.1", server.https, &tls, NULL);
    ck_assert(net_server_logged(&server, "sni None", 20));
    ck_assert(net_server_logged(&server, "sni localhost", 1));
    ck_assert(net_server_logged(&server, "sni api.test", 1));
    ck_assert(net_server_logged(&server, "close 1000", 22));
    loop_stop(loop);
}
END_TEST

START_TEST(test_tls_refuses_a_wrong_server)
{
    struct loop *loop = start_loop();
    struct http_tls other = {.ca_pem = certs.other_ca};
    expect_tls(loop, "127.0.0.1", server.https, &other, "certificate-authority");
    struct http_tls system = {.ca_pem = NULL};
    expect_tls(loop, "127.0.0.1", server.https, &system, "certificate-authority");
    expect_tls(loop, "127.0.0.1", server.https, NULL, "certificate-authority");
    struct http_tls name = {.ca_pem = certs.ca, .server_name = "wrong.test"};
    expect_tls(loop, "127.0.0.1", server.https, &name, "tls-server-name");
    expect_tls(loop, "127.0.0.2", server.https, &(struct http_tls){.ca_pem = certs.ca},
               server.https > 0 ? "cannot connect" : NULL); /* it listens on 127.0.0.1 only */
    expect_tls(loop, "127.0.0.1", server.http, &(struct http_tls){.ca_pem = certs.ca},
               "handshake"); /* speaks no TLS */
    loop_stop(loop);
}
END_TEST

START_TEST(test_tls_insecure)
{
    struct loop *loop = start_loop();
    struct http_tls tls = {.ca_pem = certs.other_ca, .insecure = true};
    expect_tls(loop, "127.0.0.1", server.https, &tls, NULL);
    tls = (struct http_tls){.insecure = true, .server_name = "wrong.test"};
    expect_tls(loop, "127.0.0.1", server.https, &tls, NULL);
    /* and it does not rub off on a connection that verifies */
    tls.insecure = false;
    expect_tls(loop, "127.0.0.1", server.https, &tls, "certificate-authority");
    loop_stop(loop);
}
END_TEST

START_TEST(test_plain_loop_has_no_tls)
{
    struct err err;
    struct loop *loop = loop_new_plain(&err);
    ck_assert_ptr_nonnull(loop);
    struct http_tls tls = {.ca_pem = certs.ca};
    char *secure;
    struct client client = tls_client(loop, "127.0.0.1", server.https, &tls, &secure);
    client_connect(&client);
    ck_assert_ptr_null(client.ws);
    ck_assert_ptr_nonnull(strstr(client.connect_err.msg, "started without TLS"));
    client_done(&client);
    free(secure);
    cleanup_free char *url = plain_url("/ws/close/1000");
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.why.code, ERR_NONE);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_tls_client_certificate)
{
    struct loop *loop = start_loop();
    struct http_tls tls = {
        .ca_pem = certs.ca, .cert_pem = certs.client_cert, .key_pem = certs.client_key};
    expect_tls(loop, "127.0.0.1", server.mutual, &tls, NULL);
    tls.cert_pem = tls.key_pem = NULL;
    expect_tls(loop, "127.0.0.1", server.mutual, &tls, "127.0.0.1");
    loop_stop(loop);
}
END_TEST

/* A CA file that is replaced: the next connection takes the new one, an open one stays. */
START_TEST(test_tls_ca_file_rotates)
{
    struct loop *loop = start_loop();
    char path[] = "/tmp/net-test-ca-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_gt(write(fd, certs.other_ca, strlen(certs.other_ca)), 0);
    struct http_tls tls = {.ca_file = path};
    expect_tls(loop, "127.0.0.1", server.https, &tls, "certificate-authority");
    /* a bundle: the one that counts stands last */
    ck_assert_int_gt(write(fd, certs.ca, strlen(certs.ca)), 0);
    close(fd);
    char *url;
    struct client client = tls_client(loop, "127.0.0.1", server.https, &tls, &url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 3));
    ck_assert_int_eq(truncate(path, (off_t)strlen(certs.other_ca)), 0);
    expect_tls(loop, "127.0.0.1", server.https, &tls, "certificate-authority");
    ck_assert(!client.closed);
    unlink(path);
    loop_post(loop, client_close_task, &client);
    ck_assert(client_await(&client, &client.closed));
    loop_stop(loop);
    free(url);
    client_done(&client);
}
END_TEST

static const struct bad_tls {
    struct http_tls tls;
    const char *words;
} bad_settings[] = {
    {{.ca_file = "/nonexistent/ca.crt"}, "CA file"},
    {{.ca_pem = "nonsense"}, "CA certificates"},
    {{.cert_pem = "nonsense", .key_pem = "nonsense"}, "client certificate"},
    {{.cert_pem = "only"}, "together"},
};

START_TEST(test_bad_tls_settings)
{
    const struct bad_tls *bad = &bad_settings[_i];
    struct loop *loop = start_loop();
    struct client client;
    client_init(&client, loop, "https://127.0.0.1/");
    client.target.tls = &bad->tls;
    client_connect(&client);
    loop_stop(loop);
    ck_assert_ptr_null(client.ws);
    ck_assert_int_eq(client.connect_err.code, ERR_CONFIG);
    ck_assert_msg(strstr(client.connect_err.msg, bad->words) != NULL, "%s", client.connect_err.msg);
    client_done(&client);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_unchecked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static void add_ending_tests(Suite *suite)
{
    TCase *tcase = add_case(suite, "ending");
    tcase_add_loop_test(tcase, test_ending, 0, ARRAY_LEN(endings));
    tcase_add_test(tcase, test_reset_while_open);
    tcase_add_test(tcase, test_silent_peer_is_given_up);
    tcase_add_test(tcase, test_answering_peer_is_kept);
    tcase_add_loop_test(tcase, test_close_at_any_time, 0, CLOSE_LATER + 1);
    tcase_add_test(tcase, test_loop_stops_with_open_and_opening_ones);
    tcase_add_test(tcase, test_no_connect_while_the_loop_stops);
    tcase_add_test(tcase, test_many_at_once);
}

static void add_tls_tests(Suite *suite)
{
    TCase *tcase = add_case(suite, "tls");
    tcase_add_test(tcase, test_tls_accepts_the_right_server);
    tcase_add_test(tcase, test_tls_refuses_a_wrong_server);
    tcase_add_test(tcase, test_tls_insecure);
    tcase_add_test(tcase, test_plain_loop_has_no_tls);
    tcase_add_test(tcase, test_tls_client_certificate);
    tcase_add_test(tcase, test_tls_ca_file_rotates);
    tcase_add_loop_test(tcase, test_bad_tls_settings, 0, ARRAY_LEN(bad_settings));
}

int main(void)
{
    Suite *suite = suite_create("ws_life");
    add_ending_tests(suite);
    add_tls_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
