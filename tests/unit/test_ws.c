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

/* --- the handshake ------------------------------------------------------------------------------
 */

/* Reads three messages, closes, and the server gets our CLOSE. */
static void read_three(const char *path, int times)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url(path);
    free(net_server_log(&server, true));
    for (int i = 0; i < times; i++) {
        struct client client;
        client_init(&client, loop, url);
        client_connect(&client);
        ck_assert(client_await_count(&client, &client.messages, 3));
        ck_assert_str_eq(client.protocol, "v5.channel.k8s.io");
        ck_assert_str_eq(buf_text(&client.text), "\1|\1hello|\2oops|");
        loop_post(loop, client_close_task, &client);
        ck_assert(client_await(&client, &client.closed));
        client_done(&client);
    }
    ck_assert(net_server_logged(&server, "close 1000", times));
    loop_stop(loop);
}

START_TEST(test_frames_with_the_reply_header)
{
    read_three("/ws/burst", 200);
}
END_TEST

START_TEST(test_reply_header_byte_by_byte)
{
    read_three("/ws/bytewise", 20);
}
END_TEST

START_TEST(test_reply_header_and_part_of_a_frame)
{
    for (int cut = 1; cut <= 4; cut++) {
        cleanup_free char *path = xasprintf("/ws/half/%d", cut);
        read_three(path, 5);
    }
}
END_TEST

static const struct refusal {
    const char *path;
    int status;
    enum err_code code;
    const char *words;
} refusals[] = {
    {"/ws/refuse/400", 400, ERR_BACKEND, "HTTP status 400"},
    {"/ws/refuse/401", 401, ERR_BACKEND_UNAUTHORIZED, "HTTP status 401"},
    {"/ws/refuse/403", 403, ERR_BACKEND_FORBIDDEN, "HTTP status 403"},
    {"/ws/refuse/404", 404, ERR_BACKEND_NOT_FOUND, "HTTP status 404"},
    {"/ws/refuse/409", 409, ERR_BACKEND_CONFLICT, "HTTP status 409"},
    {"/ws/refuse/429", 429, ERR_BACKEND_THROTTLED, "HTTP status 429"},
    {"/ws/refuse/500", 500, ERR_BACKEND_UNAVAILABLE, "HTTP status 500"},
    {"/ws/refuse/503", 503, ERR_BACKEND_UNAVAILABLE, "HTTP status 503"},
    {"/ws/refuse/301", 301, ERR_BACKEND, "HTTP status 301"},
    {"/ws/refuse/200", 200, ERR_BACKEND, "HTTP status 200"},
    {"/ws/wrong", 101, ERR_BACKEND, "Accept"},
    {"/ws/unoffered", 101, ERR_BACKEND, "PROTOCOL"},
    {"/ws/plain", 101, ERR_BACKEND, "handshake"},
    {"/ws/garbage", 0, ERR_BACKEND_UNAVAILABLE, "handshake"},
    {"/ws/nothing", 0, ERR_BACKEND_UNAVAILABLE, "handshake"},
    {"/ws/cut", 0, ERR_BACKEND_UNAVAILABLE, "handshake"},
    {"/ws/huge", 0, ERR_BACKEND_UNAVAILABLE, "handshake"},
};

START_TEST(test_refused_handshake)
{
    const struct refusal *refusal = &refusals[_i];
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url(refusal->path);
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert(!client.opened);
    ck_assert_int_eq(client.status, refusal->status);
    ck_assert_msg(client.why.code == refusal->code, "%s: %s", err_code_name(client.why.code),
                  client.why.msg);
    ck_assert_msg(strstr(client.why.msg, refusal->words) != NULL, "%s", client.why.msg);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_nobody_listens)
{
    struct loop *loop = start_loop();
    struct client client;
    client_init(&client, loop, "http://127.0.0.1:1/ws/echo");
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.status, 0);
    ck_assert_int_eq(client.why.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(client.why.msg, "127.0.0.1:1"));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_handshake_times_out)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/hang");
    struct client client;
    client_init(&client, loop, url);
    client.target.timeout_ms = 50;
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.why.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(client.why.msg, "waiting for the handshake"));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

