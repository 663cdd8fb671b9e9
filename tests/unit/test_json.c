#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"

static int parse(const char *text, size_t len, enum json_strictness strictness)
{
    /* Of its exact size, so that a sanitizer sees a read behind the end. */
    cleanup_free char *exact = xmalloc(len);
    if (len > 0)
        memcpy(exact, text, len);
    struct err err = {.code = ERR_NONE};
    cleanup_json struct json *json = NULL;
    int rc = json_parse(exact, len, strictness, &json, &err);
    ck_assert((rc == 0) == (json != NULL));
    ck_assert(rc == 0 || err.code == ERR_INVALID_JSON);
    ck_assert(rc < 0 || err.code == ERR_NONE);
    return rc;
}

static struct json *parsed(const char *text)
{
    struct json *json = NULL;
    struct err err = {.msg = ""};
    int rc = json_parse(text, strlen(text), JSON_STRICT, &json, &err);
    ck_assert_msg(rc == 0, "%s: %s", text, err.msg);
    return json;
}

static void check_printed(const struct json *json, const char *expected)
{
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    ck_assert(json_print(json, &out));
    ck_assert_str_eq(buf_text(&out), expected);
    ck_assert_int_eq(parse(out.ptr, out.len, JSON_STRICT), 0);
}

#define TEXT(literal) (literal), sizeof(literal) - 1

static const struct {
    const char *text;
    size_t len;
} refused[] = {
    /* B13: what cJSON takes */
    {TEXT("{\"p\":\"/ok\\u0000/../etc\"}")},
    {TEXT("\"\\uZZZZ\"")},
    {TEXT("\"\\u12\"")},
    {TEXT("\"\\u\"")},
    {TEXT("\"\\u123")},
    {TEXT("\"\\u+123\"")},
    {TEXT("{\"a\":1}xyz")},
    {TEXT("{\"a\":1}{}")},
    {TEXT("{\"a\":1}\0")},
    {TEXT("{\"a\":1,\"a\":2}")},
    {TEXT("{\"a\":1,\"\\u0061\":2}")},
    {TEXT("[{\"x\":{\"b\":1,\"c\":2,\"b\":1}}]")},
    {TEXT("1e999")},
    {TEXT("[-1e999]")},
    {TEXT("007")},
    {TEXT("-007")},
    {TEXT("00")},
    {TEXT("1.")},
    {TEXT("1.e5")},
    {TEXT(".5")},
    {TEXT("+1")},
    {TEXT("-")},
    {TEXT("--1")},
    {TEXT("1e")},
    {TEXT("1e+")},
    {TEXT("0x10")},
    {TEXT("1.2.3")},
    {TEXT("NaN")},
    {TEXT("Infinity")},
    {TEXT("-Infinity")},
    {TEXT("1000000000000000000000000000000000000000000000000000000000000000")},
    {TEXT("\"a\nb\"")},
    {TEXT("\"a\tb\"")},
    {TEXT("\"a\0b\"")},
    {TEXT("\"a\x1F\"")},
    {TEXT("\xEF\xBB\xBF{}")},
    {TEXT("\"\xFF\"")},
    {TEXT("\"\xC0\xAF\"")},
    {TEXT("\"\xED\xA0\x80\"")},
    {TEXT("\"\xC3\"")},
    {TEXT("{\"\xFF\":1}")},
    {TEXT("\"\\ud800\"")},
    {TEXT("\"\\udc00\"")},
    {TEXT("\"\\ud800\\u0041\"")},
    {TEXT("\"\\ud800\\n12345\"")},
    {TEXT("\"\\ud800\\udbff\"")},
    {TEXT("\"\\ud800\\u")},
    /* and the rest of the grammar */
    {TEXT("")},
    {TEXT("   ")},
    {TEXT("\0")},
    {TEXT("{")},
    {TEXT("[")},
    {TEXT("]")},
    {TEXT("[1,]")},
    {TEXT("[,1]")},
    {TEXT("[1 2]")},
    {TEXT("[1}")},
    {TEXT("[1\0]")},
    {TEXT("{\"a\":1]")},
    {TEXT("{\"a\":1,}")},
    {TEXT("{\"a\"}")},
    {TEXT("{\"a\":}")},
    {TEXT("{\"a\" 1}")},
    {TEXT("{a:1}")},
    {TEXT("{1:1}")},
    {TEXT("{'a':1}")},
    {TEXT("{,}")},
    {TEXT("tru")},
    {TEXT("TRUE")},
    {TEXT("nul")},
    {TEXT("truefalse")},
    {TEXT("\"abc")},
    {TEXT("\"abc\\")},
    {TEXT("\"abc\\\"")},
    {TEXT("\"\\x41\"")},
    {TEXT("\"\\\0\"")},
    {TEXT("\"\\'\"")},
    {TEXT("[1]\f")},
    {TEXT("// c\n1")},
    {TEXT("[1] // c")},
    {TEXT("[\xC2\xA0]")},
};

