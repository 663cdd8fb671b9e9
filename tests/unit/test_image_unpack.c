#include <check.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "local/image_unpack.h"
#include "tests/unit/image_builder.h"
#include "tests/unit/suite.h"
#include "tests/unit/temp_dir.h"

/* Everything is unpacked into `root`; `secret` beside it must stay as it is. */
static struct temp_dir dir;
static struct image_work work;
static struct image_sums sums;
static atomic_bool stop;
static struct err err;

static void setup(void)
{
    temp_dir_make(&dir);
    cleanup_free char *root = temp_path(&dir, "root"), *secret = temp_path(&dir, "secret");
    ck_assert_int_eq(mkdir(root, 0755), 0);
    write_text(secret, "untouched");
    work = (struct image_work){.bytes_left = 64 * MIB, .entries_left = 10000, .stop = &stop};
    atomic_init(&stop, false);
    err = (struct err){.code = ERR_NONE};
}

static void teardown(void)
{
    cleanup_free char *secret = temp_path(&dir, "secret");
    cleanup_free char *text = read_text(secret);
    ck_assert_str_eq(text, "untouched");
    temp_dir_remove(&dir);
}

static int unpack_bytes(const void *data, size_t len, bool is_layer)
{
    cleanup_free char *tar = temp_path(&dir, "tar"), *root = temp_path(&dir, "root");
    write_file(tar, data, len);
    cleanup_fd int fd = open(tar, O_RDONLY | O_CLOEXEC);
    cleanup_fd int folder = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct image_tree tree = {
        .root = folder, .is_layer = is_layer, .entries_left = &work.entries_left};
    int rc = image_unpack(&tree, fd, &work, &sums, &err);
    image_tree_done(&tree);
    return rc;
}

static int unpack_as(const struct entry *entries, bool is_layer)
{
    cleanup_buf struct buf tar = BUF_INIT(16 * MIB);
    build_tar(entries, PLAIN, &tar);
    return unpack_bytes(tar.ptr, tar.len, is_layer);
}

static void assert_unpacks(const struct entry *entries, bool is_layer)
{
    int rc = unpack_as(entries, is_layer);
    ck_assert_msg(rc == 0, "%s", err.msg);
}

static char *content(const char *path)
{
    cleanup_free char *whole = xasprintf("%s/root/%s", dir.path, path);
    return read_text(whole);
}

static void assert_content(const char *path, const char *want)
{
    cleanup_free char *is = content(path);
    ck_assert_msg(is != NULL, "%s is missing", path);
    ck_assert_str_eq(is, want);
}

static struct stat stat_of(const char *path)
{
    cleanup_free char *whole = xasprintf("%s/root/%s", dir.path, path);
    struct stat st = {.st_mode = 0};
    (void)lstat(whole, &st); /* mode 0: nothing there */
    return st;
}

static bool exists(const char *path)
{
    return stat_of(path).st_mode != 0;
}

/* --- what a root has -------------------------------------------------------------------------- */
START_TEST(test_files_folders_and_links)
{
    static const enum compression hows[] = {PLAIN, GZIP, ZSTD, XZ};
    const struct entry entries[] = {{"./", .type = 'd', .mode = 0700},
                                    {"./bin/", .type = 'd', .mode = 0711},
                                    {"bin/sh", .content = "#!", .mode = 04755},
                                    {"bin/ash", .type = 'h', .content = "./bin/sh"},
                                    {"bin/link", .type = 'l', .content = "/etc/passwd"},
                                    {"etc/shadow", .content = "x", .mode = 0600},
                                    {"tmp", .type = 'd', .mode = 01777},
                                    {"na\\me \xc3\xa9", .content = "e"},
                                    {.path = NULL}};
    cleanup_buf struct buf plain = BUF_INIT(MIB);
    char target[64] = "";
    cleanup_free char *link = xasprintf("%s/root/bin/link", dir.path);
    build_tar(entries, PLAIN, &plain);
    cleanup_buf struct buf tar = BUF_INIT(MIB);
    build_tar(entries, hows[_i], &tar);
    ck_assert_msg(unpack_bytes(tar.ptr, tar.len, true) == 0, "%s", err.msg);
    ck_assert_str_eq(sums.raw, hex_of(tar.ptr, tar.len));
    ck_assert_str_eq(sums.plain, hex_of(plain.ptr, plain.len));
    assert_content("bin/ash", "#!");
    assert_content("na\\me \xc3\xa9", "e");
    ck_assert_uint_eq(stat_of("bin/sh").st_mode, S_IFREG | 0755);
    ck_assert_int_eq(stat_of("bin/sh").st_mtime, 1000000000);
    ck_assert_uint_eq(stat_of("bin/sh").st_ino, stat_of("bin/ash").st_ino);
    ck_assert_uint_eq(stat_of("etc/shadow").st_mode, S_IFREG | 0644);
    ck_assert_uint_eq(stat_of("tmp").st_mode, S_IFDIR | 0755);
    ck_assert_uint_eq(stat_of("etc").st_mode, S_IFDIR | 0755);
    ck_assert_int_eq(readlink(link, target, sizeof(target) - 1), 11);
    ck_assert_str_eq(target, "/etc/passwd");
}
END_TEST

