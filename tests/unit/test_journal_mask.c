#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static struct scrubber *scrubber_of(const char *secret)
{
    struct text_list list = {0};
    text_list_add(&list, secret);
    struct scrubber *scrubber = scrubber_new(&list);
    text_list_done(&list);
    return scrubber;
}

static void note_nothing(void *arg, uint64_t from, uint64_t to)
{
    (void)arg;
    ck_assert_uint_lt(from, to);
}

static void mask(struct journal *journal, const struct scrubber *scrubber, uint64_t from)
{
    const struct journal_masking masking = {.scrubber = scrubber, .note = note_nothing};
    struct err err;
    ck_assert_msg(journal_mask(journal, &masking, from, &err) == 0, "%s", err.msg);
}

static void append_masked(struct journal *journal, uint64_t at, const void *data, size_t len,
                          const struct scrubber *scrubber)
{
    const struct journal_masking masking = {.scrubber = scrubber, .note = note_nothing};
    struct err err;
    ck_assert_msg(journal_append_masked(journal, at, data, len, &masking, &err) == 0, "%s",
                  err.msg);
}

START_TEST(test_mask)
{
    struct scrubber *scrubber = scrubber_of("secret");
    struct scrubber *nothing = scrubber_new(NULL);
    struct journal *journal = open_journal(20, 12);
    mask(journal, scrubber, 0);
    append(journal, 0, "secret sec", 10);
    mask(journal, nothing, 0);
    assert_text(journal, 0, "secret sec");
    mask(journal, scrubber, 0);
    assert_text(journal, 0, "****** sec");
    /* one that came in two pieces */
    append(journal, 10, "ret secre", 9);
    mask(journal, scrubber, 10);
    assert_text(journal, 0, "****** ****** secre");
    /* over the end of the head */
    append(journal, 19, "t 1secret", 9);
    mask(journal, scrubber, 19);
    assert_text(journal, 0, "****** ****** ****** 1******");
    /* what lies before FROM stays as it is */
    append(journal, 28, " secret", 7);
    mask(journal, scrubber, journal_received(journal));
    assert_text(journal, 0, "****** ****** ******");
    assert_text(journal, 23, "***** secret");
    mask(journal, scrubber, 0);
    assert_text(journal, 0, "****** ****** ******");
    assert_text(journal, 23, "***** ******");
    journal_close(journal);
    scrubber_unref(scrubber);
    scrubber_unref(nothing);
}
END_TEST

/* The head's end and the tail's begin are no neighbours. */
START_TEST(test_mask_beside_the_gap)
{
    struct scrubber *scrubber = scrubber_of("secret");
    struct journal *journal = open_journal(5, 5);
    append(journal, 0, "x sec-----------ret x", 21);
    mask(journal, scrubber, 0);
    assert_text(journal, 0, "x sec");
    assert_text(journal, 16, "ret x");
    journal_close(journal);
    scrubber_unref(scrubber);
}
END_TEST

/* The first is masked before the second is complete, and the second lies half in what was dropped.
 */
START_TEST(test_mask_overlapping)
{
    struct text_list list = {0};
    text_list_add(&list, "user:pass");
    text_list_add(&list, "pass@host");
    struct scrubber *scrubber = scrubber_new(&list);
    text_list_done(&list);
    struct journal *journal = open_journal(14, 14);
    append(journal, 0, "user:pass", 9);
    mask(journal, scrubber, 0);
    assert_text(journal, 0, "*********");
    append(journal, 9, "@host", 5);
    mask(journal, scrubber, 9);
    assert_text(journal, 0, "**************");
    append(journal, 14, "user:pa", 7);
    mask(journal, scrubber, 14);
    append(journal, 21, "ss and mor", 10);
    mask(journal, scrubber, 21);
    assert_text(journal, 17, "****** and mor");
    journal_close(journal);
    scrubber_unref(scrubber);
}
END_TEST

