#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"

/* Reads a tar, plain or compressed, of which nobody knows whether it is a good one. It blocks in
 * its source; one thread opens, reads and frees it. */
struct tar_reader;

struct tar_source {
    void *arg;
    /* Up to LEN bytes, 0 at the end, -1 with ERR set. */
    ssize_t (*read)(void *arg, void *data, size_t len, struct err *err);
    /* NULL, or told of the bytes of the tar without its compression. */
    void (*plain)(void *arg, const void *data, size_t len);
};

struct tar_limits {
    uint64_t plain_max;  /* bytes without the compression */
    size_t header_max;   /* of them before each entry */
    enum err_code bad;   /* what it fails with when the archive is not good */
    enum err_code large; /* and when it is larger than the maxima above */
    const char *what;    /* it is read for, in messages: "an image" */
    bool xz;             /* may be its compression, too */
};

struct tar_item {
    const char *path;      /* NULL: it cannot be read. These stand until the next one is read */
    const char *hard_link; /* or NULL */
    const char *symlink;   /* or NULL */
    char type;             /* f d l, and p s b c for what is special */
    uint64_t size;
    unsigned mode;
    int64_t mtime_s;
    uint32_t mtime_ns;
};

struct tar_reader *tar_reader_open(const struct tar_source *source, const struct tar_limits *limits,
                                   struct err *err);
void tar_reader_free(struct tar_reader *reader); /* NULL is allowed */
/* 1: there is another entry, 0: there is none, -1. What was not read of the one before is left
 * out. */
int tar_reader_next(struct tar_reader *reader, struct tar_item *ret_item,
                    struct err *err) must_check;
/* 1: the next piece of the entry's content, in order, with holes left out; 0: no more; -1. */
int tar_reader_content(struct tar_reader *reader, const void **ret_data, size_t *ret_len,
                       uint64_t *ret_offset, struct err *err) must_check;
/* Reads what comes after the archive's end, to the end of the source. */
int tar_reader_rest(struct tar_reader *reader, struct err *err) must_check;
