#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "fake/disk.h"
#include "tests/unit/suite.h"

static struct disk_space space;
static struct disk disk;
static struct err err;
static const struct node *node;

static void setup(void)
{
    space.max = 64 * MIB;
    space.used = 0;
    disk_init(&disk, &space, "/srv/app");
}

static void teardown(void)
{
    disk_done(&disk);
    ck_assert_uint_eq(space.used, 0);
}

static int write_text(const char *path, const char *text)
{
    struct content *content = content_new(text, strlen(text));
    int result = disk_write(&disk, path, content, -1, &node, &err);

    content_unref(content);
    return result;
}

static void check_path(const char *path, const char *plain)
{
    char result[CAP_PATH];

    ck_assert_int_eq(disk_path("/srv/app", path, result, &err), 0);
    ck_assert_str_eq(result, plain);
}

START_TEST(paths_become_plain)
{
    check_path(".", "/srv/app");
    check_path("a", "/srv/app/a");
    check_path("./a//b/", "/srv/app/a/b");
    check_path("../../../x", "/x");
    check_path("/", "/");
    check_path("/..", "/");
    check_path("/...", "/...");
    check_path("/a/./.b/..c", "/a/.b/..c");
}
END_TEST

START_TEST(a_path_that_is_too_long_is_refused)
{
    char result[CAP_PATH], name[300], path[CAP_PATH + 16];

    memset(name, 'n', sizeof(name));
    name[255] = '\0';
    ck_assert_int_eq(disk_path("/", name, result, &err), 0);
    name[255] = 'n';
    name[256] = '\0';
    ck_assert_int_eq(disk_path("/", name, result, &err), -1);
    ck_assert_int_eq(err.code, ERR_NAME_TOO_LONG);
    for (size_t i = 0; i < sizeof(path) - 1; i++)
        path[i] = i % 2 == 0 ? '/' : 'd';
    path[sizeof(path) - 1] = '\0';
    ck_assert_int_eq(disk_path("/", path, result, &err), -1);
    path[CAP_PATH] = '\0';
    ck_assert_int_eq(disk_path("/", path, result, &err), -1);
    path[CAP_PATH - 1] = '\0';
    ck_assert_int_eq(disk_path("/", path, result, &err), 0);
    ck_assert_int_eq(write_text(result, "x"), 0);
}
END_TEST

START_TEST(what_is_in_a_directory_follows_it)
{
    static const char *const sorted[] = {"/",      "/a",     "/a/\x01", "/a/b", "/a/b/c",
                                         "/a/b-c", "/a/b.c", "/a\x01b", "/a-b", "/a-b/x"};
    static const int order[] = {9, 3, 7, 4, 2, 6, 5};
    size_t first = 0, at = 0;

    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        ck_assert_int_eq(write_text(order[i] == 3 ? "/a/b/c" : sorted[order[i]], "x"), 0);
    for (size_t i = 0; i < disk.count; i++) {
        if (strncmp(disk.nodes[i].path, "/srv", 4) != 0 && strcmp(disk.nodes[i].path, "/tmp") != 0)
            ck_assert_str_eq(disk.nodes[i].path, sorted[at++]);
    }
    ck_assert_uint_eq(at, ARRAY_LEN(sorted));
    ck_assert_uint_eq(disk_below(&disk, "/a", &first), 5);
    ck_assert_str_eq(disk.nodes[first].path, "/a/\x01");
    ck_assert_uint_eq(disk_below(&disk, "/a/b", &first), 1);
    ck_assert_uint_eq(disk_below(&disk, "/", &first), disk.count - 1);
}
END_TEST

START_TEST(a_write_that_does_not_fit_changes_nothing)
{
    cleanup_free char *large = xmalloc(MIB);

    space.max = MIB;
    ck_assert_int_eq(write_text("/f", "old"), 0);
    size_t used = space.used;
    memset(large, 'x', MIB - 1);
    large[MIB - 1] = '\0';
    ck_assert_int_eq(write_text("/f", large), -1);
    ck_assert_int_eq(err.code, ERR_NO_SPACE);
    ck_assert_int_eq(write_text("/g", large), -1);
    ck_assert_uint_eq(space.used, used);
    ck_assert_ptr_null(disk_find(&disk, "/g"));
    ck_assert_mem_eq(disk_find(&disk, "/f")->content->bytes, "old", 3);
}
END_TEST

