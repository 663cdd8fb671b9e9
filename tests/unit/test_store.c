#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static struct sandbox_row get(const char *id)
{
    struct sandbox_row row;
    ck_assert_msg(store_get_sandbox(store, id, &row, &err) == 0, "%s", err.msg);
    return row;
}

static void assert_same_sandbox(const struct sandbox_row *a, const struct sandbox_row *b)
{
    ck_assert_str_eq(a->uid, b->uid);
    ck_assert_str_eq(a->id, b->id);
    ck_assert_str_eq(a->owner, b->owner);
    ck_assert_str_eq(a->state, b->state);
    ck_assert_pstr_eq(a->reason, b->reason);
    ck_assert_pstr_eq(a->message, b->message);
    ck_assert_pstr_eq(a->image, b->image);
    ck_assert_pstr_eq(a->spec, b->spec);
    ck_assert_pstr_eq(a->labels, b->labels);
    ck_assert_uint_eq(a->sealed_len, b->sealed_len);
    if (a->sealed_len > 0)
        ck_assert_mem_eq(a->sealed, b->sealed, a->sealed_len);
    ck_assert_int_eq(a->sealed_version, b->sealed_version);
    ck_assert_pstr_eq(a->digest, b->digest);
    ck_assert_pstr_eq(a->box_uid, b->box_uid);
    ck_assert_pstr_eq(a->node, b->node);
    ck_assert_pstr_eq(a->container_id, b->container_id);
    ck_assert_int_eq(a->created, b->created);
    ck_assert_int_eq(a->since, b->since);
    ck_assert_int_eq(a->ready, b->ready);
    ck_assert_int_eq(a->ended, b->ended);
    ck_assert_int_eq(a->deadline, b->deadline);
    ck_assert_int_eq(a->last_exec, b->last_exec);
}

static const struct sandbox_row full_row = {
    .uid = (char *)"uid-1",
    .id = (char *)"box",
    .owner = (char *)"o'wn\"er \xc3\xa9",
    .state = (char *)"failed",
    .reason = (char *)"image_pull_failed",
    .message = (char *)"the cluster's\nown words",
    .image = (char *)"image@sha256:1",
    .spec = (char *)"{\"workdir\":\"/w\"}",
    .labels = (char *)"{\"a.b/c\":\"d\"}",
    .sealed = (char *)"\0\x01\xff\0",
    .sealed_len = 4,
    .sealed_version = INT64_MAX,
    .digest = (char *)"blake2b:1",
    .box_uid = (char *)"box-uid",
    .node = (char *)"node-1",
    .container_id = (char *)"containerd://1",
    .created = 1,
    .since = 2,
    .ready = 3,
    .ended = 4,
    .deadline = 5,
    .last_exec = 6,
};

