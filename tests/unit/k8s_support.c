#include "tests/unit/k8s_support.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"

static char *with_double_quotes(const char *text)
{
    char *copy = xstrdup(text);

    for (char *at = copy; *at != '\0'; at++) {
        if (*at == '\'')
            *at = '"';
    }
    return copy;
}

struct json *json_of(const char *text)
{
    cleanup_free char *copy = with_double_quotes(text);
    struct json *json = NULL;
    struct err err;

    ck_assert_msg(json_parse(copy, strlen(copy), JSON_STRICT, &json, &err) == 0, "%s: %s", err.msg,
                  copy);
    return json;
}

void assert_json_eq(const struct json *is, const char *wanted)
{
    cleanup_json struct json *json = json_of(wanted);
    cleanup_buf struct buf a = BUF_INIT(MIB), b = BUF_INIT(MIB);

    ck_assert(json_print_canonical(is, &a));
    ck_assert(json_print_canonical(json, &b));
    ck_assert_str_eq(buf_text(&a), buf_text(&b));
}

char *write_file(const struct temp_dir *dir, const char *name, const char *text, int mode)
{
    char *path = temp_path(dir, name);
    cleanup_free char *temporary = xasprintf("%s.new", path);
    FILE *file = fopen(temporary, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(temporary, (mode_t)mode), 0);
    ck_assert_int_eq(rename(temporary, path), 0);
    return path;
}

int run_tests(const char *name, const struct TTest *const *tests)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner;
    int failed;

    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    for (size_t i = 0; tests[i] != NULL; i++)
        tcase_add_test(tcase, tests[i]);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
