#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "store/query.h"
#include "tests/unit/store_rows.h"
#include "tests/unit/temp_dir.h"

static struct temp_dir dir;
static char *path;
static struct store *store;
static struct err err;

static void setup(void)
{
    temp_dir_make(&dir);
    path = temp_path(&dir, "store.db");
    store = store_open_at(path);
}

static void teardown(void)
{
    store_close(store);
    free(path);
    temp_dir_remove(&dir);
}

/* 10,000 records: odd ones are gone; owners o0 … o9; a label on each hundredth. Five were created
 * in the same millisecond each time. */
static void fill(void)
{
    LOCK_STORE(store);
    ck_assert_int_eq(write_begin(store, false, &err), 0);
    int rc = store_exec(
        store,
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<9999)"
        " INSERT INTO sandboxes(uid,id,owner,state,labels,sealed_version,created,since,ready,ended,"
        " deadline,last_exec) SELECT printf('uid-%05d',i), 'id-'||i, 'o'||((i/2)%10),"
        " CASE WHEN i%2 THEN 'gone' WHEN i%20=0 THEN 'creating' ELSE 'running' END,"
        " CASE WHEN i%100=0 THEN '{\"app\":\"x\",\"n.o/p\":\"é\"}' ELSE '{\"app\":\"y\"}' END,"
        " 0,i/5,0,0,0,0,0 FROM n",
        &err);
    ck_assert_msg(write_end(store, rc, &err) == 0, "%s", err.msg);
}

/* The work of the statement used last, as SQLite counts it. */
static int steps_of_last_list(void)
{
    LOCK_STORE(store);
    sqlite3_stmt *stmt = store->kept[0];
    ck_assert_int_eq(sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_SORT, 1), 0);
    return sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_VM_STEP, 1);
}

/* Goes through all pages; returns how many records there were. MOST: steps of a page. */
static size_t count_pages(struct sandbox_filter filter, int most)
{
    size_t total = 0;
    char before[64] = "";
    int64_t before_created = INT64_MAX;
    char *next = NULL;
    do {
        cleanup_free char *cursor = next;
        filter.cursor = cursor;
        struct sandbox_row *rows;
        size_t count;
        ck_assert_msg(store_list_sandboxes(store, &filter, &rows, &count, &next, &err) == 0, "%s",
                      err.msg);
        ck_assert_int_le(steps_of_last_list(), most);
        ck_assert_uint_le(count, filter.limit);
        ck_assert(next == NULL || count == filter.limit);
        for (size_t i = 0; i < count; i++) {
            ck_assert(rows[i].created < before_created ||
                      (rows[i].created == before_created && strcmp(rows[i].uid, before) < 0));
            before_created = rows[i].created;
            (void)snprintf(before, sizeof(before), "%s", rows[i].uid);
            if (filter.owner != NULL)
                ck_assert_str_eq(rows[i].owner, filter.owner);
            if (filter.state == NULL)
                ck_assert_str_ne(rows[i].state, "gone");
            else if (strcmp(filter.state, "all") != 0)
                ck_assert_str_eq(rows[i].state, filter.state);
        }
        total += count;
        sandbox_rows_free(rows, count);
    } while (next != NULL);
    return total;
}

START_TEST(test_list_by_pages)
{
    fill();
    static const struct {
        const char *owner, *state;
        size_t total;
        int most; /* steps of a page of 100: about 60 a row, and no more when rows are passed over
                   */
    } cases[] = {
        {NULL, NULL, 5000, 10000},      {NULL, "all", 10000, 10000},
        {NULL, "gone", 5000, 10000},    {NULL, "running", 4500, 10000},
        {NULL, "creating", 500, 20000}, {"o3", NULL, 500, 10000},
        {"o3", "all", 1000, 10000},     {"o3", "gone", 500, 10000},
        {"o0", "creating", 500, 10000}, {"o3", "running", 500, 10000},
        {"nobody", NULL, 0, 100},       {NULL, "no such", 0, 50000},
        {"o1", "creating", 0, 5000},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sandbox_filter filter = {
            .owner = cases[i].owner, .state = cases[i].state, .limit = 100};
        ck_assert_uint_eq(count_pages(filter, cases[i].most), cases[i].total);
    }
}
END_TEST

