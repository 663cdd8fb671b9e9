#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a directory by its descriptor, without allocating. */
struct dirents {
    int fd; /* borrowed */
    size_t len, at;
    bool failed; /* errno says why */
    _Alignas(8) char buffer[8192];
};

/* DT_DIR and DT_REG, DT_UNKNOWN where the file system does not say. */
#define DT_UNKNOWN_TYPE 0
#define DT_DIR_TYPE 4

struct dirent_entry {
    const char *name;   /* until the next call */
    unsigned char type; /* DT_… */
};

void dirents_init(struct dirents *dirents, int fd);
/* The next entry other than "." and "..". */
bool dirents_next(struct dirents *dirents, struct dirent_entry *ret_entry);