START_TEST(test_sandbox_comes_back_as_it_was)
{
    put_sandbox(store, &full_row);
    struct sandbox_row row = get("box");
    assert_same_sandbox(&row, &full_row);
    sandbox_row_done(&row);
    ck_assert_ptr_null(row.uid);
    struct sandbox_row bare = sandbox_of("uid-2", "other", "creating");
    ck_assert_int_eq(store_put_sandbox(store, &bare, true, &err), 0);
    reopen();
    row = get("box");
    assert_same_sandbox(&row, &full_row);
    sandbox_row_done(&row);
    ck_assert_int_eq(store_get_sandbox_uid(store, "uid-2", &row, &err), 0);
    assert_same_sandbox(&row, &bare);
    sandbox_row_done(&row);
    ck_assert_int_eq(store_get_sandbox(store, "uid-2", &row, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_int_eq(store_get_sandbox_uid(store, "box", &row, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_update)
{
    put_sandbox(store, &full_row);
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    row.owner = full_row.owner;
    row.created = full_row.created;
    row.last_exec = 9;
    row.labels = (char *)"{}";
    put_sandbox(store, &row);
    struct sandbox_row back = get("box");
    assert_same_sandbox(&back, &row);
    sandbox_row_done(&back);
    /* the number of the last exec never falls */
    row.last_exec = 3;
    put_sandbox(store, &row);
    back = get("box");
    ck_assert_int_eq(back.last_exec, 9);
    sandbox_row_done(&back);
}
END_TEST

START_TEST(test_state_history)
{
    struct sandbox_row row = sandbox_of("uid-1", "box", "creating");
    put_sandbox(store, &row);
    row.message = (char *)"still";
    put_sandbox(store, &row);
    row.state = (char *)"running";
    row.since = 1500;
    put_sandbox(store, &row);
    row.state = (char *)"gone";
    row.reason = (char *)"ttl";
    row.message = (char *)"its time was over";
    row.since = 1600;
    put_sandbox(store, &row);
    struct state_row *rows;
    size_t count;
    ck_assert_int_eq(store_states(store, "uid-1", &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(rows[0].state, "creating");
    ck_assert_ptr_null(rows[0].message);
    ck_assert_int_eq(rows[0].at, 1001);
    ck_assert_str_eq(rows[1].state, "running");
    ck_assert_str_eq(rows[2].state, "gone");
    ck_assert_str_eq(rows[2].reason, "ttl");
    ck_assert_str_eq(rows[2].message, "its time was over");
    ck_assert_int_eq(rows[2].at, 1600);
    state_rows_free(rows, count);
    ck_assert_int_eq(store_states(store, "uid-2", &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 0);
    state_rows_free(rows, count);
}
END_TEST

START_TEST(test_one_living_sandbox_of_an_id)
{
    struct sandbox_row first = sandbox_of("uid-1", "box", "failed");
    struct sandbox_row second = sandbox_of("uid-2", "box", "creating");
    put_sandbox(store, &first);
    ck_assert_int_eq(store_put_sandbox(store, &second, true, &err), -1);
    ck_assert_int_eq(err.code, ERR_ALREADY_EXISTS);
    /* one that is gone already may come, though */
    second.state = (char *)"gone";
    put_sandbox(store, &second);
    first.state = (char *)"gone";
    put_sandbox(store, &first);
    second.state = (char *)"running";
    put_sandbox(store, &second);
    first.state = (char *)"running";
    ck_assert_int_eq(store_put_sandbox(store, &first, true, &err), -1);
    ck_assert_int_eq(err.code, ERR_ALREADY_EXISTS);
    struct sandbox_row row = get("box");
    ck_assert_str_eq(row.uid, "uid-2");
    sandbox_row_done(&row);
}
END_TEST

START_TEST(test_the_newest_of_those_gone)
{
    struct sandbox_row row = sandbox_of("uid-1", "box", "gone");
    row.created = 10;
    put_sandbox(store, &row);
    row.uid = (char *)"uid-0";
    row.created = 30;
    put_sandbox(store, &row);
    row.uid = (char *)"uid-2";
    row.created = 20;
    put_sandbox(store, &row);
    struct sandbox_row back = get("box");
    ck_assert_str_eq(back.uid, "uid-0");
    sandbox_row_done(&back);
    row.uid = (char *)"uid-3";
    row.created = 5;
    row.state = (char *)"deleting";
    put_sandbox(store, &row);
    back = get("box");
    ck_assert_str_eq(back.uid, "uid-3");
    sandbox_row_done(&back);
}
END_TEST

#define THREAD_ROUNDS 60

static void *work(void *arg)
{
    const char *uid = arg;
    for (int64_t i = 1; i <= THREAD_ROUNDS; i++) {
        struct err mine;
        struct sandbox_row row = sandbox_of(uid, uid, i % 2 ? "running" : "deleting");
        row.since = i;
        ck_assert_int_eq(store_put_sandbox(store, &row, i % 16 == 0, &mine), 0);
        put_exec(store, uid, i, "running");
        add_event(store, uid, "x");
        struct idempotency_row key = {.owner = "me", .route = "r", .digest = "d"};
        cleanup_free char *text = xasprintf("%lld", (long long)i / 16);
        key.key = text;
        (void)snprintf(key.uid, sizeof(key.uid), "%s", uid);
        int found;
        ck_assert_int_eq(store_claim_key(store, &key, &found, &mine), 0);
        struct sandbox_filter filter = {.limit = 5};
        struct sandbox_row *rows;
        size_t count;
        char *next;
        ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &mine), 0);
        ck_assert_uint_ge(count, 1);
        sandbox_rows_free(rows, count);
        free(next);
    }
    return NULL;
}

START_TEST(test_threads)
{
    static const char *const uids[] = {"uid-1", "uid-2", "uid-3"};
    pthread_t threads[ARRAY_LEN(uids)];
    for (size_t i = 0; i < ARRAY_LEN(uids); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, (void *)uids[i]), 0);
    for (size_t i = 0; i < ARRAY_LEN(uids); i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(uids); i++) {
        struct sandbox_row row = get(uids[i]);
        ck_assert_int_eq(row.last_exec, THREAD_ROUNDS);
        sandbox_row_done(&row);
        struct state_row *states;
        size_t count;
        ck_assert_int_eq(store_states(store, uids[i], &states, &count, &err), 0);
        ck_assert_uint_eq(count, THREAD_ROUNDS);
        state_rows_free(states, count);
    }
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM idempotency"), THREAD_ROUNDS / 16 + 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *tcase = tcase_create("store");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_sandbox_comes_back_as_it_was);
    tcase_add_test(tcase, test_update);
    tcase_add_test(tcase, test_state_history);
    tcase_add_test(tcase, test_one_living_sandbox_of_an_id);
    tcase_add_test(tcase, test_the_newest_of_those_gone);
    tcase_add_test(tcase, test_threads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
