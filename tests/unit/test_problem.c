#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "server/problem.h"

START_TEST(test_every_code)
{
    static const char categories[] =
        "provision_error exec_error timeout service_error request_error "
        "auth_error overloaded";

    for (int code = ERR_NONE; code < ERR_COUNT; code++) {
        const struct problem *problem = problem_of((enum err_code)code);
        const char *name = err_code_name((enum err_code)code);

        ck_assert_msg(problem->status >= 400 && problem->status <= 599, "%s", name);
        ck_assert_msg(problem->category && strstr(categories, problem->category), "%s", name);
        ck_assert_msg(problem->title && problem->title[0], "%s", name);
        ck_assert_msg(problem->remediation && problem->remediation[0], "%s", name);
        /* 503 and 429 always say when to come again, and only what may work again says so. */
        ck_assert_msg((problem->status != 503 && problem->status != 429) ||
                          problem->retry_after_s > 0,
                      "%s", name);
        ck_assert_msg(!problem->retry_after_s || problem->retryable, "%s", name);
    }
    ck_assert_int_eq(problem_of((enum err_code)ERR_COUNT)->status, 500);
    ck_assert_int_eq(problem_of((enum err_code) - 1)->status, 500);
}
END_TEST

START_TEST(test_statuses)
{
    static const struct {
        enum err_code code;
        int status;
    } cases[] = {
        {ERR_INVALID_FIELD, 400},
        {ERR_UNAUTHENTICATED, 401},
        {ERR_FORBIDDEN, 403},
        {ERR_NOT_FOUND, 404},
        {ERR_METHOD_NOT_ALLOWED, 405},
        {ERR_ALREADY_EXISTS, 409},
        {ERR_IDEMPOTENCY_CONFLICT, 409},
        {ERR_HOST_TAKEN, 409},
        {ERR_GONE, 410},
        {ERR_TOO_LARGE, 413},
        {ERR_URI_TOO_LONG, 414},
        {ERR_HEADERS_TOO_LARGE, 431},
        {ERR_UNSUPPORTED_MEDIA_TYPE, 415},
        {ERR_MISDIRECTED, 421},
        {ERR_WORKDIR_NOT_FOUND, 422},
        {ERR_NOT_SUPPORTED, 422},
        {ERR_QUOTA_EXCEEDED, 429},
        {ERR_BUSY, 503},
        {ERR_BACKEND_UNAVAILABLE, 503},
        {ERR_BACKEND_UNAUTHORIZED, 502},
        {ERR_READY_TIMEOUT, 504},
        {ERR_NO_SPACE, 507},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        ck_assert_int_eq(problem_of(cases[i].code)->status, cases[i].status);
    ck_assert_str_eq(problem_of(ERR_READY_TIMEOUT)->category, "provision_error");
    ck_assert(problem_of(ERR_BACKEND_UNAVAILABLE)->retryable);
}
END_TEST

START_TEST(test_json)
{
    const struct err err = {ERR_NO_SPACE, "write \"x\": \xff full"};
    struct json *json = problem_json(&err, "req-1", false);
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);

    ck_assert_str_eq(json_get_text(json, "type"), "/problems/no_space");
    ck_assert_int_eq(json_get_int(json, "status", 0), 507);
    ck_assert_str_eq(json_get_text(json, "category"), "request_error");
    ck_assert_str_eq(json_get_text(json, "code"), "no_space");
    ck_assert_str_eq(json_get_text(json, "request_id"), "req-1");
    ck_assert(!json_get_bool(json, "retryable", true));
    ck_assert_ptr_nonnull(json_get_text(json, "title"));
    ck_assert_ptr_nonnull(json_get_text(json, "remediation"));
    ck_assert_ptr_nonnull(json_get_text(json, "detail"));
    ck_assert(json_print(json, &text));
    ck_assert(utf8_valid(text.ptr, text.len));
    json_free(json);
    json = problem_json(&err, NULL, true);
    ck_assert_ptr_null(json_get(json, "request_id"));
    ck_assert(json_get_bool(json, "retryable", false));
    json_free(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("problem");
    TCase *cases = tcase_create("all");

    tcase_add_test(cases, test_every_code);
    tcase_add_test(cases, test_statuses);
    tcase_add_test(cases, test_json);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
