#include <stdlib.h>

#include "store/query.h"

/* Of one sandbox; older ones are forgotten. */
#define EVENTS_KEPT 1000

#define COLUMNS "seq,uid,type,detail,at"

void event_rows_free(struct event_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].uid);
        free(rows[i].type);
        free(rows[i].detail);
    }
    free(rows);
}

static void read_row(struct query *query, void *ret_row)
{
    struct event_row row = {.seq = query_int(query)};
    row.uid = query_text(query);
    row.type = query_text(query);
    row.detail = query_text(query);
    row.at = query_int(query);
    *(struct event_row *)ret_row = row;
}

static void free_rows(void *rows, size_t count)
{
    event_rows_free(rows, count);
}

static int insert(struct store *store, const struct event_row *row, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "INSERT INTO events(uid,type,detail,at) VALUES(?,?,?,?)", &query, err) <
        0)
        return -1;
    query_bind_text(&query, row->uid);
    query_bind_text(&query, row->type);
    query_bind_text(&query, row->detail);
    query_bind_int(&query, row->at);
    return query_run(&query, err);
}

static int trim(struct store *store, const char *uid, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   "DELETE FROM events WHERE uid IS ?1 AND seq<=(SELECT seq FROM events"
                   " WHERE uid IS ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, uid);
    query_bind_int(&query, EVENTS_KEPT);
    return query_run(&query, err);
}

int store_add_event(struct store *store, const struct event_row *row, struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, false, err) < 0)
        return -1;
    int rc = insert(store, row, err);
    if (rc == 0)
        rc = trim(store, row->uid, err);
    return write_end(store, rc, err);
}

/* NOLINTNEXTLINE(readability-function-size): see store.h */
int store_list_events(struct store *store, const char *uid, int64_t after, size_t limit,
                      struct event_row **ret_rows, size_t *ret_count, struct err *err)
{
    static const struct row_type type = {sizeof(struct event_row), read_row, free_rows, NULL};
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   uid == NULL ? "SELECT " COLUMNS " FROM events WHERE seq>? ORDER BY seq LIMIT ?"
                               : "SELECT " COLUMNS
                                 " FROM events WHERE uid=?3 AND seq>?1 ORDER BY seq"
                                 " LIMIT ?2",
                   &query, err) < 0)
        return -1;
    query_bind_int(&query, after);
    query_bind_int(&query, page_limit(limit));
    if (uid != NULL)
        query_bind_text(&query, uid);
    return query_rows(&query, &type, ret_rows, ret_count, err);
}
