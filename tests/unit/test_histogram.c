#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/histogram.h"

static char *printed(const struct histogram *histogram)
{
    struct buf out = BUF_INIT(1 << 16);

    histogram_print(histogram, "it_seconds", "How long it took.", &out);
    return buf_take(&out, NULL);
}

/* Each bucket counts all that is not longer; one at a bound is in it. */
START_TEST(test_buckets)
{
    struct histogram histogram = {0};
    static const int64_t times[] = {-5, 0, 500, 501, 2500000, 2500001, INT64_C(9000000000)};

    for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++)
        histogram_add(&histogram, times[i]);
    char *text = printed(&histogram);
    ck_assert_ptr_eq(
        strstr(text, "# HELP it_seconds How long it took.\n# TYPE it_seconds histogram\n"), text);
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"0.0005\"} 3\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"0.001\"} 4\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"2.5\"} 5\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"5\"} 6\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"600\"} 6\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"+Inf\"} 7\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_sum 9005.001002\nit_seconds_count 7\n"));
    free(text);
}
END_TEST

START_TEST(test_empty)
{
    struct histogram histogram = {0};
    char *text = printed(&histogram);

    ck_assert_ptr_nonnull(strstr(text, "it_seconds_bucket{le=\"+Inf\"} 0\n"));
    ck_assert_ptr_nonnull(strstr(text, "it_seconds_sum 0.000000\nit_seconds_count 0\n"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("histogram");
    TCase *cases = tcase_create("all");

    tcase_add_test(cases, test_buckets);
    tcase_add_test(cases, test_empty);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
