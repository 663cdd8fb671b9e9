#include <pthread.h>
#include <sched.h>
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
#include "server/callers.h"
#include "tests/unit/http_support.h"

/* The end of the server, and all of it at once for the races between suspending and resuming. */

static void *stop_later(void *arg)
{
    http_stop(http, *(int64_t *)arg);
    return NULL;
}

/* What was accepted is answered; idle connections do not hold it up. */
START_TEST(test_graceful_stop)
{
    enum { MANY = 30 };
    int fds[MANY], idle[MANY];
    int64_t at_most = 20000;
    pthread_t thread;

    start();
    for (int i = 0; i < MANY; i++) {
        uint64_t seen = event_count(&arrived);

        idle[i] = dial();
        fds[i] = dial();
        send_text(fds[i], "GET /wait HTTP/1.1\r\n" HOST "\r\n");
        wait_arrived(seen);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, stop_later, &at_most), 0);
    while (!http_stopping(http))
        sched_yield();
    event_fire(&gate);
    for (int i = 0; i < MANY; i++) {
        char *reply = read_all(fds[i]);

        ck_assert_ptr_nonnull(strstr(reply, "\r\n\r\nfired"));
        free(reply);
        free(read_all(idle[i]));
    }
    (void)pthread_join(thread, NULL);
    join_feeders();
    callers_close(app.callers);
}
END_TEST

/* What still waits at the deadline is answered, and not taken for a client that left. */
START_TEST(test_stop_deadline)
{
    start();
    uint64_t seen = event_count(&arrived);
    int fd = dial(), upload = dial(), download = dial();
    char byte;

    send_text(fd, "GET /wait HTTP/1.1\r\n" HOST "\r\n");
    wait_arrived(seen);
    seen = event_count(&arrived);
    send_text(upload, "PUT /upload-held HTTP/1.1\r\nContent-Length: 600000\r\n" HOST "\r\n");
    wait_arrived(seen);
    (void)send_pattern(upload, 300000, false);
    send_text(download, "GET /download?size=10&hold=true HTTP/1.1\r\n" HOST "\r\n");
    ck_assert_int_eq(recv(download, &byte, 1, 0), 1);
    http_stop(http, 50);
    char *reply = read_all(fd);
    ck_assert_ptr_nonnull(strstr(reply, "503"));
    ck_assert_ptr_nonnull(strstr(reply, "\"stopping\""));
    free(reply);
    free(read_all(upload));
    reply = read_all(download);
    ck_assert_ptr_null(strstr(reply, "0\r\n\r\n"));
    free(reply);
    join_feeders();
    callers_close(app.callers);
    ck_assert_int_le(atomic_load(&gone_seen), 1); /* the download's writer */
}
END_TEST

static void *hammer(void *arg)
{
    unsigned seed = *(unsigned *)arg;

    for (int i = 0; i < 60; i++) {
        int fd = dial();
        char head[160];

        switch (rand_r(&seed) % 8) {
        case 0:
            send_text(fd, "GET /again HTTP/1.1\r\n" LAST "\r\n");
            break;
        case 1:
            send_text(fd, "GET /wait?timeout=0.001 HTTP/1.1\r\n" LAST "\r\n");
            break;
        case 2:
            send_text(fd, "GET /download?size=300000 HTTP/1.1\r\n" LAST "\r\n");
            break;
        case 3:
            (void)snprintf(head, sizeof(head),
                           "PUT /upload HTTP/1.1\r\nContent-Length: %d\r\n" LAST "\r\n", 400000);
            send_text(fd, head);
            (void)send_pattern(fd, 400000, false);
            break;
        case 4:
            send_text(fd, "GET /wait?timeout=0.002 HTTP/1.1\r\n" HOST "\r\n");
            leave(fd, true);
            continue;
        case 5:
            send_text(fd, "GET /download?size=5000000 HTTP/1.1\r\n" HOST "\r\n");
            leave(fd, i % 2);
            continue;
        case 6:
            send_text(fd, "PUT /upload HTTP/1.1\r\nContent-Length: 100000\r\n" HOST "\r\nabc");
            leave(fd, i % 2);
            continue;
        default:
            event_fire(&gate);
            send_text(fd, "PUT /upload-refused HTTP/1.1\r\nContent-Length: 400000\r\n" LAST "\r\n");
            (void)send_pattern(fd, 400000, false);
            break;
        }
        char *reply = read_all(fd);
        ck_assert_msg(strncmp(reply, "HTTP/1.1 200", 12) == 0 ||
                          strncmp(reply, "HTTP/1.1 507", 12) == 0,
                      "%s", reply);
        free(reply);
    }
    return NULL;
}

START_TEST(test_stress)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];

    start_with(3, 1000, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = i + 1;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, &seeds[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    stop();
}
END_TEST

/* Clients that come and go while the server stops: who got a connection gets an answer. */
static void *visit(void *arg)
{
    atomic_int *answered = arg;

    for (;;) {
        int fd = try_dial();

        if (fd < 0)
            return NULL; /* refused: it has stopped */
        send_text(fd, "GET /again HTTP/1.1\r\n" LAST "\r\n");
        char *reply = read_all(fd);
        ck_assert_msg(strncmp(reply, "HTTP/1.1 200", 12) == 0, "accepted and lost: '%s'", reply);
        free(reply);
        atomic_fetch_add(answered, 1);
    }
}

START_TEST(test_stop_loses_nothing)
{
    enum { THREADS = 6, ROUNDS = 4 };

    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        atomic_int answered = 0;

        start_with(2, 1000, NULL);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, visit, &answered), 0);
        while (atomic_load(&answered) < 20 * (round + 1))
            sched_yield();
        stop();
        for (int i = 0; i < THREADS; i++)
            (void)pthread_join(threads[i], NULL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_stop");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, test_graceful_stop);
    tcase_add_test(cases, test_stop_deadline);
    tcase_add_test(cases, test_stress);
    tcase_add_test(cases, test_stop_loses_nothing);
    suite_add_tcase(suite, cases);
    return run_tests(suite);
}
