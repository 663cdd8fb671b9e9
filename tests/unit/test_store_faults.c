#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/caps.h"
#include "store/query.h"
#include "tests/unit/fault_vfs.h"
#include "tests/unit/store_rows.h"
#include "tests/unit/temp_dir.h"

static struct temp_dir dir;
static char *path;
static struct err err;

static void setup(void)
{
    temp_dir_make(&dir);
    path = temp_path(&dir, "store.db");
    fault_set(0, FAULT_IO);
}

static void teardown(void)
{
    fault_set(0, FAULT_IO);
    free(path);
    temp_dir_remove(&dir);
}

static void remove_store(void)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal", ".lock"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        cleanup_free char *name = xasprintf("%s%s", path, suffixes[i]);
        (void)unlink(name); /* not all are there */
    }
}

/* A life of a sandbox, step by step. */

static int put_state(struct store *store, const char *state, bool durable)
{
    struct sandbox_row row = sandbox_of("uid-1", "box", state);
    return store_put_sandbox(store, &row, durable, &err);
}

static int create(struct store *store)
{
    return put_state(store, "creating", true);
}

static int run(struct store *store)
{
    return put_state(store, "running", false);
}

static int start_exec(struct store *store)
{
    struct exec_row row = {.uid = (char *)"uid-1", .number = 1, .state = (char *)"running"};
    return store_put_exec(store, &row, &err);
}

static int publish(struct store *store)
{
    struct preview_row row = {.uid = (char *)"uid-1", .port = 80, .host = (char *)"box.x"};
    return store_put_preview(store, &row, &err);
}

static int tell(struct store *store)
{
    struct event_row row = {.uid = (char *)"uid-1", .type = (char *)"ready"};
    return store_add_event(store, &row, &err);
}

static int claim(struct store *store)
{
    struct idempotency_row row = {
        .owner = "me", .route = "r", .key = "k", .digest = "d", .uid = "uid-1"};
    int found = -1;
    int rc = store_claim_key(store, &row, &found, &err);
    ck_assert(rc < 0 || found == 0);
    return rc;
}

static int release(struct store *store)
{
    struct idempotency_row row = {
        .owner = "me", .route = "r", .key = "k", .digest = "d", .uid = "uid-1"};
    return store_release_key(store, &row, &err);
}

static int end(struct store *store)
{
    return put_state(store, "gone", true);
}

static int forget(struct store *store)
{
    char **uids;
    size_t count;
    if (store_purge(store, INT64_MAX, 10, &uids, &count, &err) < 0)
        return -1;
    ck_assert_uint_eq(count, 1);
    free(uids[0]);
    free(uids);
    return 0;
}

static const struct step {
    int (*run)(struct store *store);
    bool durable;
    /* what is there after it: sandboxes, states, execs, previews, events, keys; a digit each */
    int64_t there;
} steps[] = {
    {create, true, 110000},   {run, false, 120000},  {start_exec, false, 121000},
    {publish, false, 121100}, {tell, false, 121110}, {claim, true, 121111},
    {release, true, 121110},  {end, true, 131110},   {forget, true, 0},
};

static int64_t what_is_there(void)
{
    return sql_number(path, "SELECT (SELECT count(*) FROM sandboxes)*100000"
                            "+(SELECT count(*) FROM states)*10000"
                            "+(SELECT count(*) FROM execs)*1000"
                            "+(SELECT count(*) FROM previews)*100"
                            "+(SELECT count(*) FROM events)*10"
                            "+(SELECT count(*) FROM idempotency)");
}

static int64_t expected_after(size_t done)
{
    return done == 0 ? 0 : steps[done - 1].there;
}

static void assert_intact(void)
{
    ck_assert_int_eq(sql_number(path, "SELECT integrity_check='ok' FROM pragma_integrity_check"),
                     1);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
}

static void assert_fault_named(enum fault fault)
{
    ck_assert_msg(err.code == (fault == FAULT_IO ? ERR_STORE : ERR_STORE_FULL), "%s: %s",
                  err_code_name(err.code), err.msg);
}

