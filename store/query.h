#pragma once

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "store/store.h"

/* What the files of this folder share: the connection, and statements that are prepared once and
 * kept. Everything here is called with the store locked. */
#define QUERIES_KEPT 48

struct store {
    pthread_mutex_t lock;
    sqlite3 *db;
    int lock_fd;
    bool durable; /* the transaction that is open is to be synced */
    atomic_uint_fast64_t previews_version;
    /* Most recently used first. */
    sqlite3_stmt *kept[QUERIES_KEPT];
    size_t kept_count;
};

struct store *store_lock(struct store *store);
void store_unlock(struct store **store);
#define LOCK_STORE(store)                                                                          \
    cleanup(store_unlock) struct store *locked_ __attribute__((unused)) = store_lock(store)

/* One run of a statement. Values are bound and columns are read in the order in which they stand in
 * the SQL; what is bound must live until the query is closed. */
struct query {
    struct store *store;
    sqlite3_stmt *stmt;
    int param;
    int column;
};
#define QUERY_INIT ((struct query){.stmt = NULL})

int query_open(struct store *store, const char *sql, struct query *ret_query,
               struct err *err) must_check;
void query_close(struct query *query);
#define cleanup_query cleanup(query_close)

void query_bind_text(struct query *query, const char *text); /* NULL gives NULL */
void query_bind_int(struct query *query, int64_t value);
void query_bind_blob(struct query *query, const void *data, size_t len); /* NULL gives NULL */

/* 1: a row is there, 0: no more, -1: error. */
int query_next(struct query *query, struct err *err) must_check;
/* For a statement without rows. */
int query_run(struct query *query, struct err *err) must_check;

char *query_text(struct query *query); /* malloc'd, or NULL */
int64_t query_int(struct query *query);
void *query_blob(struct query *query, size_t *ret_len); /* malloc'd, or NULL */

/* All rows that are left, as an array. RET_ROWS is a `struct … **`. With `bytes` it ends with the
 * row by which they are more than PAGE_BYTES. */
#define PAGE_BYTES (16 * MIB)
struct row_type {
    size_t size;
    void (*read)(struct query *query, void *ret_row);
    void (*free)(void *rows, size_t count);
    size_t (*bytes)(const void *row);
};
int query_rows(struct query *query, const struct row_type *type, void *ret_rows, size_t *ret_count,
               struct err *err) must_check;

/* 0 becomes CAP_LIST_LIMIT; at most one more than that, which tells whether there is another page.
 */
int64_t page_limit(size_t limit);

/* The one place where a failure of SQLite becomes an error of ours. */
int store_failed(struct store *store, int code, const char *what, struct err *err);
int store_exec(struct store *store, const char *sql, struct err *err) must_check; /* no rows */

/* A write: begin, the changes, then `return write_end(store, rc, err)`, which commits when RC is 0
 * and rolls back otherwise. */
int write_begin(struct store *store, bool durable, struct err *err) must_check;
int write_end(struct store *store, int rc, struct err *err) must_check;

/* store/schema.c: refuses a file that is not ours or not usable, without touching it. */
int schema_check(struct store *store, const char *path, struct err *err) must_check;
/* Brings it up to the schema this program knows; a newer one stays as it is. */
int schema_migrate(struct store *store, struct err *err) must_check;