START_TEST(test_list_page_sizes)
{
    fill();
    struct sandbox_filter filter = {.state = "all"};
    static const size_t limits[] = {1, 7, 499, 500};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        filter.owner = limits[i] < 10 ? "o7" : NULL;
        filter.limit = limits[i];
        ck_assert_uint_eq(count_pages(filter, INT32_MAX), limits[i] < 10 ? 1000 : 10000);
    }
    struct sandbox_row *rows;
    size_t count;
    char *next;
    for (size_t limit = 0; limit <= CAP_LIST_LIMIT + 1; limit += CAP_LIST_LIMIT + 1) {
        filter.limit = limit;
        ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), 0);
        ck_assert_uint_eq(count, CAP_LIST_LIMIT);
        sandbox_rows_free(rows, count);
        free(next);
    }
}
END_TEST

START_TEST(test_list_by_labels)
{
    fill();
    static const char *const names[] = {"app", "n.o/p"};
    static const char *const values[] = {"x", "\xc3\xa9"};
    static const char *const wrong[] = {"x", "e"};
    struct sandbox_filter filter = {.label_names = names, .label_values = values, .limit = 30};
    filter.labels = 1;
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 100);
    filter.labels = 2;
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 100);
    filter.owner = "o0";
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 100);
    filter.owner = NULL;
    filter.label_values = wrong;
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 0);
    filter.labels = CAP_LABELS + 1;
    struct sandbox_row *rows;
    size_t count;
    char *next;
    ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
}
END_TEST

/* What comes or goes between two pages neither repeats nor hides another record. */
START_TEST(test_list_is_stable)
{
    char uid[16];
    for (int i = 0; i < 10; i++) {
        (void)snprintf(uid, sizeof(uid), "uid-%d", i);
        struct sandbox_row row = sandbox_of(uid, uid, "running");
        row.created = 100 + i / 2;
        put_sandbox(store, &row);
    }
    struct sandbox_filter filter = {.limit = 3};
    struct sandbox_row *rows;
    size_t count;
    char *next = NULL, *after = NULL;
    ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), 0);
    ck_assert_str_eq(rows[2].uid, "uid-7");
    sandbox_rows_free(rows, count);
    struct sandbox_row row = sandbox_of("uid-new", "new", "running");
    row.created = 200;
    put_sandbox(store, &row);
    row = sandbox_of("uid-7", "uid-7", "gone");
    put_sandbox(store, &row);
    filter.cursor = next;
    ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &after, &err), 0);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(rows[0].uid, "uid-6");
    ck_assert_str_eq(rows[2].uid, "uid-4");
    sandbox_rows_free(rows, count);
    free(next);
    free(after);
}
END_TEST

