#include "local/image_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/json.h"
#include "local/image_oci.h"
#include "local/image_tree.h"

#define OPEN_FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define ABOUT "image.json"

/* --- files ------------------------------------------------------------------------------------ */
/* -1 with errno. */
static int read_file(int folder, const char *name, struct buf *text)
{
    cleanup_fd int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0) {
        char *room = buf_reserve(text, 4 * KIB);
        if (room == NULL) {
            errno = EFBIG;
            return -1;
        }
        do
            n = read(fd, room, 4 * KIB);
        while (n < 0 && errno == EINTR);
        buf_grew(text, n > 0 ? (size_t)n : 0);
    }
    return n < 0 ? -1 : 0;
}

static int write_file(int folder, const char *name, const char *text, size_t len)
{
    cleanup_fd int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Calls EACH with every name in the folder; -1 with errno. */
static int each_name(int folder, void (*each)(void *arg, const char *name), void *arg)
{
    struct dirent *entry;
    int fd = openat(folder, ".", OPEN_FOLDER);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (list == NULL) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    while ((entry = readdir(list)) != NULL) { /* NOLINT(concurrency-mt-unsafe): our own stream */
        if (entry->d_name[0] != '.')
            each(arg, entry->d_name);
    }
    closedir(list);
    return 0;
}

/* --- opening ---------------------------------------------------------------------------------- */
static int open_part(int top, const char *name, mode_t mode, int *ret_fd)
{
    if (mkdirat(top, name, mode) < 0 && errno != EEXIST)
        return -1;
    *ret_fd = openat(top, name, OPEN_FOLDER);
    return *ret_fd < 0 || fchmod(*ret_fd, mode) < 0 ? -1 : 0;
}

static void remove_leftover(void *arg, const char *name)
{
    const struct image_cache *cache = arg;
    (void)image_tree_remove(cache->unpacking, name); /* what stays is tried again next time */
}

static int open_parts(struct image_cache *cache, const char *path)
{
    if (mkdir(path, 0711) == 0)
        (void)chmod(path, 0711); /* whatever the umask is */
    else if (errno != EEXIST)
        return -1;
    cache->top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cache->top < 0 || flock(cache->top, LOCK_EX | LOCK_NB) < 0 ||
        open_part(cache->top, "images", 0711, &cache->images) < 0 ||
        open_part(cache->top, "names", 0700, &cache->names) < 0 ||
        open_part(cache->top, "unpacking", 0700, &cache->unpacking) < 0)
        return -1;
    return each_name(cache->unpacking, remove_leftover, cache);
}

/* WHOLE is an absolute path without links. Sandboxes of a server that is root have other uids. */
static int check_passable(const char *whole, struct err *err)
{
    cleanup_free char *path = xstrdup(whole);
    struct stat st;
    for (char *slash = strrchr(path, '/'); slash != NULL; slash = strrchr(path, '/')) {
        if (stat(path, &st) == 0 && (st.st_mode & S_IXOTH) == 0)
            return err_set(err, ERR_CONFIG,
                           "image cache '%s': sandboxes have uids of their own, and those may not "
                           "pass through '%s': chmod o+x it, or set another cache",
                           whole, path);
        *slash = '\0';
    }
    return 0;
}

int image_cache_open(const char *path, struct image_cache *ret_cache, struct err *err)
{
    struct image_cache cache = {.top = -1, .images = -1, .names = -1, .unpacking = -1};
    char whole[PATH_MAX];
    int rc = open_parts(&cache, path);
    if (rc == 0 && realpath(path, whole) == NULL)
        rc = -1;
    if (rc < 0) {
        int errnum = errno;
        image_cache_close(&cache);
        if (errnum == EWOULDBLOCK)
            return err_set(err, ERR_CONFIG, "image cache '%s': another server uses it", path);
        return err_errno(err, ERR_CONFIG, errnum, "image cache '%s'", path);
    }
    if (geteuid() == 0 && check_passable(whole, err) < 0) {
        image_cache_close(&cache);
        return -1;
    }
    cache.path = xstrdup(whole);
    *ret_cache = cache;
    return 0;
}

