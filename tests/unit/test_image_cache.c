#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "local/image.h"
#include "tests/unit/image_fixture.h"

/* --- damage ----------------------------------------------------------------------------------- */
static void spoil(const char *layout, const char *hex, off_t at)
{
    cleanup_free char *path = xasprintf("%s/images/%s/blobs/sha256/%s", dir.path, layout, hex);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, "~", 1, at), 1);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Each blob in turn; none of it is left, and nothing is believed. */
START_TEST(test_damaged_blob)
{
    cleanup_free char *blobs = in_images("i/blobs/sha256");
    make_layout("i", (struct layout){.how = (enum compression)_i});
    struct dirent **entries = NULL;
    int count = scandir(blobs, &entries, is_visible, alphasort);
    ck_assert_int_eq(count, 4); /* two layers, a configuration, a manifest */
    for (int i = 0; i < count; i++) {
        cleanup_free struct dirent *entry = entries[i];
        cleanup_free char *path = xasprintf("%s/%s", blobs, entry->d_name);
        struct stat st;
        ck_assert_int_eq(stat(path, &st), 0);
        cleanup_free char *copy = xmalloc((size_t)st.st_size);
        cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_int_eq(read(fd, copy, (size_t)st.st_size), st.st_size);
        spoil("i", entry->d_name, st.st_size - 1);
        assert_refused("i", ERR_INVALID_IMAGE);
        ck_assert_int_eq(truncate(path, st.st_size - 1), 0);
        assert_refused("i", ERR_INVALID_IMAGE);
        ck_assert_int_eq(unlink(path), 0);
        assert_refused("i", ERR_INVALID_IMAGE);
        write_file(path, copy, (size_t)st.st_size);
    }
    free((void *)entries);
    ck_assert_uint_eq(count_in("cache/images"), 0);
    struct image image;
    assert_resolves("i", &image);
    image_release(store, &image);
}
END_TEST

START_TEST(test_bad_diff_id)
{
    make_layout("i", (struct layout){.bad_diff_id = true});
    assert_refused("i", ERR_INVALID_IMAGE);
    ck_assert_ptr_nonnull(strstr(err.msg, "digest"));
}
END_TEST

START_TEST(test_escape_leaves_nothing)
{
    const struct entry entries[] = {{"good", .content = "x"},
                                    {"l", .type = 'l', .content = ".."},
                                    {"l/x", .content = "x"},
                                    {.path = NULL}};
    const struct entry *const layers[] = {entries, NULL};
    make_tar("t.tar", entries, PLAIN);
    make_layout("i", (struct layout){.layers = layers});
    assert_refused("t", ERR_INVALID_IMAGE);
    ck_assert_ptr_nonnull(strstr(err.msg, "l/x"));
    assert_refused("i", ERR_INVALID_IMAGE);
    ck_assert_uint_eq(count_in("cache/images"), 0);
}
END_TEST

START_TEST(test_limits)
{
    store_reopen(&(struct image_limits){.bytes = MIB, .entries = 3});
    make_tar("t.tar", base_layer, PLAIN);
    assert_refused("t", ERR_INVALID_IMAGE);
    make_layout("i", (struct layout){.layers = NULL});
    assert_refused("i", ERR_INVALID_IMAGE);
    store_reopen(&(struct image_limits){.bytes = 2048, .entries = 100});
    assert_refused("t", ERR_INVALID_IMAGE);
    assert_refused("i", ERR_INVALID_IMAGE);
}
END_TEST

/* As when the disk is full. */
START_TEST(test_files_that_cannot_be_written)
{
    static char content[256 << 10];
    memset(content, 'x', sizeof(content) - 1);
    const struct entry entries[] = {{"f", .content = content}, {.path = NULL}};
    const struct entry *const layers[] = {entries, NULL};
    struct rlimit before, small;
    make_tar("t.tar", entries, PLAIN);
    make_layout("i", (struct layout){.layers = layers});
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100 << 10;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_refused("t", ERR_IMAGE_PULL_FAILED);
    assert_refused("i", ERR_IMAGE_PULL_FAILED);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    ck_assert_uint_eq(count_in("cache/images"), 0);
    struct image image;
    assert_resolves("t", &image);
    assert_has(&image, "f", content);
    image_release(store, &image);
}
END_TEST

START_TEST(test_stopped_store)
{
    make_tar("t.tar", base_layer, PLAIN);
    image_store_stop(store);
    assert_refused("t", ERR_STOPPING);
}
END_TEST

/* --- the cache -------------------------------------------------------------------------------- */
START_TEST(test_leftovers_of_a_crash)
{
    cleanup_free char *half = temp_path(&dir, "cache/unpacking/7");
    cleanup_free char *root = temp_path(&dir, "cache/unpacking/7/root");
    cleanup_free char *file = temp_path(&dir, "cache/unpacking/7/root/f");
    cleanup_free char *name = temp_path(&dir, "cache/unpacking/8");
    ck_assert_int_eq(mkdir(half, 0755), 0);
    ck_assert_int_eq(mkdir(root, 0755), 0);
    write_text(file, "x");
    write_text(name, "x");
    store_reopen(NULL);
    ck_assert_uint_eq(count_in("cache/unpacking"), 0);
}
END_TEST

/* What power loss leaves of a file that was never synced. */
START_TEST(test_image_that_is_not_whole)
{
    struct image image;
    make_tar("t.tar", base_layer, PLAIN);
    assert_resolves("t", &image);
    cleanup_free char *about = xasprintf("%s/../image.json", image.root);
    image_release(store, &image);
    ck_assert_int_eq(truncate(about, 0), 0);
    assert_resolves("t", &image);
    assert_has(&image, "usr/bin/sh", "#!");
    image_release(store, &image);
}
END_TEST

