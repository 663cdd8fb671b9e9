#pragma once

#include "sandbox/exec.h"

/* A command that is run once for all requests with the same key and body. */
struct exec_once {
    const char *owner, *key;
    const char *digest; /* of the canonical body */
    bool found;         /* set: an earlier request has started it */
    int64_t number;     /* set */
};

/* As exec_start. RET_EXEC is NULL when it was started before and is in the store only. A command
 * that could not be run at all (a missing workdir) is tried again. ERR_IDEMPOTENCY_CONFLICT. */
int exec_start_once(struct sandbox *sandbox, struct exec_spec *spec, struct exec_once *once,
                    struct exec **ret_exec, struct err *err) must_check;