START_TEST(test_strict_refuses)
{
    ck_assert_msg(parse(refused[_i].text, refused[_i].len, JSON_STRICT) < 0, "taken: %s",
                  refused[_i].text);
}
END_TEST

static const struct {
    const char *text;
    size_t len;
    const char *printed; /* NULL: as it came */
} accepted[] = {
    {TEXT("{}"), NULL},
    {TEXT("[]"), NULL},
    {TEXT(" \t\r\n[ 1 , 2 ] \n"), "[1,2]"},
    {TEXT("{ \"a\" : { \"a\" : [ ] } }"), "{\"a\":{\"a\":[]}}"},
    {TEXT("null"), NULL},
    {TEXT("true"), NULL},
    {TEXT("\"\""), NULL},
    {TEXT("{\"\":1}"), NULL},
    {TEXT("{\"Image\":\"A\",\"image\":\"B\"}"), NULL},
    {TEXT("\"\\u00e9\\uD83D\\uDE00\""), "\"\xC3\xA9\xF0\x9F\x98\x80\""},
    {TEXT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\""), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\""},
    {TEXT("\"\x7F\xC2\x80\""), NULL},
    {TEXT("[0,-0,0.0,-1,3000000000,-1.9]"), "[0,0,0,-1,3000000000,-1.9]"},
    {TEXT("[9007199254740993,-9007199254740993]"), NULL},
    {TEXT("[1234567890123460,9007199254740992]"), NULL},
    {TEXT("[9223372036854775807,-9223372036854775808]"), NULL},
    {TEXT("[123456789012345678901234567890]"), NULL},
    {TEXT("[0.1,1e-7,1.7976931348623157e+308,5e-324]"),
     "[0.1,1e-07,1.7976931348623157e+308,4.94065645841247e-324]"},
    {TEXT("[1E3,1e+3,12e-1]"), "[1000,1000,1.2]"},
    {TEXT("[0.30000000000000004]"), NULL},
    {TEXT("[\"12345678901234567,\\\"1\",{\"9\\\\\":[9007199254740993]},1.5,9007199254740995]"),
     NULL},
};

START_TEST(test_strict_accepts)
{
    struct json *json = NULL;
    struct err err;
    int rc = json_parse(accepted[_i].text, accepted[_i].len, JSON_STRICT, &json, &err);
    ck_assert_msg(rc == 0, "refused: %s", accepted[_i].text);
    check_printed(json, accepted[_i].printed ? accepted[_i].printed : accepted[_i].text);
    json_free(json);
}
END_TEST

/* Every beginning of a text that is one JSON value only as a whole. */
START_TEST(test_cut_anywhere)
{
    static const char text[] = "{\"a\":[1,-2.5e3,\"x\\n\\u00e9\xC3\xA9\\ud83d\\ude00\",true,null]}";
    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        ck_assert_int_lt(parse(text, len, JSON_STRICT), 0);
        ck_assert_int_lt(parse(text, len, JSON_LENIENT), 0);
    }
    ck_assert_int_eq(parse(text, sizeof(text) - 1, JSON_STRICT), 0);
}
END_TEST

static int parse_nested(size_t depth, enum json_strictness strictness)
{
    cleanup_buf struct buf text = BUF_INIT(MIB);
    for (size_t i = 0; i < depth; i++)
        buf_append_str(&text, i % 2 ? "{\"a\":" : "[");
    buf_append_char(&text, '1');
    for (size_t i = depth; i > 0; i--)
        buf_append_char(&text, i % 2 ? ']' : '}');
    return parse(text.ptr, text.len, strictness);
}

