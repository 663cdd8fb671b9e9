/* Two readers in a row: one takes the compression off, so that what the tar has is seen and
 * counted; the other reads the tar. */
#include "tar/reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>

#include "base/caps.h"
#include "base/mem.h"
#include "tar/locale.h"

#define BLOCK (64 * KIB)

struct tar_reader {
    struct tar_source source;
    struct tar_limits limits;
    struct archive *filter, *tar; /* the source without its compression; the tar in that */
    struct archive_entry *entry;
    uint64_t plain_left;
    size_t header_left; /* while `in_header` */
    bool in_header;
    bool failed; /* `why` is: of the source or a limit, not the archive's fault */
    struct err why;
    struct tar_locale locale;
    char raw_block[BLOCK], plain_block[BLOCK];
};

static la_ssize_t read_raw(struct archive *archive, void *arg, const void **ret_block)
{
    struct tar_reader *reader = arg;
    ssize_t n = reader->source.read(reader->source.arg, reader->raw_block, BLOCK, &reader->why);
    if (n < 0) {
        reader->failed = true;
        archive_set_error(archive, EIO, "%s", reader->why.msg);
    }
    *ret_block = reader->raw_block;
    return n;
}

static la_ssize_t refuse(struct tar_reader *reader, struct archive *archive, const char *what)
{
    reader->failed = true;
    (void)err_set(&reader->why, reader->limits.large, "read the archive: %s than %s may have", what,
                  reader->limits.what);
    archive_set_error(archive, EIO, "%s", what);
    return -1;
}

static la_ssize_t read_plain(struct archive *archive, void *arg, const void **ret_block)
{
    struct tar_reader *reader = arg;
    la_ssize_t n = archive_read_data(reader->filter, reader->plain_block, BLOCK);
    if (n < 0) {
        const char *why = archive_error_string(reader->filter);
        archive_set_error(archive, EIO, "%s", why != NULL ? why : "its compression is damaged");
        return -1;
    }
    if ((uint64_t)n > reader->plain_left)
        return refuse(reader, archive, "it is larger");
    reader->plain_left -= (uint64_t)n;
    if (reader->in_header && (size_t)n > reader->header_left)
        return refuse(reader, archive, "a header is larger");
    if (reader->in_header)
        reader->header_left -= (size_t)n;
    if (reader->source.plain != NULL)
        reader->source.plain(reader->source.arg, reader->plain_block, (size_t)n);
    *ret_block = reader->plain_block;
    return n;
}

static int failed(const struct tar_reader *reader, struct archive *archive, struct err *err)
{
    const char *why = archive_error_string(archive);
    if (reader->failed) {
        *err = reader->why;
        return -1;
    }
    return err_set(err, reader->limits.bad, "read the archive: %s",
                   why != NULL ? why : "it is damaged");
}

/* The library would run a program for what it was built without; that is refused. */
static int open_filter(struct tar_reader *reader, struct err *err)
{
    struct archive *filter = reader->filter;
    struct archive_entry *entry;
    if (archive_read_support_filter_gzip(filter) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(filter) != ARCHIVE_OK ||
        (reader->limits.xz && archive_read_support_filter_xz(filter) != ARCHIVE_OK) ||
        archive_read_support_format_raw(filter) != ARCHIVE_OK)
        return err_set(err, ERR_INTERNAL, "libarchive lacks gzip, zstd or xz");
    if (archive_read_open(filter, reader, NULL, read_raw, NULL) != ARCHIVE_OK ||
        archive_read_next_header(filter, &entry) != ARCHIVE_OK)
        return failed(reader, filter, err);
    return 0;
}

static int open_tar(struct tar_reader *reader, struct err *err)
{
    if (archive_read_support_format_tar(reader->tar) != ARCHIVE_OK)
        return err_set(err, ERR_INTERNAL, "libarchive lacks tar");
    if (archive_read_open(reader->tar, reader, NULL, read_plain, NULL) != ARCHIVE_OK)
        return failed(reader, reader->tar, err);
    return 0;
}

