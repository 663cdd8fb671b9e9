#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Where a path leads to: a name in an open directory, after the symlinks that the name itself is.
 */
struct target {
    int directory; /* O_PATH */
    char name[NAME_MAX + 1];
    bool exists;
    struct stat status; /* of the name, if it exists */
};

/* Follows PATH to the name that a write would make or replace. MAKE: missing parents are made. -1
 * with errno; a name that can only be a directory (empty, "." or "..") is EISDIR. */
int target_open(const char *path, bool make, struct target *ret_target);
void target_close(struct target *target);

/* mkdir -p of PATH, relative to the directory BASE (AT_FDCWD). */
int path_make_directories(int base, const char *path);
