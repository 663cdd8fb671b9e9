#pragma once

#include <stdbool.h>

#include "k8s/api.h"

/* RuntimeClasses are looked at before a pod that names one is made: the reason is then clear and
 * the failure instant. Without the right to look, the cluster's own admission decides. Thread-safe.
 */
struct runtimes;

struct runtimes *runtimes_new(struct api *api);
void runtimes_free(struct runtimes *runtimes);

/* ERR_RUNTIME_CLASS_MISSING when the cluster has none of that NAME. RET_READABLE: its programs must
 * be readable by their user to run (gVisor), or it is not known. */
int runtimes_check(struct runtimes *runtimes, const char *name, bool *ret_readable,
                   struct err *err) must_check;

/* What keeps us from looking, or "" (copied). */
void runtimes_problem(struct runtimes *runtimes, char *ret_text, size_t size);
