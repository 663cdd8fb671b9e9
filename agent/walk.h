#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* What is below a directory, each directory before its contents, names sorted. No symlink is
 * followed. */
struct walk_entry {
    const char *path; /* from the root of the walk */
    size_t path_len;
    int directory; /* where `name` is */
    const char *name;
    const struct stat *status; /* of the name itself */
};

enum walk_turn { WALK_ON, WALK_OVER /* do not enter this directory */, WALK_STOP };

struct walk_plan {
    void *arg;
    enum walk_turn (*visit)(void *arg, const struct walk_entry *entry);
    /* NULL, or told of what could not be looked at or entered; false stops. */
    bool (*failed)(void *arg, const struct walk_entry *entry, int errnum);
    uint64_t depth; /* 0: no limit */
    /* Sorted as if each directory ended in a slash: then the paths of all files are in the order of
     * their bytes. */
    bool by_path;
    bool without_git; /* leaves out .git at any depth */
};

/* False with errno when it could not go to the end, or was stopped. */
bool walk(const char *root, const struct walk_plan *plan);
