#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

START_TEST(test_names_both_ways)
{
    for (unsigned i = 0; i < ERR_COUNT; i++) {
        enum err_code code = (enum err_code)i;
        const char *name = err_code_name(code);
        ck_assert_uint_gt(strlen(name), 0);
        ck_assert_uint_eq(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(name));
        ck_assert_int_eq(err_code_from_name(name), code); /* also: no two codes share a name */
    }
    ck_assert_str_eq(err_code_name(ERR_POLICY), "policy_denied");
    ck_assert_str_eq(err_code_name(ERR_COUNT), "internal");
    ck_assert_int_eq(err_code_from_name("no such"), ERR_NONE);
    ck_assert_int_eq(err_code_from_name(NULL), ERR_NONE);
}
END_TEST

START_TEST(test_set_and_wrap)
{
    struct err err;
    ck_assert_int_eq(err_set(&err, ERR_NOT_FOUND, "sandbox '%s'", "a"), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_str_eq(err.msg, "sandbox 'a'");
    ck_assert_int_eq(err_wrap(&err, "read %d", 7), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_str_eq(err.msg, "read 7: sandbox 'a'");
    ck_assert_int_eq(err_set(NULL, ERR_NOT_FOUND, "x"), -1);
    ck_assert_int_eq(err_wrap(NULL, "x"), -1);
    ck_assert_int_eq(err_errno(NULL, ERR_NOT_FOUND, ENOENT, "x"), -1);
}
END_TEST

START_TEST(test_own_message_as_argument)
{
    struct err err;
    err_set(&err, ERR_BACKEND, "first");
    err_set(&err, ERR_INTERNAL, "second: %s", err.msg);
    ck_assert_str_eq(err.msg, "second: first");
    err_wrap(&err, "third (%s)", err.msg);
    ck_assert_str_eq(err.msg, "third (second: first): second: first");
}
END_TEST

START_TEST(test_errno)
{
    struct err err;
    ck_assert_int_eq(err_errno(&err, ERR_FILE_IO, ENOENT, "open '%s'", "/a"), -1);
    ck_assert_int_eq(err.code, ERR_FILE_IO);
    ck_assert_str_eq(err.msg, "open '/a': No such file or directory");
    err_errno(&err, ERR_FILE_IO, 99999, "open");
    ck_assert_str_eq(err.msg, "open: error 99999");
}
END_TEST

START_TEST(test_newlines_go_and_bytes_are_utf8)
{
    struct err err;
    err_set(&err, ERR_BACKEND, "two\nlines\r\n\n");
    ck_assert_str_eq(err.msg, "two\nlines");
    err_set(&err, ERR_BACKEND, "a\xFFz\xC3");
    ck_assert_str_eq(err.msg, "a?z?");
    err_set(&err, ERR_BACKEND, "%s", "");
    ck_assert_str_eq(err.msg, "");
}
END_TEST

/* Whatever the offset, a message that is cut is cut between characters, and err_wrap keeps the new
 * front. */
START_TEST(test_cut_at_a_character)
{
    static const char euro[] = "\xE2\x82\xAC";
    struct err err;
    char text[3000];
    for (size_t offset = 0; offset < 4; offset++) {
        memset(text, 'x', offset);
        size_t len = offset;
        for (; len + 4 < sizeof(text); len += 3)
            memcpy(text + len, euro, 3);
        text[len] = '\0';
        err_set(&err, ERR_BACKEND, "%s", text);
        ck_assert(utf8_valid(err.msg, strlen(err.msg)));
        ck_assert_uint_ge(strlen(err.msg), sizeof(err.msg) - 4);
        ck_assert_ptr_null(strchr(err.msg, '?'));
        err_wrap(&err, "front");
        ck_assert(str_starts(err.msg, "front: "));
        ck_assert(utf8_valid(err.msg, strlen(err.msg)));
        ck_assert_ptr_null(strchr(err.msg, '?'));
    }
    err_wrap(&err, "%s", text);
    err_errno(&err, ERR_FILE_IO, ENOENT, "%s", text);
    ck_assert_uint_lt(strlen(err.msg), sizeof(err.msg));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("err");
    TCase *tcase = tcase_create("err");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_names_both_ways);
    tcase_add_test(tcase, test_set_and_wrap);
    tcase_add_test(tcase, test_own_message_as_argument);
    tcase_add_test(tcase, test_errno);
    tcase_add_test(tcase, test_newlines_go_and_bytes_are_utf8);
    tcase_add_test(tcase, test_cut_at_a_character);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
