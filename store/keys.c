/* Idempotency keys: which request was seen already, and what came of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/query.h"

#define KEPT_MS ((int64_t)24 * 60 * 60 * 1000)
/* Expired ones that one claim removes: two for each that it adds would do. */
#define EXPIRED_AT_ONCE "64"

static int forget_expired(struct store *store, int64_t now, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   "DELETE FROM idempotency WHERE rowid IN (SELECT rowid FROM idempotency"
                   " WHERE at<=? ORDER BY at LIMIT " EXPIRED_AT_ONCE ")",
                   &query, err) < 0)
        return -1;
    query_bind_int(&query, now - KEPT_MS);
    return query_run(&query, err);
}

/* 1: there is an earlier claim, and it was for the same body. */
static int find(struct store *store, struct idempotency_row *row, int64_t now, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   "SELECT digest,uid,number FROM idempotency"
                   " WHERE owner=? AND route=? AND key=? AND at>?",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, row->owner);
    query_bind_text(&query, row->route);
    query_bind_text(&query, row->key);
    query_bind_int(&query, now - KEPT_MS);
    int rc = query_next(&query, err);
    if (rc != 1)
        return rc;
    cleanup_free char *digest = query_text(&query);
    cleanup_free char *uid = query_text(&query);
    if (strcmp(digest, row->digest) != 0)
        return err_set(err, ERR_IDEMPOTENCY_CONFLICT,
                       "this Idempotency-Key was used with another body");
    (void)snprintf(row->uid, sizeof(row->uid), "%s", uid);
    row->number = query_int(&query);
    return 1;
}

static int insert(struct store *store, const struct idempotency_row *row, int64_t now,
                  struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   "INSERT OR REPLACE INTO idempotency(owner,route,key,digest,uid,number,at)"
                   " VALUES(?,?,?,?,?,?,?)",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, row->owner);
    query_bind_text(&query, row->route);
    query_bind_text(&query, row->key);
    query_bind_text(&query, row->digest);
    query_bind_text(&query, row->uid);
    query_bind_int(&query, row->number);
    query_bind_int(&query, now);
    return query_run(&query, err);
}

int store_claim_key(struct store *store, struct idempotency_row *row, int *ret_found,
                    struct err *err)
{
    int64_t now = clock_wall_ms();
    LOCK_STORE(store);
    int found = find(store, row, now, err);
    if (found < 0)
        return -1;
    if (found == 0) {
        if (write_begin(store, true, err) < 0)
            return -1;
        int rc = forget_expired(store, now, err);
        if (rc == 0)
            rc = insert(store, row, now, err);
        if (write_end(store, rc, err) < 0)
            return -1;
    }
    *ret_found = found;
    return 0;
}

int store_find_key(struct store *store, struct idempotency_row *row, int *ret_found,
                   struct err *err)
{
    LOCK_STORE(store);
    int found = find(store, row, clock_wall_ms(), err);
    if (found < 0)
        return -1;
    *ret_found = found;
    return 0;
}

static int delete_key(struct store *store, const struct idempotency_row *row, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "DELETE FROM idempotency WHERE owner=? AND route=? AND key=? AND uid=?",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, row->owner);
    query_bind_text(&query, row->route);
    query_bind_text(&query, row->key);
    query_bind_text(&query, row->uid);
    return query_run(&query, err);
}

int store_release_key(struct store *store, const struct idempotency_row *row, struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, true, err) < 0)
        return -1;
    return write_end(store, delete_key(store, row, err), err);
}