START_TEST(test_umask_does_not_count)
{
    const struct entry entries[] = {{"a/b/c", .content = "x"}, {"d", .type = 'd'}, {.path = NULL}};
    mode_t before = umask(0077);
    assert_unpacks(entries, false);
    umask(before);
    ck_assert_uint_eq(stat_of("a/b").st_mode, S_IFDIR | 0755);
    ck_assert_uint_eq(stat_of("a/b/c").st_mode, S_IFREG | 0644);
    ck_assert_uint_eq(stat_of("d").st_mode, S_IFDIR | 0755);
}
END_TEST

START_TEST(test_devices_and_pipes_are_passed_over)
{
    const struct entry entries[] = {{"dev/null", .type = 'c'},
                                    {"run/pipe", .type = 'p'},
                                    {"after", .content = "x"},
                                    {.path = NULL}};
    assert_unpacks(entries, false);
    ck_assert(!exists("dev/null"));
    ck_assert(!exists("run/pipe"));
    assert_content("after", "x");
}
END_TEST

START_TEST(test_later_entry_replaces_earlier)
{
    const struct entry entries[] = {{"twice", .content = "1"},
                                    {"keep", .type = 'h', .content = "twice"},
                                    {"twice", .content = "2"},
                                    {"file", .content = "x"},
                                    {"file", .type = 'd'},
                                    {"file/in", .content = "y"},
                                    {"full/deep/er", .content = "z"},
                                    {"full", .content = "flat"},
                                    {"dangling", .type = 'l', .content = "../secret"},
                                    {"dangling", .content = "own"},
                                    {.path = NULL}};
    assert_unpacks(entries, false);
    assert_content("twice", "2");
    assert_content("keep", "1"); /* not written through the link */
    assert_content("file/in", "y");
    assert_content("full", "flat");
    assert_content("dangling", "own");
}
END_TEST

START_TEST(test_hole_stays_a_hole)
{
    const struct entry entries[] = {{"sparse", .content = "x", .size = 32 << 20}, {.path = NULL}};
    assert_unpacks(entries, false);
    struct stat st = stat_of("sparse");
    ck_assert_int_eq(st.st_size, 32 << 20);
    ck_assert_int_lt(st.st_blocks, 2048);
    ck_assert_uint_eq(work.bytes_left, 32 * MIB);
}
END_TEST