START_TEST(test_depth)
{
    ck_assert_int_eq(parse_nested(CAP_JSON_DEPTH, JSON_STRICT), 0);
    ck_assert_int_lt(parse_nested(CAP_JSON_DEPTH + 1, JSON_STRICT), 0);
    ck_assert_int_eq(parse_nested(CAP_PEER_DEPTH, JSON_LENIENT), 0);
    ck_assert_int_lt(parse_nested(CAP_PEER_DEPTH + 1, JSON_LENIENT), 0);
    cleanup_buf struct buf text = BUF_INIT(MIB);
    for (int i = 0; i < 200000; i++)
        buf_append_char(&text, '[');
    ck_assert_int_lt(parse(text.ptr, text.len, JSON_STRICT), 0);
    ck_assert_int_lt(parse(text.ptr, text.len, JSON_LENIENT), 0);
}
END_TEST

static int parse_zeroes(size_t count)
{
    cleanup_buf struct buf text = BUF_INIT(12 * MIB);
    buf_append_str(&text, "[0");
    for (size_t i = 1; i < count; i++)
        buf_append_str(&text, ",0");
    buf_append_char(&text, ']');
    return parse(text.ptr, text.len, JSON_STRICT);
}

/* A value takes some 80 bytes but two in a body: their number is bounded of its own. */
START_TEST(test_values)
{
    ck_assert_int_eq(parse_zeroes(CAP_JSON_VALUES - 1), 0); /* and the list itself */
    ck_assert_int_lt(parse_zeroes(CAP_JSON_VALUES), 0);
}
END_TEST

START_TEST(test_many_names)
{
    cleanup_buf struct buf text = BUF_INIT(4 * MIB);
    for (int i = 0; i < 50000; i++)
        buf_printf(&text, "%s\"%d\":0", i ? "," : "{", i);
    size_t before = text.len;
    buf_append_str(&text, "}");
    ck_assert_int_eq(parse(text.ptr, text.len, JSON_STRICT), 0);
    text.len = before;
    buf_append_str(&text, ",\"25000\":0}");
    ck_assert_int_lt(parse(text.ptr, text.len, JSON_STRICT), 0);
}
END_TEST

START_TEST(test_lenient)
{
    static const char text[] = "{\"a\":1,\"b\":\"\xFFz\",\"a\":2,\"c\":\"x\\u0000y\"}";
    cleanup_json struct json *json = NULL;
    struct err err;
    ck_assert_int_eq(json_parse(text, sizeof(text) - 1, JSON_LENIENT, &json, &err), 0);
    ck_assert_int_eq(json_get_int(json, "a", 0), 1);
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    ck_assert(json_print(json, &out));
    ck_assert_ptr_nonnull(strstr(buf_text(&out), "\"b\":\"\xEF\xBF\xBDz\""));
    static const char *const bad[] = {"{\"a\":1}x", "007",   "\"\\uZZZZ\"",
                                      "\"\n\"",     "1e999", "[1,]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(parse(bad[i], strlen(bad[i]), JSON_LENIENT) < 0, "%s", bad[i]);
}
END_TEST

START_TEST(test_error_names_the_place)
{
    struct json *json = NULL;
    struct err err;
    ck_assert_int_lt(json_parse("[1,x]", 5, JSON_STRICT, &json, &err), 0);
    ck_assert_str_eq(err.msg, "not valid JSON: expected a value at byte 3");
    ck_assert_int_lt(json_parse("{\"k\":1,\"k\":1}", 13, JSON_STRICT, &json, &err), 0);
    ck_assert_str_eq(err.msg, "the name 'k' appears twice in one object");
    ck_assert_ptr_null(json);
}
END_TEST

START_TEST(test_reading)
{
    cleanup_json struct json *json =
        parsed("{\"metadata\":{\"name\":\"n\",\"big\":9007199254740993},"
               "\"list\":[1,\"two\",false],\"t\":true,\"n\":null,\"half\":0.5,\"five\":5.0,"
               "\"huge\":123456789012345678901234567890,\"1e20\":1e20}");
    ck_assert_str_eq(json_text(json_path(json, "metadata.name")), "n");
    ck_assert_ptr_null(json_path(json, "metadata.nam"));
    ck_assert_ptr_null(json_path(json, "metadata.name.x"));
    ck_assert_ptr_null(json_path(json, "metadata."));
    ck_assert_ptr_eq(json_path(json, "list"), json_get(json, "list"));
    const struct json *metadata = json_get(json, "metadata");
    ck_assert_int_eq(json_get_int(metadata, "big", 0), INT64_C(9007199254740993));
    ck_assert_int_eq(json_get_int(json, "half", -7), -7);
    ck_assert_int_eq(json_get_int(json, "five", -7), 5);
    ck_assert_int_eq(json_get_int(json, "huge", -7), -7);
    ck_assert_int_eq(json_get_int(json, "1e20", -7), -7);
    ck_assert_int_eq(json_get_int(json, "t", -7), -7);
    const struct json *list = json_get(json, "list");
    ck_assert_uint_eq(json_count(list), 3);
    ck_assert_str_eq(json_text(json_at(list, 1)), "two");
    ck_assert_ptr_null(json_at(list, 3));
    ck_assert_ptr_null(json_at(list, SIZE_MAX));
    ck_assert_ptr_null(json_at(json, 0));
    ck_assert(json_get_bool(json, "t", false));
    ck_assert(json_get_bool(json, "n", true));
    ck_assert(json_is_null(json_get(json, "n")));
    ck_assert(!json_is_null(json_get(json, "absent")));
    ck_assert_ptr_null(json_get_text(json, "t"));
    ck_assert(json_is_array(list) && json_is_object(metadata));
    ck_assert(json_is_string(json_at(list, 1)) && !json_is_string(list));
    size_t walked = 0;
    for (const struct json *item = json_first(json); item; item = json_next(item))
        walked += strlen(json_key(item));
    ck_assert_uint_eq(walked, strlen("metadatalisttnhalffivehuge1e20"));
}
END_TEST

START_TEST(test_reading_nothing)
{
    cleanup_json struct json *text = parsed("\"text\"");
    const struct json *const values[] = {NULL, text};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        ck_assert_ptr_null(json_get(values[i], "a"));
        ck_assert_ptr_null(json_path(values[i], "a.b"));
        ck_assert_ptr_null(json_at(values[i], 0));
        ck_assert_ptr_null(json_first(values[i]));
        ck_assert_uint_eq(json_count(values[i]), 0);
        ck_assert_ptr_null(json_get_text(values[i], "a"));
        ck_assert_int_eq(json_get_int(values[i], "a", 3), 3);
        ck_assert(json_get_bool(values[i], "a", true));
        ck_assert(!json_is_object(values[i]) && !json_is_array(values[i]));
        ck_assert(!json_is_null(values[i]));
    }
    ck_assert_ptr_null(json_next(NULL));
    ck_assert_ptr_null(json_key(NULL));
    ck_assert_ptr_null(json_text(NULL));
    json_free(NULL);
}
END_TEST