/* A name: resolved off the loop; the server listens on IPv4 only, so ::1 is refused first. */
START_TEST(test_host_name_with_two_addresses)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = xasprintf("http://localhost:%d/ws/burst", server.http);
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 3));
    loop_stop(loop);
    ck_assert_int_eq(client.why.code, ERR_STOPPING);
    client_done(&client);
}
END_TEST

/* Fails to resolve without a question to any server. */
#define LABEL_TOO_LONG "x123456789x123456789x123456789x123456789x123456789x123456789x123456789"

START_TEST(test_unknown_host_name)
{
    struct loop *loop = start_loop();
    struct client client;
    client_init(&client, loop, "http://" LABEL_TOO_LONG ".test/");
    client_connect(&client);
    ck_assert(client_await(&client, &client.closed));
    ck_assert_int_eq(client.why.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(client.why.msg, LABEL_TOO_LONG));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

static const struct bad_target {
    const char *url, *header;
    enum err_code code;
} bad_targets[] = {
    {"ftp://127.0.0.1/", NULL, ERR_CONFIG},
    {"not a url", NULL, ERR_CONFIG},
    {"http://127.0.0.1:99999/", NULL, ERR_CONFIG},
    {"http://127.0.0.1/", "Authorization: Bearer a\r\nX: y", ERR_CONFIG},
};

START_TEST(test_bad_target)
{
    const struct bad_target *bad = &bad_targets[_i];
    struct loop *loop = start_loop();
    struct client client;
    struct text_list headers = {0};
    client_init(&client, loop, bad->url);
    if (bad->header)
        text_list_add(&headers, bad->header);
    client.target.headers = &headers;
    client_connect(&client);
    loop_stop(loop);
    ck_assert_ptr_null(client.ws);
    ck_assert_int_eq(client.connect_err.code, bad->code);
    ck_assert(!client.closed);
    text_list_done(&headers);
    client_done(&client);
}
END_TEST

START_TEST(test_target_too_long)
{
    struct loop *loop = start_loop();
    struct client client;
    cleanup_free char *url = xmalloc(3000);
    memset(url, 'x', 3000);
    memcpy(url, "http://127.0.0.1/", 17);
    url[2999] = '\0';
    client_init(&client, loop, url);
    client_connect(&client);
    loop_stop(loop);
    ck_assert_ptr_null(client.ws);
    ck_assert_int_eq(client.connect_err.code, ERR_TOO_LARGE);
    client_done(&client);
}
END_TEST

START_TEST(test_request_headers)
{
    struct loop *loop = start_loop();
    cleanup_free char *token = xmalloc(9001);
    memset(token, 'T', 9000);
    token[9000] = '\0';
    cleanup_free char *authorization = xasprintf("Authorization: Bearer %s", token);
    cleanup_free char *path = xmalloc(1901);
    memset(path, 'p', 1900);
    memcpy(path, "/ws/headers?command=%2Fagent&x=", 31);
    path[1900] = '\0';
    cleanup_free char *url = plain_url(path);
    struct text_list headers = {0};
    text_list_add(&headers, authorization);
    text_list_add(&headers, "X-Other: 1");
    struct client client;
    client_init(&client, loop, url);
    client.target.headers = &headers;
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 1));
    const char *text = buf_text(&client.text);
    ck_assert(strncmp(text, path, 1900) == 0);
    ck_assert_ptr_nonnull(strstr(text, authorization));
    ck_assert_ptr_nonnull(strstr(text, "\nX-Other: 1"));
    ck_assert_ptr_nonnull(
        strstr(text, "\nSec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nSec-WebSocket-Version: 13\n"));
    ck_assert_ptr_null(strstr(text, "Sec-WebSocket-Extensions"));
    cleanup_free char *host = xasprintf("\nHost: 127.0.0.1:%d\n", server.http);
    ck_assert_ptr_nonnull(strstr(text, host));
    text_list_done(&headers);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_no_protocol_chosen)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/burst");
    struct client client;
    client_init(&client, loop, url);
    client.target.protocols = NULL;
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 3));
    ck_assert_str_eq(client.protocol, "");
    loop_stop(loop);
    client_done(&client);
}
END_TEST