/* --- escapes (B20) ---------------------------------------------------------------------------- */
static const struct entry escapes[][5] = {
    {{"../secret", .content = "x"}},
    {{"a/../../secret", .content = "x"}},
    {{"a/..", .type = 'd'}},
    {{"..", .type = 'l', .content = "x"}},
    {{"/tmp/secret", .content = "x"}},
    {{"//tmp", .content = "x"}},
    {{".", .content = "x"}},
    {{"l", .type = 'l', .content = "/etc"}, {"l/x", .content = "x"}},
    {{"l", .type = 'l', .content = ".."}, {"l/secret", .content = "x"}},
    {{"d", .type = 'd'}, {"d/l", .type = 'l', .content = "../.."}, {"d/l/secret", .content = "x"}},
    {{"a", .type = 'l', .content = "."},
     {"b", .type = 'l', .content = "a/.."},
     {"b/secret", .content = "x"}},
    {{"a", .type = 'l', .content = "."}, {"a/b", .type = 'l', .content = ".."}},
    {{"l", .type = 'l', .content = ".."}, {"l/x", .type = 'd'}},
    {{"l", .type = 'l', .content = ".."}, {"l/x/y", .content = "x"}},
    {{"h", .type = 'h', .content = "../secret"}, {"h", .content = "x"}},
    {{"h", .type = 'h', .content = "/etc/passwd"}},
    {{"l", .type = 'l', .content = ".."}, {"h", .type = 'h', .content = "l/secret"}},
    {{"h", .type = 'h', .content = "missing"}},
    {{"d", .type = 'd'}, {"h", .type = 'h', .content = "d"}},
    {{"d/f", .content = "x"},
     {"h", .type = 'h', .content = "d/f"},
     {"d", .type = 'l', .content = ".."},
     {"d/secret", .content = "x"}},
    {{"d", .type = 'd'}, {"d", .type = 'l', .content = ".."}, {"d/secret", .content = "x"}},
    {{"f", .content = "x"}, {"f/g", .content = "x"}},
    {{"l", .type = 'l', .content = ".."}, {"l/.wh.secret", .content = ""}},
    {{"l", .type = 'l', .content = ".."}, {"l/.wh..wh..opq", .content = ""}},
    {{".wh...", .content = ""}},
    {{".wh..", .content = ""}},
    {{".wh.", .content = ""}},
    {{"../.wh.secret", .content = ""}},
};

