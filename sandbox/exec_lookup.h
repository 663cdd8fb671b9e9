#pragma once

#include "sandbox/exec.h"
#include "sandbox/sandbox.h"

/* Finding executions by the sandbox's uid, in memory or in the store. */

struct exec *exec_lookup(struct sandboxes *all, const char *uid,
                         int64_t number); /* referenced, or NULL */
/* The facts of a stored row; NULL while it runs. The caller frees it. */
struct json *exec_row_result(const struct exec_row *row);
/* TEXT with *** for each secret; malloc'd. */
char *scrub_copy(const struct scrubber *scrubber, const char *text);
/* A copy of an object or array with every text in it masked; names stay. */
struct json *scrub_json(const struct scrubber *scrubber, const struct json *from);