/* --- messages ------------------------------------------------------------------------------------
 */

START_TEST(test_fragments_with_pings_between)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/fragments");
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 2));
    ck_assert_str_eq(buf_text(&client.text), "\1one two three|\2next|");
    ck_assert(net_server_logged(&server, "pong between", 1));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_empty_messages)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/empty");
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 4));
    ck_assert_str_eq(buf_text(&client.text), "|\1||\1end|");
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_large_messages)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/large");
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 2));
    ck_assert_uint_eq(client.bytes, 2 * MIB);
    ck_assert_int_gt(client.pieces, 2 * 64 - 1); /* never more than 16 KiB at once */
    for (size_t i = 0; i < client.text.len; i++)
        ck_assert_int_eq((uint8_t)client.text.ptr[i], (int)(i % 251));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_answers_ping_at_once)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/ping");
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.messages, 1));
    ck_assert_str_eq(buf_text(&client.text), "10 are you there|");
    loop_stop(loop);
    client_done(&client);
}
END_TEST

/* --- sending -------------------------------------------------------------------------------------
 */

START_TEST(test_echo_of_every_length_class)
{
    static const size_t lengths[] = {0, 1, 124, 125, 126, 65534, 65535, 65536, 200000};
    static uint8_t data[200000];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i % 253);
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/echo");
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await(&client, &client.opened));
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct sender sender = {.client = &client, .data = data, .len = lengths[i]};
        size_t before = client.bytes;
        loop_post(loop, sender_task, &sender);
        ck_assert(client_await_count(&client, &client.messages, (int)i + 1));
        ck_assert_uint_eq(client.bytes - before, lengths[i] + 1);
    }
    loop_stop(loop);
    client_done(&client);
}
END_TEST

static void send_until_full(void *arg)
{
    struct sender *sender = arg;
    struct client *client = sender->client;
    static const uint8_t data[10000];
    client_lock(client);
    while (ws_send(client->ws, NULL, 0, data, sizeof(data)))
        sender->accepted += sizeof(data);
    ck_assert_uint_lt(ws_space(client->ws), sizeof(data));
    ck_assert_int_eq(ws_send(client->ws, NULL, 0, data, WS_QUEUE_MAX + 1), 0);
    client->busy = true;
    client_unlock(client);
}

START_TEST(test_full_queue_then_writable)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/sink");
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client_connect(&client);
    ck_assert(client_await(&client, &client.opened));
    struct sender sender = {.client = &client};
    int rounds = 0;
    /* fills the socket's buffers too: until a whole queue stays because nobody reads */
    do {
        client.busy = false;
        loop_post(loop, send_until_full, &sender);
        ck_assert(client_await(&client, &client.busy));
        rounds++;
    } while (rounds < 20);
    size_t sent = sender.accepted;
    ck_assert_uint_ge(sent, 250000);
    char *sink = plain_url("/sink");
    struct err err;
    struct http_client *http = http_client_new(NULL, &err);
    struct http_reply reply;
    ck_assert_int_eq(http_call(http, &(struct http_request){.url = sink}, &reply, &err), 0);
    http_reply_done(&reply);
    http_client_free(http);
    free(sink);
    ck_assert(client_await_count(&client, &client.writable, 1));
    loop_post(loop, client_close_task, &client); /* what is queued still goes out */
    cleanup_free char *line = xasprintf("sink %zu", sent);
    ck_assert(net_server_logged(&server, line, 1));
    loop_stop(loop);
    client_done(&client);
}
END_TEST

/* --- back-pressure -------------------------------------------------------------------------------
 */