START_TEST(test_escape_is_refused)
{
    const struct entry *last = escapes[_i];
    ck_assert_int_eq(unpack_as(escapes[_i], true), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    while (last[1].path != NULL)
        last++;
    if (strcmp(last->path, "h") != 0 || last->type == 'h')
        ck_assert_msg(strstr(err.msg, last->path) != NULL, "%s", err.msg); /* the entry is named */
}
END_TEST

START_TEST(test_prefix_twin_is_another_name)
{
    const struct entry entries[] = {
        {"dir", .type = 'd'}, {"dir2/x", .content = "x"}, {.path = NULL}};
    assert_unpacks(entries, false);
    assert_content("dir2/x", "x");
}
END_TEST

START_TEST(test_deep_path_is_refused_and_can_be_removed)
{
    cleanup_buf struct buf path = BUF_INIT(64 * KIB);
    for (int i = 0; i < 10000; i++)
        ck_assert(buf_append_str(&path, "a/"));
    struct entry entries[] = {{path.ptr, .type = 'd'}, {.path = NULL}};
    ck_assert_int_eq(unpack_as(entries, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    path.ptr[2 * CAP_IMAGE_DEPTH] = '\0';
    assert_unpacks(entries, false);
    cleanup_fd int folder = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(image_tree_remove(folder, "root"), 0);
    ck_assert_int_eq(faccessat(folder, "root", F_OK, 0), -1);
}
END_TEST

START_TEST(test_long_name_is_refused)
{
    char name[NAME_MAX + 2];
    memset(name, 'n', sizeof(name) - 1);
    name[NAME_MAX + 1] = '\0';
    const struct entry entries[] = {{name, .content = "x"}, {.path = NULL}};
    ck_assert_int_eq(unpack_as(entries, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    name[NAME_MAX] = '\0';
    assert_unpacks(entries, false);
}
END_TEST

/* --- bombs ------------------------------------------------------------------------------------ */
START_TEST(test_too_many_bytes)
{
    const struct entry one[] = {{"f", .content = "1234567890"}, {.path = NULL}};
    const struct entry hole[] = {{"f", .content = "x", .size = (int64_t)1 << 40}, {.path = NULL}};
    ck_assert_int_eq(unpack_as(hole, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    ck_assert(!exists("f"));
    work.bytes_left = 9;
    ck_assert_int_eq(unpack_as(one, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
}
END_TEST

/* Compressed a thousandfold, and not one file in it. */
START_TEST(test_zeros_behind_the_end)
{
    cleanup_buf struct buf tar = BUF_INIT(MIB);
    static char zeros[2 << 20];
    memset(zeros, 'a', sizeof(zeros) - 1);
    const struct entry entries[] = {{"f", .content = zeros}, {.path = NULL}};
    build_tar(entries, GZIP, &tar);
    work.bytes_left = MIB;
    ck_assert_int_eq(unpack_bytes(tar.ptr, tar.len, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
}
END_TEST

START_TEST(test_too_many_entries)
{
    const struct entry files[] = {{"a", .content = ""}, {"b", .content = ""}, {.path = NULL}};
    const struct entry deep[] = {{"c/d/e/f", .content = ""}, {.path = NULL}};
    work.entries_left = 1;
    ck_assert_int_eq(unpack_as(files, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    work.entries_left = 3; /* folders that no entry names count, too */
    ck_assert_int_eq(unpack_as(deep, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    work.entries_left = 2; /* c, d and e are there by now; a replaced one counts again */
    assert_unpacks(deep, false);
}
END_TEST

/* A pax header is read into memory whole. */
START_TEST(test_header_without_end)
{
    cleanup_buf struct buf tar = BUF_INIT(16 * MIB);
    const struct entry entries[] = {{"f", .content = ""}, {.path = NULL}};
    build_tar(entries, PLAIN, &tar);
    cleanup_buf struct buf bomb = BUF_INIT(16 * MIB);
    for (int i = 0; i < 20000; i++) { /* headers of a long name (L) that nothing follows */
        char header[512] = "././@LongLink";
        (void)snprintf(header + 100, 8, "%07o", 0644);
        (void)snprintf(header + 124, 12, "%011o", 0);
        memset(header + 148, ' ', 8);
        header[156] = 'L';
        unsigned sum = 0;
        for (size_t j = 0; j < sizeof(header); j++)
            sum += (unsigned char)header[j];
        (void)snprintf(header + 148, 8, "%06o", sum);
        ck_assert(buf_append(&bomb, header, sizeof(header)));
    }
    ck_assert(buf_append(&bomb, tar.ptr, tar.len));
    ck_assert_int_eq(unpack_bytes(bomb.ptr, bomb.len, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
}
END_TEST

/* --- damage ----------------------------------------------------------------------------------- */
START_TEST(test_cut_archive)
{
    const struct entry entries[] = {{"f", .content = "some content that is cut"}, {.path = NULL}};
    for (enum compression how = PLAIN; how <= XZ; how++) {
        cleanup_buf struct buf tar = BUF_INIT(MIB);
        build_tar(entries, how, &tar);
        size_t lens[] = {0, 1, 100, how == PLAIN ? 530 : tar.len - 8};
        for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
            err.code = ERR_NONE;
            ck_assert_msg(unpack_bytes(tar.ptr, lens[i], false) == -1, "%d cut at %zu", (int)how,
                          lens[i]);
            ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
        }
    }
}
END_TEST

START_TEST(test_bad_checksum)
{
    cleanup_buf struct buf tar = BUF_INIT(MIB);
    const struct entry entries[] = {{"f", .content = "x"}, {.path = NULL}};
    build_tar(entries, PLAIN, &tar);
    tar.ptr[0] = 'g';
    ck_assert_int_eq(unpack_bytes(tar.ptr, tar.len, false), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    ck_assert(!exists("f"));
}
END_TEST

/* The digests are of all that there is. */
START_TEST(test_trailing_bytes)
{
    const struct entry entries[] = {{"f", .content = "x"}, {.path = NULL}};
    for (enum compression how = PLAIN; how <= GZIP; how++) {
        cleanup_buf struct buf tar = BUF_INIT(MIB);
        build_tar(entries, how, &tar);
        ck_assert(buf_append_str(&tar, "garbage"));
        ck_assert_msg(unpack_bytes(tar.ptr, tar.len, false) == 0, "%s", err.msg);
        ck_assert_str_eq(sums.raw, hex_of(tar.ptr, tar.len));
    }
}
END_TEST

START_TEST(test_stop)
{
    const struct entry entries[] = {{"f", .content = "x"}, {.path = NULL}};
    atomic_store(&stop, true);
    ck_assert_int_eq(unpack_as(entries, false), -1);
    ck_assert_int_eq(err.code, ERR_STOPPING);
}
END_TEST

/* --- layers ----------------------------------------------------------------------------------- */
START_TEST(test_whiteouts)
{
    const struct entry low[] = {{"a", .content = "a"},       {"d/e/f", .content = "f"},
                                {"d/g", .content = "g"},     {"o/old", .content = "o"},
                                {"o/sub/x", .content = "x"}, {"o/sub/y", .content = "y"},
                                {"stay", .content = "s"},    {.path = NULL}};
    const struct entry high[] = {{".wh.a", .content = ""},
                                 {"d/.wh.e", .content = ""},
                                 {"o/sub/x", .content = "new"}, /* before the whiteout of it all */
                                 {"o/.wh..wh..opq", .content = ""},
                                 {"o/after", .content = "after"},
                                 {"nowhere/.wh.x", .content = ""},
                                 {".wh..wh.plnk", .type = 'd'},
                                 {.path = NULL}};
    assert_unpacks(low, true);
    assert_unpacks(high, true);
    ck_assert(!exists("a"));
    ck_assert(!exists("d/e"));
    ck_assert(!exists("o/old"));
    ck_assert(!exists("o/sub/y"));
    ck_assert(!exists("nowhere"));
    ck_assert(!exists(".wh.a"));
    ck_assert(!exists("o/.wh..wh..opq"));
    ck_assert(!exists(".wh..wh.plnk"));
    assert_content("d/g", "g");
    assert_content("o/sub/x", "new");
    assert_content("o/after", "after");
    assert_content("stay", "s");
}
END_TEST

/* Whiteouts hide what lies below, not what the same layer brings. */
START_TEST(test_whiteout_beside_its_name)
{
    const struct entry low[] = {{"a/old", .content = "1"}, {.path = NULL}};
    const struct entry high[] = {
        {"a/new", .content = "2"}, {".wh.a", .content = ""}, {.path = NULL}};
    assert_unpacks(low, true);
    assert_unpacks(high, true);
    ck_assert(!exists("a/old"));
    assert_content("a/new", "2");
}
END_TEST

START_TEST(test_plain_tar_has_no_whiteouts)
{
    const struct entry entries[] = {
        {"a", .content = "a"}, {".wh.a", .content = "b"}, {.path = NULL}};
    assert_unpacks(entries, false);
    assert_content("a", "a");
    assert_content(".wh.a", "b");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image_unpack");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 100);
    tcase_add_loop_test(tcase, test_files_folders_and_links, 0, 4);
    tcase_add_test(tcase, test_umask_does_not_count);
    tcase_add_test(tcase, test_devices_and_pipes_are_passed_over);
    tcase_add_test(tcase, test_later_entry_replaces_earlier);
    tcase_add_test(tcase, test_hole_stays_a_hole);
    tcase_add_loop_test(tcase, test_escape_is_refused, 0, (int)ARRAY_LEN(escapes));
    tcase_add_test(tcase, test_prefix_twin_is_another_name);
    tcase_add_test(tcase, test_deep_path_is_refused_and_can_be_removed);
    tcase_add_test(tcase, test_long_name_is_refused);
    tcase_add_test(tcase, test_too_many_bytes);
    tcase_add_test(tcase, test_zeros_behind_the_end);
    tcase_add_test(tcase, test_too_many_entries);
    tcase_add_test(tcase, test_header_without_end);
    tcase_add_test(tcase, test_cut_archive);
    tcase_add_test(tcase, test_bad_checksum);
    tcase_add_test(tcase, test_trailing_bytes);
    tcase_add_test(tcase, test_stop);
    tcase_add_test(tcase, test_whiteouts);
    tcase_add_test(tcase, test_whiteout_beside_its_name);
    tcase_add_test(tcase, test_plain_tar_has_no_whiteouts);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
