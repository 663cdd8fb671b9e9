#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Environments are arrays of NAME=value that end with NULL; NULL is an empty one. */

/* Each entry has a name, and each name a sane one: not empty, no control characters. */
bool environment_well_formed(char *const *entries);

/* The value of NAME, or NULL. */
const char *environment_get(char *const *entries, const char *name);

/* The entries of all three, a later one replacing an earlier one of the same name; one malloc'd
 * block that holds the texts too. NULL when memory is out. */
char **environment_merge(char *const *first, char *const *second, char *const *third);

/* What a command gets: image < configured < own, a HOME that can be written, and git told that the
 * workdir may belong to another user. */
char **environment_build(char *const *image, char *const *configured, char *const *own,
                         const char *workdir);
