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

static void reopen(void)
{
    store_close(store);
    store = store_open_at(path);
}

static int64_t number_of(const char *sql)
{
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    ck_assert_int_eq(query_open(store, sql, &query, &err), 0);
    ck_assert_int_eq(query_next(&query, &err), 1);
    return query_int(&query);
}

/* What a start looks at is only what runs, however much has ended; a file of before has its index
 * made. */
START_TEST(test_running_execs)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    for (int64_t number = 1; number <= 9; number++)
        put_exec(store, "uid-1", number, number % 3 == 0 ? "running" : "exited");
    static const char older[] = "DROP INDEX execs_running; DROP INDEX execs_sessions;"
                                "ALTER TABLE execs DROP COLUMN session; PRAGMA user_version=2";
    ck_assert_int_eq(store_exec(store, older, &err), 0);
    reopen();
    ck_assert_int_eq(number_of("PRAGMA user_version"), 4);
    ck_assert_int_eq(number_of("SELECT count(*) FROM sqlite_schema WHERE name='execs_running'"), 1);
    static const int64_t befores[] = {0, 9, 7, 6, 3}, newest[] = {9, 6, 6, 3, 0};
    static const size_t wanted[] = {3, 2, 2, 1, 0};
    for (size_t i = 0; i < ARRAY_LEN(befores); i++) {
        struct exec_row *rows = NULL;
        size_t count = 0;
        ck_assert_int_eq(store_running_execs(store, "uid-1", befores[i], &rows, &count, &err), 0);
        ck_assert_uint_eq(count, wanted[i]);
        if (count > 0)
            ck_assert_int_eq(rows[0].number, newest[i]);
        exec_rows_free(rows, count);
    }
    put_exec(store, "uid-1", 6, "exited");
    struct exec_row *rows = NULL;
    size_t count = 0;
    ck_assert_int_eq(store_running_execs(store, "uid-1", 0, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
    exec_rows_free(rows, count);
    ck_assert_int_eq(number_of("SELECT count(*) FROM execs INDEXED BY execs_running"
                               " WHERE uid='uid-1' AND number<9 AND state='running'"),
                     1);
}
END_TEST

START_TEST(test_execs)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    sandbox.uid = (char *)"uid-2";
    sandbox.id = (char *)"box2";
    put_sandbox(store, &sandbox);
    for (int64_t number = 1; number <= 12; number++)
        put_exec(store, "uid-1", number, "running");
    put_exec(store, "uid-2", 1, "running");
    struct exec_row row = {.uid = (char *)"uid-1",
                           .number = 7,
                           .state = (char *)"exited",
                           .spec = (char *)"{}",
                           .result = (char *)"{\"exit_code\":0}",
                           .created = 5,
                           .ended = 6,
                           .committed = true};
    ck_assert_int_eq(store_put_exec(store, &row, &err), 0);
    struct exec_row back;
    ck_assert_int_eq(store_get_exec(store, "uid-1", 7, &back, &err), 0);
    ck_assert_str_eq(back.uid, "uid-1");
    ck_assert_int_eq(back.number, 7);
    ck_assert_str_eq(back.state, "exited");
    ck_assert_str_eq(back.spec, "{}");
    ck_assert_str_eq(back.result, "{\"exit_code\":0}");
    ck_assert_int_eq(back.created, 2007); /* when it was first put */
    ck_assert_int_eq(back.ended, 6);
    ck_assert(back.committed);
    exec_row_done(&back);
    ck_assert_int_eq(store_get_exec(store, "uid-1", 6, &back, &err), 0);
    ck_assert_ptr_null(back.result);
    ck_assert(!back.committed);
    exec_row_done(&back);
    ck_assert_int_eq(store_get_exec(store, "uid-1", 13, &back, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    struct sandbox_row raised;
    ck_assert_int_eq(store_get_sandbox(store, "box", &raised, &err), 0);
    ck_assert_int_eq(raised.last_exec, 12);
    sandbox_row_done(&raised);
    row.uid = (char *)"uid-3";
    ck_assert_int_eq(store_put_exec(store, &row, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_exec_pages)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    for (int64_t number = 1; number <= 12; number++)
        put_exec(store, "uid-1", number, "running");
    static const struct {
        int64_t before, first;
        size_t limit, count;
    } pages[] = {{0, 12, 5, 5}, {8, 7, 5, 5}, {3, 2, 5, 2}, {1, 0, 5, 0}, {0, 12, 0, 12}};
    for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
        struct exec_row *rows;
        size_t count;
        ck_assert_int_eq(
            store_list_execs(store, "uid-1", pages[i].before, pages[i].limit, &rows, &count, &err),
            0);
        ck_assert_uint_eq(count, pages[i].count);
        for (size_t at = 0; at < count; at++)
            ck_assert_int_eq(rows[at].number, pages[i].first - (int64_t)at);
        exec_rows_free(rows, count);
    }
}
END_TEST

static int put_preview(const char *uid, int64_t port, const char *host)
{
    struct preview_row row = {.uid = (char *)uid,
                              .port = port,
                              .first = port == 8000,
                              .host = (char *)host,
                              .service = (char *)"svc",
                              .exec = 3,
                              .spec = (char *)"{}",
                              .created = 10 + port};
    return store_put_preview(store, &row, &err);
}

static void assert_ports(const char *uid, const int64_t *ports, size_t expected)
{
    struct preview_row *rows;
    size_t count;
    ck_assert_int_eq(store_list_previews(store, uid, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, expected);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(rows[i].port, ports[i]);
    preview_rows_free(rows, count);
}

START_TEST(test_previews)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    ck_assert_int_eq(put_preview("uid-1", 9000, "9000-box.x"), 0);
    ck_assert_int_eq(put_preview("uid-1", 8000, "box.x"), 0);
    ck_assert_int_eq(put_preview("uid-1", 70, "70-box.x"), 0);
    assert_ports("uid-1", (const int64_t[]){8000, 70, 9000}, 3);
    struct preview_row *rows;
    size_t count;
    ck_assert_int_eq(store_list_previews(store, "uid-1", &rows, &count, &err), 0);
    ck_assert(rows[0].first);
    ck_assert(!rows[1].first);
    ck_assert_str_eq(rows[0].uid, "uid-1");
    ck_assert_str_eq(rows[0].host, "box.x");
    ck_assert_str_eq(rows[0].service, "svc");
    ck_assert_ptr_null(rows[0].ingress);
    ck_assert_str_eq(rows[0].spec, "{}");
    ck_assert_int_eq(rows[0].exec, 3);
    ck_assert_int_eq(rows[0].created, 8010);
    preview_rows_free(rows, count);
    /* the same port again replaces it, with its own host */
    ck_assert_int_eq(put_preview("uid-1", 8000, "new.x"), 0);
    assert_ports("uid-1", (const int64_t[]){8000, 70, 9000}, 3);
    ck_assert_int_eq(store_delete_preview(store, "uid-1", 70, &err), 0);
    ck_assert_int_eq(store_delete_preview(store, "uid-1", 70, &err), 0);
    assert_ports("uid-1", (const int64_t[]){8000, 9000}, 2);
    ck_assert_int_eq(store_delete_preview(store, "uid-1", 0, &err), 0);
    assert_ports("uid-1", NULL, 0);
    ck_assert_int_eq(put_preview("uid-9", 1, NULL), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_a_host_belongs_to_one_living_preview)
{
    struct sandbox_row one = sandbox_of("uid-1", "box", "running");
    struct sandbox_row two = sandbox_of("uid-2", "box2", "running");
    put_sandbox(store, &one);
    put_sandbox(store, &two);
    ck_assert_int_eq(put_preview("uid-1", 8000, "box.x"), 0);
    ck_assert_int_eq(put_preview("uid-2", 8000, "box.x"), -1);
    ck_assert_int_eq(err.code, ERR_HOST_TAKEN);
    ck_assert_int_eq(put_preview("uid-2", 8000, "BOX.x"), -1);
    ck_assert_int_eq(err.code, ERR_HOST_TAKEN);
    ck_assert_int_eq(put_preview("uid-1", 9000, "box.x"), -1);
    ck_assert_int_eq(err.code, ERR_HOST_TAKEN);
    assert_ports("uid-2", NULL, 0);
    one.state = (char *)"gone";
    put_sandbox(store, &one);
    ck_assert_int_eq(put_preview("uid-2", 8000, "box.x"), 0);
    /* without a host of its own there is nothing to take */
    ck_assert_int_eq(put_preview("uid-2", 1, NULL), 0);
    ck_assert_int_eq(put_preview("uid-2", 2, NULL), 0);
}
END_TEST

START_TEST(test_events)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    add_event(store, "uid-1", "created");
    add_event(store, NULL, "started");
    add_event(store, "uid-1", "ready");
    struct event_row *rows;
    size_t count;
    ck_assert_int_eq(store_list_events(store, "uid-1", 0, 10, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(rows[0].type, "created");
    ck_assert_str_eq(rows[0].uid, "uid-1");
    ck_assert_str_eq(rows[0].detail, "{}");
    ck_assert_int_eq(rows[0].at, 3000);
    ck_assert_str_eq(rows[1].type, "ready");
    int64_t first = rows[0].seq, last = rows[1].seq;
    ck_assert_int_lt(first, last);
    event_rows_free(rows, count);
    ck_assert_int_eq(store_list_events(store, "uid-1", first, 10, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    event_rows_free(rows, count);
    ck_assert_int_eq(store_list_events(store, NULL, 0, 2, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_ptr_null(rows[1].uid);
    event_rows_free(rows, count);
    struct event_row row = {.uid = (char *)"uid-2", .type = (char *)"x"};
    ck_assert_int_eq(store_add_event(store, &row, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    /* a number is never given again, after a purge either */
    sandbox.state = (char *)"gone";
    put_sandbox(store, &sandbox);
    char **uids;
    ck_assert_int_eq(store_purge(store, INT64_MAX, 10, &uids, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    free(uids[0]);
    free(uids);
    reopen();
    add_event(store, NULL, "again");
    ck_assert_int_eq(store_list_events(store, NULL, last, 10, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    event_rows_free(rows, count);
}
END_TEST

/* A command may have 2 MiB of arguments, and a page 500 of them: it ends before. */
START_TEST(test_large_execs_make_short_pages)
{
    enum { COUNT = 30, BYTES = 2 << 20 };
    cleanup_free char *spec = xmalloc(BYTES + 1);
    char running[] = "running", uid[] = "uid-1";
    int64_t before = 0;
    size_t count = 1, seen = 0;

    memset(spec, 'x', BYTES);
    spec[BYTES] = '\0';
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");

    put_sandbox(store, &sandbox);
    for (int64_t number = 1; number <= COUNT; number++) {
        const struct exec_row row = {.uid = uid, .number = number, .state = running, .spec = spec};

        ck_assert_int_eq(store_put_exec(store, &row, &err), 0);
    }
    while (count > 0) {
        struct exec_row *rows = NULL;

        ck_assert_int_eq(store_list_execs(store, "uid-1", before, 0, &rows, &count, &err), 0);
        ck_assert_uint_le(count, 8); /* 16 MiB and the last one */
        for (size_t i = 0; i < count; i++) {
            ck_assert_int_eq(rows[i].number, COUNT - (int64_t)seen++);
            before = rows[i].number;
        }
        exec_rows_free(rows, count);
    }
    ck_assert_uint_eq(seen, COUNT);
}
END_TEST

START_TEST(test_old_events_are_forgotten)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    add_event(store, NULL, "kept");
    for (int i = 0; i < 1010; i++)
        add_event(store, "uid-1", "cut");
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM events WHERE uid='uid-1'"), 1000);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM events WHERE uid IS NULL"), 1);
}
END_TEST

static int claim(struct idempotency_row row, int *ret_found, struct idempotency_row *ret_row)
{
    int rc = store_claim_key(store, &row, ret_found, &err);
    *ret_row = row;
    return rc;
}

START_TEST(test_idempotency)
{
    struct idempotency_row row = {.owner = "me",
                                  .route = "POST /v1/sandboxes",
                                  .key = "k",
                                  .digest = "d1",
                                  .uid = "uid-1",
                                  .number = 4};
    struct idempotency_row back;
    int found = -1;
    ck_assert_int_eq(claim(row, &found, &back), 0);
    ck_assert_int_eq(found, 0);
    struct idempotency_row again = row;
    (void)snprintf(again.uid, sizeof(again.uid), "uid-2");
    again.number = 0;
    reopen();
    ck_assert_int_eq(claim(again, &found, &back), 0);
    ck_assert_int_eq(found, 1);
    ck_assert_str_eq(back.uid, "uid-1");
    ck_assert_int_eq(back.number, 4);
    again.digest = "d2";
    ck_assert_int_eq(claim(again, &found, &back), -1);
    ck_assert_int_eq(err.code, ERR_IDEMPOTENCY_CONFLICT);
    /* another owner, route or key is another claim */
    again.owner = "you";
    ck_assert_int_eq(claim(again, &found, &back), 0);
    ck_assert_int_eq(found, 0);
    again.owner = "me";
    again.route = "POST execs";
    ck_assert_int_eq(claim(again, &found, &back), 0);
    ck_assert_int_eq(found, 0);
    /* only who claimed it gives it back */
    again = row;
    (void)snprintf(again.uid, sizeof(again.uid), "uid-3");
    ck_assert_int_eq(store_release_key(store, &again, &err), 0);
    ck_assert_int_eq(claim(row, &found, &back), 0);
    ck_assert_int_eq(found, 1);
    ck_assert_int_eq(store_release_key(store, &row, &err), 0);
    ck_assert_int_eq(claim(again, &found, &back), 0);
    ck_assert_int_eq(found, 0);
}
END_TEST

START_TEST(test_keys_are_kept_for_a_day)
{
    struct idempotency_row row = {
        .owner = "me", .route = "r", .key = "k", .digest = "d1", .uid = "uid-1"};
    struct idempotency_row back;
    int found = -1;
    ck_assert_int_eq(claim(row, &found, &back), 0);
    cleanup_free char *younger =
        xasprintf("UPDATE idempotency SET at=at-%lld", 24ll * 3600 * 1000 - 600000);
    sql_number(path, younger);
    ck_assert_int_eq(claim(row, &found, &back), 0);
    ck_assert_int_eq(found, 1);
    sql_number(path, "UPDATE idempotency SET at=at-600000");
    row.digest = "d2";
    ck_assert_int_eq(claim(row, &found, &back), 0);
    ck_assert_int_eq(found, 0);
    sql_number(path, "UPDATE idempotency SET at=0");
    row.key = "other";
    ck_assert_int_eq(claim(row, &found, &back), 0);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM idempotency"), 1);
}
END_TEST

START_TEST(test_purge)
{
    static const struct {
        const char *uid, *state;
        int64_t since, ended;
    } boxes[] = {
        {"uid-1", "gone", 100, 100}, {"uid-2", "gone", 50, 0},   {"uid-3", "gone", 200, 200},
        {"uid-4", "failed", 1, 1},   {"uid-5", "running", 1, 0}, {"uid-6", "gone", 90, 500},
    };
    for (size_t i = 0; i < ARRAY_LEN(boxes); i++) {
        struct sandbox_row row = sandbox_of(boxes[i].uid, boxes[i].uid, boxes[i].state);
        row.since = boxes[i].since;
        row.ended = boxes[i].ended;
        put_sandbox(store, &row);
        put_exec(store, boxes[i].uid, 1, "exited");
        add_event(store, boxes[i].uid, "x");
        ck_assert_int_eq(put_preview(boxes[i].uid, 1, boxes[i].uid), 0);
    }
    char **uids;
    size_t count;
    ck_assert_int_eq(store_purge(store, 50, 10, &uids, &count, &err), 0);
    ck_assert_uint_eq(count, 0);
    free(uids);
    ck_assert_int_eq(store_purge(store, 201, 2, &uids, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(uids[0], "uid-2");
    ck_assert_str_eq(uids[1], "uid-1");
    free(uids[0]);
    free(uids[1]);
    free(uids);
    ck_assert_int_eq(store_purge(store, 201, 0, &uids, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(uids[0], "uid-3");
    free(uids[0]);
    free(uids);
    static const char *const tables[] = {"states", "execs", "events", "previews", "sandboxes"};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        cleanup_free char *sql =
            xasprintf("SELECT count(*)*10+(SELECT count(*) FROM %s WHERE uid<'uid-4') FROM %s",
                      tables[i], tables[i]);
        ck_assert_int_eq(sql_number(path, sql), 30);
    }
}
END_TEST

START_TEST(test_limits)
{
    struct sandbox_row sandbox = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &sandbox);
    for (int64_t i = 1; i <= CAP_LIST_LIMIT + 3; i++) {
        put_exec(store, "uid-1", i, "running");
        add_event(store, "uid-1", "x");
    }
    static const struct {
        size_t limit, count;
    } limits[] = {{0, CAP_LIST_LIMIT},
                  {CAP_LIST_LIMIT, CAP_LIST_LIMIT},
                  {CAP_LIST_LIMIT + 1, CAP_LIST_LIMIT + 1},
                  {CAP_LIST_LIMIT + 2, CAP_LIST_LIMIT + 1},
                  {SIZE_MAX, CAP_LIST_LIMIT + 1}};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct exec_row *execs;
        struct event_row *events;
        size_t count;
        ck_assert_int_eq(store_list_execs(store, "uid-1", 0, limits[i].limit, &execs, &count, &err),
                         0);
        ck_assert_uint_eq(count, limits[i].count);
        exec_rows_free(execs, count);
        ck_assert_int_eq(
            store_list_events(store, "uid-1", 0, limits[i].limit, &events, &count, &err), 0);
        ck_assert_uint_eq(count, limits[i].count);
        event_rows_free(events, count);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_records");
    TCase *tcase = tcase_create("store_records");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_execs);
    tcase_add_test(tcase, test_running_execs);
    tcase_add_test(tcase, test_exec_pages);
    tcase_add_test(tcase, test_previews);
    tcase_add_test(tcase, test_a_host_belongs_to_one_living_preview);
    tcase_add_test(tcase, test_events);
    tcase_add_test(tcase, test_large_execs_make_short_pages);
    tcase_add_test(tcase, test_old_events_are_forgotten);
    tcase_add_test(tcase, test_idempotency);
    tcase_add_test(tcase, test_keys_are_kept_for_a_day);
    tcase_add_test(tcase, test_purge);
    tcase_add_test(tcase, test_limits);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