static void resume(void *arg)
{
    struct client *client = arg;
    client_lock(client);
    if (client->ws)
        ws_pause(client->ws, 0);
    client_unlock(client);
}

static void pause_and_read(struct client *client, struct loop *loop, size_t total)
{
    client_connect(client);
    ck_assert(client_await(client, &client->opened));
    int pieces = 0;
    while (client->bytes < total) {
        loop_post(loop, resume, client);
        ck_assert(client_await_count(client, &client->pieces, ++pieces));
        ck_assert_int_eq(client->pieces, pieces); /* one for each resume */
    }
    ck_assert_uint_eq(client->bytes, total);
}

START_TEST(test_pause_after_every_piece)
{
    bool secure = _i == 1;
    struct loop *loop = start_loop();
    cleanup_free char *url = secure
                                 ? xasprintf("https://127.0.0.1:%d/ws/flood/1000000", server.https)
                                 : plain_url("/ws/flood/1000000");
    struct http_tls tls = {.ca_pem = certs.ca};
    struct client client;
    client_init(&client, loop, url);
    client.target.tls = &tls;
    client.pause_on_open = client.pause_on_message = true;
    pause_and_read(&client, loop, 1000000);
    loop_stop(loop);
    client_done(&client);
}
END_TEST

START_TEST(test_paused_is_not_dead)
{
    struct loop *loop = start_loop();
    cleanup_free char *url = plain_url("/ws/flood/30000000");
    free(net_server_log(&server, true));
    struct client client;
    client_init(&client, loop, url);
    client.pause_on_message = true;
    client.target.ping_ms = 100; /* no less: a loaded machine stalls for that long */
    client_connect(&client);
    ck_assert(client_await_count(&client, &client.pieces, 1));
    /* ten more intervals pass on the same loop */
    struct client other;
    cleanup_free char *silent = plain_url("/ws/silent");
    for (int i = 0; i < 3; i++) {
        client_init(&other, loop, silent);
        other.target.ping_ms = 200;
        client_connect(&other);
        ck_assert(client_await(&other, &other.closed));
        client_done(&other);
    }
    ck_assert(!client.closed);
    client.pause_on_message = false;
    loop_post(loop, resume, &client);
    ck_assert(client_await_bytes(&client, 30000000));
    loop_stop(loop);
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

static void add_handshake_tests(Suite *suite)
{
    TCase *tcase = add_case(suite, "handshake");
    tcase_add_test(tcase, test_frames_with_the_reply_header);
    tcase_add_test(tcase, test_reply_header_byte_by_byte);
    tcase_add_test(tcase, test_reply_header_and_part_of_a_frame);
    tcase_add_loop_test(tcase, test_refused_handshake, 0, ARRAY_LEN(refusals));
    tcase_add_test(tcase, test_nobody_listens);
    tcase_add_test(tcase, test_handshake_times_out);
    tcase_add_test(tcase, test_host_name_with_two_addresses);
    tcase_add_test(tcase, test_unknown_host_name);
    tcase_add_loop_test(tcase, test_bad_target, 0, ARRAY_LEN(bad_targets));
    tcase_add_test(tcase, test_target_too_long);
    tcase_add_test(tcase, test_request_headers);
    tcase_add_test(tcase, test_no_protocol_chosen);
}

static void add_message_tests(Suite *suite)
{
    TCase *tcase = add_case(suite, "messages");
    tcase_add_test(tcase, test_fragments_with_pings_between);
    tcase_add_test(tcase, test_empty_messages);
    tcase_add_test(tcase, test_large_messages);
    tcase_add_test(tcase, test_answers_ping_at_once);
    tcase_add_test(tcase, test_echo_of_every_length_class);
    tcase_add_test(tcase, test_full_queue_then_writable);
    tcase_add_loop_test(tcase, test_pause_after_every_piece, 0, 2);
    tcase_add_test(tcase, test_paused_is_not_dead);
}

int main(void)
{
    Suite *suite = suite_create("ws");
    add_handshake_tests(suite);
    add_message_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
