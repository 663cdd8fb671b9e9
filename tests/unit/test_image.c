#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "local/image.h"
#include "tests/unit/image_fixture.h"

/* --- kinds ------------------------------------------------------------------------------------ */
START_TEST(test_folder_is_used_where_it_is)
{
    struct image image;
    cleanup_free char *path = in_images("root"), *file = in_images("root/f");
    ck_assert_int_eq(mkdir(path, 0755), 0);
    write_text(file, "x");
    const char *const names[] = {"root", "dir:root", path};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_resolves(names[i], &image);
        ck_assert_str_eq(image.root, path);
        ck_assert_ptr_null(image.digest);
        image_release(store, &image);
    }
    assert_refused("tar:root", ERR_INVALID_IMAGE);
    assert_refused("oci:root", ERR_INVALID_IMAGE);
    assert_refused("root:1", ERR_INVALID_IMAGE);
}
END_TEST

START_TEST(test_tar_is_unpacked_once)
{
    static const char *const names[] = {"r.tar", "r.tar.gz", "r.tar.zst", "r.tar.xz"};
    struct image image, again;
    make_tar(names[_i], base_layer, (enum compression)_i);
    assert_resolves("r", &image); /* the ending is found */
    assert_has(&image, "usr/bin/sh", "#!");
    ck_assert_uint_eq(image.env.count, 0);
    ck_assert_ptr_null(image.workdir);
    cleanup_free char *mark = xasprintf("%s/mark", image.root);
    write_text(mark, "the first");
    image_release(store, &image);
    await_name("r", 1);
    store_reopen(NULL);
    assert_resolves("r", &again);
    assert_has(&again, "mark", "the first");
    image_release(store, &again);
    assert_refused("dir:r", ERR_INVALID_IMAGE);
    assert_refused("oci:r", ERR_INVALID_IMAGE);
    assert_refused("docker-archive:r", ERR_INVALID_IMAGE);
    assert_refused("r:1", ERR_INVALID_IMAGE);
}
END_TEST

START_TEST(test_changed_tar_is_another_image)
{
    const struct entry other[] = {{"other", .content = "2"}, {.path = NULL}};
    struct image before, after;
    make_tar("r.tar", base_layer, PLAIN);
    assert_resolves("r", &before);
    make_tar("r.tar", other, PLAIN);
    assert_resolves("r", &after);
    assert_has(&after, "other", "2");
    assert_has(&before, "usr/bin/sh", "#!"); /* whoever has it keeps it */
    ck_assert_str_ne(before.digest, after.digest);
    await_name("r", 1);
    image_release(store, &before);
    image_release(store, &after);
}
END_TEST

static void assert_is_python(const char *name)
{
    struct image image;
    assert_resolves(name, &image);
    assert_has(&image, "usr/bin/sh", "#!");
    assert_has(&image, "bin/sh", "#!"); /* through the link, within the root */
    assert_has(&image, "etc/motd", "hello");
    assert_has(&image, "etc/gone", NULL);
    ck_assert_uint_eq(image.env.count, 2);
    ck_assert_str_eq(image.env.items[1], "B=c=d");
    ck_assert_str_eq(image.workdir, "/workspace");
    ck_assert_str_eq(image.user, "1000:1000");
    image_release(store, &image);
}

#define CONFIG                                                                                     \
    "\"Env\":[\"PATH=/bin\",\"B=c=d\"],\"WorkingDir\":\"/workspace\",\"User\":\"1000:1000\","      \
    "\"Cmd\":[\"sh\"],\"Unknown\":{}"

START_TEST(test_oci_layout)
{
    for (enum compression how = PLAIN; how <= ZSTD; how++) {
        const char *hex =
            make_layout("python", (struct layout){.how = how, .tag = "1", .config_more = CONFIG});
        cleanup_free char *pinned = xasprintf("python@sha256:%s", hex);
        cleanup_free char *both = xasprintf("python:1@sha256:%s", hex);
        cleanup_free char *wrong = xasprintf("python@sha256:%s", hex_of("x", 1));
        cleanup_free char *absolute = in_images("python:1");
        assert_is_python("python");
        assert_is_python("python:1");
        assert_is_python("oci:python:1");
        assert_is_python(pinned);
        assert_is_python(both);
        assert_is_python(absolute);
        assert_refused("python:2", ERR_INVALID_IMAGE);
        assert_refused(wrong, ERR_INVALID_IMAGE);
    }
}
END_TEST