START_TEST(test_decoy)
{
    struct text_list list = {0};
    text_list_add(&list, "secret");
    text_list_add(&list, "decoy-value");
    struct scrubber *scrubber = scrubber_new_with_decoy(&list, "decoy-value");
    text_list_done(&list);
    struct journal *journal = open_journal(100, 100);
    ck_assert(!journal_saw_decoy(journal));
    append_masked(journal, 0, "a secret, decoy-valu", 20, scrubber);
    ck_assert(!journal_saw_decoy(journal));
    append_masked(journal, 20, "es: ZGVjb3ktdm", 14, scrubber);
    ck_assert(journal_saw_decoy(journal));
    assert_text(journal, 0, "a ******, ***********s: ZGVjb3ktdm");
    journal_close(journal);
    ck_assert_int_eq(unlink(place.path), 0);
    journal = open_journal(100, 100);
    append_masked(journal, 0, "encoded: ZGVjb3kt", 17, scrubber);
    append_masked(journal, 17, "dmFsdWU=", 8, scrubber);
    assert_text(journal, 0, "encoded: ****************");
    ck_assert(journal_saw_decoy(journal));
    journal_close(journal);
    scrubber_unref(scrubber);
}
END_TEST

/* Which bytes were noted as masked. */
static void note_bytes(void *arg, uint64_t from, uint64_t to)
{
    char *bytes = arg;
    memset(bytes + from, '*', to - from);
}

START_TEST(test_mask_noting)
{
    struct scrubber *scrubber = scrubber_of("secret");
    struct journal *journal = open_journal(30, 20);
    static const char *const parts[] = {
        "a secret, s", "ec", "ret;secretsecret s", "ecre", "t more than fits", "se", "cret"};
    char noted[100], text[100];
    struct journal_masking masking = {.scrubber = scrubber, .note = note_bytes, .arg = noted};
    memset(noted, '-', sizeof(noted));
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        size_t len = strlen(parts[i]);
        struct err err;
        memcpy(text + at, parts[i], len);
        ck_assert_int_eq(journal_append_masked(journal, at, parts[i], len, &masking, &err), 0);
        at += len;
    }
    scrubber_mask(scrubber, text, at);
    for (size_t i = 0; i < at; i++)
        ck_assert_int_eq(noted[i] == '*', text[i] == '*');
    /* from the start again, by another scrubber: what is masked already is no match
     */
    struct scrubber *again = scrubber_of("secret");
    memset(noted, '-', sizeof(noted));
    masking.scrubber = again;
    struct err err;
    ck_assert_int_eq(journal_mask(journal, &masking, 0, &err), 0);
    ck_assert_ptr_null(memchr(noted, '*', sizeof(noted)));
    journal_close(journal);
    scrubber_unref(scrubber);
    scrubber_unref(again);
}
END_TEST

/* What has been looked at, by which scrubber, and what of it is undecided. */
START_TEST(test_what_is_masked)
{
    struct scrubber *first = scrubber_of("secret"), *second = scrubber_of("hidden");
    struct journal *journal = open_journal(100, 100);
    size_t held = 99, firmly = 99;
    append(journal, 0, "a secret ", 9);
    ck_assert(!journal_is_masked(journal, first, 0, 9));
    ck_assert(!journal_held(journal, first, 9, &held, &firmly));
    append_masked(journal, 9, "a secret hid sec", 16, first);
    assert_text(journal, 0, "a secret a ****** hid sec");
    ck_assert(journal_is_masked(journal, first, 9, 25));
    ck_assert(!journal_is_masked(journal, first, 8, 25)); /* it began there only */
    ck_assert(!journal_is_masked(journal, first, 9, 26));
    ck_assert(!journal_is_masked(journal, second, 9, 25));
    ck_assert(journal_held(journal, first, 25, &held, &firmly));
    ck_assert_uint_eq(held, 3);
    ck_assert_uint_eq(firmly, 0);
    ck_assert(!journal_held(journal, first, 24, &held, &firmly));
    mask(journal, first, 0);
    assert_text(journal, 0, "a ****** a ****** hid sec");
    ck_assert(journal_is_masked(journal, first, 0, 25));
    append_masked(journal, 25, "re", 2, first);
    ck_assert(journal_held(journal, first, 27, &held, &firmly));
    ck_assert_uint_eq(held, 5);
    ck_assert_uint_eq(firmly, 5);
    append_masked(journal, 27, "t hidden", 8, second); /* the first one's is not its */
    assert_text(journal, 0, "a ****** a ****** hid secret ******");
    ck_assert(!journal_is_masked(journal, first, 27, 35));
    ck_assert(journal_is_masked(journal, second, 27, 35));
    ck_assert(!journal_is_masked(journal, second, 0, 35));
    mask(journal, second, 0);
    ck_assert(journal_is_masked(journal, second, 0, 35));
    journal_close(journal);
    scrubber_unref(first);
    scrubber_unref(second);
}
END_TEST

