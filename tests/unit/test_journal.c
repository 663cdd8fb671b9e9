#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/caps.h"
#include "tests/unit/journal_place.h"

static struct journal_place place;

static void setup(void)
{
    journal_place_make(&place);
}

static void teardown(void)
{
    journal_place_remove(&place);
}

static struct journal *open_journal(uint64_t head_max, uint64_t tail_max)
{
    return journal_at(&place, head_max, tail_max);
}

START_TEST(test_made_by_the_first_byte)
{
    struct journal *journal = open_journal(100, 100);
    append(journal, 0, "", 0);
    ck_assert_int_eq(access(place.path, F_OK), -1);
    ck_assert_uint_eq(journal_received(journal), 0);
    assert_text(journal, 0, "");
    umask(0);
    append(journal, 0, "hello", 5);
    struct stat st;
    ck_assert_int_eq(stat(place.path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    assert_text(journal, 0, "hello");
    assert_text(journal, 3, "lo");
    assert_text(journal, 5, "");
    assert_text(journal, 500, "");
    uint64_t from, to;
    ck_assert(!journal_has_gap(journal, &from, &to));
    journal_close(journal);
    journal_close(NULL);
}
END_TEST

START_TEST(test_sent_again_and_sent_too_early)
{
    struct journal *journal = open_journal(100, 100);
    append(journal, 0, "hello", 5);
    append(journal, 0, "hello", 5);
    append(journal, 2, "llo world", 9);
    assert_text(journal, 0, "hello world");
    struct err err;
    ck_assert_int_eq(journal_append(journal, 12, "x", 1, &err), -1);
    ck_assert_int_eq(err.code, ERR_INTERNAL);
    ck_assert_uint_eq(journal_received(journal), 11);
    journal_close(journal);
}
END_TEST

START_TEST(test_head_and_tail)
{
    struct journal *journal = open_journal(4, 4);
    uint64_t from = 0, to = 0;
    append(journal, 0, "01234567", 8);
    ck_assert(!journal_has_gap(journal, &from, &to));
    assert_text(journal, 0, "01234567");
    append(journal, 8, "89", 2);
    ck_assert(journal_has_gap(journal, &from, &to));
    ck_assert_uint_eq(from, 4);
    ck_assert_uint_eq(to, 6);
    assert_text(journal, 0, "0123");
    assert_text(journal, 3, "3");
    assert_text(journal, 6, "6789");
    char byte;
    size_t n;
    struct err err;
    for (uint64_t at = 4; at < 6; at++) {
        ck_assert_int_eq(journal_read(journal, at, &byte, 1, &n, &err), -1);
        ck_assert_int_eq(err.code, ERR_RANGE_NOT_SATISFIABLE);
    }
    journal_close(journal);
    /* The limits are those it was made with. */
    journal = open_journal(1, 1);
    ck_assert_uint_eq(journal_received(journal), 10);
    assert_text(journal, 0, "0123");
    assert_text(journal, 6, "6789");
    journal_close(journal);
}
END_TEST

START_TEST(test_without_head_or_tail)
{
    uint64_t from = 0, to = 0;
    struct journal *journal = open_journal(0, 3);
    append(journal, 0, "01234", 5);
    ck_assert(journal_has_gap(journal, &from, &to));
    ck_assert_uint_eq(from, 0);
    ck_assert_uint_eq(to, 2);
    assert_text(journal, 2, "234");
    journal_close(journal);
    struct err err;
    ck_assert_int_eq(journal_remove(place.path, &err), 0);
    ck_assert_int_eq(journal_remove(place.path, &err), 0);

    journal = open_journal(3, 0);
    append(journal, 0, "01", 2);
    append(journal, 2, "234", 3);
    append(journal, 5, "5", 1);
    ck_assert(journal_has_gap(journal, &from, &to));
    ck_assert_uint_eq(from, 3);
    ck_assert_uint_eq(to, 6);
    assert_text(journal, 0, "012");
    assert_text(journal, 6, "");
    journal_close(journal);
    journal = open_journal(3, 0);
    ck_assert_uint_eq(journal_received(journal), 6);
    journal_close(journal);
    ck_assert_int_eq(journal_remove(place.path, &err), 0);

    journal = open_journal(0, 0);
    append(journal, 0, "0123", 4);
    ck_assert_uint_eq(journal_received(journal), 4);
    assert_text(journal, 4, "");
    journal_close(journal);
}
END_TEST

/* What a byte of the output is, by its offset. */
static char output_at(uint64_t offset)
{
    uint64_t hash = (offset + 1) * 0x9e3779b97f4a7c15u;
    return (char)(hash >> 56);
}

static char *output(uint64_t offset, size_t len)
{
    char *data = xmalloc(len);
    for (size_t i = 0; i < len; i++)
        data[i] = output_at(offset + i);
    return data;
}

/* All that should be there is there, and nothing else is. */
static void check_output(struct journal *journal, uint64_t head_max, uint64_t tail_max)
{
    uint64_t received = journal_received(journal), from = 0, to = 0;
    bool gap = received > head_max + tail_max;
    ck_assert(journal_has_gap(journal, &from, &to) == gap);
    if (gap) {
        ck_assert_uint_eq(from, head_max);
        ck_assert_uint_eq(to, received - tail_max);
    }
    cleanup_free char *data = xmalloc(40000);
    for (uint64_t at = 0; at < received;) {
        if (gap && at == from)
            at = to;
        if (at == received)
            break;
        size_t n = read_at(journal, at, data, 1 + random_below(40000));
        ck_assert_uint_gt(n, 0);
        for (size_t i = 0; i < n; i++) {
            if (data[i] != output_at(at + i))
                ck_abort_msg("byte %llu is wrong", (unsigned long long)(at + i));
        }
        at += n;
    }
}

START_TEST(test_random)
{
    static const uint64_t limits[][2] = {{0, 1},           {1, 0},         {10, 10},  {1000, 70000},
                                         {200000, 100000}, {65536, 65536}, {70000, 1}};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct journal *journal = open_journal(limits[i][0], limits[i][1]);
        for (size_t round = 0; round < 30; round++) {
            uint64_t at = journal_received(journal);
            uint64_t back = random_below(4) == 0 ? random_below((size_t)at + 1) : 0;
            size_t len = 1 + random_below(random_below(2) == 0 ? 100 : 100000);
            cleanup_free char *data = output(at - back, len);
            append(journal, at - back, data, len);
            ck_assert_uint_eq(journal_received(journal), back >= len ? at : at - back + len);
            check_output(journal, limits[i][0], limits[i][1]);
            if (random_below(4) == 0) {
                journal_close(journal);
                journal = open_journal(5, 5);
                check_output(journal, limits[i][0], limits[i][1]);
            }
        }
        journal_close(journal);
        struct err err;
        ck_assert_int_eq(journal_remove(place.path, &err), 0);
    }
}
END_TEST

#define HEAD 30000
#define TAIL 50000

/* Appends for ever and tells FD the count after each call. */
static void append_until_killed(int fd)
{
    struct journal *journal = open_journal(HEAD, TAIL);
    for (;;) {
        uint64_t at = journal_received(journal);
        size_t len = 1 + (size_t)(at % 7919);
        cleanup_free char *data = output(at, len);
        struct err err;
        at += len;
        if (journal_append(journal, at - len, data, len, &err) < 0 ||
            write(fd, &at, sizeof(at)) != sizeof(at))
            _exit(1);
    }
}

START_TEST(test_killed)
{
    uint64_t last = 0;
    for (size_t round = 0; round < 25; round++) {
        int fds[2];
        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
            append_until_killed(fds[1]);
        ck_assert_int_gt(child, 0);
        close(fds[1]);
        for (size_t i = 0; i <= round; i++)
            ck_assert_int_eq(read(fds[0], &last, sizeof(last)), sizeof(last));
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        close(fds[0]);
        struct journal *journal = open_journal(HEAD, TAIL);
        ck_assert_uint_ge(journal_received(journal), last);
        check_output(journal, HEAD, TAIL);
        journal_close(journal);
    }
    ck_assert_uint_gt(last, HEAD + TAIL);
}
END_TEST

/* The kernel refuses to let the file grow over a limit, as a full disk does. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(test_full_disk)
{
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    cleanup_free char *data = output(0, 300000);
    static const rlim_t sizes[] = {0, 10, 40, 50000, 66000, 200000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct journal *journal = open_journal(HEAD, 250000);
        limit_files(sizes[i]);
        struct err err;
        ck_assert_int_eq(journal_append(journal, 0, data, 300000, &err), -1);
        limit_files(RLIM_INFINITY);
        ck_assert_int_eq(err.code, ERR_STORE_FULL);
        ck_assert_uint_le(journal_received(journal), sizes[i]);
        uint64_t received = journal_received(journal);
        check_output(journal, HEAD, 250000);
        /* what a server that starts now would see */
        struct journal *other = open_journal(HEAD, 250000);
        ck_assert_uint_eq(journal_received(other), received);
        check_output(other, HEAD, 250000);
        journal_close(other);
        append(journal, 0, data, 300000);
        ck_assert_uint_eq(journal_received(journal), 300000);
        check_output(journal, HEAD, 250000);
        journal_close(journal);
        ck_assert_int_eq(journal_remove(place.path, &err), 0);
    }
}
END_TEST