START_TEST(a_directory_cannot_go_into_itself_or_over_a_full_one)
{
    ck_assert_int_eq(write_text("/d/e/f", "x"), 0);
    ck_assert_int_eq(write_text("/full/x", "x"), 0);
    ck_assert_int_eq(disk_move(&disk, "/d", "/d/e/g", true, &node, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_PATH);
    ck_assert_int_eq(disk_move(&disk, "/", "/x", true, &node, &err), -1);
    ck_assert_int_eq(disk_move(&disk, "/d", "/full", true, &node, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_EMPTY);
    ck_assert_int_eq(disk_move(&disk, "/d", "/full/x", true, &node, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_DIRECTORY);
    ck_assert_int_eq(disk_move(&disk, "/d/e/f", "/full", true, &node, &err), -1);
    ck_assert_int_eq(err.code, ERR_IS_DIRECTORY);
    ck_assert_int_eq(disk_move(&disk, "/d", "/tmp", true, &node, &err), 0); /* an empty one */
    ck_assert_ptr_nonnull(disk_find(&disk, "/tmp/e/f"));
    ck_assert_ptr_null(disk_find(&disk, "/d"));
}
END_TEST

/* Sorted, every name in a directory, and paid for. */
static void check_whole(void)
{
    size_t cost = 0;

    for (size_t i = 0; i < disk.count; i++) {
        const char *path = disk.nodes[i].path, *slash = strrchr(path, '/');
        char parent[CAP_PATH];

        cost += 128 + strlen(path) + (disk.nodes[i].content ? disk.nodes[i].content->len : 0);
        ck_assert_ptr_eq(disk_find(&disk, path), &disk.nodes[i]);
        if (path[1] == '\0')
            continue;
        snprintf(parent, sizeof(parent), "%.*s", slash == path ? 1 : (int)(slash - path), path);
        const struct node *above = disk_find(&disk, parent);
        ck_assert_msg(above != NULL && above->content == NULL && above < &disk.nodes[i], "%s",
                      path);
    }
    ck_assert_uint_eq(cost, space.used);
}

static void random_path(char ret_path[64])
{
    static const char *const names[] = {"a", "b", "a-", "a.", "\x01", "ab"};
    size_t depth = 1 + (size_t)(rand() % 3);

    ret_path[0] = '\0';
    for (size_t i = 0; i < depth; i++) {
        size_t len = strlen(ret_path);
        snprintf(ret_path + len, 64 - len, "/%s", names[(size_t)rand() % ARRAY_LEN(names)]);
    }
}

START_TEST(it_stays_whole_whatever_is_done)
{
    bool created;

    srand(7);
    for (int i = 0; i < 20000; i++) {
        char path[64], other[64];
        int result;

        random_path(path);
        random_path(other);
        switch (rand() % 5) {
        case 0:
            result = write_text(path, other);
            break;
        case 1:
            result = disk_mkdir(&disk, path, 0700, &created, &err);
            break;
        case 2:
            result = disk_remove(&disk, path, rand() % 2 == 0, &err);
            break;
        default:
            result = disk_move(&disk, path, other, rand() % 2 == 0, &node, &err);
            if (result == 0)
                ck_assert_str_eq(node->path, other);
        }
        if (result < 0)
            ck_assert_str_ne(err.msg, "");
        if (i % 16 == 0)
            check_whole();
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        paths_become_plain,
        a_path_that_is_too_long_is_refused,
        what_is_in_a_directory_follows_it,
        a_write_that_does_not_fit_changes_nothing,
        a_directory_cannot_go_into_itself_or_over_a_full_one,
        it_stays_whole_whatever_is_done,
        NULL,
    };
    return run_suite("fake_disk", tests, setup, teardown);
}