START_TEST(test_oci_archive)
{
    make_archive("python_1.tar", (struct layout){.how = GZIP, .tag = "1", .config_more = CONFIG});
    assert_is_python("python:1"); /* python_1 + .tar */
    assert_is_python("oci-archive:python_1.tar");
    assert_is_python("python_1:1");
    assert_is_python("python_1.tar:1");
    assert_refused("python_1:2", ERR_INVALID_IMAGE);
    struct image image;
    assert_resolves("tar:python_1.tar", &image); /* as the plain tar that it is, too */
    assert_has(&image, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
    image_release(store, &image);
}
END_TEST

START_TEST(test_index_for_several_platforms)
{
    struct layout layout = {.nested = true, .config_more = CONFIG};
    const char *hex = make_layout("python", layout);
    cleanup_free char *pinned = xasprintf("python@sha256:%s", hex);
    assert_is_python("python");
    assert_is_python(pinned);
    make_layout("foreign", (struct layout){.machine = "pdp11"});
    assert_refused("foreign", ERR_INVALID_IMAGE);
    ck_assert_ptr_nonnull(strstr(err.msg, "linux/pdp11"));
}
END_TEST

static const struct entry *const one_layer[] = {base_layer, NULL};

START_TEST(test_docker_archive)
{
    cleanup_free char *folder = temp_path(&dir, "docker"), *tar = in_images("python.tar");
    cleanup_buf struct buf low = BUF_INIT(MIB), high = BUF_INIT(MIB), config = BUF_INIT(MIB),
                           manifest = BUF_INIT(MIB);
    const struct layout layout = {.folder = folder, .layers = one_layer};
    (void)build_layout(&layout); /* for its folders */
    build_tar(base_layer, PLAIN, &low);
    build_tar(top_layer, PLAIN, &high);
    ck_assert(buf_printf(&config,
                         "{\"os\":\"linux\",\"config\":{" CONFIG "},\"rootfs\":{\"diff_ids\":["
                         "\"sha256:%s\",\"sha256:%s\"]}}",
                         hex_of(low.ptr, low.len), hex_of(high.ptr, high.len)));
    ck_assert(buf_printf(&manifest,
                         "[{\"Config\":\"%s.json\",\"RepoTags\":[\"localhost/python:1\"],"
                         "\"Layers\":[\"low.tar\",\"high.tar\"]}]",
                         hex_of(config.ptr, config.len)));
    cleanup_free char *config_name =
        xasprintf("%s/%s.json", folder, hex_of(config.ptr, config.len));
    cleanup_free char *low_name = xasprintf("%s/low.tar", folder);
    cleanup_free char *high_name = xasprintf("%s/high.tar", folder);
    cleanup_free char *manifest_name = xasprintf("%s/manifest.json", folder);
    cleanup_free char *oci_name = xasprintf("%s/oci-layout", folder);
    write_file(config_name, config.ptr, config.len);
    write_file(low_name, low.ptr, low.len);
    write_file(high_name, high.ptr, high.len);
    write_file(manifest_name, manifest.ptr, manifest.len);
    ck_assert_int_eq(unlink(oci_name), 0);
    pack_folder(folder, tar);
    assert_is_python("python");
    assert_is_python("python:1");
    assert_is_python("docker-archive:python.tar:1");
    assert_refused("python:2", ERR_INVALID_IMAGE);
    const struct text_list none = {.count = 0};
    ck_assert_int_eq(image_gc(store, &none, 0, &err), 0); /* or it is known by its id */
    write_file(low_name, high.ptr, high.len);
    pack_folder(folder, tar);
    assert_refused("python", ERR_INVALID_IMAGE);
}
END_TEST

/* --- names ------------------------------------------------------------------------------------ */
START_TEST(test_nothing_outside_of_the_folders)
{
    cleanup_free char *secret = temp_path(&dir, "secret"), *twin = temp_path(&dir, "images2");
    cleanup_free char *link = in_images("link"), *inner = in_images("inner");
    cleanup_free char *up = in_images("../secret"), *proc = in_images("proc");
    cleanup_free char *pipe = in_images("pipe"), *bare = temp_path(&dir, "images");
    ck_assert_int_eq(mkdir(secret, 0755), 0);
    ck_assert_int_eq(mkdir(twin, 0755), 0);
    ck_assert_int_eq(symlink("../secret", link), 0);
    ck_assert_int_eq(symlink("/proc/self/root", proc), 0);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    assert_refused("/etc", ERR_POLICY);
    assert_refused("dir:/etc", ERR_POLICY);
    assert_refused(secret, ERR_POLICY);
    assert_refused(twin, ERR_POLICY);
    assert_refused(bare, ERR_POLICY);
    assert_refused("link", ERR_POLICY);
    assert_refused("proc", ERR_POLICY);
    assert_refused("dir:proc/etc", ERR_POLICY);
    static const char *const bad[] = {"../secret", "a/../../secret", "",   "/",    ".",
                                      "./x",       "a//b",           "a/", "dir:", "x@sha256:12",
                                      "x@y"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_refused(bad[i], ERR_INVALID_IMAGE);
    assert_refused(up, ERR_INVALID_IMAGE);
    assert_refused("missing", ERR_INVALID_IMAGE);
    assert_refused("missing:1", ERR_INVALID_IMAGE);
    assert_refused("pipe", ERR_IMAGE_PULL_FAILED);
    ck_assert_int_eq(symlink("inside", inner), 0);
    cleanup_free char *inside = in_images("inside");
    ck_assert_int_eq(mkdir(inside, 0755), 0);
    struct image image;
    assert_resolves("inner", &image);
    ck_assert_str_eq(image.root, inside);
    image_release(store, &image);
}
END_TEST

START_TEST(test_no_folder_no_image)
{
    const struct text_list none = {.count = 0};
    struct image_store *bare;
    struct image image;
    cleanup_free char *cache = temp_path(&dir, "bare");
    ck_assert_int_eq(image_store_open(cache, &none, NULL, &bare, &err), 0);
    ck_assert_int_eq(image_resolve(bare, "/etc", &image, &err), -1);
    ck_assert_int_eq(err.code, ERR_POLICY);
    image_store_free(bare);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, store_setup, store_teardown);
    tcase_set_timeout(tcase, 100);
    tcase_add_test(tcase, test_folder_is_used_where_it_is);
    tcase_add_loop_test(tcase, test_tar_is_unpacked_once, 0, 4);
    tcase_add_test(tcase, test_changed_tar_is_another_image);
    tcase_add_test(tcase, test_oci_layout);
    tcase_add_test(tcase, test_oci_archive);
    tcase_add_test(tcase, test_index_for_several_platforms);
    tcase_add_test(tcase, test_docker_archive);
    tcase_add_test(tcase, test_nothing_outside_of_the_folders);
    tcase_add_test(tcase, test_no_folder_no_image);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