/* Appends and masks as a server does, against a text in memory that is masked as a whole. */
static void check_masking(uint64_t head_max, uint64_t tail_max, bool on_the_way)
{
    struct scrubber *scrubber = scrubber_of("abaabbab");
    size_t len = 400000;
    cleanup_free char *text = xmalloc(len);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)('a' + random_below(2));
    struct journal *journal = open_journal(head_max, tail_max);
    for (size_t at = 0; at < len;) {
        size_t part = 1 + random_below(60000);
        part = part < len - at ? part : len - at;
        if (on_the_way) {
            append_masked(journal, at, text + at, part, scrubber);
        } else {
            append(journal, at, text + at, part);
            mask(journal, scrubber, at);
        }
        at += part;
    }
    ck_assert_uint_gt(scrubber_mask(scrubber, text, len), 100);
    cleanup_free char *data = xmalloc(len);
    size_t n = read_at(journal, 0, data, len);
    ck_assert_uint_eq(n, head_max < len ? head_max : len);
    ck_assert_mem_eq(data, text, n);
    n = read_at(journal, len - tail_max, data, len);
    ck_assert_uint_eq(n, tail_max);
    ck_assert_mem_eq(data, text + len - tail_max, n);
    journal_close(journal);
    scrubber_unref(scrubber);
    struct err err;
    ck_assert_int_eq(journal_remove(place.path, &err), 0);
}

START_TEST(test_mask_random)
{
    for (int on_the_way = 0; on_the_way < 2; on_the_way++) {
        check_masking(1000000, 1000, on_the_way);
        check_masking(100000, 100000, on_the_way);
        check_masking(7, 65536, on_the_way);
        check_masking(65536, 150000, on_the_way);
        check_masking(1000, 0, on_the_way);
    }
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

#define SHARED_BYTES 400000

static void *read_along(void *arg)
{
    struct journal *journal = arg;
    char data[5000];
    uint64_t received = 0;
    while (received < SHARED_BYTES) {
        received = journal_received(journal);
        uint64_t from = 0, to = 0;
        uint64_t at = journal_has_gap(journal, &from, &to) ? to : 0;
        size_t n = 0;
        struct err err;
        /* the gap may have grown meanwhile */
        if (journal_read(journal, at, data, sizeof(data), &n, &err) < 0) {
            ck_assert_int_eq(err.code, ERR_RANGE_NOT_SATISFIABLE);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            if (data[i] != output_at(at + i) && data[i] != '*')
                ck_abort_msg("byte %llu is wrong", (unsigned long long)(at + i));
        }
    }
    return NULL;
}

START_TEST(test_threads)
{
    struct journal *journal = open_journal(10000, 20000);
    struct scrubber *scrubber = scrubber_of("\x01");
    pthread_t readers[2];
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        ck_assert_int_eq(pthread_create(&readers[i], NULL, read_along, journal), 0);
    for (uint64_t at = 0; at < SHARED_BYTES; at += 1000) {
        cleanup_free char *data = output(at, 1000);
        append_masked(journal, at, data, 1000, scrubber);
    }
    for (size_t i = 0; i < ARRAY_LEN(readers); i++)
        ck_assert_int_eq(pthread_join(readers[i], NULL), 0);
    scrubber_unref(scrubber);
    journal_close(journal);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("journal_mask");
    TCase *tcase = tcase_create("journal_mask");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_mask);
    tcase_add_test(tcase, test_mask_beside_the_gap);
    tcase_add_test(tcase, test_mask_overlapping);
    tcase_add_test(tcase, test_decoy);
    tcase_add_test(tcase, test_mask_noting);
    tcase_add_test(tcase, test_what_is_masked);
    tcase_add_test(tcase, test_mask_random);
    tcase_add_test(tcase, test_threads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
