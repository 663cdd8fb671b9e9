#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pipe.h"

#define FAR_MS (clock_now_ms() + 60000)

START_TEST(test_bytes_and_space)
{
    struct pipe *pipe = pipe_new(8);
    char data[16] = "";
    ck_assert_uint_eq(pipe_space(pipe), 8);
    ck_assert_uint_eq(pipe_read(pipe, data, 4), 0);
    ck_assert_uint_eq(pipe_write(pipe, "abcdef", 6), 6);
    ck_assert_uint_eq(pipe_write(pipe, "ghijkl", 6), 2);
    ck_assert_uint_eq(pipe_write(pipe, "x", 1), 0);
    ck_assert_uint_eq(pipe_used(pipe), 8);
    ck_assert_uint_eq(pipe_read(pipe, data, 3), 3);
    ck_assert(memcmp(data, "abc", 3) == 0);
    ck_assert_uint_eq(pipe_write(pipe, "ijklm", 5), 3); /* around the end of the ring */
    ck_assert_uint_eq(pipe_read(pipe, data, sizeof(data)), 8);
    ck_assert(memcmp(data, "defghijk", 8) == 0);
    ck_assert_uint_eq(pipe_write(pipe, NULL, 0), 0);
    ck_assert_uint_eq(pipe_space(pipe), 8);
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_OPEN);
    pipe_unref(pipe);
    pipe_unref(NULL);
}
END_TEST

START_TEST(test_end)
{
    struct err err = {.code = ERR_NONE};
    const struct err why = {.code = ERR_STREAM_LOST, .msg = "lost"};
    for (int failed = 0; failed < 2; failed++) {
        struct pipe *pipe = pipe_new(8);
        char c;
        pipe_write(pipe, "ab", 2);
        pipe_finish(pipe, failed ? &why : NULL);
        pipe_finish(pipe, failed ? NULL : &why); /* too late */
        ck_assert_uint_eq(pipe_write(pipe, "c", 1), 0);
        ck_assert_uint_eq(pipe_space(pipe), 0);
        ck_assert_int_eq(pipe_state(pipe, &err), PIPE_OPEN);
        ck_assert_uint_eq(pipe_read(pipe, &c, 1), 1);
        ck_assert_int_eq(pipe_state(pipe, &err), PIPE_OPEN);
        ck_assert_int_eq(err.code, ERR_NONE);
        ck_assert_uint_eq(pipe_read(pipe, &c, 1), 1);
        ck_assert_int_eq(pipe_state(pipe, &err), failed ? PIPE_FAILED : PIPE_ENDED);
        ck_assert_int_eq(err.code, failed ? ERR_STREAM_LOST : ERR_NONE);
        pipe_abandon(pipe, NULL); /* nothing is left to abandon */
        ck_assert_int_eq(pipe_state(pipe, NULL), failed ? PIPE_FAILED : PIPE_ENDED);
        pipe_unref(pipe);
    }
}
END_TEST

START_TEST(test_abandon)
{
    const struct err why = {.code = ERR_CANCELLED, .msg = "gone"};
    for (int failed = 0; failed < 2; failed++) {
        struct err err = {.code = ERR_NONE};
        struct pipe *pipe = pipe_new(8);
        char data[8];
        pipe_write(pipe, "abc", 3);
        pipe_abandon(pipe, failed ? &why : NULL);
        ck_assert_uint_eq(pipe_write(pipe, "d", 1), 0);
        ck_assert_uint_eq(pipe_space(pipe), 0);
        ck_assert_uint_eq(pipe_read(pipe, data, sizeof(data)), 0);
        ck_assert_int_eq(pipe_state(pipe, &err), PIPE_ABANDONED);
        ck_assert_int_eq(err.code, failed ? ERR_CANCELLED : ERR_NONE);
        const struct err late = {.code = ERR_BACKEND, .msg = "late"};
        pipe_finish(pipe, &late);
        ck_assert_int_eq(pipe_state(pipe, &err), PIPE_ABANDONED);
        ck_assert_int_eq(err.code, failed ? ERR_CANCELLED : ERR_NONE);
        pipe_unref(pipe);
    }
    /* An error that came behind bytes which nobody reads is not the reader's. */
    struct err err = {.code = ERR_NONE};
    struct pipe *pipe = pipe_new(8);
    pipe_write(pipe, "a", 1);
    pipe_finish(pipe, &why);
    pipe_abandon(pipe, NULL);
    ck_assert_int_eq(pipe_state(pipe, &err), PIPE_ABANDONED);
    ck_assert_int_eq(err.code, ERR_NONE);
    pipe_unref(pipe);
}
END_TEST

