#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "store/query.h"
#include "store/sessions.h"
#include "tests/unit/store_rows.h"
#include "tests/unit/temp_dir.h"

static struct temp_dir dir;
static char *path;
static struct err err;

static void setup(void)
{
    temp_dir_make(&dir);
    path = temp_path(&dir, "store.db");
}

static void teardown(void)
{
    free(path);
    temp_dir_remove(&dir);
}

static void assert_refused(const char *name, enum err_code code, const char *words)
{
    struct store *store = NULL;
    ck_assert_int_eq(store_open(name, &store, &err), -1);
    ck_assert_ptr_null(store);
    ck_assert_msg(err.code == code, "%s: %s", err_code_name(err.code), err.msg);
    ck_assert_msg(strstr(err.msg, words) != NULL, "%s", err.msg);
}

static void read_file(const char *name, struct buf *out)
{
    cleanup_fd int fd = open(name, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    char *room = buf_reserve(out, (size_t)st.st_size);
    ck_assert_int_eq(read(fd, room, (size_t)st.st_size), st.st_size);
    buf_grew(out, (size_t)st.st_size);
}

static void write_file(const char *name, const char *data, size_t len)
{
    cleanup_fd int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
}

static void assert_mode(const char *suffix, bool must_exist)
{
    cleanup_free char *name = xasprintf("%s%s", path, suffix);
    struct stat st;
    if (!must_exist && access(name, F_OK) < 0)
        return;
    ck_assert_int_eq(stat(name, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
}

START_TEST(test_nobody_else_reads_it)
{
    umask(0);
    struct store *store = store_open_at(path);
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &row);
    static const char *const suffixes[] = {"", "-wal", "-shm", ".lock"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++)
        assert_mode(suffixes[i], true);
    store_close(store);
    /* as a volume's group may have been given rights on all files at a mount, after a kill */
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        cleanup_free char *name = xasprintf("%s%s", path, suffixes[i]);
        cleanup_fd int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0660);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fchmod(fd, 0660), 0);
    }
    store = store_open_at(path);
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++)
        assert_mode(suffixes[i], i != 2);
    store_close(store);
}
END_TEST

START_TEST(test_wal_and_foreign_keys)
{
    struct store *store = store_open_at(path);
    static const struct {
        const char *sql;
        int64_t value;
    } settings[] = {{"SELECT journal_mode='wal' FROM pragma_journal_mode", 1},
                    {"PRAGMA synchronous", 1},
                    {"PRAGMA foreign_keys", 1},
                    {"PRAGMA busy_timeout", 5000},
                    {"PRAGMA user_version", 4}};
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        LOCK_STORE(store);
        cleanup_query struct query query = QUERY_INIT;
        ck_assert_int_eq(query_open(store, settings[i].sql, &query, &err), 0);
        ck_assert_int_eq(query_next(&query, &err), 1);
        ck_assert_int_eq(query_int(&query), settings[i].value);
    }
    store_close(store);
}
END_TEST

START_TEST(test_one_server_at_a_time)
{
    struct store *store = store_open_at(path);
    assert_refused(path, ERR_CONFIG, "in use by another podsandboxd");
    /* by whatever name */
    cleanup_free char *link_path = temp_path(&dir, "link.db");
    ck_assert_int_eq(symlink(path, link_path), 0);
    assert_refused(link_path, ERR_CONFIG, "in use by another podsandboxd");
    cleanup_free char *round =
        xasprintf("%s/../%s/./store.db", dir.path, strrchr(dir.path, '/') + 1);
    assert_refused(round, ERR_CONFIG, "in use by another podsandboxd");
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(chdir(dir.path), 0);
    assert_refused("store.db", ERR_CONFIG, "in use by another podsandboxd");
    ck_assert_int_eq(fchdir(here), 0);
    close(here);
    /* and it goes on with the first */
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &row);
    store_close(store);
    store = store_open_at(link_path);
    ck_assert_int_eq(store_get_sandbox(store, "box", &row, &err), 0);
    sandbox_row_done(&row);
    store_close(store);
    store_close(NULL);
}
END_TEST

START_TEST(test_lock_of_another_process)
{
    int ready[2];
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store *store = store_open_at(path);
        struct sandbox_row row = sandbox_of("uid-1", "box", "running");
        put_sandbox(store, &row);
        (void)!write(ready[1], "x", 1);
        for (;;)
            pause();
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    assert_refused(path, ERR_CONFIG, "in use by another podsandboxd");
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(ready[0]);
    close(ready[1]);
    struct store *store = store_open_at(path);
    struct sandbox_row row;
    ck_assert_int_eq(store_get_sandbox(store, "box", &row, &err), 0);
    sandbox_row_done(&row);
    store_close(store);
}
END_TEST

