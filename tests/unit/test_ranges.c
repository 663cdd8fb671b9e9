#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/ranges.h"

static struct ranges parse(const char *text)
{
    struct ranges ranges = {0};
    ck_assert(ranges_parse(text, &ranges));
    return ranges;
}

static void check(const struct ranges *ranges, const char *expected)
{
    cleanup_free char *text = ranges_text(ranges);
    ck_assert_str_eq(text, expected);
}

START_TEST(test_add)
{
    struct ranges ranges = {0};
    check(&ranges, "");
    ck_assert(ranges_add(&ranges, 5, 5));
    ck_assert(ranges_add(&ranges, 5, 7));
    ck_assert(ranges_add(&ranges, 7, 9));  /* touches */
    ck_assert(ranges_add(&ranges, 6, 8));  /* inside */
    ck_assert(ranges_add(&ranges, 8, 10)); /* over the end */
    ck_assert(ranges_add(&ranges, 11, 12));
    check(&ranges, "5-10 11-12");
    ranges_done(&ranges);
    for (uint64_t i = 0; i < RANGES_MAX; i++)
        ck_assert(ranges_add(&ranges, 3 * i, 3 * i + 1));
    ck_assert(!ranges_add(&ranges, UINT64_C(3) * RANGES_MAX, UINT64_C(3) * RANGES_MAX + 1));
    ck_assert_uint_eq(ranges.count, RANGES_MAX);
    struct ranges copy;
    ranges_copy(&copy, &ranges);
    ck_assert_uint_eq(copy.count, RANGES_MAX);
    ck_assert_mem_eq(copy.items, ranges.items, RANGES_MAX * sizeof(ranges.items[0]));
    cleanup_free char *text = ranges_text(&ranges);
    struct ranges again = parse(text);
    ck_assert_uint_eq(again.count, RANGES_MAX);
    ranges_done(&again);
    ranges_done(&copy);
    ranges_done(&ranges);
}
END_TEST

START_TEST(test_parse)
{
    static const char *const bad[] = {"1",
                                      "1-",
                                      "-1",
                                      "2-1",
                                      "1-1",
                                      "1-2 ",
                                      "x",
                                      "1-2,",
                                      "1 -2",
                                      "1-2  3-4",
                                      "99999999999999999999-2"};
    struct ranges ranges = parse(NULL);
    ck_assert_uint_eq(ranges.count, 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        bool good = ranges_parse(bad[i], &ranges);
        /* A space at the end is no harm. */
        ck_assert_msg(good == (strcmp(bad[i], "1-2 ") == 0), "'%s'", bad[i]);
        if (good)
            ranges_done(&ranges);
    }
}
END_TEST

START_TEST(test_merge)
{
    static const struct {
        const char *a, *b, *both;
    } cases[] = {
        {"", "", ""},
        {"1-2", "", "1-2"},
        {"", "1-2", "1-2"},
        {"1-3 8-9", "2-5 20-30", "1-5 8-9 20-30"},
        {"1-10", "2-3 4-5", "1-10"},
        {"5-6", "1-2 6-7", "1-2 5-7"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ranges a = parse(cases[i].a), b = parse(cases[i].b);
        ranges_merge(&a, &b);
        check(&a, cases[i].both);
        ranges_done(&a);
        ranges_done(&b);
    }
}
END_TEST

/* Against the plain definition: a byte after another. */
START_TEST(test_squeeze_and_expand)
{
    struct ranges lost = parse("0-3 5-6 10-15 15-16");
    uint64_t offset = 0, got;
    for (uint64_t at = 0; at < 30; at++) {
        bool missing = at < 3 || at == 5 || (at >= 10 && at < 16);
        ck_assert_int_eq(ranges_squeeze(&lost, at, &got), !missing);
        if (missing)
            continue;
        ck_assert_uint_eq(got, offset);
        ck_assert_uint_eq(ranges_expand(&lost, offset, true), at);
        offset++;
    }
    /* As an end: what is lost at that very place is not before it. */
    ck_assert_uint_eq(ranges_expand(&lost, 0, false), 0);
    ck_assert_uint_eq(ranges_expand(&lost, 2, false), 5);
    ck_assert_uint_eq(ranges_expand(&lost, 2, true), 6);
    ranges_done(&lost);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ranges");
    TCase *tcase = tcase_create("ranges");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_add);
    tcase_add_test(tcase, test_parse);
    tcase_add_test(tcase, test_merge);
    tcase_add_test(tcase, test_squeeze_and_expand);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