static void write_file(const void *data, size_t len)
{
    int fd = open(place.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
    close(fd);
}

START_TEST(test_files_that_are_not_whole)
{
    struct err err;
    struct journal *journal = NULL;
    write_file("this is something else, and long enough", 39);
    ck_assert_int_eq(journal_open(place.path, 10, 10, &journal, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
    ck_assert_ptr_null(journal);
    /* killed right after it was made */
    write_file("", 0);
    journal = open_journal(10, 10);
    ck_assert_uint_eq(journal_received(journal), 0);
    append(journal, 0, "abc", 3);
    assert_text(journal, 0, "abc");
    journal_close(journal);
    /* cut short by a power failure: within the head, and after the ring went round */
    journal = open_journal(10, 10);
    append(journal, 3, "defghij", 7);
    journal_close(journal);
    struct stat st;
    ck_assert_int_eq(stat(place.path, &st), 0);
    ck_assert_int_eq(truncate(place.path, st.st_size - 4), 0);
    journal = open_journal(10, 10);
    assert_text(journal, 0, "abcdef");
    cleanup_free char *data = output(0, 200000);
    append(journal, 6, data, 200000);
    journal_close(journal);
    ck_assert_int_eq(truncate(place.path, st.st_size + 5), 0);
    journal = open_journal(10, 10);
    ck_assert_uint_eq(journal_received(journal), 10);
    char head[11] = "";
    ck_assert_uint_eq(read_at(journal, 0, head, 10), 10);
    ck_assert_mem_eq(head, "abcdef", 6);
    ck_assert_mem_eq(head + 6, data, 4);
    journal_close(journal);
}
END_TEST

START_TEST(test_removed_and_links)
{
    struct err err;
    struct journal *journal = open_journal(10, 10);
    append(journal, 0, "abc", 3);
    ck_assert_int_eq(journal_remove(place.path, &err), 0);
    ck_assert_int_eq(journal_append(journal, 3, "def", 3, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
    ck_assert_int_eq(access(place.path, F_OK), -1);
    char data[3];
    size_t n;
    ck_assert_int_eq(journal_read(journal, 0, data, 3, &n, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
    journal_close(journal);
    /* a link is not followed */
    ck_assert_int_eq(symlink("/dev/null", place.path), 0);
    ck_assert_int_eq(journal_open(place.path, 10, 10, &journal, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("journal");
    TCase *tcase = tcase_create("journal");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_made_by_the_first_byte);
    tcase_add_test(tcase, test_sent_again_and_sent_too_early);
    tcase_add_test(tcase, test_head_and_tail);
    tcase_add_test(tcase, test_without_head_or_tail);
    tcase_add_test(tcase, test_random);
    tcase_add_test(tcase, test_killed);
    tcase_add_test(tcase, test_full_disk);
    tcase_add_test(tcase, test_files_that_are_not_whole);
    tcase_add_test(tcase, test_removed_and_links);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
