#pragma once

#include <check.h>
#include <stdlib.h>

/* The main() of a program with one test case: TESTS ends with NULL. */
static inline int run_suite(const char *name, const TTest *const *tests, void (*setup)(void),
                            void (*teardown)(void))
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("all");
    if (setup) {
        tcase_add_checked_fixture(tcase, setup, teardown);
    }
    tcase_set_timeout(tcase, 100);
    for (; *tests; tests++) {
        tcase_add_test(tcase, *tests);
    }
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
