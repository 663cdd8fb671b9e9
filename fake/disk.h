#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* The files of one sandbox: names and bytes in memory. Modes and times are kept, and nothing is
 * forbidden by them; there are no links. Paths are absolute and plain: disk_path() makes them so.
 */
struct content { /* shared by reference, constant once it has a name */
    _Atomic unsigned refs;
    size_t len;
    uint8_t bytes[];
};

struct node {
    char *path;
    struct content *content; /* NULL: a directory */
    unsigned mode;
    int64_t mtime_ns;
    uint64_t inode; /* another one for each write */
};

struct disk_space { /* of all sandboxes; thread-safe */
    _Atomic size_t used;
    size_t max;
};

struct disk {
    struct disk_space *space;
    struct node *nodes; /* each directory before what is in it, names in the order of their bytes */
    size_t count, cap;
    uint64_t inodes;
};

/* Takes LEN bytes of the space, ERR_NO_SPACE when there are not so many; space_free gives back. */
int space_take(struct disk_space *space, size_t len, struct err *err) must_check;
void space_free(struct disk_space *space, size_t len);

struct content *content_new(const void *bytes, size_t len);
struct content *content_ref(struct content *content);
void content_unref(struct content *content); /* NULL is allowed */

/* The disk begins with "/", "/tmp" and WORKDIR. */
void disk_init(struct disk *disk, struct disk_space *space, const char *workdir);
void disk_done(struct disk *disk);

/* PATH as absolute one of at most CAP_PATH bytes with its NUL, without "." and "..". */
int disk_path(const char *workdir, const char *path, char *ret_path, struct err *err) must_check;

/* Borrowed until the next change. NULL, or ERR_FILE_NOT_FOUND, ERR_NOT_DIRECTORY. */
const struct node *disk_find(const struct disk *disk, const char *path);
int disk_need(const struct disk *disk, const char *path, const struct node **ret_node,
              struct err *err) must_check;

/* Makes parents. MODE -1: the old one's, 0644 for a new file. Takes a reference of CONTENT. */
int disk_write(struct disk *disk, const char *path, struct content *content, int mode,
               const struct node **ret_node, struct err *err) must_check;
int disk_mkdir(struct disk *disk, const char *path, int mode, bool *ret_created,
               struct err *err) must_check;
int disk_remove(struct disk *disk, const char *path, bool recursive, struct err *err) must_check;
int disk_move(struct disk *disk, const char *from, const char *to, bool overwrite,
              const struct node **ret_node, struct err *err) must_check;
int disk_set_mode(struct disk *disk, const char *path, unsigned mode, const struct node **ret_node,
                  struct err *err) must_check;

/* What lies below the directory PATH: nodes[*ret_first], and so many. */
size_t disk_below(const struct disk *disk, const char *path, size_t *ret_first);

#define DISK_ETAG_LEN 72
void disk_etag(const struct node *node, char ret_text[DISK_ETAG_LEN]);
