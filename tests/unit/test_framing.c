#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/framing.h"
#include "server/origin.h"
#include "tests/unit/header_fields.h"

#define MAX 6

START_TEST(test_accepted)
{
    static const struct {
        const char *version, *pairs[MAX * 2];
        int64_t length;
    } cases[] = {
        {"HTTP/1.1", {"Host", "a"}, 0},
        {"HTTP/1.0", {NULL}, 0},
        {"HTTP/1.1", {"host", "a", "content-length", "17"}, 17},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "0"}, 0},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "chunked"}, -1},
        {"HTTP/1.1", {"Host", "a", "transfer-encoding", "Chunked"}, -1},
        {"HTTP/1.1", {"Host", "", "X-Tab", "a\tb", "Accept", "x", "Accept", "y"}, 0},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "9223372036854775807"}, INT64_MAX},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text_field fields[MAX];
        size_t count = fields_of(cases[i].pairs, fields);
        int64_t length = -2;
        struct err err;

        ck_assert_msg(framing_check(cases[i].version, fields, count, &length, &err) == 0, "%zu: %s",
                      i, err.msg);
        ck_assert_int_eq(length, cases[i].length);
    }
}
END_TEST

START_TEST(test_b11_refused)
{
    static const struct {
        const char *version, *pairs[MAX * 2];
    } cases[] = {
        {"HTTP/1.1", {"Host", "a", "Content-Length", "0", "Content-Length", "40"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "4", "content-length", "4"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length ", "40"}},
        {"HTTP/1.1", {"Host", "a", "Content\tLength", "40"}},
        {"HTTP/1.1", {"Host", "a", "", "40"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "5", "Transfer-Encoding", "chunked"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "chunked", "Transfer-Encoding", "chunked"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "chunked\t"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", " chunked"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "xchunked"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "gzip, chunked"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", "identity"}},
        {"HTTP/1.1", {"Host", "a", "Transfer-Encoding", ""}},
        {"HTTP/1.0", {"Host", "a", "Transfer-Encoding", "chunked"}},
        {"HTTP/1.1", {"Host", "a", "Host", "a"}},
        {"HTTP/1.0", {"Host", "a", "host", "b"}},
        {"HTTP/1.1", {"Accept", "a"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "+4"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "-4"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "4, 4"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "4 "}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "0x4"}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", ""}},
        {"HTTP/1.1", {"Host", "a", "Content-Length", "9223372036854775808"}},
        {"HTTP/1.1", {"Host", "a", "X", "a\rb"}},
        {"HTTP/1.1", {"Host", "a", "X", "a\nb"}},
        {"HTTP/1.1", {"Host", "a", "X", "a\x01"}},
        {"HTTP/2.0", {"Host", "a"}},
        {"HTTP/1.2", {"Host", "a"}},
        {"http/1.1", {"Host", "a"}},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text_field fields[MAX];
        size_t count = fields_of(cases[i].pairs, fields);
        int64_t length = -2;
        struct err err;

        ck_assert_msg(framing_check(cases[i].version, fields, count, &length, &err) == -1, "%zu",
                      i);
        ck_assert_int_eq(err.code, ERR_INVALID_REQUEST);
    }
}
END_TEST

START_TEST(test_loopback)
{
    static const char *const ours[] = {"localhost",    "LOCALHOST:8080", "127.0.0.1",
                                       "127.0.0.1:80", "127.9.9.9:1",    "[::1]",
                                       "[::1]:65535"};
    static const char *const foreign[] = {"",
                                          "evil.example",
                                          "localhost.evil.example",
                                          "127.0.0.1.nip.io",
                                          "127.0.0.1.",
                                          "10.0.0.1",
                                          "128.0.0.1",
                                          "localhost:99999",
                                          "localhost:8080x",
                                          "localhost:",
                                          "[::2]",
                                          "[::1",
                                          "[::1]x",
                                          "::1",
                                          "user@localhost",
                                          "2130706433",
                                          "0x7f.0.0.1"};

    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        ck_assert_msg(origin_is_loopback(ours[i]), "%s", ours[i]);
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        ck_assert_msg(!origin_is_loopback(foreign[i]), "%s", foreign[i]);
}
END_TEST

START_TEST(test_origin)
{
    static const struct {
        const char *host, *origin;
        bool local_only;
        enum err_code code;
    } cases[] = {
        {"localhost:8080", NULL, true, ERR_NONE},
        {"localhost:8080", "http://localhost:8080", true, ERR_NONE},
        {"localhost:8080", "http://localhost:9090", true, ERR_FORBIDDEN},
        {"localhost:8080", "http://evil.example", true, ERR_FORBIDDEN},
        {"localhost:8080", "null", true, ERR_FORBIDDEN},
        {"localhost:8080", "", true, ERR_FORBIDDEN},
        {"evil.example", NULL, true, ERR_MISDIRECTED},
        {"evil.example", "http://evil.example", true, ERR_MISDIRECTED},
        {NULL, NULL, true, ERR_MISDIRECTED},
        {"api.example", NULL, false, ERR_NONE},
        {NULL, NULL, false, ERR_NONE},
        {"api.example", "https://API.example", false, ERR_NONE},
        {"api.example", "https://8000-x.api.example", false, ERR_FORBIDDEN},
        {NULL, "https://api.example", false, ERR_FORBIDDEN},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = {ERR_NONE, ""};
        int result = origin_check(cases[i].host, cases[i].origin, cases[i].local_only, &err);

        ck_assert_int_eq(result, cases[i].code == ERR_NONE ? 0 : -1);
        ck_assert_msg(err.code == cases[i].code, "%zu: %s", i, err.msg);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("framing");
    TCase *cases = tcase_create("all");

    tcase_add_test(cases, test_accepted);
    tcase_add_test(cases, test_b11_refused);
    tcase_add_test(cases, test_loopback);
    tcase_add_test(cases, test_origin);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
