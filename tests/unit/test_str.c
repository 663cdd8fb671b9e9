#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

START_TEST(test_slices)
{
    ck_assert(str_eq(STR("abc"), str_of("abc")));
    ck_assert(!str_eq(STR("abc"), STR("abd")));
    ck_assert(!str_eq(STR("abc"), STR("ab")));
    ck_assert(str_eq(str_of(NULL), STR("")));
    ck_assert(str_is(STR("GET"), "GET"));
    ck_assert(!str_is(STR("GET"), "GETS"));
    ck_assert(str_starts("podsandbox.dev/x", "podsandbox.dev/"));
    ck_assert(!str_starts("pod", "podsandbox"));
    ck_assert(str_ends("a.tar", ".tar"));
    ck_assert(!str_ends("tar", ".tar"));
    ck_assert(str_ends("x", ""));
}
END_TEST

START_TEST(test_to_u64)
{
    static const struct {
        const char *text;
        uint64_t max;
        bool good;
        uint64_t value;
    } cases[] = {
        {"0", 10, true, 0},
        {"007", 10, true, 7},
        {"10", 10, true, 10},
        {"11", 10, false, 0},
        {"5", 4, false, 0},
        {"", 10, false, 0},
        {"-1", 10, false, 0},
        {"+1", 10, false, 0},
        {" 1", 10, false, 0},
        {"1 ", 10, false, 0},
        {"1x", 100, false, 0},
        {"18446744073709551615", UINT64_MAX, true, UINT64_MAX},
        {"18446744073709551616", UINT64_MAX, false, 0},
        {"99999999999999999999", UINT64_MAX, false, 0},
        {"184467440737095516150", UINT64_MAX, false, 0},
        {"9223372036854775808", INT64_MAX, false, 0},
        {"0", 0, true, 0},
        {"1", 0, false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t value = 77;
        bool good = str_to_u64(str_of(cases[i].text), cases[i].max, &value);
        ck_assert_msg(good == cases[i].good, "'%s'", cases[i].text);
        ck_assert_uint_eq(value, good ? cases[i].value : 77);
    }
}
END_TEST

#define NOT UINT64_MAX /* refused */

static const struct quantity_case {
    const char *text;
    uint64_t milli;
    uint64_t bytes;
} quantities[] = {
    {"2", 2000, 2},
    {"250m", 250, 1},
    {"1.5", 1500, 2},
    {".5", 500, 1},
    {"5.", 5000, 5},
    {"0", 0, 0},
    {"0m", 0, 0},
    {"0.000000000000000001", 1, 1},
    {"1n", 1, 1},
    {"1u", 1, 1},
    {"1500u", 2, 1},
    {"1k", 1000000, 1000},
    {"2Gi", UINT64_C(2147483648000), UINT64_C(2147483648)},
    {"0.5Gi", UINT64_C(536870912000), 536870912},
    {"1.1Ki", 1126400, 1127},
    {"1G", UINT64_C(1000000000000), 1000000000},
    {"100e3", 100000000, 100000},
    {"1E3", 1000000, 1000},
    {"1e+20", NOT, NOT},
    {"15e-1", 1500, 2},
    {"1E", NOT, UINT64_C(1000000000000000000)},
    {"7Ei", NOT, UINT64_C(8070450532247928832)},
    {"8Ei", NOT, NOT},
    {"9223372036854775807", NOT, NOT}, /* 19 digits */
    {"999999999999999999", NOT, UINT64_C(999999999999999999)},
    {"0e30", 0, 0},
    {"1e31", NOT, NOT},
    {"1e99999999999999999999", NOT, NOT},
    {"", NOT, NOT},
    {".", NOT, NOT},
    {"m", NOT, NOT},
    {"-1", NOT, NOT},
    {"+1", NOT, NOT},
    {" 1", NOT, NOT},
    {"1 ", NOT, NOT},
    {"1K", NOT, NOT},
    {"1gi", NOT, NOT},
    {"1Gib", NOT, NOT},
    {"1.2.3", NOT, NOT},
    {"1e", NOT, NOT},
    {"1e+", NOT, NOT},
    {"1ei", NOT, NOT},
    {"0x10", NOT, NOT},
    {"1,5", NOT, NOT},
    {"inf", NOT, NOT},
};

START_TEST(test_quantities)
{
    const struct quantity_case *c = &quantities[_i];
    uint64_t milli = NOT;
    uint64_t bytes = NOT;
    ck_assert_msg(str_to_milli(c->text, &milli) == (c->milli != NOT), "milli of '%s'", c->text);
    ck_assert_msg(str_to_bytes(c->text, &bytes) == (c->bytes != NOT), "bytes of '%s'", c->text);
    ck_assert_uint_eq(milli, c->milli);
    ck_assert_uint_eq(bytes, c->bytes);
}
END_TEST

/* The definition, written the slow way: one code point and its shortest form. */
static bool is_character(uint32_t bytes, size_t width)
{
    static const uint32_t first[] = {0, 0x80, 0x800, 0x10000};
    unsigned char b[4];
    for (size_t i = 0; i < width; i++)
        b[i] = (unsigned char)(bytes >> (8 * (width - 1 - i)));
    uint32_t point = width == 1 ? b[0] : (uint32_t)b[0] & (0x7FU >> width);
    uint32_t mark = width == 1 ? 0 : (0xF00U >> width) & 0xFF;
    uint32_t mask = width == 1 ? 0x80 : (0xFF80U >> width) & 0xFF;
    if ((b[0] & mask) != mark)
        return false;
    for (size_t i = 1; i < width; i++) {
        if ((b[i] & 0xC0) != 0x80)
            return false;
        point = point << 6 | (b[i] & 0x3F);
    }
    return point >= first[width - 1] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
}

/* Every sequence of one to three bytes, and every fourth-byte class of those of four. */
START_TEST(test_utf8_width_of_all_sequences)
{
    for (size_t width = 1; width <= 4; width++) {
        uint32_t step = width == 4 ? 0x3F : 1;
        uint64_t last = width == 4 ? 0xF8000000U : (UINT64_C(1) << (8 * width)) - 1;
        uint64_t first = width == 4 ? 0xEFFF0000U : 0;
        for (uint64_t bytes = first; bytes <= last; bytes += step) {
            char text[4];
            for (size_t i = 0; i < width; i++)
                text[i] = (char)(bytes >> (8 * (width - 1 - i)));
            bool is = utf8_width(text, width) == width;
            if (is != is_character((uint32_t)bytes, width))
                ck_abort_msg("%zu bytes %08llx", width, (unsigned long long)bytes);
        }
    }
    ck_assert_uint_eq(utf8_width("", 0), 0);
}
END_TEST

START_TEST(test_utf8_valid)
{
    ck_assert(utf8_valid("", 0));
    ck_assert(utf8_valid("a\0b", 3));
    ck_assert(utf8_valid("plain ascii of more than eight bytes", 36));
    ck_assert(utf8_valid("12345678\xC3\xA9"
                         "12345678",
                         18));
    ck_assert(!utf8_valid("12345678\xC3", 9));
    ck_assert(!utf8_valid("1234567\xFF", 8));
    ck_assert(!utf8_valid("\xED\xA0\x80", 3));
    ck_assert(!utf8_valid("\xC0\xAF", 2));
    ck_assert(!utf8_valid("\xF4\x90\x80\x80", 4));
    ck_assert(utf8_valid("\xF0\x9F\x98\x80", 4));
}
END_TEST

START_TEST(test_utf8_partial_tail)
{
    static const struct {
        const char *text;
        size_t tail;
    } cases[] = {
        {"", 0},
        {"abc", 0},
        {"a\xC3", 1},
        {"a\xC3\xA9", 0},
        {"a\xE2", 1},
        {"a\xE2\x82", 2},
        {"a\xE2\x82\xAC", 0},
        {"\xF0\x9F\x98", 3},
        {"\xF0\x9F", 2},
        {"\xF0", 1},
        {"a\xFF", 0}, /* begins nothing */
        {"a\x80", 0}, /* belongs to nothing */
        {"\x80\x80\x80\x80", 0},
        {"\xE0\x80", 0}, /* would be overlong */
        {"\xED\xA0", 0}, /* would be a surrogate */
        {"\xC3\xC3", 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t len = strlen(cases[i].text);
        ck_assert_msg(utf8_partial_tail(cases[i].text, len) == cases[i].tail, "case %zu", i);
    }
}
END_TEST

START_TEST(test_printable)
{
    ck_assert(str_is_printable("h\xC3\xA9llo \xE6\x97\xA5", 10));
    ck_assert(str_is_printable("", 0));
    ck_assert(str_is_printable("\xC2\xA0", 2));
    ck_assert(!str_is_printable("a\nb", 3));
    ck_assert(!str_is_printable("a\tb", 3));
    ck_assert(!str_is_printable("a\0b", 3));
    ck_assert(!str_is_printable("\x7F", 1));
    ck_assert(!str_is_printable("\x1B[0m", 4));
    ck_assert(!str_is_printable("\xC2\x9B", 2)); /* CSI as one character */
    ck_assert(!str_is_printable("\xFF", 1));
}
END_TEST

START_TEST(test_token)
{
    ck_assert(str_is_token("Content-Length"));
    ck_assert(str_is_token("x!#$%&'*+-.^_`|~9"));
    ck_assert(!str_is_token(""));
    ck_assert(!str_is_token("a b"));
    ck_assert(!str_is_token("a:"));
    ck_assert(!str_is_token("a\r\n"));
    ck_assert(!str_is_token("\xC3\xA9"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("str");
    TCase *tcase = tcase_create("str");
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, test_slices);
    tcase_add_test(tcase, test_to_u64);
    tcase_add_loop_test(tcase, test_quantities, 0, ARRAY_LEN(quantities));
    tcase_add_test(tcase, test_utf8_width_of_all_sequences);
    tcase_add_test(tcase, test_utf8_valid);
    tcase_add_test(tcase, test_utf8_partial_tail);
    tcase_add_test(tcase, test_printable);
    tcase_add_test(tcase, test_token);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