START_TEST(test_building)
{
    cleanup_json struct json *json = json_new_object();
    json_set_text(json, "text", "a\"b");
    json_set_text(json, "none", NULL);
    json_set_textn(json, "part", "abcdef", 3);
    json_set_textn(json, "empty", NULL, 0);
    json_set_bool(json, "yes", true);
    json_set_null(json, "null");
    json_set_number(json, "half", 0.5);
    json_set_number(json, "nan", NAN);
    json_set_number(json, "inf", INFINITY);
    json_set_time(json, "never", 0);
    json_set_time(json, "time", INT64_C(1796038478123));
    json_set_int(json_set_object(json, "object"), "a", 1);
    struct json *array = json_set_array(json, "array");
    json_add_text(array, "x");
    json_add(array, json_new_array());
    json_set(json, "given", json_new_object());
    check_printed(json, "{\"text\":\"a\\\"b\",\"none\":null,\"part\":\"abc\",\"empty\":\"\","
                        "\"yes\":true,\"null\":null,\"half\":0.5,\"nan\":null,\"inf\":null,"
                        "\"never\":null,\"time\":\"2026-11-30T11:34:38.123Z\","
                        "\"object\":{\"a\":1},\"array\":[\"x\",[]],\"given\":{}}");
    cleanup_json struct json *copy = json_copy(json);
    json_add_text(array, "only in the first");
    ck_assert_uint_eq(json_count(json_get(copy, "array")), 2);
}
END_TEST

static const int64_t integers[] = {
    0,
    -1,
    INT32_MAX,
    INT64_C(3000000000),
    INT64_C(1234567890123460),
    INT64_C(1099511627776),    /* 1 TiB */
    INT64_C(1796038478123456), /* an epoch in microseconds */
    (INT64_C(1) << 53) - 1,
    INT64_C(1) << 53,
    (INT64_C(1) << 53) + 1,
    -(INT64_C(1) << 53) - 1,
    INT64_MAX,
    INT64_MAX - 1,
    INT64_MIN,
    INT64_MIN + 1,
};

