#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"

/* Archives and layouts to read again. */

/* One entry of a tar: a file unless TYPE says otherwise. */
struct entry {
    const char *path;
    char type;           /* 0 file, 'd' folder, 'l' link, 'h' hard link, 'p' pipe, 'c' device */
    const char *content; /* of a file; where a link leads */
    unsigned mode;       /* 0: 0644 */
    int64_t size;        /* of a file with a hole behind its content; 0: the content's */
};

enum compression { PLAIN, GZIP, ZSTD, XZ };

/* ENTRIES ends with one without a path. */
void build_tar(const struct entry *entries, enum compression how, struct buf *out);
void write_file(const char *path, const void *data, size_t len);
void write_text(const char *path, const char *text);
char *read_text(const char *path); /* NULL when it cannot be read */

/* The digest in hex digits; static memory, four at a time. */
const char *hex_of(const void *data, size_t len);

/* An OCI layout in a folder; what is put in is wrong where the members say so. */
struct layout {
    const char *folder;
    const struct entry *const *layers; /* ends with NULL */
    enum compression how;
    const char *tag;         /* of the one image; NULL: none */
    const char *machine;     /* NULL: this one */
    const char *config_more; /* into the `config` object */
    bool bad_diff_id;
    bool nested; /* an index for two platforms below the layout's own */
};

/* Returns the manifest's digest, static as above. */
const char *build_layout(const struct layout *layout);

/* Packs a folder as tar. */
void pack_folder(const char *folder, const char *tar);