void image_cache_close(struct image_cache *cache)
{
    const int fds[] = {cache->unpacking, cache->names, cache->images, cache->top};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(cache->path);
}

/* --- temporaries ------------------------------------------------------------------------------ */
static void name_temp(struct image_cache *cache, struct image_temp *temp)
{
    (void)snprintf(temp->name, sizeof(temp->name), "%u", atomic_fetch_add(&cache->next, 1));
}

int image_temp_make(struct image_cache *cache, struct image_temp *ret_temp, struct err *err)
{
    struct image_temp temp = {.fd = -1};
    name_temp(cache, &temp);
    if (open_part(cache->unpacking, temp.name, 0711, &temp.fd) < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "make a folder in the image cache");
    *ret_temp = temp;
    return 0;
}

int image_temp_folder(const struct image_temp *temp, const char *name, struct err *err)
{
    int fd;
    if (open_part(temp->fd, name, 0755, &fd) < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "make a folder in the image cache");
    return fd;
}

void image_temp_remove(struct image_cache *cache, struct image_temp *temp)
{
    if (temp->fd >= 0)
        close(temp->fd);
    (void)image_tree_remove(cache->unpacking, temp->name); /* the next start tries again */
    temp->fd = -1;
}

/* --- images ----------------------------------------------------------------------------------- */
static bool print_about(const struct image *image, uint64_t bytes, struct buf *text)
{
    cleanup_json struct json *json = json_new_object();
    struct json *env = json_set_array(json, "env");
    for (size_t i = 0; i < image->env.count; i++)
        json_add_text(env, image->env.items[i]);
    json_set_text(json, "workdir", image->workdir);
    json_set_text(json, "user", image->user);
    json_set_int(json, "bytes", (int64_t)bytes);
    return json_print(json, text);
}

static bool read_about(int folder, struct json **ret_json)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_IMAGE_JSON);
    return read_file(folder, ABOUT, &text) == 0 &&
           json_parse(buf_text(&text), text.len, JSON_STRICT, ret_json, NULL) == 0;
}

bool image_cache_has(struct image_cache *cache, const char *hex)
{
    cleanup_json struct json *json = NULL;
    cleanup_fd int folder = openat(cache->images, hex, OPEN_FOLDER);
    return folder >= 0 && read_about(folder, &json);
}

/* 0, or an errno value. Of two that were made at once the first stays, if it is whole. */
static int put_in_place(struct image_cache *cache, const struct image_temp *temp, const char *hex)
{
    if (renameat(cache->unpacking, temp->name, cache->images, hex) == 0)
        return 0;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return errno;
    if (image_cache_has(cache, hex))
        return EEXIST;
    return renameat2(cache->unpacking, temp->name, cache->images, hex, RENAME_EXCHANGE) == 0
               ? EEXIST
               : errno;
}

int image_cache_commit(struct image_cache *cache, struct image_temp *temp,
                       const struct image *image, uint64_t bytes, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_IMAGE_JSON);
    int errnum = 0;
    if (!print_about(image, bytes, &text))
        errnum = EFBIG;
    else if (write_file(temp->fd, ABOUT, text.ptr, text.len) < 0)
        errnum = errno;
    else
        errnum = put_in_place(cache, temp, image->digest);
    if (errnum != 0) /* else there is nothing to remove */
        image_temp_remove(cache, temp);
    else
        close(temp->fd);
    temp->fd = -1;
    if (errnum == 0 || errnum == EEXIST)
        return 0;
    return err_errno(err, ERR_IMAGE_PULL_FAILED, errnum, "put the image into the cache");
}

static char *copy_text(const struct json *json, const char *name)
{
    const char *text = json_get_text(json, name);
    return text != NULL ? xstrdup(text) : NULL;
}

bool image_cache_load(struct image_cache *cache, const char *hex, struct image *ret_image)
{
    cleanup_json struct json *json = NULL;
    cleanup_fd int folder = openat(cache->images, hex, OPEN_FOLDER);
    const struct json *item;
    if (folder < 0 || !read_about(folder, &json))
        return false;
    (void)utimensat(folder, ABOUT, NULL, 0); /* else it counts as used before */
    *ret_image = (struct image){.root = xasprintf("%s/images/%s/root", cache->path, hex),
                                .digest = xstrdup(hex),
                                .workdir = copy_text(json, "workdir"),
                                .user = copy_text(json, "user")};
    for (item = json_first(json_get(json, "env")); item != NULL; item = json_next(item))
        text_list_add(&ret_image->env, json_text(item));
    return true;
}

