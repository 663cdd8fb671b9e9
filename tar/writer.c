#include "tar/writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tar/locale.h"

struct tar_writer {
    struct archive *archive;
    struct archive_entry *entry;
    struct buf *out;
};

static la_ssize_t put(struct archive *archive, void *arg, const void *data, size_t len)
{
    struct tar_writer *writer = arg;
    if (buf_append(writer->out, data, len))
        return (la_ssize_t)len;
    archive_set_error(archive, ENOMEM, "no room for a piece of the archive");
    return -1;
}

static int failed(struct tar_writer *writer, struct err *err)
{
    const char *why = archive_error_string(writer->archive);
    return err_set(err, ERR_INTERNAL, "make the archive: %s", why != NULL ? why : "it failed");
}

static int add_filter(struct archive *archive, enum tar_filter filter)
{
    switch (filter) {
    case TAR_GZIP:
        return archive_write_add_filter_gzip(archive);
    case TAR_ZSTD:
        return archive_write_add_filter_zstd(archive);
    case TAR_PLAIN:
        break;
    }
    return archive_write_add_filter_none(archive);
}

struct tar_writer *tar_writer_new(enum tar_filter filter, struct buf *out, struct err *err)
{
    struct tar_writer *writer = xcalloc(1, sizeof(*writer));
    writer->out = out;
    writer->archive = archive_write_new();
    writer->entry = archive_entry_new();
    if (writer->archive == NULL || writer->entry == NULL) {
        (void)err_set(err, ERR_BUSY, "no memory for an archive");
    } else if (archive_write_set_format_pax(writer->archive) != ARCHIVE_OK ||
               add_filter(writer->archive, filter) != ARCHIVE_OK ||
               /* The same files are the same bytes. */
               (filter == TAR_GZIP &&
                archive_write_set_filter_option(writer->archive, "gzip", "timestamp", NULL) !=
                    ARCHIVE_OK) ||
               archive_write_set_bytes_per_block(writer->archive, 0) != ARCHIVE_OK ||
               archive_write_open(writer->archive, writer, NULL, put, NULL) != ARCHIVE_OK) {
        (void)failed(writer, err);
    } else {
        return writer;
    }
    tar_writer_free(writer);
    return NULL;
}

void tar_writer_free(struct tar_writer *writer)
{
    if (writer == NULL)
        return;
    archive_entry_free(writer->entry);
    archive_write_free(writer->archive);
    free(writer);
}

static void set_type(struct archive_entry *made, const struct tar_entry *entry)
{
    switch (entry->type) {
    case 'd':
        archive_entry_set_filetype(made, AE_IFDIR);
        break;
    case 'l':
        archive_entry_set_filetype(made, AE_IFLNK);
        archive_entry_set_symlink(made, entry->link);
        break;
    case 'h':
        archive_entry_set_filetype(made, AE_IFREG);
        archive_entry_set_hardlink(made, entry->link);
        break;
    default:
        archive_entry_set_filetype(made, AE_IFREG);
        archive_entry_set_size(made, (la_int64_t)entry->size);
    }
}

int tar_writer_entry(struct tar_writer *writer, const struct tar_entry *entry, struct err *err)
{
    struct archive_entry *made = archive_entry_clear(writer->entry);
    struct tar_locale locale;
    if (!tar_locale_enter(&locale))
        return err_set(err, ERR_INTERNAL, "the locale C.UTF-8 cannot be had");
    archive_entry_set_pathname(made, entry->path);
    archive_entry_set_size(made, 0);
    set_type(made, entry);
    archive_entry_set_perm(made, (__LA_MODE_T)(entry->mode & 07777u));
    archive_entry_set_mtime(made, (time_t)entry->mtime_s, (long)entry->mtime_ns);
    for (size_t i = 0; i < entry->extent_count; i++)
        archive_entry_sparse_add_entry(made, (la_int64_t)entry->extents[i].offset,
                                       (la_int64_t)entry->extents[i].length);
    /* A warning is about a name that is not UTF-8, and is kept as it is. */
    int result = archive_write_header(writer->archive, made);
    tar_locale_leave(&locale);
    return result == ARCHIVE_OK || result == ARCHIVE_WARN ? 0 : failed(writer, err);
}

int tar_writer_data(struct tar_writer *writer, const void *data, size_t len, struct err *err)
{
    la_ssize_t written = archive_write_data(writer->archive, data, len);
    return written == (la_ssize_t)len ? 0 : failed(writer, err);
}

int tar_writer_zeros(struct tar_writer *writer, size_t len, struct err *err)
{
    /* Not const: so it is no part of the program file. Where it is a hole, the library does not
     * look. */
    static char zeros[TAR_WRITER_HOLE];
    assert(len <= sizeof(zeros));
    return tar_writer_data(writer, zeros, len, err);
}

int tar_writer_finish(struct tar_writer *writer, struct err *err)
{
    return archive_write_close(writer->archive) == ARCHIVE_OK ? 0 : failed(writer, err);
}