/* Somebody looks at the file with another program and keeps it. */
START_TEST(test_locked_by_another_program)
{
    struct store *store = store_open_at(path);
    sqlite3 *other = NULL;
    ck_assert_int_eq(sqlite3_open(path, &other), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_busy_timeout(store->db, 1), SQLITE_OK);
    struct sandbox_row row = sandbox_of("uid-1", "box", "running");
    ck_assert_int_eq(store_put_sandbox(store, &row, true, &err), -1);
    ck_assert_int_eq(err.code, ERR_BUSY);
    ck_assert_int_eq(store_get_sandbox(store, "box", &row, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND); /* reading works */
    ck_assert_int_eq(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    row = sandbox_of("uid-1", "box", "running");
    put_sandbox(store, &row);
    ck_assert_int_eq(sqlite3_close(other), SQLITE_OK);
    store_close(store);
}
END_TEST

START_TEST(test_paths_that_cannot_be)
{
    assert_refused(dir.path, ERR_CONFIG, "not a regular file");
    cleanup_free char *beside = xasprintf("%s.lock", dir.path);
    ck_assert_int_eq(access(beside, F_OK), -1);
    cleanup_free char *missing = temp_path(&dir, "no/such/dir.db");
    assert_refused(missing, ERR_CONFIG, "open the directory of the store");
    cleanup_free char *fifo = temp_path(&dir, "fifo");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    assert_refused(fifo, ERR_CONFIG, "not a regular file");
    cleanup_free char *loop = temp_path(&dir, "loop");
    ck_assert_int_eq(symlink("loop", loop), 0);
    assert_refused(loop, ERR_CONFIG, "open the store");
    cleanup_free char *below = temp_path(&dir, "fifo/store.db");
    assert_refused(below, ERR_CONFIG, "open the store");
    assert_refused("", ERR_CONFIG, "");
}
END_TEST

START_TEST(test_files_of_others)
{
    /* no database */
    static const size_t lens[] = {1, 15, 16, 100, 511, 512, 5000, 70000};
    cleanup_free char *text = xmalloc(70000);
    memset(text, 'x', 70000);
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        write_file(path, text, lens[i]);
        assert_refused(path, ERR_CONFIG, "is not a database");
        cleanup_buf struct buf after = BUF_INIT(MIB);
        read_file(path, &after);
        ck_assert_uint_eq(after.len, lens[i]);
        ck_assert_mem_eq(after.ptr, text, lens[i]);
    }
    /* a database of another program */
    static const char *const others[] = {"CREATE TABLE notes(text)",
                                         "PRAGMA application_id=7; PRAGMA user_version=1",
                                         "PRAGMA user_version=3; CREATE TABLE sandboxes(uid)"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        ck_assert_int_eq(unlink(path), 0);
        sql_number(path, others[i]);
        cleanup_buf struct buf before = BUF_INIT(MIB), after = BUF_INIT(MIB);
        read_file(path, &before);
        assert_refused(path, ERR_CONFIG, "of another program");
        read_file(path, &after);
        ck_assert_uint_eq(after.len, before.len);
        ck_assert_mem_eq(after.ptr, before.ptr, before.len);
    }
    /* an empty file is nobody's */
    write_file(path, "", 0);
    store_close(store_open_at(path));
}
END_TEST

static void fill(void)
{
    struct store *store = store_open_at(path);
    for (int i = 0; i < 100; i++) {
        char uid[16];
        (void)snprintf(uid, sizeof(uid), "uid-%d", i);
        struct sandbox_row row = sandbox_of(uid, uid, i % 2 ? "running" : "gone");
        row.spec = (char *)"{\"a spec\": \"of some bytes, so that there are pages enough\"}";
        put_sandbox(store, &row);
        put_exec(store, uid, 1, "running");
        add_event(store, uid, "x");
    }
    store_close(store);
}

START_TEST(test_damaged)
{
    fill();
    cleanup_buf struct buf whole = BUF_INIT(10 * MIB), bad = BUF_INIT(10 * MIB);
    read_file(path, &whole);
    /* a table's pages overwritten */
    ck_assert(buf_append(&bad, whole.ptr, whole.len));
    memset(bad.ptr + 8192, 0xff, bad.len - 8192);
    write_file(path, bad.ptr, bad.len);
    assert_refused(path, ERR_CONFIG, "move it away");
    /* cut short */
    write_file(path, whole.ptr, whole.len / 2);
    assert_refused(path, ERR_CONFIG, "move it away");
    write_file(path, whole.ptr, 50);
    assert_refused(path, ERR_CONFIG, "");
    /* whole again */
    write_file(path, whole.ptr, whole.len);
    store_close(store_open_at(path));
}
END_TEST

/* Damage comes while the server runs. */
START_TEST(test_damaged_later)
{
    fill();
    struct store *store = store_open_at(path);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    cleanup_free char *junk = xmalloc((size_t)st.st_size);
    memset(junk, 0xff, (size_t)st.st_size);
    ck_assert_int_eq(pwrite(fd, junk, (size_t)st.st_size - 4096, 4096), st.st_size - 4096);
    int64_t flush = sqlite3_db_release_memory(store->db);
    ck_assert_int_eq(flush, SQLITE_OK);
    struct sandbox_filter filter = {.state = "all"};
    struct sandbox_row *rows;
    size_t count;
    char *next;
    ck_assert_int_eq(store_list_sandboxes(store, &filter, &rows, &count, &next, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
    ck_assert_ptr_nonnull(strstr(err.msg, "move it away"));
    struct sandbox_row row = sandbox_of("uid-1", "uid-1", "running");
    ck_assert_int_eq(store_put_sandbox(store, &row, true, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE);
    store_close(store);
}
END_TEST

static uint64_t random_state = 88172645463325252u;

static size_t random_below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state >> 11) % bound;
}

/* Uses everything; what comes back may be wrong, but it comes back. */
static void use_damaged(struct store *store)
{
    struct sandbox_filter filter = {.state = "all", .limit = 50};
    struct sandbox_row *rows;
    size_t count;
    char *next;
    if (store_list_sandboxes(store, &filter, &rows, &count, &next, &err) == 0) {
        sandbox_rows_free(rows, count);
        free(next);
    }
    struct exec_row *execs;
    if (store_list_execs(store, "uid-1", 0, 10, &execs, &count, &err) == 0)
        exec_rows_free(execs, count);
    struct state_count counts[4];
    (void)!store_counts(store, counts, 4, &count, &err);
    struct sandbox_row row = sandbox_of("uid-new", "new", "gone");
    (void)!store_put_sandbox(store, &row, false, &err);
    char **uids;
    if (store_purge(store, INT64_MAX, 20, &uids, &count, &err) == 0) {
        for (size_t i = 0; i < count; i++)
            free(uids[i]);
        free(uids);
    }
}

START_TEST(test_random_damage)
{
    fill();
    cleanup_buf struct buf whole = BUF_INIT(10 * MIB);
    read_file(path, &whole);
    size_t refused = 0;
    for (size_t round = 0; round < 150; round++) {
        cleanup_free char *bad = xmalloc(whole.len);
        memcpy(bad, whole.ptr, whole.len);
        size_t within = round % 3 == 0 ? 200 : whole.len;
        for (size_t i = 0; i < 1 + round / 5; i++)
            bad[random_below(within)] = (char)random_below(256);
        write_file(path, bad, whole.len);
        struct store *store = NULL;
        if (store_open(path, &store, &err) < 0) {
            ck_assert_ptr_null(store);
            ck_assert(err.code == ERR_CONFIG || err.code == ERR_STORE);
            refused++;
            continue;
        }
        use_damaged(store);
        store_close(store);
    }
    ck_assert_uint_gt(refused, 10);
}
END_TEST

/* As schema 3 was: its executions are no sessions, and new ones may be. */
START_TEST(test_file_without_sessions)
{
    fill();
    sql_number(path, "DROP INDEX execs_sessions; ALTER TABLE execs DROP COLUMN session;"
                     "PRAGMA user_version=3;");
    struct store *store = store_open_at(path);
    struct sandbox_row box = sandbox_of("uid-s", "uid-s", "running");
    put_sandbox(store, &box);
    put_exec(store, "uid-s", 1, "running");
    struct exec_row session = {.uid = box.uid,
                               .number = 2,
                               .state = (char *)"running",
                               .spec = (char *)"{}",
                               .session = 2};
    struct exec_row text = session, *rows = NULL;
    text.number = 3;
    ck_assert_int_eq(store_put_exec(store, &session, &err), 0);
    ck_assert_int_eq(store_put_exec(store, &text, &err), 0);
    const struct exec_page all = {.uid = box.uid}, older = {.uid = box.uid, .before = 2};
    size_t count = 0;
    ck_assert_int_eq(store_list_sessions(store, &all, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(rows[0].number, 2);
    ck_assert_int_eq(rows[0].session, 2);
    exec_rows_free(rows, count);
    ck_assert_int_eq(store_list_sessions(store, &older, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 0);
    exec_rows_free(rows, count);
    store_close(store);
    ck_assert_int_eq(sql_number(path, "PRAGMA user_version"), 4);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM execs WHERE session<>0"), 2);
}
END_TEST

/* A newer server only added things: they stay, and this one works. */
START_TEST(test_newer_file)
{
    fill();
    sql_number(path, "PRAGMA user_version=99;"
                     "ALTER TABLE sandboxes ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';"
                     "ALTER TABLE execs ADD COLUMN cost INTEGER;"
                     "CREATE TABLE pools(name TEXT NOT NULL PRIMARY KEY);"
                     "INSERT INTO pools VALUES('p');"
                     "UPDATE sandboxes SET colour='blue';");
    struct store *store = store_open_at(path);
    struct sandbox_row row = sandbox_of("uid-1", "uid-1", "failed");
    put_sandbox(store, &row);
    row = sandbox_of("uid-new", "new", "running");
    put_sandbox(store, &row);
    put_exec(store, "uid-new", 1, "running");
    store_close(store);
    ck_assert_int_eq(sql_number(path, "PRAGMA user_version"), 99);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM pools"), 1);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM sandboxes WHERE colour='blue'"), 100);
    ck_assert_int_eq(
        sql_number(path, "SELECT count(*) FROM sandboxes WHERE uid='uid-1' AND state='failed'"), 1);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM sandboxes WHERE colour='red'"), 1);
}
END_TEST

/* Of the server that knew no facts yet. */
START_TEST(test_older_file)
{
    fill();
    sql_number(path, "DROP TABLE facts; DROP INDEX execs_running; DROP INDEX execs_sessions;"
                     "ALTER TABLE execs DROP COLUMN session; PRAGMA user_version=1");
    struct store *store = store_open_at(path);
    ck_assert_int_eq(store_check_key(store, (const uint8_t *)"one", 3, &err), 0);
    store_close(store);
    ck_assert_int_eq(sql_number(path, "PRAGMA user_version"), 4);
    ck_assert_int_eq(sql_number(path, "SELECT count(*) FROM sandboxes"), 100);
}
END_TEST

START_TEST(test_key_of_another_store)
{
    struct store *store = store_open_at(path);
    ck_assert_int_eq(store_check_key(store, (const uint8_t *)"one", 3, &err), 0);
    ck_assert_int_eq(store_check_key(store, (const uint8_t *)"one", 3, &err), 0);
    store_close(store);
    store = store_open_at(path);
    ck_assert_int_eq(store_check_key(store, (const uint8_t *)"two", 3, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_int_eq(store_check_key(store, (const uint8_t *)"one", 3, &err), 0);
    store_close(store);
}
END_TEST

START_TEST(test_newer_file_that_does_not_fit)
{
    static const char *const changes[] = {
        "CREATE TABLE new_events AS SELECT seq,uid,type,at FROM events; DROP TABLE events;"
        "ALTER TABLE new_events RENAME TO events",
        "ALTER TABLE execs RENAME COLUMN result TO outcome",
        "DROP TABLE idempotency",
        "DROP TABLE previews; CREATE TABLE previews(uid,port,first,host,service,ingress,exec,spec,"
        "created,must TEXT NOT NULL)",
    };
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        fill();
        sql_number(path, changes[i]);
        sql_number(path, "PRAGMA user_version=99");
        assert_refused(path, ERR_CONFIG, "newer podsandboxd (schema 99");
        ck_assert_int_eq(unlink(path), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_open");
    TCase *tcase = tcase_create("store_open");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_nobody_else_reads_it);
    tcase_add_test(tcase, test_wal_and_foreign_keys);
    tcase_add_test(tcase, test_one_server_at_a_time);
    tcase_add_test(tcase, test_lock_of_another_process);
    tcase_add_test(tcase, test_locked_by_another_program);
    tcase_add_test(tcase, test_paths_that_cannot_be);
    tcase_add_test(tcase, test_files_of_others);
    tcase_add_test(tcase, test_damaged);
    tcase_add_test(tcase, test_damaged_later);
    tcase_add_test(tcase, test_random_damage);
    tcase_add_test(tcase, test_file_without_sessions);
    tcase_add_test(tcase, test_newer_file);
    tcase_add_test(tcase, test_older_file);
    tcase_add_test(tcase, test_key_of_another_store);
    tcase_add_test(tcase, test_newer_file_that_does_not_fit);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