bool image_cache_take(struct image_cache *cache, const char *hex, struct image_temp *ret_temp)
{
    struct image_temp temp = {.fd = -1};
    name_temp(cache, &temp);
    if (renameat(cache->images, hex, cache->unpacking, temp.name) < 0)
        return false;
    *ret_temp = temp;
    return true;
}

/* --- names ------------------------------------------------------------------------------------ */
/* "<identity> <digest>" */
#define NAME_LEN ((size_t)2 * IMAGE_HEX_LEN - 1)

static bool read_name(struct image_cache *cache, const char *request, struct buf *text)
{
    return read_file(cache->names, request, text) == 0 && text->len == NAME_LEN &&
           text->ptr[IMAGE_HEX_LEN - 1] == ' ';
}

bool image_cache_recall(struct image_cache *cache, const char *request, const char *identity,
                        char ret_hex[IMAGE_HEX_LEN])
{
    cleanup_buf struct buf text = BUF_INIT(16 * KIB);
    return read_name(cache, request, &text) && memcmp(text.ptr, identity, IMAGE_HEX_LEN - 1) == 0 &&
           oci_digest_parse(text.ptr + IMAGE_HEX_LEN, true, ret_hex);
}

void image_cache_remember(struct image_cache *cache, const char *request, const char *identity,
                          const char *hex)
{
    cleanup_buf struct buf text = BUF_INIT(KIB);
    struct image_temp temp;
    name_temp(cache, &temp);
    /* Forgetting it costs another unpacking and nothing else. */
    if (!buf_printf(&text, "%s %s", identity, hex) ||
        write_file(cache->unpacking, temp.name, text.ptr, text.len) < 0 ||
        renameat(cache->unpacking, temp.name, cache->names, request) < 0)
        (void)unlinkat(cache->unpacking, temp.name, 0);
}

static void forget_one(void *arg, const char *request)
{
    struct image_cache *cache = arg;
    cleanup_buf struct buf text = BUF_INIT(16 * KIB);
    if (!read_name(cache, request, &text) ||
        faccessat(cache->images, text.ptr + IMAGE_HEX_LEN, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        (void)unlinkat(cache->names, request, 0);
}

void image_cache_forget(struct image_cache *cache)
{
    (void)each_name(cache->names, forget_one, cache);
}

/* --- listing ---------------------------------------------------------------------------------- */
struct listing {
    struct image_cache *cache;
    struct image_entry *entries;
    size_t count;
};

static void list_one(void *arg, const char *name)
{
    struct listing *listing = arg;
    struct image_entry entry = {.used_ns = 0};
    cleanup_json struct json *json = NULL;
    cleanup_fd int folder = openat(listing->cache->images, name, OPEN_FOLDER);
    struct stat st;
    if (folder < 0 || !oci_digest_parse(name, true, entry.hex))
        return;
    if (read_about(folder, &json) && fstatat(folder, ABOUT, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        entry.bytes = (uint64_t)json_get_int(json, "bytes", 0);
        entry.used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    listing->entries = xrealloc(listing->entries, (listing->count + 1) * sizeof(*listing->entries));
    listing->entries[listing->count++] = entry;
}

static int by_use(const void *a, const void *b)
{
    const struct image_entry *x = a, *y = b;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

int image_cache_list(struct image_cache *cache, struct image_entry **ret_entries, size_t *ret_count,
                     struct err *err)
{
    struct listing listing = {.cache = cache};
    if (each_name(cache->images, list_one, &listing) < 0)
        return err_errno(err, ERR_STORE, errno, "list the image cache");
    if (listing.count > 0)
        qsort(listing.entries, listing.count, sizeof(*listing.entries), by_use);
    *ret_entries = listing.entries;
    *ret_count = listing.count;
    return 0;
}
