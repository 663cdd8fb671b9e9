#include "store/query.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"

struct store *store_lock(struct store *store)
{
    pthread_mutex_lock(&store->lock);
    return store;
}

void store_unlock(struct store **store)
{
    pthread_mutex_unlock(&(*store)->lock);
}

static bool means_full(int errnum)
{
    return errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
}

/* SQLite keeps the errno of most failures, but not of one at COMMIT: there it is still the
 * thread's, which was 0 before the call. */
static bool is_disk_full(struct store *store, int code, int errnum)
{
    if ((code & 0xff) == SQLITE_FULL)
        return true;
    return (code & 0xff) == SQLITE_IOERR &&
           (means_full(errnum) || means_full(sqlite3_system_errno(store->db)));
}

int store_failed(struct store *store, int code, const char *what, struct err *err)
{
    if (is_disk_full(store, code, errno))
        return err_set(err, ERR_STORE_FULL, "%s: no space is left for the store", what);
    if (code == SQLITE_CONSTRAINT_FOREIGNKEY)
        return err_set(err, ERR_NOT_FOUND, "%s: there is no record of that sandbox", what);
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_set(err, ERR_BUSY, "%s: another program keeps the store locked", what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return err_set(err, ERR_STORE,
                       "%s: the store's file is damaged; move it away and start with an empty one, "
                       "which adopts the sandboxes that live",
                       what);
    case SQLITE_TOOBIG:
        return err_set(err, ERR_TOO_LARGE, "%s: too large for the store", what);
    default:
        return err_set(err, ERR_STORE, "%s: %s", what, sqlite3_errmsg(store->db));
    }
}

int store_exec(struct store *store, const char *sql, struct err *err)
{
    errno = 0;
    int code = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? 0 : store_failed(store, code, "write to the store", err);
}

/* Moves those before FROM up by one, over what is there. */
static void keep_first(struct store *store, sqlite3_stmt *stmt, size_t from)
{
    for (size_t i = from; i > 0; i--)
        store->kept[i] = store->kept[i - 1];
    store->kept[0] = stmt;
}

static sqlite3_stmt *find_kept(struct store *store, const char *sql)
{
    for (size_t i = 0; i < store->kept_count; i++) {
        sqlite3_stmt *stmt = store->kept[i];
        if (strcmp(sqlite3_sql(stmt), sql) == 0) {
            keep_first(store, stmt, i);
            return stmt;
        }
    }
    return NULL;
}

static void keep(struct store *store, sqlite3_stmt *stmt)
{
    if (store->kept_count == QUERIES_KEPT)
        sqlite3_finalize(store->kept[--store->kept_count]);
    keep_first(store, stmt, store->kept_count++);
}

int query_open(struct store *store, const char *sql, struct query *ret_query, struct err *err)
{
    sqlite3_stmt *stmt = find_kept(store, sql);
    if (stmt == NULL) {
        errno = 0;
        int code = sqlite3_prepare_v3(store->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
        if (code != SQLITE_OK)
            return store_failed(store, code, "read the store", err);
        keep(store, stmt);
    }
    assert(!sqlite3_stmt_busy(stmt));
    *ret_query = (struct query){.store = store, .stmt = stmt};
    return 0;
}

void query_close(struct query *query)
{
    if (query->stmt == NULL)
        return;
    /* Its failure was reported by the step that failed. */
    (void)sqlite3_reset(query->stmt);
    (void)sqlite3_clear_bindings(query->stmt);
    query->stmt = NULL;
}

/* Binding fails only for a wrong index or without memory: a bug, or the end. */
static void bound(int code)
{
    if (code != SQLITE_OK)
        abort();
}

void query_bind_text(struct query *query, const char *text)
{
    bound(sqlite3_bind_text(query->stmt, ++query->param, text, -1, SQLITE_STATIC));
}

void query_bind_int(struct query *query, int64_t value)
{
    bound(sqlite3_bind_int64(query->stmt, ++query->param, value));
}

void query_bind_blob(struct query *query, const void *data, size_t len)
{
    bound(sqlite3_bind_blob64(query->stmt, ++query->param, data, len, SQLITE_STATIC));
}

int query_next(struct query *query, struct err *err)
{
    query->column = 0;
    errno = 0;
    int code = sqlite3_step(query->stmt);
    if (code == SQLITE_ROW)
        return 1;
    if (code == SQLITE_DONE)
        return 0;
    return store_failed(
        query->store, code,
        sqlite3_stmt_readonly(query->stmt) ? "read the store" : "write to the store", err);
}

int query_run(struct query *query, struct err *err)
{
    int rc = query_next(query, err);
    assert(rc <= 0);
    query_close(query);
    return rc;
}

char *query_text(struct query *query)
{
    const unsigned char *text = sqlite3_column_text(query->stmt, query->column);
    int len = sqlite3_column_bytes(query->stmt, query->column++);
    return text == NULL ? NULL : xstrndup((const char *)text, (size_t)len);
}

int64_t query_int(struct query *query)
{
    return sqlite3_column_int64(query->stmt, query->column++);
}

void *query_blob(struct query *query, size_t *ret_len)
{
    const void *data = sqlite3_column_blob(query->stmt, query->column);
    size_t len = (size_t)sqlite3_column_bytes(query->stmt, query->column++);
    *ret_len = data == NULL ? 0 : len;
    if (data == NULL)
        return NULL;
    void *copy = xmalloc(len);
    memcpy(copy, data, len);
    return copy;
}

int query_rows(struct query *query, const struct row_type *type, void *ret_rows, size_t *ret_count,
               struct err *err)
{
    char *rows = NULL;
    size_t count = 0, room = 0, bytes = 0;
    int rc = 0;
    while (bytes <= PAGE_BYTES && (rc = query_next(query, err)) == 1) {
        if (count == room) {
            room = room == 0 ? 8 : 2 * room;
            rows = xrealloc(rows, room * type->size);
        }
        type->read(query, rows + count * type->size);
        bytes += type->bytes ? type->bytes(rows + count * type->size) : 0;
        count++;
    }
    if (rc < 0) {
        type->free(rows, count);
        return -1;
    }
    memcpy(ret_rows, &rows, sizeof(rows)); /* any object pointer */
    *ret_count = count;
    return 0;
}

int64_t page_limit(size_t limit)
{
    if (limit == 0)
        return CAP_LIST_LIMIT;
    return limit > CAP_LIST_LIMIT ? CAP_LIST_LIMIT + 1 : (int64_t)limit;
}

int write_begin(struct store *store, bool durable, struct err *err)
{
    /* SQLite ignores a change of `synchronous` inside a transaction. */
    if (durable && store_exec(store, "PRAGMA synchronous=FULL", err) < 0)
        return -1;
    store->durable = durable;
    int rc = store_exec(store, "BEGIN IMMEDIATE", err);
    return rc == 0 ? 0 : write_end(store, rc, err);
}

int write_end(struct store *store, int rc, struct err *err)
{
    if (rc == 0)
        rc = store_exec(store, "COMMIT", err);
    /* A full disk or an I/O error may have rolled back already. */
    if (rc != 0 && !sqlite3_get_autocommit(store->db))
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    if (store->durable)
        (void)sqlite3_exec(store->db, "PRAGMA synchronous=NORMAL", NULL, NULL, NULL);
    store->durable = false;
    return rc;
}
