#pragma once

#include <stddef.h>

/* Writes the file that tells the sandbox's programs about it, where they can read it, in place of
 * one that is there: /run/sandbox.json, or /tmp/sandbox.json below a root that is read-only.
 * Returns its path; NULL when there is no place for it. */
const char *info_write(const void *data, size_t len);
