#pragma once

#include "sandbox/sandbox.h"

/* A random value that opens nothing, in a variable that looks as if it did: who shows it went
 * through what he was not asked to look at. */

/* ERR_INVALID_FIELD unless its variable has a name that no other one has. */
int decoy_check(const struct sandbox_spec *spec, struct err *err) must_check;
/* Makes the one that SPEC asks for, as one of its variables and of its secrets. */
void decoy_make(struct sandbox_spec *spec);
/* EXEC had it in its output: an event, and in the record. Any thread; takes all->lock. */
void decoy_seen(struct sandbox *sandbox, int64_t exec, int stream);
