#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/path.h"
#include "agent/worker.h"

/* New contents for a file: written beside it and put in its place at once, or not at all. */
struct rewrite {
    struct target target;
    char temporary[40];
    int fd;
    uint64_t size;
    bool must_be_new; /* the commit replaces nothing */
};

/* Finds the target of PATH, checks that it may be replaced (type, IF_MATCH, IF_NONE_MATCH of the
 * request) and opens the temporary file. False: answered. */
bool rewrite_begin(struct worker *worker, const char *path, bool make, struct rewrite *ret_rewrite);
bool rewrite_write(struct worker *worker, struct rewrite *rewrite, const void *data, size_t len);
/* MODE -1: the old file's, 0644 for a new one. RET_STATUS: of the new file. False: answered, and
 * the old file is as it was. Ends the rewrite. */
bool rewrite_commit(struct worker *worker, struct rewrite *rewrite, int mode,
                    struct stat *ret_status);
void rewrite_abort(struct rewrite *rewrite);

/* MODE of the request: -1 without one; false (answered) when out of range. */
bool request_mode(struct worker *worker, int *ret_mode);
/* Opens a regular file for reading, or answers why not (-1). */
int open_regular(struct worker *worker, const char *path, struct stat *ret_status);
/* Compares IF_MATCH of the request, if there is one; false: answered. */
bool request_matches(struct worker *worker, const struct stat *status);
