#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/route.h"
#include "server/uri.h"

static enum verdict serve(struct request *request)
{
    (void)request;
    return DONE;
}

static const struct route first[] = {
    {"GET", "/", serve, 0, NULL},
    {"GET", "/v1/things", serve, 0, NULL},
    {"POST", "/v1/things", serve, 0, NULL},
};
static const struct route second[] = {
    {"GET", "/v1/things/{id}", serve, 0, NULL},
    {"DELETE", "/v1/things/{id}", serve, 0, NULL},
    {"PATCH", "/v1/things/{id}", serve, 0, NULL},
    {"GET", "/v1/things/{id}/parts/{n}", serve, 0, NULL},
    {"GET", "/v1/things/{id}/parts/{n}/log", serve, 0, NULL},
};
static const struct route_table first_table = {first, ARRAY_LEN(first)};
static const struct route_table second_table = {second, ARRAY_LEN(second)};
static const struct route_table *const tables[] = {&first_table, &second_table, NULL};

START_TEST(test_found)
{
    static const struct {
        const char *method, *path, *pattern, *params[3];
    } cases[] = {
        {"GET", "/", "/", {NULL}},
        {"GET", "/v1/things", "/v1/things", {NULL}},
        {"HEAD", "/v1/things", "/v1/things", {NULL}},
        {"POST", "/v1/things", "/v1/things", {NULL}},
        {"GET", "/v1/things/a", "/v1/things/{id}", {"a"}},
        {"GET", "/v1/things/a%20b%25", "/v1/things/{id}", {"a b%"}},
        {"GET", "/v1/things/%e2%82%ac", "/v1/things/{id}", {"\xe2\x82\xac"}},
        {"GET", "/v1/things/a+b", "/v1/things/{id}", {"a+b"}},
        {"GET", "/v1/things/...", "/v1/things/{id}", {"..."}},
        {"GET", "/v1/th%69ngs/x/parts/7", "/v1/things/{id}/parts/{n}", {"x", "7"}},
        {"GET", "/v1/things/x/parts/7/log", "/v1/things/{id}/parts/{n}/log", {"x", "7"}},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct route_match match = {.route = NULL};
        struct err err;

        ck_assert_msg(route_find(tables, cases[i].method, cases[i].path, &match, &err) == 0, "%s",
                      cases[i].path);
        ck_assert_str_eq(match.route->path, cases[i].pattern);
        for (size_t j = 0; j < ARRAY_LEN(cases[i].params); j++) {
            if (cases[i].params[j])
                ck_assert_str_eq(match.params[j], cases[i].params[j]);
            else
                ck_assert_ptr_null(match.params[j]);
        }
        route_match_done(&match);
    }
}
END_TEST

START_TEST(test_not_found)
{
    static const struct {
        const char *method, *path;
        enum err_code code;
        const char *allow;
    } cases[] = {
        {"GET", "/v1", ERR_NOT_FOUND, ""},
        {"GET", "/v1/thing", ERR_NOT_FOUND, ""},
        {"GET", "/v1/thingsx", ERR_NOT_FOUND, ""},
        {"GET", "/v1/things/a/parts", ERR_NOT_FOUND, ""},
        {"GET", "/v1/things/a/parts/1/log/x", ERR_NOT_FOUND, ""},
        {"GET", "/1/2/3/4/5/6/7/8/9/10/11/12/13/14", ERR_NOT_FOUND, ""},
        {"PUT", "/v1/things", ERR_METHOD_NOT_ALLOWED, "GET, HEAD, POST"},
        {"get", "/v1/things", ERR_METHOD_NOT_ALLOWED, "GET, HEAD, POST"},
        {"HEAD", "/v1/things/a/parts/1", ERR_NONE, ""},
        {"OPTIONS", "/v1/things/a", ERR_METHOD_NOT_ALLOWED, "GET, HEAD, DELETE, PATCH"},
        {"GET", "/v1/things/", ERR_INVALID_PATH, ""},
        {"GET", "//v1/things", ERR_INVALID_PATH, ""},
        {"GET", "/v1//things", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/..", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%2e%2E", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/.%2e/x", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/a%2fb", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/a%2Fparts%2F1", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/a%00b", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%0a", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%7f", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%ff", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%c0%af", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%ed%a0%80", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%4", ERR_INVALID_PATH, ""},
        {"GET", "/v1/things/%g0", ERR_INVALID_PATH, ""},
        {"GET", "v1/things", ERR_INVALID_PATH, ""},
        {"GET", "", ERR_INVALID_PATH, ""},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct route_match match = {.route = NULL};
        struct err err = {ERR_NONE, ""};
        int result = route_find(tables, cases[i].method, cases[i].path, &match, &err);

        ck_assert_int_eq(result, cases[i].code == ERR_NONE ? 0 : -1);
        ck_assert_msg(err.code == cases[i].code, "%s: %s", cases[i].path, err.msg);
        ck_assert_str_eq(match.allow, cases[i].allow);
        route_match_done(&match);
    }
}
END_TEST