START_TEST(test_one_server_per_cache)
{
    const struct text_list none = {.count = 0};
    struct image_store *second;
    cleanup_free char *cache = temp_path(&dir, "cache");
    ck_assert_int_eq(image_store_open(cache, &none, NULL, &second, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
}
END_TEST

/* Else every sandbox of a server that is root would fail, and not say why. */
START_TEST(test_cache_that_others_cannot_reach)
{
    const struct text_list none = {.count = 0};
    struct image_store *second = NULL;
    cleanup_free char *closed = temp_path(&dir, "closed"), *cache = temp_path(&dir, "closed/cache");
    ck_assert_int_eq(mkdir(closed, 0700), 0);
    int rc = image_store_open(cache, &none, NULL, &second, &err);
    if (geteuid() != 0) {
        ck_assert_int_eq(rc, 0);
    } else {
        ck_assert_int_eq(rc, -1);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        ck_assert_ptr_nonnull(strstr(err.msg, closed));
        ck_assert_int_eq(chmod(closed, 0711), 0);
        ck_assert_int_eq(image_store_open(cache, &none, NULL, &second, &err), 0);
    }
    image_store_free(second);
}
END_TEST

#define THREADS 8

static void *resolve_one(void *arg)
{
    struct image *image = arg;
    struct err why;
    return image_resolve(store, "i", image, &why) == 0 ? arg : NULL;
}

/* All get the same root, whoever unpacked it. */
START_TEST(test_many_at_once)
{
    pthread_t threads[THREADS];
    struct image images[THREADS];
    if (_i == 0)
        make_layout("i", (struct layout){.how = GZIP});
    else
        make_archive("i.tar", (struct layout){.how = GZIP});
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, resolve_one, &images[i]), 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *good;
        ck_assert_int_eq(pthread_join(threads[i], &good), 0);
        ck_assert_ptr_nonnull(good);
        ck_assert_str_eq(images[i].root, images[0].root);
        assert_has(&images[i], "etc/motd", "hello");
    }
    const struct text_list none = {.count = 0};
    ck_assert_int_eq(image_gc(store, &none, 0, &err), 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_has(&images[i], "etc/motd", "hello"); /* held by the rest */
        image_release(store, &images[i]);
    }
    ck_assert_int_eq(image_gc(store, &none, 0, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 0);
}
END_TEST

START_TEST(test_gc)
{
    const struct entry other[] = {{"other", .content = "2"}, {.path = NULL}};
    struct text_list in_use = {.count = 0}, none = {.count = 0};
    struct image a, b;
    make_tar("a.tar", base_layer, PLAIN);
    make_tar("b.tar", other, PLAIN);
    assert_resolves("a", &a);
    assert_resolves("b", &b);
    cleanup_free char *digest = xstrdup(a.digest);
    text_list_add(&in_use, a.digest);
    image_release(store, &a);
    image_release(store, &b);
    await_name("a", 1);
    await_name("b", 2);
    store_reopen(NULL); /* nobody holds them; the boxes' records name one */
    ck_assert_int_eq(image_gc(store, &in_use, MIB, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 2); /* there is room */
    ck_assert_int_eq(image_gc(store, &in_use, 0, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 1);
    ck_assert_uint_eq(count_in("cache/names"), 1);
    ck_assert_int_eq(image_hold(store, digest, &a, &err), 0);
    assert_has(&a, "usr/bin/sh", "#!");
    ck_assert_int_eq(image_gc(store, &none, 0, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 1); /* held */
    image_release(store, &a);
    ck_assert_int_eq(image_gc(store, &none, 0, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 0);
    ck_assert_int_eq(image_hold(store, digest, &a, &err), -1);
    ck_assert_int_eq(err.code, ERR_IMAGE_PULL_FAILED);
    ck_assert_int_eq(image_hold(store, "../names", &a, &err), -1);
    text_list_done(&in_use);
}
END_TEST

/* The one that was used longest ago goes first. */
START_TEST(test_gc_order)
{
    const struct entry other[] = {{"o", .content = "0123456789"}, {.path = NULL}};
    const struct text_list none = {.count = 0};
    struct image a, b;
    make_tar("a.tar", other, PLAIN);
    make_tar("b.tar", other, GZIP);
    assert_resolves("a", &a);
    assert_resolves("b", &b);
    cleanup_free char *about = xasprintf("%s/../image.json", a.root);
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    ck_assert_int_eq(utimensat(AT_FDCWD, about, long_ago, 0), 0);
    image_release(store, &a);
    image_release(store, &b);
    ck_assert_int_eq(image_gc(store, &none, 10, &err), 0);
    ck_assert_uint_eq(count_in("cache/images"), 1);
    ck_assert_int_eq(access(about, F_OK), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image_cache");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, store_setup, store_teardown);
    tcase_set_timeout(tcase, 100);
    tcase_add_loop_test(tcase, test_damaged_blob, 0, 3);
    tcase_add_test(tcase, test_bad_diff_id);
    tcase_add_test(tcase, test_escape_leaves_nothing);
    tcase_add_test(tcase, test_limits);
    tcase_add_test(tcase, test_files_that_cannot_be_written);
    tcase_add_test(tcase, test_stopped_store);
    tcase_add_test(tcase, test_leftovers_of_a_crash);
    tcase_add_test(tcase, test_image_that_is_not_whole);
    tcase_add_test(tcase, test_one_server_per_cache);
    tcase_add_test(tcase, test_cache_that_others_cannot_reach);
    tcase_add_loop_test(tcase, test_many_at_once, 0, 2);
    tcase_add_test(tcase, test_gc);
    tcase_add_test(tcase, test_gc_order);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
