/* One lock guards who holds which image and what is being unpacked; unpacking itself runs without
 * it. An image is held before the lock that made it visible is let go, and taken away only under
 * the lock, so image_gc() cannot come between. */
#include "local/image.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "local/image_cache.h"
#include "local/image_layout.h"
#include "local/image_name.h"
#include "local/image_tree.h"

#define TICKS_MS 100
#define RUNS_MAX 3

struct holding {
    char hex[IMAGE_HEX_LEN];
    size_t count;
    struct holding *next;
};

/* Somebody unpacks for a request's key and identity; the others wait for it. */
struct job {
    char key[IMAGE_HEX_LEN], identity[IMAGE_HEX_LEN];
    char hex[IMAGE_HEX_LEN]; /* what it led to */
    bool done;
    int rc;
    struct err err;
    size_t users; /* who unpacks and who waits */
    struct job *next;
};

struct image_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job is done */
    struct holding *held;
    struct job *jobs; /* not yet done */
    atomic_bool stop;
    struct image_cache cache;
    struct image_limits limits;
    struct image_folder *folders;
    size_t folder_count;
};

/* --- the store -------------------------------------------------------------------------------- */
static int open_folder(struct image_store *store, const char *path, struct err *err)
{
    struct image_folder folder = {.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (folder.fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "folder of images '%s'", path);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    folder.path = xstrndup(path, len == 1 ? 0 : len); /* "" is what is before every slash */
    store->folders = xrealloc(store->folders, (store->folder_count + 1) * sizeof(*store->folders));
    store->folders[store->folder_count++] = folder;
    return 0;
}

int image_store_open(const char *cache, const struct text_list *folders,
                     const struct image_limits *limits, struct image_store **ret_store,
                     struct err *err)
{
    struct image_store *store = xcalloc(1, sizeof(*store));
    if (image_cache_open(cache, &store->cache, err) < 0) {
        free(store);
        return -1;
    }
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, NULL);
    atomic_init(&store->stop, false);
    store->limits = limits != NULL ? *limits
                                   : (struct image_limits){.bytes = CAP_IMAGE_BYTES,
                                                           .entries = CAP_IMAGE_ENTRIES};
    for (size_t i = 0; i < folders->count; i++) {
        if (open_folder(store, folders->items[i], err) < 0) {
            image_store_free(store);
            return -1;
        }
    }
    *ret_store = store;
    return 0;
}

void image_store_stop(struct image_store *store)
{
    atomic_store(&store->stop, true);
}

