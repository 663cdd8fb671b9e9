#pragma once

#include "sandbox/sandbox.h"

/* One running sandbox, and what call.c and exec*.c need of sandbox.c, lifecycle.c and attach.c.
 * Jobs for workers run in all->work when it is set, else when the test says so. */

/* The store and the journals are in DIRECTORY, which outlives it. */
struct sandbox *domain_new(const char *directory, struct loop *loop, const struct driver *driver);
/* Nothing may hold a reference any more, and nothing of the bounds be in use. */
void domain_free(struct sandbox *sandbox);
bool domain_run_job(void); /* false: there is none */
