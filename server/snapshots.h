#pragma once

#include <stddef.h>

#include "base/buf.h"

/* What sandboxes' files looked like, for those who ask later what has changed; by token, in memory,
 * at most CAP_SNAPSHOTS bytes: what was not used for the longest time goes first. Thread-safe. */
struct snapshots;

#define SNAPSHOT_TOKEN_LEN 33

struct snapshots *snapshots_new(void);
void snapshots_free(struct snapshots *snapshots); /* NULL is allowed */
/* Keeps ENTRIES (emptied) as what lies below ROOT in the sandbox UID. */
void snapshots_add(struct snapshots *snapshots, const char *uid, const char *root,
                   struct buf *entries, char ret_token[SNAPSHOT_TOKEN_LEN]);
/* A copy of that one, malloc'd, or NULL: not known, or of another sandbox or root. */
char *snapshots_get(struct snapshots *snapshots, const char *uid, const char *root,
                    struct str token, size_t *ret_len);