START_TEST(test_malformed_cursors)
{
    static const char *const cursors[] = {
        "",
        "x",
        "0",
        "zz",
        "3a", /* ":" */
        "31",
        "313a00",
        "2d313a61" /* -1:a */,
        "313aff", /* not UTF-8 */
        "39393939393939393939393939393939393939393a61" /* too large */,
        "a b",
        "313a6g"};
    struct sandbox_filter filter = {.limit = 3};
    for (size_t i = 0; i < ARRAY_LEN(cursors); i++) {
        struct sandbox_row *rows;
        size_t count;
        char *next;
        filter.cursor = cursors[i];
        ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), -1);
        ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
        ck_assert_ptr_nonnull(strstr(err.msg, "cursor"));
    }
    cleanup_free char *large = xmalloc(100001);
    memset(large, '3', 100000);
    large[100000] = 0;
    filter.cursor = large;
    ck_assert_int_eq(store_list_sandboxes(store, &filter, NULL, NULL, NULL, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
}
END_TEST

/* A page ends before its rows take too much memory; nothing is left out. */
START_TEST(test_list_of_large_rows)
{
    size_t len = 2 * MIB;
    cleanup_free char *sealed = xcalloc(1, len);
    char uid[16];
    for (int i = 0; i < 20; i++) {
        (void)snprintf(uid, sizeof(uid), "uid-%02d", i);
        struct sandbox_row row = sandbox_of(uid, uid, "running");
        row.sealed = sealed;
        row.sealed_len = len;
        put_sandbox(store, &row);
    }
    struct sandbox_filter filter = {.limit = 100};
    struct sandbox_row *rows;
    size_t count, total = 0, pages = 0;
    char *next = NULL;
    do {
        cleanup_free char *cursor = next;
        filter.cursor = cursor;
        ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), 0);
        ck_assert_uint_le(count, 10);
        total += count;
        pages++;
        sandbox_rows_free(rows, count);
    } while (next != NULL);
    ck_assert_uint_eq(total, 20);
    ck_assert_uint_ge(pages, 2);
}
END_TEST

/* A record that is damaged there hides no others. */
START_TEST(test_labels_that_are_no_json)
{
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    row.labels = (char *)"{\"a\":\"b\"}";
    put_sandbox(store, &row);
    row = sandbox_of("uid-2", "box2", "running");
    row.labels = (char *)"{\"a\":\"b\"";
    put_sandbox(store, &row);
    row = sandbox_of("uid-3", "box3", "running");
    put_sandbox(store, &row);
    static const char *const names[] = {"a"}, *const values[] = {"b"};
    struct sandbox_filter filter = {.label_names = names, .label_values = values, .limit = 9};
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 3);
    filter.labels = 1;
    ck_assert_uint_eq(count_pages(filter, INT32_MAX), 1);
}
END_TEST

START_TEST(test_counts)
{
    fill();
    struct state_count counts[8];
    size_t count;
    ck_assert_int_eq(store_counts(store, counts, 8, &count, &err), 0);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(counts[0].state, "creating");
    ck_assert_int_eq(counts[0].count, 500);
    ck_assert_str_eq(counts[1].state, "gone");
    ck_assert_int_eq(counts[1].count, 5000);
    ck_assert_str_eq(counts[2].state, "running");
    ck_assert_int_eq(counts[2].count, 4500);
    ck_assert_int_eq(store_counts(store, counts, 2, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
}
END_TEST

/* More statements than are kept: each combination of labels is one of its own. */
START_TEST(test_many_statements)
{
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    row.labels = (char *)"{\"a\":\"b\"}";
    put_sandbox(store, &row);
    const char *names[CAP_LABELS], *values[CAP_LABELS];
    for (size_t i = 0; i < CAP_LABELS; i++) {
        names[i] = "a";
        values[i] = "b";
    }
    for (size_t round = 0; round < 2; round++) {
        for (size_t labels = 0; labels <= CAP_LABELS; labels++) {
            struct sandbox_filter filter = {
                .label_names = names, .label_values = values, .labels = labels, .limit = 9};
            ck_assert_uint_eq(count_pages(filter, INT32_MAX), 1);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_list");
    TCase *tcase = tcase_create("store_list");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_list_by_pages);
    tcase_add_test(tcase, test_list_page_sizes);
    tcase_add_test(tcase, test_list_by_labels);
    tcase_add_test(tcase, test_list_is_stable);
    tcase_add_test(tcase, test_malformed_cursors);
    tcase_add_test(tcase, test_list_of_large_rows);
    tcase_add_test(tcase, test_labels_that_are_no_json);
    tcase_add_test(tcase, test_counts);
    tcase_add_test(tcase, test_many_statements);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
