#pragma once

#include <stddef.h>
#include <sys/types.h>

/* Which path of a walk was the first of a file with several names. Bounded: beyond that files are
 * not known, and count as new ones. */
struct inodes {
    struct inode *slots;
    size_t count, bytes;
};

/* The first path of the file, or NULL: PATH is it (and remembered, if there is room). */
const char *inodes_first(struct inodes *inodes, dev_t device, ino_t inode, const char *path);
void inodes_done(struct inodes *inodes);
