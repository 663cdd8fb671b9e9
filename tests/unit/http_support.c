#include "tests/unit/http_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "server/callers.h"

struct app app;
struct http *http;
static in_port_t port;

void start_with(size_t workers, size_t queue, const char *keys)
{
    const struct http_config config = {.listen = "127.0.0.1:0",
                                       .workers = workers,
                                       .queue = queue,
                                       .connections = 2000,
                                       .local_only = !keys,
                                       .routes = http_test_routes};
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    atomic_store(&evil_served, 0);
    atomic_store(&gone_seen, 0);
    atomic_store(&states_freed, 0);
    app = (struct app){.started_ms = clock_now_ms()};
    ck_assert_int_eq(callers_open(keys, NULL, &app.callers, &err), 0);
    ck_assert_msg(http_start(&config, &app, &http, &err) == 0, "%s", err.msg);
    port = (in_port_t)http_port(http);
}

void start(void)
{
    start_with(3, 100, NULL);
}

void stop(void)
{
    http_stop(http, 5000);
    join_feeders();
    callers_close(app.callers);
}

int try_dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if (connect(fd, (struct sockaddr *)&to, sizeof(to))) {
        ck_assert_int_eq(errno, ECONNREFUSED);
        (void)close(fd);
        return -1;
    }
    return fd;
}

int dial(void)
{
    int fd = try_dial();

    ck_assert_int_ge(fd, 0);
    return fd;
}

void send_bytes(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);

        ck_assert_msg(sent > 0, "send: %s", strerrordesc_np(errno));
        at += sent;
        len -= (size_t)sent;
    }
}

void send_text(int fd, const char *text)
{
    send_bytes(fd, text, strlen(text));
}

/* All until the server closes. */
char *read_all(int fd)
{
    struct buf text = BUF_INIT(64 * MIB);

    for (;;) {
        char *at = buf_reserve(&text, 65536);
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

        ck_assert_int_eq(poll(&poll_fd, 1, 20000), 1);
        ssize_t len = recv(fd, at, 65536, 0);
        if (len <= 0)
            break;
        buf_grew(&text, (size_t)len);
    }
    (void)close(fd);
    return buf_take(&text, NULL);
}

/* One reply with a Content-Length from a connection that stays. */
char *read_reply(int fd)
{
    struct buf text = BUF_INIT(64 * MIB);

    for (;;) {
        char *at = buf_reserve(&text, 65536);
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        const char *head_end = strstr(buf_text(&text), "\r\n\r\n");
        const char *length = strstr(buf_text(&text), "Content-Length: ");

        if (head_end && length && !strstr(buf_text(&text), " 100 Continue") &&
            text.len >= (size_t)(head_end + 4 - text.ptr) + strtoul(length + 16, NULL, 10))
            break;
        ck_assert_int_eq(poll(&poll_fd, 1, 20000), 1);
        ssize_t len = recv(fd, at, 1, 0);
        ck_assert_msg(len > 0, "closed after: %s", buf_text(&text));
        buf_grew(&text, (size_t)len);
    }
    return buf_take(&text, NULL);
}

char *talk(const char *text)
{
    int fd = dial();

    send_text(fd, text);
    return read_all(fd);
}

const char *body_of(const char *reply)
{
    const char *end = strstr(reply, "\r\n\r\n");

    ck_assert_msg(end != NULL, "no reply: '%s'", reply);
    return end + 4;
}

void assert_reply(const char *request, const char *status, const char *part)
{
    char *reply = talk(request);

    ck_assert_msg(strncmp(reply, "HTTP/1.1 ", 9) == 0 && strncmp(reply + 9, status, 3) == 0,
                  "%s\n=> %s", request, reply);
    ck_assert_msg(strstr(reply, part) != NULL, "%s\n=> %s", request, reply);
    free(reply);
}

void wait_arrived(uint64_t seen)
{
    ck_assert(event_block(&arrived, seen, clock_now_ms() + 20000));
}

/* COUNTER is raised before `arrived` fires. */
void wait_count(atomic_int *counter, int wanted)
{
    for (;;) {
        uint64_t seen = event_count(&arrived);

        if (atomic_load(counter) >= wanted)
            return;
        wait_arrived(seen);
    }
}

void leave(int fd, bool reset)
{
    const struct linger linger = {.l_onoff = reset, .l_linger = 0};

    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    (void)close(fd);
}

#define PATTERN_MAX 1200000 /* beyond it the bytes do not matter */

uint32_t send_pattern(int fd, size_t size, bool chunked)
{
    char block[10007] = {0};
    uint32_t sum = 0;
    uint64_t offset = 0;

    while (size) {
        size_t len = size < sizeof(block) ? size : sizeof(block);
        char head[32];

        for (size_t i = 0; i < len && offset < PATTERN_MAX; i++) {
            block[i] = pattern_at(offset++ * 7);
            sum = sum * 31 + (unsigned char)block[i];
        }
        if (chunked) {
            (void)snprintf(head, sizeof(head), "%zx\r\n", len);
            send_text(fd, head);
        }
        send_bytes(fd, block, len);
        if (chunked)
            send_text(fd, "\r\n");
        size -= len;
    }
    if (chunked)
        send_text(fd, "0\r\n\r\n");
    return sum;
}

int run_tests(Suite *suite)
{
    log_setup(LOG_LEVEL_ERROR);
    event_init(&gate);
    event_init(&arrived);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
