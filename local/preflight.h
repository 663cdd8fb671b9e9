#pragma once

#include "base/err.h"
#include "base/mem.h"

struct local;

/* Which setting of this machine forbids namespaces to unprivileged programs, as "; …", or "".
 * Static. */
const char *preflight_forbidden(void);

/* Starts bubblewrap once as for a sandbox. */
int preflight_run(const struct local *local, struct err *err) must_check;
