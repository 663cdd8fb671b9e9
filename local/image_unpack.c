#include "local/image_unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "tar/reader.h"

struct source {
    int fd;
    struct image_work *work;
    struct crypto_sha256 raw, plain;
    bool is_layer;
};

void image_hex(const uint8_t hash[CRYPTO_HASH_LEN], char ret_hex[IMAGE_HEX_LEN])
{
    struct buf hex = BUF_INIT(IMAGE_HEX_LEN);
    bool whole = hex_encode(&hex, hash, CRYPTO_HASH_LEN);
    memcpy(ret_hex, whole ? buf_text(&hex) : "", whole ? IMAGE_HEX_LEN : 1);
    buf_done(&hex);
}

static ssize_t read_raw(void *arg, void *data, size_t len, struct err *err)
{
    struct source *source = arg;
    ssize_t n;
    if (atomic_load(source->work->stop))
        return err_set(err, ERR_STOPPING, "the server is stopping");
    do
        n = read(source->fd, data, len);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "read the archive");
    crypto_sha256_add(&source->raw, data, (size_t)n);
    return n;
}

static void note_plain(void *arg, const void *data, size_t len)
{
    struct source *source = arg;
    crypto_sha256_add(&source->plain, data, len);
}

static int write_at(int fd, const char *data, size_t len, int64_t at)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, data, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
        at += n;
    }
    return 0;
}

/* Holes stay holes. */
static int write_content(struct tar_reader *tar, const struct tar_item *item, int fd,
                         struct err *err)
{
    uint64_t at = 0;
    const void *data;
    size_t len;
    int rc;
    while ((rc = tar_reader_content(tar, &data, &len, &at, err)) > 0) {
        if (write_at(fd, data, len, (int64_t)at) < 0)
            return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "unpack entry '%s'", item->path);
    }
    if (rc < 0)
        return -1;
    /* Python trusts a compiled module only if its source has the time that it remembers. */
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {.tv_sec = item->mtime_s, .tv_nsec = item->mtime_ns}};
    if (ftruncate(fd, (off_t)item->size) < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "unpack entry '%s'", item->path);
    (void)futimens(fd, times); /* a time that the file system cannot hold is none */
    return 0;
}

static int unpack_file(struct image_tree *tree, struct source *source, struct tar_reader *tar,
                       const struct tar_item *item, const char *path, struct err *err)
{
    cleanup_fd int fd = -1;
    if (item->size > source->work->bytes_left)
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' is larger than what an image may have",
                       path);
    source->work->bytes_left -= item->size;
    if (image_tree_file(tree, path, (item->mode & 0111) != 0, &fd, err) < 0)
        return -1;
    return write_content(tar, item, fd, err);
}

static int unpack_entry(struct image_tree *tree, struct source *source, struct tar_reader *tar,
                        const struct tar_item *item, struct err *err)
{
    char path[CAP_PATH], target[CAP_PATH];
    if (item->path == NULL)
        return err_set(err, ERR_INVALID_IMAGE, "an entry has a name that cannot be read");
    if (image_path_clean(item->path, path, err) < 0)
        return -1;
    if (path[0] == '\0' && item->type == 'd')
        return 0;
    if (path[0] == '\0')
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' would replace the root", item->path);
    if (tree->is_layer && image_tree_is_whiteout(path))
        return image_tree_whiteout(tree, path, err);
    if (item->hard_link != NULL) {
        if (image_path_clean(item->hard_link, target, err) < 0)
            return err_wrap(err, "hard link '%s'", path);
        return image_tree_hardlink(tree, path, target, err);
    }
    switch (item->type) {
    case 'd':
        return image_tree_folder(tree, path, err);
    case 'f':
        return unpack_file(tree, source, tar, item, path, err);
    case 'l':
        return image_tree_symlink(tree, path, item->symlink != NULL ? item->symlink : "", err);
    default:
        return 0; /* devices, pipes, sockets */
    }
}

/* Both digests are of all that there is, what follows the end of the tar or of the compressed data
 * too. */
static int unpack_entries(struct image_tree *tree, struct source *source, struct tar_reader *tar,
                          struct err *err)
{
    struct tar_item item;
    int rc;
    while ((rc = tar_reader_next(tar, &item, err)) > 0) {
        if (unpack_entry(tree, source, tar, &item, err) < 0)
            return -1;
    }
    return rc < 0 ? -1 : tar_reader_rest(tar, err);
}

int image_unpack(struct image_tree *tree, int fd, struct image_work *work,
                 struct image_sums *ret_sums, struct err *err)
{
    uint8_t hash[CRYPTO_HASH_LEN];
    struct source source = {.fd = fd, .work = work, .is_layer = tree->is_layer};
    const struct tar_source reading = {
        .arg = &source, .read = read_raw, .plain = tree->is_layer ? note_plain : NULL};
    const struct tar_limits limits = {
        .plain_max = work->bytes_left, /* the tar is larger than what is in it */
        .header_max = CAP_IMAGE_HEADER,
        .bad = ERR_INVALID_IMAGE,
        .large = ERR_INVALID_IMAGE,
        .what = "an image",
        .xz = true,
    };
    crypto_sha256_start(&source.raw);
    crypto_sha256_start(&source.plain);
    struct tar_reader *tar = tar_reader_open(&reading, &limits, err);
    int rc = tar != NULL ? unpack_entries(tree, &source, tar, err) : -1;
    tar_reader_free(tar);
    if (rc < 0)
        return -1;
    crypto_sha256_end(&source.raw, hash);
    image_hex(hash, ret_sums->raw);
    crypto_sha256_end(&source.plain, hash);
    if (tree->is_layer)
        image_hex(hash, ret_sums->plain);
    else
        ret_sums->plain[0] = '\0';
    return 0;
}