void image_store_free(struct image_store *store)
{
    if (store == NULL)
        return;
    for (size_t i = 0; i < store->folder_count; i++) {
        close(store->folders[i].fd);
        free(store->folders[i].path);
    }
    free(store->folders);
    image_cache_close(&store->cache);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

/* --- holding ---------------------------------------------------------------------------------- */
static struct holding **find_holding(struct image_store *store, const char *hex)
{
    struct holding **at = &store->held;
    while (*at != NULL && strcmp((*at)->hex, hex) != 0)
        at = &(*at)->next;
    return at;
}

/* Under the lock. What is damaged is taken away unless it is held: then it is whole for somebody.
 */
static bool hold(struct image_store *store, const char *hex, struct image *ret_image)
{
    struct holding **at = find_holding(store, hex);
    if (!image_cache_load(&store->cache, hex, ret_image)) {
        struct image_temp temp;
        if (*at == NULL && image_cache_take(&store->cache, hex, &temp))
            image_temp_remove(&store->cache, &temp);
        return false;
    }
    if (*at == NULL) {
        *at = xcalloc(1, sizeof(**at));
        memcpy((*at)->hex, hex, IMAGE_HEX_LEN);
    }
    (*at)->count++;
    return true;
}

void image_release(struct image_store *store, struct image *image)
{
    pthread_mutex_lock(&store->lock);
    struct holding **at = image->digest != NULL ? find_holding(store, image->digest) : NULL;
    if (at != NULL && *at != NULL && --(*at)->count == 0) {
        struct holding *gone = *at;
        *at = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&store->lock);
    text_list_done(&image->env);
    free(image->root);
    free(image->digest);
    free(image->workdir);
    free(image->user);
    *image = (struct image){.root = NULL};
}

int image_hold(struct image_store *store, const char *digest, struct image *ret_image,
               struct err *err)
{
    char hex[IMAGE_HEX_LEN];
    bool found = false;
    if (oci_digest_parse(digest, true, hex)) {
        pthread_mutex_lock(&store->lock);
        found = hold(store, hex, ret_image);
        pthread_mutex_unlock(&store->lock);
    }
    if (!found)
        return err_set(err, ERR_IMAGE_PULL_FAILED, "image sha256:%s is not in the cache", digest);
    return 0;
}

/* --- unpacking -------------------------------------------------------------------------------- */
/* One resolve on its way. */
struct request {
    struct image_store *store;
    struct image_place place;
    struct layout_image layout;   /* of a folder that is one */
    char key[IMAGE_HEX_LEN];      /* of the image if it is known, else of what was asked for */
    char identity[IMAGE_HEX_LEN]; /* of the file as it is now; "" for a layout */
};

static void request_done(struct request *request)
{
    image_place_done(&request->place);
    layout_image_done(&request->layout);
}

static struct oci_wanted wanted_of(const struct image_place *place)
{
    return (struct oci_wanted){.tag = place->tag, .hex = place->hex[0] ? place->hex : NULL};
}

static struct image_work work_of(struct image_store *store)
{
    return (struct image_work){.bytes_left = store->limits.bytes,
                               .entries_left = store->limits.entries,
                               .stop = &store->stop};
}

static int unpack_layout(struct image_store *store, int folder, const struct layout_image *layout,
                         struct image_temp *temp, struct err *err)
{
    struct image_work work = work_of(store);
    cleanup_fd int root = image_temp_folder(temp, "root", err);
    if (root < 0 || image_layout_unpack(folder, layout, root, &work, err) < 0)
        return -1;
    /* Only lent; the texts stay the layout's. */
    const struct image image = {.digest = (char *)layout->hex,
                                .env = layout->config.env,
                                .workdir = layout->config.workdir,
                                .user = layout->config.user};
    return image_cache_commit(&store->cache, temp, &image, store->limits.bytes - work.bytes_left,
                              err);
}

/* ARCHIVE is the folder that the archive was unpacked into, and held an image in pieces. */
static int unpack_archived(struct request *request, int archive, enum image_kind kind,
                           struct image_temp *temp, char ret_hex[IMAGE_HEX_LEN], struct err *err)
{
    const struct oci_wanted wanted = wanted_of(&request->place);
    cleanup(layout_image_done) struct layout_image layout = {.layers = NULL};
    if (renameat(temp->fd, "root", temp->fd, "archive") < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "unpack the archive");
    if (image_layout_read(archive, kind, &wanted, &layout, err) < 0)
        return -1;
    memcpy(ret_hex, layout.hex, IMAGE_HEX_LEN);
    if (image_cache_has(&request->store->cache, layout.hex))
        return 0; /* the archive was asked for by another name */
    struct image_temp inner;
    if (image_temp_make(&request->store->cache, &inner, err) < 0)
        return -1;
    if (unpack_layout(request->store, archive, &layout, &inner, err) < 0) {
        image_temp_remove(&request->store->cache, &inner);
        return -1;
    }
    return 0;
}

static void identify(const struct stat *st, char ret_hex[IMAGE_HEX_LEN])
{
    struct crypto_sha256 sha;
    uint8_t hash[CRYPTO_HASH_LEN];
    const int64_t parts[] = {(int64_t)st->st_dev,          (int64_t)st->st_ino,
                             (int64_t)st->st_size,         (int64_t)st->st_mtim.tv_sec,
                             (int64_t)st->st_mtim.tv_nsec, (int64_t)st->st_ctim.tv_sec,
                             (int64_t)st->st_ctim.tv_nsec};
    crypto_sha256_start(&sha);
    crypto_sha256_add(&sha, parts, sizeof(parts));
    crypto_sha256_end(&sha, hash);
    image_hex(hash, ret_hex);
}

/* A file that changed within the last tick of the kernel's clock may change again and show the same
 * times. */
static bool is_settled(const struct stat *st)
{
    return clock_wall_ms() - TICKS_MS >
           (int64_t)st->st_ctim.tv_sec * 1000 + st->st_ctim.tv_nsec / 1000000;
}

static int check_unchanged(const struct request *request, struct err *err)
{
    char identity[IMAGE_HEX_LEN] = "";
    struct stat st;
    if (fstat(request->place.fd, &st) == 0)
        identify(&st, identity);
    if (strcmp(identity, request->identity) != 0)
        return err_set(err, ERR_IMAGE_PULL_FAILED, "the archive changed while it was read");
    return 0;
}

static int check_plain(const struct image_place *place, const struct image_sums *sums,
                       struct err *err)
{
    if (place->kind != IMAGE_ANY && place->kind != IMAGE_TAR)
        return err_set(err, ERR_INVALID_IMAGE, "the archive is not of the kind that was said");
    if (place->tag != NULL)
        return err_set(err, ERR_INVALID_IMAGE, "a plain tar has no tags, such as '%s'", place->tag);
    if (place->hex[0] != '\0' && strcmp(place->hex, sums->raw) != 0)
        return err_set(err, ERR_INVALID_IMAGE,
                       "the tar has the digest sha256:%s, not the one that was asked for",
                       sums->raw);
    return 0;
}

/* What kind of archive it is shows when it is unpacked. */
static int unpack_file(struct request *request, struct image_temp *temp,
                       char ret_hex[IMAGE_HEX_LEN], struct err *err)
{
    struct image_store *store = request->store;
    const struct image_place *place = &request->place;
    struct image_work work = work_of(store);
    struct image_sums sums;
    cleanup_fd int root = image_temp_folder(temp, "root", err);
    if (root < 0)
        return -1;
    struct image_tree tree = {.root = root, .entries_left = &work.entries_left};
    int rc = lseek(place->fd, 0, SEEK_SET) < 0
                 ? err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "read the archive")
                 : image_unpack(&tree, place->fd, &work, &sums, err);
    image_tree_done(&tree);
    if (rc < 0 || check_unchanged(request, err) < 0)
        return -1;
    enum image_kind kind = place->kind == IMAGE_ANY ? image_layout_kind(root) : place->kind;
    if (kind == IMAGE_OCI || kind == IMAGE_DOCKER)
        return unpack_archived(request, root, kind, temp, ret_hex, err);
    if (check_plain(place, &sums, err) < 0)
        return -1;
    const struct image image = {.digest = sums.raw};
    memcpy(ret_hex, sums.raw, IMAGE_HEX_LEN);
    return image_cache_commit(&store->cache, temp, &image, store->limits.bytes - work.bytes_left,
                              err);
}

