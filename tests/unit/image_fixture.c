#include "tests/unit/image_fixture.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"

struct temp_dir dir;
struct image_store *store;
struct err err;

const struct entry base_layer[] = {{"bin", .type = 'l', .content = "usr/bin"},
                                   {"usr/bin/sh", .content = "#!", .mode = 0755},
                                   {"etc/gone", .content = "x"},
                                   {.path = NULL}};
const struct entry top_layer[] = {
    {"etc/.wh.gone", .content = ""}, {"etc/motd", .content = "hello"}, {.path = NULL}};
static const struct entry *const two_layers[] = {base_layer, top_layer, NULL};

char *in_images(const char *name)
{
    return xasprintf("%s/images/%s", dir.path, name);
}

static void open_limited(const struct image_limits *limits)
{
    struct text_list folders = {.count = 0};
    cleanup_free char *cache = temp_path(&dir, "cache"), *images = temp_path(&dir, "images");
    text_list_add(&folders, images);
    int rc = image_store_open(cache, &folders, limits, &store, &err);
    text_list_done(&folders);
    ck_assert_msg(rc == 0, "%s", err.msg);
}

void store_reopen(const struct image_limits *limits)
{
    image_store_free(store);
    open_limited(limits);
}

void store_setup(void)
{
    temp_dir_make(&dir);
    ck_assert_int_eq(chmod(dir.path, 0711), 0);
    cleanup_free char *images = temp_path(&dir, "images");
    ck_assert_int_eq(mkdir(images, 0755), 0);
    err = (struct err){.code = ERR_NONE};
    open_limited(NULL);
}

size_t count_in(const char *folder)
{
    cleanup_free char *path = temp_path(&dir, folder);
    DIR *list = opendir(path);
    size_t count = 0;
    ck_assert_ptr_nonnull(list);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

void store_teardown(void)
{
    ck_assert_uint_eq(count_in("cache/unpacking"), 0);
    image_store_free(store);
    store = NULL;
    temp_dir_remove(&dir);
}

void assert_resolves(const char *name, struct image *ret_image)
{
    int rc = image_resolve(store, name, ret_image, &err);
    ck_assert_msg(rc == 0, "%s", err.msg);
}

void await_name(const char *name, size_t count)
{
    int64_t deadline = clock_now_ms() + 20000;
    do {
        struct image image;
        assert_resolves(name, &image);
        image_release(store, &image);
        ck_assert_int_lt(clock_now_ms(), deadline);
    } while (count_in("cache/names") < count);
    ck_assert_uint_eq(count_in("cache/names"), count);
}

void assert_refused(const char *name, enum err_code code)
{
    struct image image;
    err.code = ERR_NONE;
    ck_assert_msg(image_resolve(store, name, &image, &err) == -1, "%s", name);
    ck_assert_msg(err.code == code, "%s: %s: %s", name, err_code_name(err.code), err.msg);
    ck_assert_uint_eq(count_in("cache/unpacking"), 0);
}

void assert_has(const struct image *image, const char *path, const char *want)
{
    cleanup_free char *whole = xasprintf("%s/%s", image->root, path);
    cleanup_free char *is = read_text(whole);
    if (want == NULL)
        ck_assert_msg(is == NULL, "%s is there", path);
    else
        ck_assert_msg(is != NULL && strcmp(is, want) == 0, "%s is not there", path);
}

void make_tar(const char *name, const struct entry *entries, enum compression how)
{
    cleanup_buf struct buf tar = BUF_INIT(MIB);
    cleanup_free char *path = in_images(name);
    build_tar(entries, how, &tar);
    write_file(path, tar.ptr, tar.len);
}

const char *make_layout(const char *name, struct layout layout)
{
    cleanup_free char *path = in_images(name);
    layout.folder = path;
    if (layout.layers == NULL)
        layout.layers = two_layers;
    return build_layout(&layout);
}

void make_archive(const char *name, struct layout layout)
{
    cleanup_free char *tar = in_images(name), *folder = temp_path(&dir, "packed");
    layout.folder = folder;
    if (layout.layers == NULL)
        layout.layers = two_layers;
    (void)build_layout(&layout);
    pack_folder(folder, tar);
    cleanup_fd int top = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(renameat(top, "packed", top, "packed.old"), 0);
    struct temp_dir old;
    (void)snprintf(old.path, sizeof(old.path), "%s/packed.old", dir.path);
    temp_dir_remove(&old);
}
