#pragma once

#include "base/err.h"
#include "base/mem.h"

/* The system calls that a sandbox may make, as programs for the kernel: what the default profiles
 * of container runtimes refuse is refused here, too. Both are loaded; the stricter answer counts.
 */
struct filters {
    int known;   /* a memory file: calls that are on no list of ours do not exist (ENOSYS) */
    int refused; /* another: refused (EPERM), always or for some arguments */
};

int filters_make(struct filters *ret_filters, struct err *err) must_check;
void filters_done(struct filters *filters);
