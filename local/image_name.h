#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "local/image_unpack.h"

/* From the name that a client gives to a file or folder of the operator's. */
enum image_kind {
    IMAGE_ANY, /* by what is in it */
    IMAGE_FOLDER,
    IMAGE_TAR,
    IMAGE_OCI,
    IMAGE_DOCKER,
};

struct image_place {
    int fd; /* open for reading: a folder or a regular file, see `st` */
    struct stat st;
    enum image_kind kind;
    char *tag;               /* NULL: none was asked for */
    char hex[IMAGE_HEX_LEN]; /* the digest that was asked for, or "" */
};

struct image_folder { /* one of the operator's */
    int fd;
    char *path;
};

/* ERR_POLICY: FOLDERS is empty, or the path is outside of all; ERR_INVALID_IMAGE: the name is bad,
 * or nothing has it; ERR_IMAGE_PULL_FAILED: what is there cannot be opened. */
int image_find(const struct image_folder *folders, size_t count, const char *name,
               struct image_place *ret_place, struct err *err) must_check;
void image_place_done(struct image_place *place);

/* Opens a regular file or folder below FOLDER for reading; symbolic links are followed as long as
 * they stay below it. -1 with errno. */
int image_open_beneath(int folder, const char *path, struct stat *ret_st) must_check;
