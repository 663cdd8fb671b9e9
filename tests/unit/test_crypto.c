#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/crypto.h"

static char folder[64];

static void setup(void)
{
    struct err err;
    ck_assert_int_eq(crypto_start(&err), 0);
    snprintf(folder, sizeof(folder), "%s", "/tmp/podsandbox-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static size_t count_and_remove_files(void)
{
    struct dirent **entries = NULL;
    size_t count = 0;
    int found = scandir(folder, &entries, NULL, NULL);
    ck_assert_int_ge(found, 2); /* "." and ".." */
    for (int i = 0; i < found; i++) {
        cleanup_free char *path = xasprintf("%s/%s", folder, entries[i]->d_name);
        count += unlink(path) == 0 ? 1 : 0;
        free(entries[i]);
    }
    free((void *)entries);
    return count;
}

static void teardown(void)
{
    count_and_remove_files();
    rmdir(folder);
}

static char *in_folder(const char *name)
{
    return xasprintf("%s/%s", folder, name);
}

static void write_file(const char *path, const char *text)
{
    cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

START_TEST(test_sha256_is_the_same_in_pieces)
{
    /* FIPS 180-2, B.2 */
    const char *text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    const char *want = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        struct crypto_sha256 sha;
        uint8_t hash[CRYPTO_HASH_LEN];
        cleanup_buf struct buf hex = BUF_INIT(128);
        crypto_sha256_start(&sha);
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t left = strlen(text) - at;
            crypto_sha256_add(&sha, text + at, left < piece ? left : piece);
        }
        crypto_sha256_end(&sha, hash);
        ck_assert(hex_encode(&hex, hash, sizeof(hash)));
        ck_assert_str_eq(buf_text(&hex), want);
    }
}
END_TEST

START_TEST(test_key_is_made_once)
{
    cleanup_free char *path = in_folder("key");
    struct crypto_key key, again;
    struct err err;
    ck_assert_int_eq(crypto_key_load(path, &key, &err), 0);
    struct stat status;
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0600);
    ck_assert_int_eq(status.st_size, 2 * CRYPTO_KEY_LEN + 1);
    ck_assert_int_eq(crypto_key_load(path, &again, &err), 0);
    ck_assert_int_eq(crypto_compare(&key, &again, sizeof(key)), 0);
    ck_assert_uint_eq(count_and_remove_files(), 1);
    ck_assert_int_eq(crypto_key_load(path, &again, &err), 0);
    ck_assert_int_ne(crypto_compare(&key, &again, sizeof(key)), 0);
}
END_TEST

START_TEST(test_key_file_contents)
{
#define ZEROES "0000000000000000000000000000000000000000000000000000000000"
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {ZEROES "0000AF", true},
        {ZEROES "0000af\n", true},
        {ZEROES "0000af\r\n", true},
        {"", false},
        {"\n", false},
        {ZEROES "0000a", false},
        {ZEROES "0000afa", false},
        {ZEROES "0000ag", false},
        {ZEROES ZEROES ZEROES, false},
        {" " ZEROES "0000af", false},
        {ZEROES "0000af\nx", false},
    };
    cleanup_free char *path = in_folder("key");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct crypto_key key = {.bytes = {7}};
        struct err err = {.code = ERR_NONE};
        write_file(path, cases[i].text);
        int rc = crypto_key_load(path, &key, &err);
        ck_assert_msg((rc == 0) == cases[i].good, "'%s'", cases[i].text);
        ck_assert_int_eq(err.code, cases[i].good ? ERR_NONE : ERR_CONFIG);
        ck_assert_uint_eq(key.bytes[0], cases[i].good ? 0 : 7);
        ck_assert_uint_eq(key.bytes[31], cases[i].good ? 0xAF : 0);
    }
}
END_TEST

