#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"

static struct json *parsed(const char *text)
{
    struct json *json = NULL;
    struct err err = {.msg = ""};
    int rc = json_parse(text, strlen(text), JSON_STRICT, &json, &err);
    ck_assert_msg(rc == 0, "%s: %s", text, err.msg);
    return json;
}

struct limits {
    char *cpu;
    int64_t memory;
};

struct request {
    char *image;
    char *note;
    int64_t port;
    int64_t any;
    int64_t timeout_ms;
    bool tty;
    int mode;
    struct text_list argv;
    struct text_map env;
    struct limits resources;
};

static const char *const modes[] = {"none", "public", "full", NULL};

static const struct json_field limit_fields[] = {
    {.name = "cpu",
     .decode = json_decode_quantity,
     .offset = offsetof(struct limits, cpu),
     .min = 1},
    {.name = "memory",
     .decode = json_decode_int,
     .offset = offsetof(struct limits, memory),
     .required = true},
    JSON_FIELDS_END,
};

#define FIELD(key, decoder, member)                                                                \
    .name = (key), .decode = (decoder), .offset = offsetof(struct request, member)

static const struct json_field request_fields[] = {
    {FIELD("image", json_decode_text, image), .required = true, .min = 1, .max = 8},
    {FIELD("note", json_decode_text_any, note)},
    {FIELD("port", json_decode_int, port), .min = 1, .max = 65535},
    {FIELD("any", json_decode_int, any), .min = INT64_MIN, .max = INT64_MAX},
    {FIELD("timeout_s", json_decode_seconds, timeout_ms), .max = 86400000},
    {FIELD("tty", json_decode_bool, tty)},
    {FIELD("mode", json_decode_word, mode), .extra = modes},
    {FIELD("argv", json_decode_text_list, argv), .min = 1, .max = 3},
    {FIELD("env", json_decode_text_map, env), .max = 2},
    {FIELD("resources", json_decode_object, resources), .extra = limit_fields},
    JSON_FIELDS_END,
};

static void request_done(struct request *request)
{
    free(request->image);
    free(request->note);
    free(request->resources.cpu);
    text_list_done(&request->argv);
    text_map_done(&request->env);
}