/* Runs the steps from FROM on; returns how many are done. */
static size_t run_steps(struct store *store, size_t from)
{
    for (size_t i = from; i < ARRAY_LEN(steps); i++) {
        if (steps[i].run(store) < 0)
            return i;
    }
    return ARRAY_LEN(steps);
}

static int64_t synchronous(struct store *store)
{
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    ck_assert_int_eq(query_open(store, "PRAGMA synchronous", &query, &err), 0);
    ck_assert_int_eq(query_next(&query, &err), 1);
    return query_int(&query);
}

/* The disk fails at one step, and then works again: nothing of the step has happened, and it can be
 * repeated. Returns false when the fault was later than all steps. */
static bool fail_and_go_on(long after, enum fault fault)
{
    struct store *store = store_open_at(path);
    fault_set(after, fault);
    size_t done = run_steps(store, 0);
    bool failed = done < ARRAY_LEN(steps);
    fault_set(0, fault);
    if (failed) {
        assert_fault_named(fault);
        ck_assert_int_eq(synchronous(store), 1);
        ck_assert_int_eq(what_is_there(), expected_after(done));
        ck_assert_uint_eq(run_steps(store, done), ARRAY_LEN(steps));
    }
    store_close(store);
    assert_intact();
    ck_assert_int_eq(what_is_there(), 0);
    remove_store();
    return failed;
}

/* The server ends while the disk still fails: the step is there as a whole, or not at all. */
static void fail_and_end(long after, enum fault fault)
{
    struct store *store = store_open_at(path);
    fault_set(after, fault);
    size_t done = run_steps(store, 0);
    store_close(store);
    fault_set(0, fault);
    store = store_open_at(path);
    int64_t there = what_is_there();
    if (done < ARRAY_LEN(steps))
        ck_assert(there == expected_after(done) || there == expected_after(done + 1));
    store_close(store);
    assert_intact();
    remove_store();
}

static void check_faults(enum fault fault, long stride)
{
    fault_vfs_install();
    long after = 1;
    for (long round = 1; fail_and_go_on(after, fault); round++, after += stride) {
        if (round % 3 == 0)
            fail_and_end(after, fault);
    }
    ck_assert_int_gt(after, 20);
}

START_TEST(test_full_disk)
{
    check_faults(FAULT_FULL, 1);
}
END_TEST

START_TEST(test_full_disk_by_errno)
{
    check_faults(FAULT_FULL_LATER, 3);
}
END_TEST

START_TEST(test_broken_disk)
{
    check_faults(FAULT_IO, 2);
}
END_TEST

/* A first start that fails anywhere leaves a file with which the next one works. */
START_TEST(test_faults_while_opening)
{
    fault_vfs_install();
    long after = 1;
    for (;; after++) {
        enum fault fault = after % 2 ? FAULT_FULL : FAULT_IO;
        struct store *store = NULL;
        fault_set(after, fault);
        int rc = store_open(path, &store, &err);
        bool reached = fault_operations() >= after;
        fault_set(0, fault);
        if (rc < 0) {
            ck_assert_ptr_null(store);
            assert_fault_named(fault);
            store = store_open_at(path);
        }
        ck_assert_uint_eq(run_steps(store, 0), ARRAY_LEN(steps));
        store_close(store);
        assert_intact();
        remove_store();
        if (!reached)
            break;
    }
    ck_assert_int_gt(after, 10);
}
END_TEST

START_TEST(test_durable_means_synced)
{
    fault_vfs_install();
    struct store *store = store_open_at(path);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        fault_set(0, FAULT_IO);
        ck_assert_int_eq(steps[i].run(store), 0);
        ck_assert_int_eq(fault_log_syncs() > 0, steps[i].durable);
        ck_assert_int_gt(fault_operations(), 0);
    }
    fault_set(0, FAULT_IO);
    ck_assert_int_eq(run(store), 0);
    ck_assert_int_eq(publish(store), 0);
    ck_assert_int_eq(fault_log_syncs(), 0);
    ck_assert_int_eq(store_delete_preview(store, "uid-1", 0, &err), 0);
    ck_assert_int_gt(fault_log_syncs(), 0);
    store_close(store);
}
END_TEST

