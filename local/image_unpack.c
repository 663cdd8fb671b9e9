/* Two readers in a row: one takes the compression off, so that the digests of both the archive and
 * the tar in it are known after a single reading; the other reads the tar. */
#include "local/image_unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"

#define BLOCK (64 * KIB)

struct source {
    int fd;
    struct image_work *work;
    struct archive *filter; /* FD without its compression */
    struct crypto_sha256 raw, plain;
    uint64_t plain_left; /* bytes that the tar may yet have */
    size_t header_left;  /* and before its next entry, while `in_header` */
    bool in_header, is_layer;
    enum err_code code; /* of a failure that is not the archive's fault, or ERR_NONE */
    char raw_block[BLOCK], plain_block[BLOCK];
};

void image_hex(const uint8_t hash[CRYPTO_HASH_LEN], char ret_hex[IMAGE_HEX_LEN])
{
    struct buf hex = BUF_INIT(IMAGE_HEX_LEN);
    bool whole = hex_encode(&hex, hash, CRYPTO_HASH_LEN);
    memcpy(ret_hex, whole ? buf_text(&hex) : "", whole ? IMAGE_HEX_LEN : 1);
    buf_done(&hex);
}

static la_ssize_t fail(struct source *source, struct archive *archive, enum err_code code,
                       const char *what)
{
    source->code = code;
    archive_set_error(archive, EIO, "%s", what);
    return -1;
}

static la_ssize_t read_raw(struct archive *archive, void *arg, const void **ret_block)
{
    struct source *source = arg;
    ssize_t n;
    if (atomic_load(source->work->stop))
        return fail(source, archive, ERR_STOPPING, "the server is stopping");
    do
        n = read(source->fd, source->raw_block, BLOCK);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail(source, archive, ERR_IMAGE_PULL_FAILED, "the archive cannot be read");
    crypto_sha256_add(&source->raw, source->raw_block, (size_t)n);
    *ret_block = source->raw_block;
    return n;
}

static la_ssize_t read_plain(struct archive *archive, void *arg, const void **ret_block)
{
    struct source *source = arg;
    la_ssize_t n = archive_read_data(source->filter, source->plain_block, BLOCK);
    if (n < 0) {
        const char *why = archive_error_string(source->filter);
        archive_set_error(archive, EIO, "%s", why != NULL ? why : "its compression is damaged");
        return -1;
    }
    if ((uint64_t)n > source->plain_left)
        return fail(source, archive, ERR_INVALID_IMAGE, "it is larger than an image may be");
    source->plain_left -= (uint64_t)n;
    if (source->in_header && (size_t)n > source->header_left)
        return fail(source, archive, ERR_INVALID_IMAGE, "a header is larger than one may be");
    if (source->in_header)
        source->header_left -= (size_t)n;
    if (source->is_layer)
        crypto_sha256_add(&source->plain, source->plain_block, (size_t)n);
    *ret_block = source->plain_block;
    return n;
}

static int failed(const struct source *source, struct archive *archive, struct err *err)
{
    const char *why = archive_error_string(archive);
    return err_set(err, source->code != ERR_NONE ? source->code : ERR_INVALID_IMAGE,
                   "read the archive: %s", why != NULL ? why : "it is damaged");
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

/* Holes stay holes; what lies behind the size that the header gives is refused. */
static int write_content(struct source *source, struct archive *tar, struct archive_entry *entry,
                         int fd, struct err *err)
{
    const char *path = archive_entry_pathname(entry);
    int64_t size = archive_entry_size(entry), at = 0;
    const void *data;
    size_t len;
    int rc;
    while ((rc = archive_read_data_block(tar, &data, &len, &at)) == ARCHIVE_OK) {
        if (at < 0 || at > size || (int64_t)len > size - at)
            return err_set(err, ERR_INVALID_IMAGE, "entry '%s' has more than its size", path);
        if (write_at(fd, data, len, at) < 0)
            return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "unpack entry '%s'", path);
    }
    if (rc != ARCHIVE_EOF)
        return failed(source, tar, err);
    /* Python trusts a compiled module only if its source has the time that it remembers. */
    const struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = archive_entry_mtime(entry), .tv_nsec = archive_entry_mtime_nsec(entry)}};
    if (ftruncate(fd, size) < 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "unpack entry '%s'", path);
    (void)futimens(fd, times); /* a time that the file system cannot hold is none */
    return 0;
}

static int unpack_file(struct image_tree *tree, struct source *source, struct archive *tar,
                       struct archive_entry *entry, const char *path, struct err *err)
{
    cleanup_fd int fd = -1;
    int64_t size = archive_entry_size(entry);
    if (size < 0 || (uint64_t)size > source->work->bytes_left)
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' is larger than what an image may have",
                       path);
    source->work->bytes_left -= (uint64_t)size;
    if (image_tree_file(tree, path, (archive_entry_perm(entry) & 0111) != 0, &fd, err) < 0)
        return -1;
    return write_content(source, tar, entry, fd, err);
}

