#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

/* The root file system of a box, as arguments of bubblewrap: what DIRECTORY has, read-only, with
 * room for PLACES (absolute paths where something is mounted later). A read-only directory that
 * lacks such a place on the way is taken apart into its entries, each bound on its own, since
 * nothing can be made in it; a link on the way gives way to a directory. ONLY: the entries of the
 * root that are wanted, NULL-terminated; NULL: all. "" is this machine's own root. */
int root_add(struct text_list *ret_arguments, const char *directory, const char *const *only,
             const struct text_list *places, struct err *err) must_check;
