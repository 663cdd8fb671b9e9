#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

/* Makes a tar (pax), piece by piece, of entries whose content comes in pieces. One thread at a
 * time.
 */
struct tar_writer;

enum tar_filter { TAR_PLAIN, TAR_GZIP, TAR_ZSTD };

struct tar_extent {
    uint64_t offset, length;
};

struct tar_entry {
    char type; /* f, d, l (symlink to `link`), h (hard link to `link`, the path of an entry) */
    const char *path, *link;
    uint64_t size;
    unsigned mode;
    int64_t mtime_s;
    uint32_t mtime_ns;
    const struct tar_extent *extents; /* of a sparse file: where it is no hole, in order */
    size_t extent_count;              /* 0: no sparse file */
};

/* What is made is appended to OUT, which has room for TAR_WRITER_ROOM more before each call. */
#define TAR_WRITER_ROOM (1 << 20)

struct tar_writer *tar_writer_new(enum tar_filter filter, struct buf *out, struct err *err);
void tar_writer_free(struct tar_writer *writer); /* NULL is allowed */
int tar_writer_entry(struct tar_writer *writer, const struct tar_entry *entry,
                     struct err *err) must_check;
/* Content of the entry, in order, holes too: `size` bytes in all; at most 64 KiB that are no hole.
 */
int tar_writer_data(struct tar_writer *writer, const void *data, size_t len,
                    struct err *err) must_check;
/* LEN zeros. */
#define TAR_WRITER_ZEROS (32u << 10) /* at most, where it is no hole */
#define TAR_WRITER_HOLE (16u << 20)  /* at most, in a hole */
int tar_writer_zeros(struct tar_writer *writer, size_t len, struct err *err) must_check;
int tar_writer_finish(struct tar_writer *writer, struct err *err) must_check;