/* The limit that SQLite itself puts on the file. */
START_TEST(test_full_database)
{
    struct store *store = store_open_at(path);
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &row);
    ck_assert_int_eq(store_exec(store, "PRAGMA max_page_count=1", &err), 0); /* as it is */
    cleanup_free char *sealed = xcalloc(1, CAP_STATE_BLOB);
    struct sandbox_row large = sandbox_of("uid-2", "box2", "running");
    large.sealed = sealed;
    large.sealed_len = CAP_STATE_BLOB;
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(store_put_sandbox(store, &large, i % 2, &err), -1);
        ck_assert_int_eq(err.code, ERR_STORE_FULL);
    }
    /* what fits still works */
    row.state = (char *)"gone";
    put_sandbox(store, &row);
    ck_assert_int_eq(forget(store), 0);
    ck_assert_int_eq(store_exec(store, "PRAGMA max_page_count=1000000", &err), 0);
    put_sandbox(store, &large);
    store_close(store);
    assert_intact();
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM sandboxes"), 1);
}
END_TEST

/* Puts execs for ever, each also as a state and an event, and tells FD the number after each. */
static void write_until_killed(int fd)
{
    struct store *store = store_open_at(path);
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    if (store_get_sandbox(store, "box", &row, &err) < 0)
        row.last_exec = 0;
    for (int64_t i = row.last_exec + 1;; i++) {
        struct sandbox_row now = sandbox_of("uid-1", "box", i % 2 ? "running" : "deleting");
        now.since = i;
        struct exec_row exec = {.uid = (char *)"uid-1", .number = i, .state = (char *)"running"};
        struct event_row event = {.uid = (char *)"uid-1", .type = (char *)"x", .at = i};
        if (store_put_sandbox(store, &now, i % 5 == 0, &err) < 0 ||
            store_put_exec(store, &exec, &err) < 0 || store_add_event(store, &event, &err) < 0 ||
            write(fd, &i, sizeof(i)) != sizeof(i))
            _exit(1);
    }
}

/* Kill -9 loses nothing that was answered, whether synced or not. */
START_TEST(test_killed)
{
    for (int64_t round = 1; round <= 10; round++) {
        int fds[2];
        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
            write_until_killed(fds[1]);
        ck_assert_int_gt(child, 0);
        close(fds[1]);
        int64_t last = 0;
        for (int64_t i = 0; i < 3 * round; i++)
            ck_assert_int_eq(read(fds[0], &last, sizeof(last)), (ssize_t)sizeof(last));
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        int64_t more;
        while (read(fds[0], &more, sizeof(more)) == (ssize_t)sizeof(more))
            last = more;
        close(fds[0]);

        struct store *store = store_open_at(path);
        struct sandbox_row row;
        ck_assert_int_eq(store_get_sandbox(store, "box", &row, &err), 0);
        ck_assert_int_ge(row.since, last);
        ck_assert_int_le(row.since, last + 1);
        ck_assert_int_ge(row.last_exec, last);
        ck_assert_int_le(row.last_exec, row.since);
        ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM execs"), row.last_exec);
        int64_t event = sql_number(path, "SELECT max(at) FROM events");
        ck_assert(event == last || event == last + 1);
        /* each change of the state is in its history, with the record and never without */
        struct state_row *states;
        size_t count;
        ck_assert_int_eq(store_states(store, "uid-1", &states, &count, &err), 0);
        ck_assert_str_eq(states[count - 1].state, row.state);
        ck_assert_int_eq(states[count - 1].at, row.since);
        state_rows_free(states, count);
        sandbox_row_done(&row);
        store_close(store);
        assert_intact();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_faults");
    TCase *tcase = tcase_create("store_faults");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_full_database);
    tcase_add_test(tcase, test_killed);
    tcase_add_test(tcase, test_full_disk);
    tcase_add_test(tcase, test_full_disk_by_errno);
    tcase_add_test(tcase, test_broken_disk);
    tcase_add_test(tcase, test_faults_while_opening);
    tcase_add_test(tcase, test_durable_means_synced);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
