#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "server/callers.h"

static char path[64];

static void make_path(void)
{
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    (void)snprintf(path, sizeof(path), "/tmp/podsandbox-callers-%d", (int)getpid());
}

static void remove_path(void)
{
    (void)unlink(path);
}

static const char *hash_of(const char *key)
{
    static char text[4][2 * CRYPTO_HASH_LEN + 1];
    static unsigned next;
    char *here = text[next++ % 4];
    uint8_t hash[CRYPTO_HASH_LEN];

    crypto_digest(key, strlen(key), hash);
    for (size_t i = 0; i < sizeof(hash); i++)
        (void)snprintf(here + 2 * i, 3, "%02x", hash[i]);
    return here;
}

/* As a kubelet does: the new file replaces the old one whole. */
static void write_file(const char *text)
{
    char fresh[80];

    (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
    FILE *file = fopen(fresh, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(fresh, path), 0);
}

static void assert_known(struct callers *callers, const char *key, const char *owner, bool admin)
{
    char found[129] = "";
    bool is_admin = !admin;
    struct err err;

    ck_assert_int_eq(callers_check(callers, key, found, &is_admin, &err), 0);
    ck_assert_str_eq(found, owner);
    ck_assert_int_eq(is_admin, admin);
}

static void assert_unknown(struct callers *callers, const char *key)
{
    char found[129] = "";
    bool is_admin = false;
    struct err err;

    ck_assert_int_eq(callers_check(callers, key, found, &is_admin, &err), -1);
    ck_assert_int_eq(err.code, ERR_UNAUTHENTICATED);
    ck_assert_ptr_null(strstr(err.msg, key[0] ? key : "\n"));
    ck_assert_str_eq(found, "");
}

START_TEST(test_no_keys)
{
    struct callers *callers;
    struct err err;

    ck_assert_int_eq(callers_open(NULL, NULL, &callers, &err), 0);
    ck_assert(!callers_keyed(callers));
    assert_known(callers, "", "local", true);
    callers_close(callers);
    callers_close(NULL);
}
END_TEST

START_TEST(test_keys)
{
    struct callers *callers;
    char text[1024];
    struct err err;

    (void)snprintf(text, sizeof(text),
                   "# keys\n\n%s alice user\r\n  %s\troot admin # the operator\n%s bob@x.y user",
                   hash_of("key-a"), hash_of("key-r"), hash_of("key-b"));
    write_file(text);
    ck_assert_int_eq(callers_open(path, NULL, &callers, &err), 0);
    ck_assert(callers_keyed(callers));
    assert_known(callers, "key-a", "alice", false);
    assert_known(callers, "key-r", "root", true);
    assert_known(callers, "key-b", "bob@x.y", false);
    assert_unknown(callers, "key-c");
    assert_unknown(callers, "");
    assert_unknown(callers, hash_of("key-a"));
    callers_close(callers);
}
END_TEST

/* The hash is the one that b2sum prints. */
START_TEST(test_known_hash)
{
    ck_assert_str_eq(hash_of("abc"),
                     "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}
END_TEST

START_TEST(test_broken)
{
    static const char *const lines[] = {
        "nothex alice user",  "%.62s alice user",
        "%sff alice user",    "%s",
        "%s alice",           "%s alice root",
        "%s alice user more", "%s al/ice user",
        "%s \xff user",       "%1$s alice user\n%1$s bob user",
    };
    struct callers *callers;
    char text[512];
    struct err err;

    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof(text), lines[i], hash_of("k"));
#pragma GCC diagnostic pop
        write_file(text);
        ck_assert_msg(callers_open(path, NULL, &callers, &err) == -1, "%s", text);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        ck_assert_ptr_nonnull(strstr(err.msg, path));
        ck_assert_ptr_null(strstr(err.msg, hash_of("k")));
    }
    remove_path();
    ck_assert_int_eq(callers_open(path, NULL, &callers, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
}
END_TEST

/* Asks until the answer changes: the file is looked at once a second. */
static void wait_known(struct callers *callers, const char *key, bool known)
{
    int64_t deadline = clock_now_ms() + 20000;

    for (;;) {
        char found[129];
        bool admin;
        struct err err;

        if ((callers_check(callers, key, found, &admin, &err) == 0) == known)
            return;
        ck_assert_int_lt(clock_now_ms(), deadline);
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

START_TEST(test_read_again)
{
    struct callers *callers;
    char text[512];
    struct err err;

    (void)snprintf(text, sizeof(text), "%s alice user\n", hash_of("old"));
    write_file(text);
    ck_assert_int_eq(callers_open(path, NULL, &callers, &err), 0);
    assert_known(callers, "old", "alice", false);
    (void)snprintf(text, sizeof(text), "%s alice admin\n", hash_of("new"));
    write_file(text);
    wait_known(callers, "new", true);
    assert_known(callers, "new", "alice", true);
    assert_unknown(callers, "old");

    /* What is broken or missing leaves the last good one in use; what is right again is taken. */
    write_file("half writ");
    (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    assert_known(callers, "new", "alice", true);
    remove_path();
    (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    assert_known(callers, "new", "alice", true);
    (void)snprintf(text, sizeof(text), "%s alice user\n", hash_of("third"));
    write_file(text);
    wait_known(callers, "third", true);
    write_file("# none\n");
    wait_known(callers, "third", false);
    callers_close(callers);
}
END_TEST

/* The admin's key stands as it is sent, alone or beside the other keys. */
START_TEST(test_admin_key)
{
    static const char *const wrong[] = {"", "too-short", "two words of sixteen",
                                        "one-line-of-16-\nx", "not-ascii-\xc3\xa9-16"};
    struct callers *callers;
    struct err err;

    write_file("the-key-of-the-admin\n");
    ck_assert_int_eq(callers_open(NULL, path, &callers, &err), 0);
    ck_assert(callers_keyed(callers));
    assert_known(callers, "the-key-of-the-admin", "admin", true);
    assert_unknown(callers, "the-key-of-the-admin\n");
    assert_unknown(callers, hash_of("the-key-of-the-admin"));
    write_file("the-next-key-of-the-admin");
    wait_known(callers, "the-next-key-of-the-admin", true);
    assert_unknown(callers, "the-key-of-the-admin");
    callers_close(callers);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        write_file(wrong[i]);
        ck_assert_msg(callers_open(NULL, path, &callers, &err) == -1, "%s", wrong[i]);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        ck_assert_ptr_nonnull(strstr(err.msg, path));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("callers");
    TCase *cases = tcase_create("all");

    log_setup(LOG_LEVEL_ERROR);
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, make_path, remove_path);
    tcase_add_test(cases, test_no_keys);
    tcase_add_test(cases, test_keys);
    tcase_add_test(cases, test_known_hash);
    tcase_add_test(cases, test_broken);
    tcase_add_test(cases, test_read_again);
    tcase_add_test(cases, test_admin_key);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
