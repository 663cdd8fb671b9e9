#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Environments are arrays of NAME=value that end with NULL; NULL is an empty one. */

/* Each entry has a name, and each name a sane one: not empty, no control characters. */
bool environment_well_formed(char *const *entries);

/* The value of NAME, or NULL. */
const char *environment_get(char *const *entries, const char *name);

/* The entries of all three, a later one replacing an earlier one of the same name; one malloc'd
 * block that holds the texts too. NULL when memory is out. */
char **environment_merge(char *const *first, char *const *second, char *const *third);

/* What a command is told of its sandbox, unless one of the environments says otherwise. */
struct environment_facts {
    const char *workdir; /* NULL: none */
    const char *info;    /* path of the file that describes it; NULL: none */
    uint64_t cpus;       /* that it may use, rounded up; 0: as many as there are */
    bool terminal;       /* it has one, and needs a TERM */
};

/* What a command gets: image < configured < own, a HOME that can be written, git told that the
 * workdir may belong to another user, and tools told how many threads make sense. */
char **environment_build(char *const *image, char *const *configured, char *const *own,
                         const struct environment_facts *facts);
