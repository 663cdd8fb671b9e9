#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "store/rows.h"

/* Records in SQLite (WAL, one writer, flock on the file's companion "….lock"). One connection
 * behind a mutex; every call is thread-safe and short. `durable` writes, and those marked
 * (durable), are on disk when the call returns (synchronous=FULL for that commit); others survive a
 * killed server, but maybe not a power failure. A write that fails has changed nothing.
 * ERR_STORE_FULL: the disk is full; ERR_BUSY: another program keeps the file locked; ERR_NOT_FOUND
 * for a row of a sandbox that has no record. */
struct store;

/* ERR_CONFIG: in use by another server, not ours, damaged, or newer than we can use. */
int store_open(const char *path, struct store **ret_store, struct err *err) must_check;
void store_close(struct store *store); /* NULL is allowed */
/* HASH of the key that seals what is in the store: remembered the first time, then ERR_CONFIG when
 * it is another's. (durable) */
int store_check_key(struct store *store, const uint8_t *hash, size_t len,
                    struct err *err) must_check;

/* Insert or update by uid (id, owner and created stay what they were; last_exec never falls); a
 * change of state also appends to the state history. ERR_ALREADY_EXISTS when another uid holds the
 * id and is not gone. */
int store_put_sandbox(struct store *store, const struct sandbox_row *row, bool durable,
                      struct err *err) must_check;
/* The living or newest one of that id; ERR_NOT_FOUND. */
int store_get_sandbox(struct store *store, const char *id, struct sandbox_row *ret_row,
                      struct err *err) must_check;
/* The same by uid. */
int store_get_sandbox_uid(struct store *store, const char *uid, struct sandbox_row *ret_row,
                          struct err *err) must_check;

struct sandbox_filter {
    const char *owner; /* NULL: all */
    const char *state; /* NULL: all but gone; "all" for all; else that one */
    const char *const *label_names, *const *label_values; /* all must match */
    size_t labels;
    const char *cursor; /* from the page before, or NULL */
    size_t limit;       /* 0 and more than that: CAP_LIST_LIMIT */
};
/* Newest first, stable under inserts. A page may end before its limit, when its rows are large.
 * RET_NEXT: malloc'd cursor, NULL on the last page. A malformed cursor is ERR_INVALID_FIELD. */
int store_list_sandboxes(struct store *store, const struct sandbox_filter *filter,
                         struct sandbox_row **ret_rows, size_t *ret_count, char **ret_next,
                         struct err *err) must_check;

/* Oldest first. */
int store_states(struct store *store, const char *uid, struct state_row **ret_rows,
                 size_t *ret_count, struct err *err) must_check;

/* Insert or update (created stays); raises the sandbox's last_exec. */
int store_put_exec(struct store *store, const struct exec_row *row, struct err *err) must_check;
int store_get_exec(struct store *store, const char *uid, int64_t number, struct exec_row *ret_row,
                   struct err *err) must_check;
/* Numbers below BEFORE (0: newest), newest first; fewer than LIMIT also when the rows are large,
 * and none only when there are no more. LIMIT, here and for events: 0 means CAP_LIST_LIMIT, and one
 * more than that is the most. */
/* NOLINTNEXTLINE(readability-function-size): a page in a struct of its own would be no shorter to
 * read */
int store_list_execs(struct store *store, const char *uid, int64_t before, size_t limit,
                     struct exec_row **ret_rows, size_t *ret_count, struct err *err) must_check;

/* The same of those that have not ended by their record, whatever else there is. */
int store_running_execs(struct store *store, const char *uid, int64_t before,
                        struct exec_row **ret_rows, size_t *ret_count, struct err *err) must_check;

/* Insert or update by uid and port. ERR_HOST_TAKEN when a living sandbox's other preview has that
 * host. */
int store_put_preview(struct store *store, const struct preview_row *row,
                      struct err *err) must_check;
/* Port 0: all of the sandbox. None there is no error. (durable) */
int store_delete_preview(struct store *store, const char *uid, int64_t port,
                         struct err *err) must_check;
/* Another one after each change of a preview: what was read before may be kept while it stays. */
uint64_t store_previews_version(struct store *store);
/* The newest preview at HOST, a living sandbox's first; RET_ID: of its sandbox, malloc'd.
 * ERR_NOT_FOUND. */
int store_find_preview(struct store *store, const char *host, struct preview_row *ret_row,
                       char **ret_id, struct err *err) must_check;
/* The first one first, then by port. */
int store_list_previews(struct store *store, const char *uid, struct preview_row **ret_rows,
                        size_t *ret_count, struct err *err) must_check;

/* The newest 1,000 of a sandbox are kept. */
int store_add_event(struct store *store, const struct event_row *row, struct err *err) must_check;
/* After number AFTER, oldest first; UID NULL: all. */
/* NOLINTNEXTLINE(readability-function-size): as above */
int store_list_events(struct store *store, const char *uid, int64_t after, size_t limit,
                      struct event_row **ret_rows, size_t *ret_count, struct err *err) must_check;

/* Idempotency: RET_FOUND 0 → claimed now (durable) for UID or exec NUMBER; 1 → the row of an
 * earlier claim is returned; ERR_IDEMPOTENCY_CONFLICT when that was with another body. Kept 24 h.
 */
int store_claim_key(struct store *store, struct idempotency_row *row, int *ret_found,
                    struct err *err) must_check;
/* The row of an earlier claim, if there is one, as above; claims nothing. */
int store_find_key(struct store *store, struct idempotency_row *row, int *ret_found,
                   struct err *err) must_check;
/* Takes back the claim for ROW's uid. (durable) */
int store_release_key(struct store *store, const struct idempotency_row *row,
                      struct err *err) must_check;

/* Forgets tombstones (with all that hangs on them but idempotency keys) that ended before BEFORE,
 * the oldest first, at most LIMIT at once; their uids are returned so that their journals can go
 * too: free each and the array. (durable) */
int store_purge(struct store *store, int64_t before, size_t limit, char ***ret_uids,
                size_t *ret_count, struct err *err) must_check;

/* Counts by state over all owners: JSON-ready pairs for /v1/admin/stats. */
int store_counts(struct store *store, struct state_count *ret_counts, size_t max, size_t *ret_count,
                 struct err *err) must_check;