START_TEST(test_integers_round_trip)
{
    cleanup_json struct json *json = json_new_object();
    json_set_int(json, "i", integers[_i]);
    cleanup_free char *expected = xasprintf("{\"i\":%lld}", (long long)integers[_i]);
    check_printed(json, expected);
    ck_assert_int_eq(json_get_int(json, "i", 77), integers[_i]);
    cleanup_json struct json *copy = json_copy(json);
    check_printed(copy, expected);
    cleanup_json struct json *back = parsed(expected);
    ck_assert_int_eq(json_get_int(back, "i", 77), integers[_i]);
}
END_TEST

START_TEST(test_print_is_always_json)
{
    static const struct {
        const char *text;
        size_t len;
        const char *printed;
    } cases[] = {
        {TEXT("\377\376a\300\257"), "\"\xEF\xBF\xBD\xEF\xBF\xBD"
                                    "a\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {TEXT("a\0b"), "\"a\\u0000b\""},
        {TEXT("\0"), "\"\\u0000\""},
        {TEXT("\xE2\x82"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {TEXT("\x1B[0m\x7F"), "\"\\u001b[0m\x7F\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_json struct json *json = json_new_object();
        json_set_textn(json, "s", cases[i].text, cases[i].len);
        cleanup_free char *expected = xasprintf("{\"s\":%s}", cases[i].printed);
        cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
        ck_assert(json_print(json, &out));
        ck_assert_str_eq(buf_text(&out), expected);
        cleanup_json struct json *copy = json_copy(json);
        buf_reset(&out);
        ck_assert(json_print(copy, &out));
        ck_assert_str_eq(buf_text(&out), expected);
        ck_assert_int_eq(parse(out.ptr, out.len, JSON_LENIENT), 0);
    }
    cleanup_json struct json *json = json_new_object();
    json_set_text(json, "\xFF\n", "v");
    check_printed(json, "{\"\xEF\xBF\xBD\\n\":\"v\"}");
}
END_TEST

START_TEST(test_print_into_little_room)
{
    cleanup_json struct json *json = parsed("{\"a\":[1,\"x\\n\",null,{\"b\":0.5}],\"c\":true}");
    cleanup_buf struct buf whole = BUF_INIT(CAP_SMALL);
    ck_assert(json_print(json, &whole));
    for (size_t max = 0; max <= whole.len; max++) {
        cleanup_buf struct buf out = BUF_INIT(max);
        ck_assert(json_print(json, &out) == (max == whole.len));
        cleanup_buf struct buf sorted = BUF_INIT(max);
        ck_assert(json_print_canonical(json, &sorted) == (max == whole.len));
    }
}
END_TEST

START_TEST(test_canonical)
{
    cleanup_json struct json *one = parsed("{\"b\":[{\"z\":1,\"y\":2}],\"a\":1,\"B\":0,\"\":{}}");
    cleanup_json struct json *two = parsed("{\"\":{},\"a\":1.0,\"B\":0,\"b\":[{\"y\":2,\"z\":1}]}");
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    ck_assert(json_print_canonical(one, &out));
    ck_assert_str_eq(buf_text(&out), "{\"\":{},\"B\":0,\"a\":1,\"b\":[{\"y\":2,\"z\":1}]}");
    cleanup_buf struct buf other = BUF_INIT(CAP_SMALL);
    ck_assert(json_print_canonical(two, &other));
    ck_assert_str_eq(buf_text(&out), buf_text(&other));
}
END_TEST

static Suite *json_suite(void)
{
    Suite *suite = suite_create("json");
    TCase *tcase = tcase_create("json");
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, test_strict_refuses, 0, ARRAY_LEN(refused));
    tcase_add_loop_test(tcase, test_strict_accepts, 0, ARRAY_LEN(accepted));
    tcase_add_test(tcase, test_cut_anywhere);
    tcase_add_test(tcase, test_depth);
    tcase_add_test(tcase, test_values);
    tcase_add_test(tcase, test_many_names);
    tcase_add_test(tcase, test_lenient);
    tcase_add_test(tcase, test_error_names_the_place);
    tcase_add_test(tcase, test_reading);
    tcase_add_test(tcase, test_reading_nothing);
    tcase_add_test(tcase, test_building);
    tcase_add_loop_test(tcase, test_integers_round_trip, 0, ARRAY_LEN(integers));
    tcase_add_test(tcase, test_print_is_always_json);
    tcase_add_test(tcase, test_print_into_little_room);
    tcase_add_test(tcase, test_canonical);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(json_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