static int unpack_entry(struct image_tree *tree, struct source *source, struct archive *tar,
                        struct archive_entry *entry, struct err *err)
{
    char path[CAP_PATH], target[CAP_PATH];
    const char *name = archive_entry_pathname(entry), *link = archive_entry_hardlink(entry);
    if (name == NULL)
        return err_set(err, ERR_INVALID_IMAGE, "an entry has a name that cannot be read");
    if (image_path_clean(name, path, err) < 0)
        return -1;
    if (path[0] == '\0' && archive_entry_filetype(entry) == AE_IFDIR)
        return 0;
    if (path[0] == '\0')
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' would replace the root", name);
    if (tree->is_layer && image_tree_is_whiteout(path))
        return image_tree_whiteout(tree, path, err);
    if (link != NULL) {
        if (image_path_clean(link, target, err) < 0)
            return err_wrap(err, "hard link '%s'", path);
        return image_tree_hardlink(tree, path, target, err);
    }
    switch (archive_entry_filetype(entry)) {
    case AE_IFDIR:
        return image_tree_folder(tree, path, err);
    case AE_IFREG:
        return unpack_file(tree, source, tar, entry, path, err);
    case AE_IFLNK:
        link = archive_entry_symlink(entry);
        return image_tree_symlink(tree, path, link != NULL ? link : "", err);
    default:
        return 0; /* devices, pipes, sockets */
    }
}

/* 1: there is another entry. */
static int next_entry(struct source *source, struct archive *tar, struct archive_entry **ret_entry,
                      struct err *err)
{
    source->header_left = CAP_IMAGE_HEADER;
    source->in_header = true;
    int rc = archive_read_next_header(tar, ret_entry);
    source->in_header = false;
    if (rc == ARCHIVE_EOF)
        return 0;
    /* A warning means that something of the entry could not be understood. */
    return rc == ARCHIVE_OK ? 1 : failed(source, tar, err);
}

static int unpack_entries(struct image_tree *tree, struct source *source, struct archive *tar,
                          struct err *err)
{
    struct archive_entry *entry;
    int rc;
    while ((rc = next_entry(source, tar, &entry, err)) > 0) {
        if (unpack_entry(tree, source, tar, entry, err) < 0)
            return -1;
        /* Or what is left of it would count as the next one's header. */
        if (archive_read_data_skip(tar) != ARCHIVE_OK)
            return failed(source, tar, err);
    }
    return rc;
}

/* Both digests are of all that there is, what follows the end of the tar or of the compressed data
 * too. */
static int read_rest(struct source *source, struct archive *tar, struct err *err)
{
    const void *block;
    la_ssize_t n;
    do
        n = read_plain(tar, source, &block);
    while (n > 0);
    if (n < 0)
        return failed(source, tar, err);
    do
        n = read_raw(source->filter, source, &block);
    while (n > 0);
    return n < 0 ? failed(source, source->filter, err) : 0;
}

/* The library would run a program for what it was built without; that is refused. */
static int open_filter(struct source *source, struct archive *filter, struct err *err)
{
    struct archive_entry *entry;
    source->filter = filter;
    if (archive_read_support_filter_gzip(filter) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(filter) != ARCHIVE_OK ||
        archive_read_support_filter_xz(filter) != ARCHIVE_OK ||
        archive_read_support_format_raw(filter) != ARCHIVE_OK)
        return err_set(err, ERR_INTERNAL, "libarchive lacks gzip, zstd or xz");
    if (archive_read_open(filter, source, NULL, read_raw, NULL) != ARCHIVE_OK ||
        archive_read_next_header(filter, &entry) != ARCHIVE_OK)
        return failed(source, filter, err);
    return 0;
}

static int read_archive(struct image_tree *tree, struct source *source, struct archive *tar,
                        struct err *err)
{
    if (archive_read_support_format_tar(tar) != ARCHIVE_OK)
        return err_set(err, ERR_INTERNAL, "libarchive lacks tar");
    if (archive_read_open(tar, source, NULL, read_plain, NULL) != ARCHIVE_OK)
        return failed(source, tar, err);
    if (unpack_entries(tree, source, tar, err) < 0)
        return -1;
    return read_rest(source, tar, err);
}

int image_unpack(struct image_tree *tree, int fd, struct image_work *work,
                 struct image_sums *ret_sums, struct err *err)
{
    uint8_t hash[CRYPTO_HASH_LEN];
    struct source *source = xcalloc(1, sizeof(*source));
    struct archive *filter = archive_read_new(), *tar = archive_read_new();
    /* Names are UTF-8 or bytes; in the C locale the library would refuse those of a pax header. */
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = uselocale(utf8);
    source->fd = fd;
    source->work = work;
    source->is_layer = tree->is_layer;
    source->plain_left = work->bytes_left; /* the tar is larger than what is in it */
    crypto_sha256_start(&source->raw);
    crypto_sha256_start(&source->plain);
    int rc = -1;
    if (filter == NULL || tar == NULL || utf8 == (locale_t)0)
        err_set(err, ERR_INTERNAL, "libarchive or the locale C.UTF-8 cannot be had");
    else if (open_filter(source, filter, err) == 0)
        rc = read_archive(tree, source, tar, err);
    archive_read_free(tar);
    archive_read_free(filter);
    uselocale(before);
    if (utf8 != (locale_t)0)
        freelocale(utf8);
    if (rc == 0) {
        crypto_sha256_end(&source->raw, hash);
        image_hex(hash, ret_sums->raw);
        crypto_sha256_end(&source->plain, hash);
        if (tree->is_layer)
            image_hex(hash, ret_sums->plain);
        else
            ret_sums->plain[0] = '\0';
    }
    free(source);
    return rc;
}