struct tar_reader *tar_reader_open(const struct tar_source *source, const struct tar_limits *limits,
                                   struct err *err)
{
    struct tar_reader *reader = xcalloc(1, sizeof(*reader));
    reader->source = *source;
    reader->limits = *limits;
    reader->plain_left = limits->plain_max;
    reader->filter = archive_read_new();
    reader->tar = archive_read_new();
    int rc = -1;
    if (reader->filter == NULL || reader->tar == NULL || !tar_locale_enter(&reader->locale))
        (void)err_set(err, ERR_INTERNAL, "libarchive or the locale C.UTF-8 cannot be had");
    else if (open_filter(reader, err) == 0)
        rc = open_tar(reader, err);
    if (rc == 0)
        return reader;
    tar_reader_free(reader);
    return NULL;
}

void tar_reader_free(struct tar_reader *reader)
{
    if (reader == NULL)
        return;
    archive_read_free(reader->tar);
    archive_read_free(reader->filter);
    tar_locale_leave(&reader->locale);
    free(reader);
}

static char type_of(struct archive_entry *entry)
{
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        return 'f';
    case AE_IFDIR:
        return 'd';
    case AE_IFLNK:
        return 'l';
    case AE_IFIFO:
        return 'p';
    case AE_IFBLK:
        return 'b';
    case AE_IFCHR:
        return 'c';
    default:
        return 's';
    }
}

int tar_reader_next(struct tar_reader *reader, struct tar_item *ret_item, struct err *err)
{
    /* Or what is left of it would count as the next one's header. */
    if (reader->entry != NULL && archive_read_data_skip(reader->tar) != ARCHIVE_OK)
        return failed(reader, reader->tar, err);
    reader->header_left = reader->limits.header_max;
    reader->in_header = true;
    int rc = archive_read_next_header(reader->tar, &reader->entry);
    reader->in_header = false;
    if (rc == ARCHIVE_EOF)
        return 0;
    /* A warning means that something of the entry could not be understood. */
    if (rc != ARCHIVE_OK)
        return failed(reader, reader->tar, err);
    struct archive_entry *entry = reader->entry;
    int64_t size = archive_entry_size(entry);
    *ret_item = (struct tar_item){
        .path = archive_entry_pathname(entry),
        .hard_link = archive_entry_hardlink(entry),
        .symlink = archive_entry_symlink(entry),
        .type = type_of(entry),
        .size = size > 0 ? (uint64_t)size : 0,
        .mode = (unsigned)archive_entry_perm(entry),
        .mtime_s = archive_entry_mtime(entry),
        .mtime_ns = (uint32_t)archive_entry_mtime_nsec(entry),
    };
    if (size < 0)
        return err_set(err, reader->limits.bad, "read the archive: an entry has a negative size");
    return 1;
}

int tar_reader_content(struct tar_reader *reader, const void **ret_data, size_t *ret_len,
                       uint64_t *ret_offset, struct err *err)
{
    int64_t at = 0;
    int rc;
    do
        rc = archive_read_data_block(reader->tar, ret_data, ret_len, &at);
    while (rc == ARCHIVE_OK && *ret_len == 0);
    if (rc == ARCHIVE_EOF)
        return 0;
    if (rc != ARCHIVE_OK)
        return failed(reader, reader->tar, err);
    uint64_t size = (uint64_t)archive_entry_size(reader->entry);
    if (at < 0 || (uint64_t)at > size || *ret_len > size - (uint64_t)at)
        return err_set(err, reader->limits.bad,
                       "read the archive: an entry has more than its size");
    *ret_offset = (uint64_t)at;
    return 1;
}

int tar_reader_rest(struct tar_reader *reader, struct err *err)
{
    const void *block;
    la_ssize_t n;
    do
        n = read_plain(reader->tar, reader, &block);
    while (n > 0);
    if (n < 0)
        return failed(reader, reader->tar, err);
    do
        n = read_raw(reader->filter, reader, &block);
    while (n > 0);
    return n < 0 ? failed(reader, reader->filter, err) : 0;
}
