#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

START_TEST(test_clocks_go_forward)
{
    int64_t ms = clock_now_ms();
    int64_t us = clock_now_us();
    ck_assert_int_gt(ms, 0);
    ck_assert_int_ge(clock_now_ms(), ms);
    ck_assert_int_ge(clock_now_us(), us);
    time_t seconds = time(NULL);
    int64_t wall = clock_wall_ms();
    ck_assert_int_ge(wall, (int64_t)(seconds - 1) * 1000);
}
END_TEST

START_TEST(test_format)
{
    char text[TIME_TEXT_LEN];
    time_format(INT64_C(1796038478123), text);
    ck_assert_str_eq(text, "2026-11-30T11:34:38.123Z");
    time_format(0, text);
    ck_assert_str_eq(text, "1970-01-01T00:00:00.000Z");
    time_format(-1, text);
    ck_assert_str_eq(text, "1970-01-01T00:00:00.000Z");
    time_format(INT64_MAX, text);
    ck_assert_str_eq(text, "9999-12-31T23:59:59.999Z");
}
END_TEST

static const struct {
    const char *text;
    int64_t ms;
} times[] = {
    {"2026-11-30T11:34:38Z", INT64_C(1796038478000)},
    {"2026-11-30T11:34:38.123Z", INT64_C(1796038478123)},
    {"2026-11-30T11:34:38.123456789Z", INT64_C(1796038478123)},
    {"2026-11-30T11:34:38.1Z", INT64_C(1796038478100)},
    {"1970-01-01T00:00:00Z", 0},
    {"2024-02-29T00:00:00Z", INT64_C(1709164800000)},
    {"2000-02-29T23:59:59Z", INT64_C(951868799000)},
    {"9999-12-31T23:59:59.999Z", INT64_C(253402300799999)},
    {"2023-02-29T00:00:00Z", -1},
    {"2100-02-29T00:00:00Z", -1},
    {"0001-01-01T00:00:00Z", -1},
    {"1969-12-31T23:59:59Z", -1},
    {"2026-13-01T00:00:00Z", -1},
    {"2026-00-01T00:00:00Z", -1},
    {"2026-04-31T00:00:00Z", -1},
    {"2026-11-30T24:00:00Z", -1},
    {"2026-11-30T11:60:00Z", -1},
    {"2026-11-30T11:34:60Z", -1},
    {"2026-11-30 11:34:38Z", -1},
    {"2026-11-30T11:34:38", -1},
    {"2026-11-30T11:34:38.Z", -1},
    {"2026-11-30T11:34:38.1234567890Z", -1},
    {"2026-11-30T11:34:38+01:00", -1},
    {"2026-11-30T11:34:38Zx", -1},
    {"2026-11-30T11:34:38z", -1},
    {"2026-11-3 T11:34:38Z", -1},
    {"+026-11-30T11:34:38Z", -1},
    {"2026", -1},
    {"", -1},
    {NULL, -1},
};

START_TEST(test_parse)
{
    ck_assert_msg(time_parse(times[_i].text) == times[_i].ms, "'%s' gives %lld",
                  times[_i].text ? times[_i].text : "NULL", (long long)time_parse(times[_i].text));
}
END_TEST

START_TEST(test_round_trip)
{
    for (int64_t ms = 0; ms < INT64_C(253402300800000); ms += INT64_C(86400000) * 37 + 12345678) {
        char text[TIME_TEXT_LEN];
        time_format(ms, text);
        ck_assert_int_eq(time_parse(text), ms);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clock");
    TCase *tcase = tcase_create("clock");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_clocks_go_forward);
    tcase_add_test(tcase, test_format);
    tcase_add_loop_test(tcase, test_parse, 0, ARRAY_LEN(times));
    tcase_add_test(tcase, test_round_trip);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