START_TEST(test_events)
{
    struct pipe *pipe = pipe_new(4);
    struct event *readable = pipe_readable(pipe);
    struct event *writable = pipe_writable(pipe);
    char data[4];
    uint64_t count = event_count(readable);
    pipe_write(pipe, "ab", 2);
    ck_assert_uint_gt(event_count(readable), count);
    count = event_count(writable);
    pipe_read(pipe, data, 1);
    ck_assert_uint_gt(event_count(writable), count);
    count = event_count(readable);
    pipe_finish(pipe, NULL);
    ck_assert_uint_gt(event_count(readable), count);
    count = event_count(writable);
    pipe_abandon(pipe, NULL);
    ck_assert_uint_gt(event_count(writable), count);
    count = event_count(writable) + event_count(readable);
    pipe_read(pipe, data, 1);
    pipe_write(pipe, "x", 1);
    pipe_abandon(pipe, NULL);
    pipe_finish(pipe, NULL);
    ck_assert_uint_eq(event_count(writable) + event_count(readable), count);
    pipe_unref(pipe);
}
END_TEST

/* The n-th byte of the stream that the threads below pass on. */
static char byte_at(size_t n)
{
    return (char)((n * 2654435761U) >> 13);
}

struct transfer {
    struct pipe *pipe;
    size_t total;
    size_t chunk;
    size_t written;
};

static void *write_all(void *arg)
{
    struct transfer *transfer = arg;
    struct pipe *pipe = transfer->pipe;
    char chunk[512];
    while (transfer->written < transfer->total) {
        uint64_t seen = event_count(pipe_writable(pipe));
        size_t len = 1 + transfer->written % transfer->chunk;
        if (len > transfer->total - transfer->written)
            len = transfer->total - transfer->written;
        for (size_t i = 0; i < len; i++)
            chunk[i] = byte_at(transfer->written + i);
        size_t taken = pipe_write(pipe, chunk, len);
        transfer->written += taken;
        if (pipe_state(pipe, NULL) == PIPE_ABANDONED)
            break;
        if (taken == 0)
            ck_assert(event_block(pipe_writable(pipe), seen, FAR_MS));
    }
    pipe_finish(pipe, NULL);
    pipe_unref(pipe);
    return NULL;
}

/* Reads up to LIMIT bytes or to the end. */
static size_t read_all(struct pipe *pipe, size_t limit)
{
    char chunk[300];
    size_t total = 0;
    while (total < limit) {
        uint64_t seen = event_count(pipe_readable(pipe));
        size_t len = pipe_read(pipe, chunk, 1 + total % sizeof(chunk));
        for (size_t i = 0; i < len; i++, total++) {
            if (chunk[i] != byte_at(total))
                ck_abort_msg("another byte at %zu", total);
        }
        if (len > 0)
            continue;
        if (pipe_state(pipe, NULL) != PIPE_OPEN)
            break;
        ck_assert(event_block(pipe_readable(pipe), seen, FAR_MS));
    }
    return total;
}

static const struct {
    size_t capacity, total, chunk;
} transfers[] = {{1, 2000, 1}, {7, 10000, 13}, {64, 30000, 512}, {65536, 500000, 512}};

START_TEST(test_between_threads)
{
    struct transfer transfer = {
        .pipe = pipe_new(transfers[_i].capacity),
        .total = transfers[_i].total,
        .chunk = transfers[_i].chunk,
    };
    struct pipe *pipe = pipe_ref(transfer.pipe);
    pthread_t thread;
    pthread_create(&thread, NULL, write_all, &transfer);
    ck_assert_uint_eq(read_all(pipe, SIZE_MAX), transfer.total);
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_ENDED);
    pipe_unref(pipe); /* before or after the writer's: whoever is last frees */
    pthread_join(thread, NULL);
    ck_assert_uint_eq(transfer.written, transfer.total);
}
END_TEST

START_TEST(test_reader_goes_while_the_writer_writes)
{
    for (size_t round = 0; round < 100; round++) {
        struct transfer transfer = {.pipe = pipe_new(32), .total = SIZE_MAX, .chunk = 50};
        struct pipe *pipe = pipe_ref(transfer.pipe);
        pthread_t thread;
        pthread_create(&thread, NULL, write_all, &transfer);
        size_t limit = round * 3;
        ck_assert_uint_ge(read_all(pipe, limit), limit);
        pipe_abandon(pipe, NULL);
        pipe_unref(pipe);
        pthread_join(thread, NULL);
        ck_assert_uint_ge(transfer.written, limit);
    }
}
END_TEST

static void *hold_and_release(void *arg)
{
    struct pipe *pipe = arg;
    for (int i = 0; i < 10000; i++)
        pipe_unref(pipe_ref(pipe));
    pipe_unref(pipe);
    return NULL;
}

START_TEST(test_references)
{
    struct pipe *pipe = pipe_new(16);
    pthread_t threads[4];
    pipe_write(pipe, "x", 1);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_create(&threads[i], NULL, hold_and_release, pipe_ref(pipe));
    pipe_unref(pipe);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    /* What is left or freed twice is for the sanitizers to say. */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipe");
    TCase *tcase = tcase_create("pipe");
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(tcase, 110);
    tcase_add_test(tcase, test_bytes_and_space);
    tcase_add_test(tcase, test_end);
    tcase_add_test(tcase, test_abandon);
    tcase_add_test(tcase, test_events);
    tcase_add_loop_test(tcase, test_between_threads, 0, ARRAY_LEN(transfers));
    tcase_add_test(tcase, test_reader_goes_while_the_writer_writes);
    tcase_add_test(tcase, test_references);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