START_TEST(test_key_file_errors)
{
    struct crypto_key key;
    struct err err;
    cleanup_free char *missing = in_folder("missing/key");
    ck_assert_int_eq(crypto_key_load(missing, &key, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    ck_assert_int_eq(crypto_key_load(folder, &key, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    cleanup_free char *fifo = in_folder("fifo");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(crypto_key_load(fifo, &key, &err), -1);
}
END_TEST

struct load {
    const char *path;
    struct crypto_key key;
    int rc;
};

static void *load_key(void *arg)
{
    struct load *load = arg;
    load->rc = crypto_key_load(load->path, &load->key, NULL);
    return NULL;
}

START_TEST(test_key_of_many_at_once_is_one)
{
    cleanup_free char *path = in_folder("key");
    pthread_t threads[8];
    struct load loads[8] = {0};
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        loads[i].path = path;
        pthread_create(&threads[i], NULL, load_key, &loads[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        ck_assert_int_eq(loads[i].rc, 0);
        ck_assert_int_eq(crypto_compare(&loads[i].key, &loads[0].key, sizeof(loads[0].key)), 0);
    }
    ck_assert_uint_eq(count_and_remove_files(), 1); /* nothing is left over */
}
END_TEST

static const struct crypto_key test_key = {.bytes = {1, 2, 3}};

START_TEST(test_digest)
{
    /* BLAKE2b-256 of nothing and of "abc", as coreutils' b2sum -l 256 prints them. */
    static const struct {
        const char *text, *hex;
    } cases[] = {
        {"", "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
        {"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t hash[CRYPTO_HASH_LEN];
        cleanup_buf struct buf hex = BUF_INIT(64);
        crypto_digest(cases[i].text, strlen(cases[i].text), hash);
        ck_assert(hex_encode(&hex, hash, sizeof(hash)));
        ck_assert_str_eq(buf_text(&hex), cases[i].hex);
    }
}
END_TEST

START_TEST(test_keyed_hash_tells_everything_apart)
{
    const struct crypto_key other = {.bytes = {1, 2, 4}};
    const struct {
        const struct crypto_key *key;
        const char *purpose;
        struct str parts[3];
        size_t count;
    } cases[] = {
        {&test_key, "p", {STR("ab"), STR("c")}, 2},
        {&test_key, "p", {STR("a"), STR("bc")}, 2},
        {&test_key, "p", {STR("abc")}, 1},
        {&test_key, "p", {STR("abc"), STR("")}, 2},
        {&test_key, "p", {STR(""), STR("abc")}, 2},
        {&test_key, "pa", {STR("b"), STR("c")}, 2},
        {&test_key, "q", {STR("ab"), STR("c")}, 2},
        {&other, "p", {STR("ab"), STR("c")}, 2},
        {&test_key, "p", {STR("")}, 0},
    };
    uint8_t hashes[ARRAY_LEN(cases)][CRYPTO_HASH_LEN];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t again[CRYPTO_HASH_LEN];
        crypto_keyed_hash(cases[i].key, cases[i].purpose, cases[i].parts, cases[i].count,
                          hashes[i]);
        crypto_keyed_hash(cases[i].key, cases[i].purpose, cases[i].parts, cases[i].count, again);
        ck_assert_int_eq(crypto_compare(hashes[i], again, sizeof(again)), 0);
        for (size_t j = 0; j < i; j++)
            ck_assert_int_ne(crypto_compare(hashes[i], hashes[j], CRYPTO_HASH_LEN), 0);
    }
}
END_TEST

static int open_sealed(const char *purpose, struct str bound, struct str sealed, struct buf *out)
{
    struct err err = {.code = ERR_NONE};
    int rc = crypto_open(&test_key, purpose, bound, sealed, out, &err);
    ck_assert_int_eq(err.code, rc == 0 ? ERR_NONE : ERR_INTERNAL);
    return rc;
}

START_TEST(test_seal)
{
    static const char plain[] = "secret\0with a NUL";
    cleanup_buf struct buf sealed = BUF_INIT(CAP_SMALL);
    cleanup_buf struct buf again = BUF_INIT(CAP_SMALL);
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    struct err err;
    const struct str text = {plain, sizeof(plain)};
    ck_assert_int_eq(crypto_seal(&test_key, "state", STR("uid"), text, &sealed, &err), 0);
    ck_assert_int_eq(crypto_seal(&test_key, "state", STR("uid"), text, &again, &err), 0);
    ck_assert_uint_eq(sealed.len, again.len);
    ck_assert(memcmp(sealed.ptr, again.ptr, sealed.len) != 0); /* a new nonce each time */
    ck_assert_ptr_null(memmem(sealed.ptr, sealed.len, "secret", 6));
    struct str blob = {sealed.ptr, sealed.len};
    buf_append_str(&out, "in front:");
    ck_assert_int_eq(open_sealed("state", STR("uid"), blob, &out), 0);
    ck_assert_uint_eq(out.len, 9 + sizeof(plain));
    ck_assert(memcmp(out.ptr + 9, plain, sizeof(plain)) == 0);
    buf_reset(&out);
    ck_assert_int_eq(open_sealed("state", STR("uie"), blob, &out), -1);
    ck_assert_int_eq(open_sealed("statf", STR("uid"), blob, &out), -1);
    ck_assert_int_eq(open_sealed("stateu", STR("id"), blob, &out), -1);
    const struct crypto_key other = {.bytes = {9}};
    ck_assert_int_eq(crypto_open(&other, "state", STR("uid"), blob, &out, &err), -1);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_str_eq(buf_text(&out), "");
}
END_TEST

START_TEST(test_seal_changed_anywhere)
{
    cleanup_buf struct buf sealed = BUF_INIT(CAP_SMALL);
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    struct err err;
    ck_assert_int_eq(crypto_seal(&test_key, "p", STR(""), STR("x"), &sealed, &err), 0);
    for (size_t i = 0; i < sealed.len; i++) {
        sealed.ptr[i] = (char)(sealed.ptr[i] ^ 1);
        ck_assert_int_eq(open_sealed("p", STR(""), (struct str){sealed.ptr, sealed.len}, &out), -1);
        sealed.ptr[i] = (char)(sealed.ptr[i] ^ 1);
        ck_assert_int_eq(open_sealed("p", STR(""), (struct str){sealed.ptr, i}, &out), -1);
    }
    ck_assert_int_eq(open_sealed("p", STR(""), (struct str){sealed.ptr, sealed.len}, &out), 0);
    ck_assert_str_eq(buf_text(&out), "x");
}
END_TEST

START_TEST(test_seal_without_room)
{
    cleanup_buf struct buf sealed = BUF_INIT(CAP_SMALL);
    cleanup_buf struct buf small = BUF_INIT(10);
    struct err err;
    ck_assert_int_eq(crypto_seal(&test_key, "p", STR("b"), STR(""), &sealed, &err), 0);
    ck_assert_int_eq(open_sealed("p", STR("b"), (struct str){sealed.ptr, sealed.len}, &small), 0);
    ck_assert_int_eq(crypto_seal(&test_key, "p", STR("b"), STR("12345678901"), &small, &err), -1);
    ck_assert_int_eq(err.code, ERR_TOO_LARGE);
    buf_reset(&sealed);
    ck_assert_int_eq(crypto_seal(&test_key, "p", STR("b"), STR("12345678901"), &sealed, &err), 0);
    const struct str blob = {sealed.ptr, sealed.len};
    ck_assert_int_eq(crypto_open(&test_key, "p", STR("b"), blob, &small, &err), -1);
    ck_assert_int_eq(err.code, ERR_TOO_LARGE);
    ck_assert_uint_eq(small.len, 0);
}
END_TEST

START_TEST(test_random_and_compare)
{
    uint8_t a[32] = {0};
    uint8_t b[32] = {0};
    ck_assert_int_eq(crypto_compare(a, b, sizeof(a)), 0);
    crypto_random(a, sizeof(a));
    crypto_random(b, sizeof(b));
    ck_assert_int_ne(crypto_compare(a, b, sizeof(a)), 0);
    ck_assert_int_eq(crypto_compare(a, b, 0), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crypto");
    TCase *tcase = tcase_create("crypto");
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_sha256_is_the_same_in_pieces);
    tcase_add_test(tcase, test_key_is_made_once);
    tcase_add_test(tcase, test_key_file_contents);
    tcase_add_test(tcase, test_key_file_errors);
    tcase_add_test(tcase, test_key_of_many_at_once_is_one);
    tcase_add_test(tcase, test_digest);
    tcase_add_test(tcase, test_keyed_hash_tells_everything_apart);
    tcase_add_test(tcase, test_seal);
    tcase_add_test(tcase, test_seal_changed_anywhere);
    tcase_add_test(tcase, test_seal_without_room);
    tcase_add_test(tcase, test_random_and_compare);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