static int unpack(struct request *request, char ret_hex[IMAGE_HEX_LEN], struct err *err)
{
    struct image_store *store = request->store;
    struct image_temp temp;
    if (image_temp_make(&store->cache, &temp, err) < 0)
        return -1;
    int rc;
    if (request->identity[0] != '\0') {
        rc = unpack_file(request, &temp, ret_hex, err);
    } else {
        rc = unpack_layout(store, request->place.fd, &request->layout, &temp, err);
        memcpy(ret_hex, request->layout.hex, IMAGE_HEX_LEN);
    }
    if (temp.fd >= 0) /* not committed */
        image_temp_remove(&store->cache, &temp);
    return rc;
}

/* --- resolving -------------------------------------------------------------------------------- */
/* Under the lock. True when the request's image is in the cache. */
static bool hold_known(struct request *request, struct image *ret_image)
{
    struct image_cache *cache = &request->store->cache;
    char hex[IMAGE_HEX_LEN];
    if (request->identity[0] == '\0')
        return hold(request->store, request->key, ret_image);
    return image_cache_recall(cache, request->key, request->identity, hex) &&
           hold(request->store, hex, ret_image);
}

static struct job *find_job(const struct request *request)
{
    struct job *job = request->store->jobs;
    while (job != NULL &&
           (strcmp(job->key, request->key) != 0 || strcmp(job->identity, request->identity) != 0))
        job = job->next;
    return job;
}

/* Under the lock. 1: the image was removed again before it could be held. */
static int end_job(struct image_store *store, struct job *job, struct image *ret_image,
                   struct err *err)
{
    int rc = job->rc;
    if (rc < 0)
        err_set(err, job->err.code, "%s", job->err.msg);
    else if (!hold(store, job->hex, ret_image))
        rc = 1;
    if (--job->users == 0)
        free(job);
    return rc;
}

/* Under the lock, which is let go meanwhile; as end_job(). */
static int wait_for_job(struct image_store *store, struct job *job, struct image *ret_image,
                        struct err *err)
{
    job->users++;
    while (!job->done)
        pthread_cond_wait(&store->changed, &store->lock);
    return end_job(store, job, ret_image, err);
}

/* Under the lock, which is let go meanwhile; as end_job(). */
static int run_job(struct request *request, struct image *ret_image, struct err *err)
{
    struct image_store *store = request->store;
    struct job *job = xcalloc(1, sizeof(*job));
    memcpy(job->key, request->key, IMAGE_HEX_LEN);
    memcpy(job->identity, request->identity, IMAGE_HEX_LEN);
    job->users = 1;
    job->next = store->jobs;
    store->jobs = job;
    pthread_mutex_unlock(&store->lock);
    job->rc = unpack(request, job->hex, &job->err);
    pthread_mutex_lock(&store->lock);
    if (job->rc == 0 && request->identity[0] != '\0' && is_settled(&request->place.st))
        image_cache_remember(&store->cache, request->key, request->identity, job->hex);
    struct job **at = &store->jobs;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    job->done = true;
    pthread_cond_broadcast(&store->changed);
    return end_job(store, job, ret_image, err);
}