START_TEST(test_query)
{
    struct uri_query query = {.count = 0};
    struct err err;

    ck_assert_int_eq(uri_query_parse(NULL, NULL, &query, &err), 0);
    ck_assert_uint_eq(query.count, 0);
    ck_assert_int_eq(uri_query_parse("", "a", &query, &err), 0);
    ck_assert_int_eq(
        uri_query_parse("path=%2Fa%ff+b&&depth=3&flag", "depth flag path", &query, &err), 0);
    ck_assert_uint_eq(query.count, 3);
    ck_assert_uint_eq(uri_query_get(&query, "path")->len, 5);
    ck_assert_mem_eq(uri_query_get(&query, "path")->value, "/a\xff b", 5);
    ck_assert_str_eq(uri_query_get(&query, "depth")->value, "3");
    ck_assert_str_eq(uri_query_get(&query, "flag")->value, "");
    ck_assert_ptr_null(uri_query_get(&query, "dept"));
    uri_query_done(&query);
}
END_TEST

START_TEST(test_query_refused)
{
    static const struct {
        const char *raw, *named;
    } cases[] = {
        {"deep=1", "deep: unknown"},
        {"dept=1", "dept: unknown"},
        {"depth=1&depth=2", "depth: given more than once"},
        {"depth=1&dep%74h=2", "depth: given more than once"},
        {"path=%00", "path: malformed"},
        {"path=a%00/../../etc/shadow", "path: malformed"},
        {"path=%1", "path: malformed"},
        {"%00=1", "name of a query parameter"},
        {"%ff=1", "name of a query parameter"},
        {"=1", ": unknown"},
        {"depth%20flag=1", "depth flag: unknown"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct uri_query query = {.count = 0};
        struct err err;

        ck_assert_int_eq(uri_query_parse(cases[i].raw, "depth flag path", &query, &err), -1);
        ck_assert_msg(strstr(err.msg, cases[i].named) != NULL, "%s: %s", cases[i].raw, err.msg);
        ck_assert_uint_eq(query.count, 0);
    }
}
END_TEST

START_TEST(test_target)
{
    struct err err;

    ck_assert_int_eq(uri_check("/a?b=%20", &err), 0);
    ck_assert_int_eq(uri_check("/\xe2\x82\xac", &err), 0);
    ck_assert_int_eq(uri_check("", &err), -1);
    ck_assert_int_eq(uri_check("*", &err), -1);
    ck_assert_int_eq(uri_check("http://h/a", &err), -1);
    ck_assert_int_eq(uri_check("/a b", &err), -1);
    ck_assert_int_eq(uri_check("/a\tb", &err), -1);
    ck_assert_int_eq(uri_check("/a#b", &err), -1);
    ck_assert_int_eq(uri_check("/a\x7f", &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_PATH);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("route");
    TCase *cases = tcase_create("all");

    tcase_add_test(cases, test_found);
    tcase_add_test(cases, test_not_found);
    tcase_add_test(cases, test_query);
    tcase_add_test(cases, test_query_refused);
    tcase_add_test(cases, test_target);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
