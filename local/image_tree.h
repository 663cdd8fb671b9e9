#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/err.h"
#include "base/mem.h"

/* A root file system while it is unpacked. Every path is walked folder by folder from `root`
 * without following a symbolic link, so nothing outside of it is ever touched, whatever stands in
 * the archive. All that is made belongs to this process's uid and can be read by any; errors name
 * the path. */
struct inode_set {
    uint64_t *slots; /* 0 is free */
    size_t cap, count;
};

struct image_tree {
    int root;               /* a directory, borrowed */
    uint64_t *entries_left; /* that may yet be made; borrowed, shared by the layers of an image */
    bool is_layer;          /* whiteouts are honoured */
    struct inode_set fresh; /* of a layer: what it made or named; whiteouts spare these */
};

void image_tree_done(struct image_tree *tree); /* not the descriptor */

/* The path without empty and "." parts; "" is the root itself. Refuses absolute ones, "..", and
 * what is too long or too deep. */
int image_path_clean(const char *path, char ret_path[CAP_PATH], struct err *err) must_check;

/* From here on PATH is clean and not "". What is at PATH already is replaced, but for a folder by a
 * folder. */
int image_tree_folder(struct image_tree *tree, const char *path, struct err *err) must_check;
/* Open for writing, empty. */
int image_tree_file(struct image_tree *tree, const char *path, bool executable, int *ret_fd,
                    struct err *err) must_check;
int image_tree_symlink(struct image_tree *tree, const char *path, const char *target,
                       struct err *err) must_check;
/* TARGET is clean, too, and a file or link in the tree. */
int image_tree_hardlink(struct image_tree *tree, const char *path, const char *target,
                        struct err *err) must_check;
/* True when PATH's name is that of a whiteout; then image_tree_whiteout() does what it says. */
bool image_tree_is_whiteout(const char *path);
int image_tree_whiteout(struct image_tree *tree, const char *path, struct err *err) must_check;

/* Removes NAME in FOLDER with all that is in it, links not followed; nothing there is success. */
int image_tree_remove(int folder, const char *name); /* 0 or -1 with errno */