static int obtain(struct request *request, struct image *ret_image, struct err *err)
{
    struct image_store *store = request->store;
    int rc = 1, runs = 0; /* not known yet */
    pthread_mutex_lock(&store->lock);
    while (rc > 0) {
        struct job *job = find_job(request);
        if (hold_known(request, ret_image))
            rc = 0;
        else if (atomic_load(&store->stop))
            rc = err_set(err, ERR_STOPPING, "the server is stopping");
        else if (job == NULL && runs++ == RUNS_MAX)
            rc = err_set(err, ERR_IMAGE_PULL_FAILED, "it is removed from the cache time and again");
        else if (job == NULL)
            rc = run_job(request, ret_image, err);
        else
            rc = wait_for_job(store, job, ret_image, err);
    }
    pthread_mutex_unlock(&store->lock);
    return rc;
}

/* A folder of the operator's is used where it is. */
static int use_folder(const struct image_place *place, struct image *ret_image, struct err *err)
{
    char link[64], path[PATH_MAX];
    if (place->tag != NULL || place->hex[0] != '\0')
        return err_set(err, ERR_INVALID_IMAGE, "a plain folder has neither tags nor a digest");
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", place->fd);
    ssize_t len = readlink(link, path, sizeof(path));
    if (len <= 0 || (size_t)len == sizeof(path))
        return err_errno(err, ERR_IMAGE_PULL_FAILED, len < 0 ? errno : ENAMETOOLONG,
                         "find the folder's path");
    *ret_image = (struct image){.root = xstrndup(path, (size_t)len)};
    return 0;
}

static int resolve_folder(struct request *request, struct image *ret_image, struct err *err)
{
    const struct image_place *place = &request->place;
    const struct oci_wanted wanted = wanted_of(place);
    enum image_kind kind = place->kind == IMAGE_ANY ? image_layout_kind(place->fd) : place->kind;
    if (kind == IMAGE_TAR)
        return err_set(err, ERR_INVALID_IMAGE, "it is a folder, not a tar");
    if (kind != IMAGE_OCI && kind != IMAGE_DOCKER)
        return use_folder(place, ret_image, err);
    if (image_layout_read(place->fd, kind, &wanted, &request->layout, err) < 0)
        return -1;
    memcpy(request->key, request->layout.hex, IMAGE_HEX_LEN);
    return obtain(request, ret_image, err);
}

static int resolve_file(struct request *request, const char *name, struct image *ret_image,
                        struct err *err)
{
    struct crypto_sha256 sha;
    uint8_t hash[CRYPTO_HASH_LEN];
    if (request->place.kind == IMAGE_FOLDER)
        return err_set(err, ERR_INVALID_IMAGE, "it is a file, not a folder");
    identify(&request->place.st, request->identity);
    crypto_sha256_start(&sha);
    crypto_sha256_add(&sha, name, strlen(name));
    crypto_sha256_end(&sha, hash);
    image_hex(hash, request->key);
    return obtain(request, ret_image, err);
}

int image_resolve(struct image_store *store, const char *name, struct image *ret_image,
                  struct err *err)
{
    cleanup(request_done) struct request request = {.store = store, .place = {.fd = -1}};
    if (image_find(store->folders, store->folder_count, name, &request.place, err) < 0)
        return -1;
    int rc = S_ISDIR(request.place.st.st_mode) ? resolve_folder(&request, ret_image, err)
                                               : resolve_file(&request, name, ret_image, err);
    return rc < 0 ? err_wrap(err, "image '%s'", name) : 0;
}

/* --- making room ------------------------------------------------------------------------------ */
static bool take_unused(struct image_store *store, const char *hex, struct image_temp *ret_temp)
{
    pthread_mutex_lock(&store->lock);
    bool taken =
        *find_holding(store, hex) == NULL && image_cache_take(&store->cache, hex, ret_temp);
    pthread_mutex_unlock(&store->lock);
    return taken;
}

int image_gc(struct image_store *store, const struct text_list *in_use, uint64_t keep_bytes,
             struct err *err)
{
    cleanup_free struct image_entry *entries = NULL;
    struct image_temp temp;
    size_t count = 0;
    uint64_t total = 0;
    if (image_cache_list(&store->cache, &entries, &count, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        total += entries[i].bytes;
    for (size_t i = 0; i < count && total > keep_bytes; i++) {
        if (text_list_has(in_use, entries[i].hex) || !take_unused(store, entries[i].hex, &temp))
            continue;
        image_temp_remove(&store->cache, &temp);
        total -= entries[i].bytes;
    }
    pthread_mutex_lock(&store->lock);
    image_cache_forget(&store->cache);
    pthread_mutex_unlock(&store->lock);
    return 0;
}
