#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "store/query.h"
#include "store/sessions.h"

#define COLUMNS "uid,number,state,spec,result,created,ended,committed,session"

void exec_row_done(struct exec_row *row)
{
    free(row->uid);
    free(row->state);
    free(row->spec);
    free(row->result);
    *row = (struct exec_row){.uid = NULL};
}

void exec_rows_free(struct exec_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        exec_row_done(&rows[i]);
    free(rows);
}

static void read_row(struct query *query, void *ret_row)
{
    struct exec_row row = {.uid = query_text(query)};
    row.number = query_int(query);
    row.state = query_text(query);
    row.spec = query_text(query);
    row.result = query_text(query);
    row.created = query_int(query);
    row.ended = query_int(query);
    row.committed = query_int(query) != 0;
    row.session = query_int(query);
    *(struct exec_row *)ret_row = row;
}

static size_t row_bytes(const void *arg)
{
    const struct exec_row *row = arg;
    return sizeof(*row) + (row->spec == NULL ? 0 : strlen(row->spec)) +
           (row->result == NULL ? 0 : strlen(row->result));
}

static void free_rows(void *rows, size_t count)
{
    exec_rows_free(rows, count);
}

static int upsert(struct store *store, const struct exec_row *row, struct err *err)
{
    static const char sql[] =
        "INSERT INTO execs(" COLUMNS ") VALUES(?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(uid,number) DO UPDATE SET state=excluded.state, spec=excluded.spec,"
        " result=excluded.result, ended=excluded.ended, committed=excluded.committed";
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, row->uid);
    query_bind_int(&query, row->number);
    query_bind_text(&query, row->state);
    query_bind_text(&query, row->spec);
    query_bind_text(&query, row->result);
    query_bind_int(&query, row->created);
    query_bind_int(&query, row->ended);
    query_bind_int(&query, row->committed);
    query_bind_int(&query, row->session);
    return query_run(&query, err);
}

/* So that a number is never given out twice, whatever was saved of the sandbox itself. */
static int raise_last_exec(struct store *store, const struct exec_row *row, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "UPDATE sandboxes SET last_exec=?1 WHERE uid=?2 AND last_exec<?1", &query,
                   err) < 0)
        return -1;
    query_bind_int(&query, row->number);
    query_bind_text(&query, row->uid);
    return query_run(&query, err);
}

int store_put_exec(struct store *store, const struct exec_row *row, struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, false, err) < 0)
        return -1;
    int rc = upsert(store, row, err);
    if (rc == 0)
        rc = raise_last_exec(store, row, err);
    return write_end(store, rc, err);
}

int store_get_exec(struct store *store, const char *uid, int64_t number, struct exec_row *ret_row,
                   struct err *err)
{
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT " COLUMNS " FROM execs WHERE uid=? AND number=?", &query, err) <
        0)
        return -1;
    query_bind_text(&query, uid);
    query_bind_int(&query, number);
    int rc = query_next(&query, err);
    if (rc == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no exec %lld", (long long)number);
    if (rc < 0)
        return -1;
    read_row(&query, ret_row);
    return 0;
}

static int list(struct store *store, const char *sql, const struct exec_page *page,
                struct exec_row **ret_rows, size_t *ret_count, struct err *err)
{
    static const struct row_type type = {sizeof(struct exec_row), read_row, free_rows, row_bytes};
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, page->uid);
    query_bind_int(&query, page->before > 0 ? page->before : INT64_MAX);
    query_bind_int(&query, page_limit(page->limit));
    return query_rows(&query, &type, ret_rows, ret_count, err);
}

int store_running_execs(struct store *store, const char *uid, int64_t before,
                        struct exec_row **ret_rows, size_t *ret_count, struct err *err)
{
    const struct exec_page page = {uid, before, 0};
    /* 'running' is no parameter: only so the index of the running ones is used. */
    return list(store,
                "SELECT " COLUMNS " FROM execs WHERE uid=? AND number<? AND state='running'"
                " ORDER BY number DESC LIMIT ?",
                &page, ret_rows, ret_count, err);
}

/* NOLINTNEXTLINE(readability-function-size): see store.h */
int store_list_execs(struct store *store, const char *uid, int64_t before, size_t limit,
                     struct exec_row **ret_rows, size_t *ret_count, struct err *err)
{
    const struct exec_page page = {uid, before, limit};
    return list(store,
                "SELECT " COLUMNS " FROM execs WHERE uid=? AND number<?"
                " ORDER BY number DESC LIMIT ?",
                &page, ret_rows, ret_count, err);
}

int store_list_sessions(struct store *store, const struct exec_page *page,
                        struct exec_row **ret_rows, size_t *ret_count, struct err *err)
{
    return list(store,
                "SELECT " COLUMNS " FROM execs WHERE uid=? AND number<? AND session=number"
                " ORDER BY number DESC LIMIT ?",
                page, ret_rows, ret_count, err);
}