START_TEST(test_decode_all)
{
    cleanup_json struct json *json =
        parsed("{\"image\":\"a:1\",\"note\":\"l1\\nl2\",\"port\":65535,\"any\":9007199254740993,"
               "\"timeout_s\":1.5,\"tty\":true,\"mode\":\"full\",\"argv\":[\"a\",\"\",\"b\\n\"],"
               "\"env\":{\"K\":\"v\",\"L\":\"\"},"
               "\"resources\":{\"cpu\":0.25,\"memory\":2147483648}}");
    struct err err = {.msg = ""};
    cleanup(request_done) struct request request = {.image = xstrdup("default")};
    ck_assert_msg(json_decode(json, request_fields, "", &request, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(request.image, "a:1");
    ck_assert_str_eq(request.note, "l1\nl2");
    ck_assert_int_eq(request.port, 65535);
    ck_assert_int_eq(request.any, INT64_C(9007199254740993));
    ck_assert_int_eq(request.timeout_ms, 1500);
    ck_assert(request.tty);
    ck_assert_int_eq(request.mode, 2);
    ck_assert_uint_eq(request.argv.count, 3);
    ck_assert_str_eq(request.argv.items[2], "b\n");
    ck_assert_str_eq(text_map_get(&request.env, "L"), "");
    ck_assert_str_eq(request.resources.cpu, "0.25");
    ck_assert_int_eq(request.resources.memory, INT64_C(2147483648));
    /* Over an older value, and null where it may be: */
    cleanup_json struct json *again = parsed("{\"image\":\"b\",\"note\":null,\"argv\":[\"c\"],"
                                             "\"resources\":{\"cpu\":\"250m\",\"memory\":1}}");
    ck_assert_int_eq(json_decode(again, request_fields, NULL, &request, &err), 0);
    ck_assert_str_eq(request.image, "b");
    ck_assert_str_eq(request.note, "l1\nl2");
    ck_assert_uint_eq(request.argv.count, 1);
    ck_assert_str_eq(request.resources.cpu, "250m");
}
END_TEST

static const struct {
    const char *members; /* of the body, beside the image */
    const char *message;
} bad_fields[] = {
    {"\"imag\":1", "'imag': unknown field"},
    {"\"Port\":1", "'Port': unknown field"},
    {"\"resources\":{\"memory\":1,\"gpu\":1}", "'resources.gpu': unknown field"},
    {"\"resources\":{}", "'resources.memory': required, but missing"},
    {"\"resources\":{\"memory\":null}", "'resources.memory': required, must not be null"},
    {"\"resources\":[]", "'resources': expected an object, got a list"},
    {"\"resources\":{\"memory\":1,\"cpu\":true}",
     "'resources.cpu': expected a number or a string such as \"250m\", got true or false"},
    {"\"resources\":{\"memory\":1,\"cpu\":\"\"}", "'resources.cpu': must not be empty"},
    {"\"resources\":{\"memory\":-1}",
     "'resources.memory': expected an integer from 0 to 9223372036854775807"},
    {"\"port\":\"80\"", "'port': expected an integer, got a string"},
    {"\"port\":0", "'port': expected an integer from 1 to 65535"},
    {"\"port\":-1", "'port': expected an integer from 1 to 65535"},
    {"\"port\":0.5", "'port': expected an integer from 1 to 65535"},
    {"\"port\":65536", "'port': expected an integer from 1 to 65535"},
    {"\"port\":2147483648", "'port': expected an integer from 1 to 65535"},
    {"\"port\":9007199254740993", "'port': expected an integer from 1 to 65535"},
    {"\"port\":1e300", "'port': expected an integer from 1 to 65535"},
    {"\"any\":9223372036854775808",
     "'any': expected an integer from -9223372036854775808 to 9223372036854775807"},
    {"\"any\":1e18", "'any': expected an integer from -9223372036854775808 to 9223372036854775807"},
    {"\"timeout_s\":-0.001", "'timeout_s': expected seconds from 0 to 86400"},
    {"\"timeout_s\":86400.001", "'timeout_s': expected seconds from 0 to 86400"},
    {"\"timeout_s\":1e300", "'timeout_s': expected seconds from 0 to 86400"},
    {"\"timeout_s\":\"1\"", "'timeout_s': expected a number of seconds, got a string"},
    {"\"tty\":1", "'tty': expected true or false, got a number"},
    {"\"mode\":\"Full\"", "'mode': expected one of \"none\", \"public\", \"full\""},
    {"\"mode\":2", "'mode': expected one of \"none\", \"public\", \"full\""},
    {"\"note\":{}", "'note': expected a string, got an object"},
    {"\"argv\":[]", "'argv': must not be empty"},
    {"\"argv\":[\"a\",\"b\",\"c\",\"d\"]", "'argv': expected 1 to 3 entries, got 4"},
    {"\"argv\":[\"a\",2]", "'argv[1]': expected a string, got a number"},
    {"\"argv\":[null]", "'argv[0]': expected a string, got null"},
    {"\"argv\":\"a b\"", "'argv': expected a list of strings, got a string"},
    {"\"env\":{\"A\":1}", "'env.A': expected a string, got a number"},
    {"\"env\":{\"A\":\"1\",\"B\":\"2\",\"C\":\"3\"}", "'env': expected 0 to 2 entries, got 3"},
    {"\"env\":{\"\":\"1\"}", "'env.': an empty name, or one given twice"},
    {"\"env\":[]", "'env': expected an object of strings, got a list"},
};

START_TEST(test_decode_refuses)
{
    cleanup_free char *text = xasprintf("{\"image\":\"i\",%s}", bad_fields[_i].members);
    cleanup_json struct json *json = parsed(text);
    struct err err = {.msg = ""};
    cleanup(request_done) struct request request = {0};
    ck_assert_int_eq(json_decode(json, request_fields, "", &request, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_str_eq(err.msg, bad_fields[_i].message);
}
END_TEST

START_TEST(test_decode_text_limits)
{
    static const struct {
        const char *text;
        const char *message; /* NULL: taken */
    } cases[] = {
        {"{\"image\":\"12345678\"}", NULL},
        {"{\"image\":\"123456789\"}", "'image': expected 1 to 8 bytes, got 9"},
        {"{\"image\":\"\"}", "'image': must not be empty"},
        {"{\"image\":\"a\\nb\"}", "'image': must not hold control characters such as a newline"},
        {"{\"image\":\"\\u009b\"}", "'image': must not hold control characters such as a newline"},
        {"{\"image\":null}", "'image': required, must not be null"},
        {"{}", "'image': required, but missing"},
        {"[]", "'body': expected an object, got a list"},
        {"1", "'body': expected an object, got a number"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_json struct json *json = parsed(cases[i].text);
        struct err err = {.msg = ""};
        cleanup(request_done) struct request request = {0};
        int rc = json_decode(json, request_fields, "", &request, &err);
        ck_assert_int_eq(rc, cases[i].message ? -1 : 0);
        ck_assert_str_eq(err.msg, cases[i].message ? cases[i].message : "");
    }
}
END_TEST

START_TEST(test_decode_default_maximum)
{
    for (size_t over = 0; over < 2; over++) {
        cleanup_free char *note = xmalloc(CAP_SMALL + 2);
        memset(note, 'n', CAP_SMALL + 1);
        note[CAP_SMALL + over] = '\0';
        cleanup_json struct json *json = json_new_object();
        json_set_text(json, "image", "i");
        json_set_text(json, "note", note);
        struct err err;
        cleanup(request_done) struct request request = {0};
        ck_assert_int_eq(json_decode(json, request_fields, "", &request, &err), over ? -1 : 0);
    }
}
END_TEST

/* From a lenient parse, where the parser let it through. */
START_TEST(test_decode_refuses_what_lenient_lets_pass)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"image\":\"i\",\"port\":1,\"port\":1}", "'port': given twice"},
        {"{\"image\":\"i\",\"note\":\"\xFF\"}", "'note': not UTF-8"},
        {"{\"image\":\"i\",\"argv\":[\"\xFF\"]}", "'argv[0]': not UTF-8"},
        {"{\"image\":\"i\",\"env\":{\"A\":\"\",\"A\":\"\"}}",
         "'env.A': an empty name, or one given twice"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_json struct json *json = NULL;
        struct err err = {.msg = ""};
        cleanup(request_done) struct request request = {0};
        const char *text = cases[i].text;
        ck_assert_int_eq(json_parse(text, strlen(text), JSON_LENIENT, &json, &err), 0);
        ck_assert_int_eq(json_decode(json, request_fields, "", &request, &err), -1);
        ck_assert_str_eq(err.msg, cases[i].message);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_decode");
    TCase *tcase = tcase_create("json_decode");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_decode_all);
    tcase_add_loop_test(tcase, test_decode_refuses, 0, ARRAY_LEN(bad_fields));
    tcase_add_test(tcase, test_decode_text_limits);
    tcase_add_test(tcase, test_decode_default_maximum);
    tcase_add_test(tcase, test_decode_refuses_what_lenient_lets_pass);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
