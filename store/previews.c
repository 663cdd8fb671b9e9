#include <stdlib.h>

#include "store/query.h"

#define COLUMNS "uid,port,first,host,service,ingress,exec,spec,created"

void preview_row_done(struct preview_row *row)
{
    free(row->uid);
    free(row->host);
    free(row->service);
    free(row->ingress);
    free(row->spec);
    *row = (struct preview_row){.uid = NULL};
}

void preview_rows_free(struct preview_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        preview_row_done(&rows[i]);
    free(rows);
}

static void read_row(struct query *query, void *ret_row)
{
    struct preview_row row = {.uid = query_text(query)};
    row.port = query_int(query);
    row.first = query_int(query) != 0;
    row.host = query_text(query);
    row.service = query_text(query);
    row.ingress = query_text(query);
    row.exec = query_int(query);
    row.spec = query_text(query);
    row.created = query_int(query);
    *(struct preview_row *)ret_row = row;
}

static void free_rows(void *rows, size_t count)
{
    preview_rows_free(rows, count);
}

static int check_host_free(struct store *store, const struct preview_row *row, struct err *err)
{
    static const char sql[] =
        "SELECT 1 FROM previews p JOIN sandboxes s ON s.uid=p.uid WHERE p.host=?"
        " AND s.state<>'gone' AND NOT (p.uid=? AND p.port=?)";
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, row->host);
    query_bind_text(&query, row->uid);
    query_bind_int(&query, row->port);
    int rc = query_next(&query, err);
    if (rc == 1)
        return err_set(err, ERR_HOST_TAKEN, "the host '%s' belongs to another preview", row->host);
    return rc;
}

static int upsert(struct store *store, const struct preview_row *row, struct err *err)
{
    static const char sql[] =
        "INSERT INTO previews(" COLUMNS ") VALUES(?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(uid,port) DO UPDATE SET first=excluded.first, host=excluded.host,"
        " service=excluded.service, ingress=excluded.ingress, exec=excluded.exec,"
        " spec=excluded.spec, created=excluded.created";
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, row->uid);
    query_bind_int(&query, row->port);
    query_bind_int(&query, row->first);
    query_bind_text(&query, row->host);
    query_bind_text(&query, row->service);
    query_bind_text(&query, row->ingress);
    query_bind_int(&query, row->exec);
    query_bind_text(&query, row->spec);
    query_bind_int(&query, row->created);
    return query_run(&query, err);
}

int store_put_preview(struct store *store, const struct preview_row *row, struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, false, err) < 0)
        return -1;
    int rc = check_host_free(store, row, err);
    if (rc == 0)
        rc = upsert(store, row, err);
    rc = write_end(store, rc, err);
    atomic_fetch_add(&store->previews_version, 1);
    return rc;
}

uint64_t store_previews_version(struct store *store)
{
    return atomic_load(&store->previews_version);
}

static int delete_rows(struct store *store, const char *uid, int64_t port, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "DELETE FROM previews WHERE uid=?1 AND (?2=0 OR port=?2)", &query, err) <
        0)
        return -1;
    query_bind_text(&query, uid);
    query_bind_int(&query, port);
    return query_run(&query, err);
}

int store_delete_preview(struct store *store, const char *uid, int64_t port, struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, true, err) < 0)
        return -1;
    int rc = write_end(store, delete_rows(store, uid, port, err), err);
    atomic_fetch_add(&store->previews_version, 1);
    return rc;
}

int store_list_previews(struct store *store, const char *uid, struct preview_row **ret_rows,
                        size_t *ret_count, struct err *err)
{
    static const struct row_type type = {sizeof(struct preview_row), read_row, free_rows, NULL};
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT " COLUMNS " FROM previews WHERE uid=? ORDER BY first DESC, port",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, uid);
    return query_rows(&query, &type, ret_rows, ret_count, err);
}

int store_find_preview(struct store *store, const char *host, struct preview_row *ret_row,
                       char **ret_id, struct err *err)
{
    static const char sql[] =
        "SELECT p.uid,p.port,p.first,p.host,p.service,p.ingress,p.exec,p.spec,p.created,s.id"
        " FROM previews p JOIN sandboxes s ON s.uid=p.uid WHERE p.host=?"
        " ORDER BY s.state='gone', p.created DESC LIMIT 1";
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, host);
    int rc = query_next(&query, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no preview at %s", host);
    read_row(&query, ret_row);
    *ret_id = query_text(&query);
    return 0;
}
