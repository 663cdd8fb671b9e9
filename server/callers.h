#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "server/request.h"

/* Who calls: the admin's key from a file of its own, and keys from a file of lines `HASH OWNER
 * ROLE` (HASH: hex BLAKE2b-256 of the key, as `podsandboxd hash-key` or `b2sum -l 256` prints it;
 * ROLE: user or admin; # begins a comment). Re-read when a file changes; a broken file keeps the
 * last good one and is logged. */
struct callers;

/* Either may be NULL; both: no keys, everyone is admin "local", and http must be local_only.
 * ADMIN_KEY_FILE holds one key as it is sent; its owner is "admin". */
int callers_open(const char *keys_file, const char *admin_key_file, struct callers **ret_callers,
                 struct err *err) must_check;
void callers_close(struct callers *callers);
bool callers_keyed(const struct callers *callers);
/* KEY from Authorization: Bearer or X-API-Key; ERR_UNAUTHENTICATED. OWNER is copied to RET_OWNER.
 */
int callers_check(struct callers *callers, const char *key, char ret_owner[129], bool *ret_admin,
                  struct err *err) must_check;
