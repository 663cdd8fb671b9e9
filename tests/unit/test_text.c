#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

START_TEST(test_list)
{
    struct text_list list = {0};
    for (int i = 0; i < 100; i++) {
        char text[32];
        snprintf(text, sizeof(text), "item-%d", i);
        text_list_add(&list, text);
    }
    ck_assert_uint_eq(list.count, 100);
    ck_assert_str_eq(list.items[0], "item-0");
    ck_assert_str_eq(list.items[99], "item-99");
    ck_assert(text_list_has(&list, "item-64"));
    ck_assert(!text_list_has(&list, "item-100"));
    struct text_list copy;
    text_list_copy(&copy, &list);
    text_list_done(&list);
    ck_assert_uint_eq(list.count, 0);
    text_list_add(&copy, "more"); /* a copy grows on like the original */
    ck_assert_uint_eq(copy.count, 101);
    ck_assert_str_eq(copy.items[63], "item-63");
    text_list_done(&copy);
    text_list_done(&copy);
}
END_TEST

START_TEST(test_map)
{
    struct text_map map = {0};
    ck_assert_ptr_null(text_map_get(&map, "a"));
    text_map_set(&map, "b", "1");
    text_map_set(&map, "a", "2");
    text_map_set(&map, "b", "3");
    ck_assert_uint_eq(map.count, 2);
    ck_assert_str_eq(map.items[0].name, "b");
    ck_assert_str_eq(text_map_get(&map, "b"), "3");
    ck_assert_ptr_null(text_map_get(&map, "B"));
    text_map_set(&map, "b", text_map_get(&map, "b")); /* its own value */
    ck_assert_str_eq(text_map_get(&map, "b"), "3");
    struct text_map copy;
    text_map_copy(&copy, &map);
    text_map_done(&map);
    text_map_done(&map);
    ck_assert_str_eq(text_map_get(&copy, "a"), "2");
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof(name), "n%d", i % 20);
        text_map_set(&copy, name, name);
    }
    ck_assert_uint_eq(copy.count, 22);
    text_map_done(&copy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text");
    TCase *tcase = tcase_create("text");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_list);
    tcase_add_test(tcase, test_map);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
