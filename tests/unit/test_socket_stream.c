#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "net/loop.h"
#include "net/socket_stream.h"

/* One stream, whose other end the test holds. What came of it is guarded by the lock. */
struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct loop *loop;
    struct stream *stream;
    int peer;
    int opened, closed, writable;
    bool close_on_data;
    struct buf received, sending;
    struct err why;
};

static void tell(struct world *world, int *count)
{
    pthread_mutex_lock(&world->lock);
    ++*count;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

static void wait_for(struct world *world, const int *count, int least)
{
    pthread_mutex_lock(&world->lock);
    while (*count < least)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

static void wait_received(struct world *world, size_t least)
{
    pthread_mutex_lock(&world->lock);
    while (world->received.len < least)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

static void on_opened(void *arg)
{
    struct world *world = arg;
    tell(world, &world->opened);
}

static void on_received(void *arg, const uint8_t *data, size_t len)
{
    struct world *world = arg;
    pthread_mutex_lock(&world->lock);
    ck_assert(buf_append(&world->received, data, len));
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    if (world->close_on_data) {
        stream_close(world->stream);
        tell(world, &world->closed);
    }
}

static void send_more(struct world *world)
{
    while (world->sending.len > 0) {
        size_t taken = stream_write(world->stream, world->sending.ptr, world->sending.len);
        buf_consume(&world->sending, taken);
        if (taken == 0)
            return;
    }
}

static void on_writable(void *arg)
{
    struct world *world = arg;
    send_more(world);
    tell(world, &world->writable);
}

static void on_closed(void *arg, const struct err *why)
{
    struct world *world = arg;
    world->why = *why;
    tell(world, &world->closed);
}

static const struct stream_handler handler = {
    .opened = on_opened, .received = on_received, .writable = on_writable, .closed = on_closed};

static void open_it(void *arg)
{
    struct world *world = arg;
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    world->peer = ends[0];
    world->stream = socket_stream_new(world->loop, ends[1], &handler, world);
}

static void world_make(struct world *world)
{
    *world = (struct world){.lock = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER,
                            .peer = -1,
                            .received = BUF_INIT(64 * MIB),
                            .sending = BUF_INIT(64 * MIB)};
    world->loop = loop_new(&world->why);
    ck_assert_ptr_nonnull(world->loop);
}

static void world_open(struct world *world)
{
    world_make(world);
    loop_post(world->loop, open_it, world);
    wait_for(world, &world->opened, 1);
}

static void world_end(struct world *world)
{
    loop_stop(world->loop);
    if (world->peer >= 0)
        close(world->peer);
    buf_done(&world->received);
    buf_done(&world->sending);
}

static void write_hello(void *arg)
{
    struct world *world = arg;
    ck_assert_uint_eq(stream_write(world->stream, "hello", 5), 5);
    tell(world, &world->writable);
}

START_TEST(test_bytes_go_both_ways)
{
    struct world world;
    char text[8] = "";
    world_open(&world);
    loop_post(world.loop, write_hello, &world);
    wait_for(&world, &world.writable, 1);
    ck_assert_int_eq(read(world.peer, text, sizeof(text)), 5);
    ck_assert_str_eq(text, "hello");
    ck_assert_int_eq(write(world.peer, "world", 5), 5);
    wait_received(&world, 5);
    ck_assert_str_eq(buf_text(&world.received), "world");
    ck_assert_int_eq(world.closed, 0);
    world_end(&world);
    ck_assert_int_eq(world.closed, 1);
    ck_assert_int_eq(world.why.code, ERR_STOPPING);
}
END_TEST

/* What was sent before the end arrives, however much. */
START_TEST(test_nothing_is_lost_at_the_end)
{
    static char block[64 * 1024];
    struct world world;
    size_t sent = 0;
    ssize_t n;
    world_open(&world);
    memset(block, 'x', sizeof(block));
    for (int i = 0; i < 200; i++) {
        while ((n = write(world.peer, block, sizeof(block))) < 0)
            sched_yield();
        sent += (size_t)n;
    }
    close(world.peer);
    world.peer = -1;
    wait_for(&world, &world.closed, 1);
    ck_assert_int_eq(world.why.code, ERR_NONE);
    ck_assert_uint_eq(world.received.len, sent);
    world_end(&world);
}
END_TEST

static void fill(void *arg)
{
    struct world *world = arg;
    send_more(world);
    tell(world, &world->opened);
}

START_TEST(test_a_slow_reader_holds_the_writer_back)
{
    static char block[64 * 1024];
    struct world world;
    size_t got = 0, all = 16 * MIB;
    world_open(&world);
    ck_assert_ptr_nonnull(buf_reserve(&world.sending, all));
    memset(world.sending.ptr, 'y', all);
    buf_grew(&world.sending, all);
    loop_post(world.loop, fill, &world);
    wait_for(&world, &world.opened, 2);
    ck_assert_uint_gt(world.sending.len, all / 2); /* the kernel took no more */
    while (got < all) {
        ssize_t n = read(world.peer, block, sizeof(block));
        if (n > 0)
            got += (size_t)n;
        else
            sched_yield();
    }
    wait_for(&world, &world.writable, 1);
    world_end(&world);
}
END_TEST

static void pause_it(void *arg)
{
    struct world *world = arg;
    stream_pause(world->stream, 1);
    tell(world, &world->writable);
}

static void go_on(void *arg)
{
    struct world *world = arg;
    pthread_mutex_lock(&world->lock);
    ck_assert_uint_eq(world->received.len, 0);
    pthread_mutex_unlock(&world->lock);
    stream_pause(world->stream, 0);
}

START_TEST(test_nothing_is_read_while_paused)
{
    struct world world;
    world_open(&world);
    loop_post(world.loop, pause_it, &world);
    wait_for(&world, &world.writable, 1);
    ck_assert_int_eq(write(world.peer, "later", 5), 5);
    for (int turns = 0; turns < 50; turns++) {
        int before = world.writable;
        loop_post(world.loop, pause_it, &world); /* the loop turns, and polls */
        wait_for(&world, &world.writable, before + 1);
    }
    loop_post(world.loop, go_on, &world);
    wait_received(&world, 5);
    world_end(&world);
}
END_TEST

START_TEST(test_closed_from_within)
{
    struct world world;
    char text[8];
    world_open(&world);
    world.close_on_data = true;
    ck_assert_int_eq(write(world.peer, "x", 1), 1);
    wait_for(&world, &world.closed, 1);
    ck_assert_int_eq(read(world.peer, text, sizeof(text)), 0); /* it is told at once */
    world_end(&world);
    ck_assert_int_eq(world.closed, 1);
}
END_TEST

static void refuse(void *arg)
{
    struct world *world = arg;
    struct err why;
    (void)err_set(&why, ERR_SANDBOX_GONE, "no such box");
    world->stream = socket_stream_refused(world->loop, &why, &handler, world);
    ck_assert_int_eq(world->closed, 0); /* not before it returns */
}

START_TEST(test_a_refusal_is_told_later)
{
    struct world world;
    world_make(&world);
    loop_post(world.loop, refuse, &world);
    wait_for(&world, &world.closed, 1);
    ck_assert_int_eq(world.why.code, ERR_SANDBOX_GONE);
    ck_assert_int_eq(world.opened, 0);
    world_end(&world);
}
END_TEST

static void open_and_close(void *arg)
{
    struct world *world = arg;
    open_it(world);
    stream_close(world->stream);
    close(world->peer);
    world->peer = -1;
    tell(world, &world->writable);
}

/* None of their descriptors stays open. */
START_TEST(test_many_come_and_go)
{
    struct world world;
    world_make(&world);
    for (int i = 0; i < 3000; i++) {
        loop_post(world.loop, open_and_close, &world);
        wait_for(&world, &world.writable, i + 1);
    }
    world_end(&world);
    int fd = dup(0);
    ck_assert_int_lt(fd, 64);
    close(fd);
    ck_assert_int_eq(world.opened + world.closed, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("socket_stream");
    TCase *tcase = tcase_create("socket_stream");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_bytes_go_both_ways);
    tcase_add_test(tcase, test_nothing_is_lost_at_the_end);
    tcase_add_test(tcase, test_a_slow_reader_holds_the_writer_back);
    tcase_add_test(tcase, test_nothing_is_read_while_paused);
    tcase_add_test(tcase, test_closed_from_within);
    tcase_add_test(tcase, test_a_refusal_is_told_later);
    tcase_add_test(tcase, test_many_come_and_go);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
