#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "store/query.h"

/* In the order of read_row and bind_row. */
#define COLUMNS                                                                                    \
    "uid,id,owner,state,reason,message,image,spec,labels,sealed,sealed_version,digest,box_uid,"    \
    "node,container_id,created,since,ready,ended,deadline,last_exec"

/* A page ends early when its rows take that much memory. */

void sandbox_row_done(struct sandbox_row *row)
{
    char *texts[] = {row->uid,     row->id,    row->owner,       row->state,  row->reason,
                     row->message, row->image, row->spec,        row->labels, row->digest,
                     row->box_uid, row->node,  row->container_id};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(texts[i]);
    free(row->sealed);
    *row = (struct sandbox_row){.uid = NULL};
}

void sandbox_rows_free(struct sandbox_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sandbox_row_done(&rows[i]);
    free(rows);
}

static void read_row(struct query *query, struct sandbox_row *ret_row)
{
    struct sandbox_row row = {.uid = query_text(query)};
    row.id = query_text(query);
    row.owner = query_text(query);
    row.state = query_text(query);
    row.reason = query_text(query);
    row.message = query_text(query);
    row.image = query_text(query);
    row.spec = query_text(query);
    row.labels = query_text(query);
    row.sealed = query_blob(query, &row.sealed_len);
    row.sealed_version = query_int(query);
    row.digest = query_text(query);
    row.box_uid = query_text(query);
    row.node = query_text(query);
    row.container_id = query_text(query);
    row.created = query_int(query);
    row.since = query_int(query);
    row.ready = query_int(query);
    row.ended = query_int(query);
    row.deadline = query_int(query);
    row.last_exec = query_int(query);
    *ret_row = row;
}

static void bind_row(struct query *query, const struct sandbox_row *row)
{
    const char *const texts[] = {row->uid,     row->id,    row->owner, row->state, row->reason,
                                 row->message, row->image, row->spec,  row->labels};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        query_bind_text(query, texts[i]);
    query_bind_blob(query, row->sealed, row->sealed_len);
    query_bind_int(query, row->sealed_version);
    query_bind_text(query, row->digest);
    query_bind_text(query, row->box_uid);
    query_bind_text(query, row->node);
    query_bind_text(query, row->container_id);
    query_bind_int(query, row->created);
    query_bind_int(query, row->since);
    query_bind_int(query, row->ready);
    query_bind_int(query, row->ended);
    query_bind_int(query, row->deadline);
    query_bind_int(query, row->last_exec);
}

/* RET_STATE: of the record before, malloc'd; NULL when it is new. */
static int read_state(struct store *store, const char *uid, char **ret_state, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT state FROM sandboxes WHERE uid=?", &query, err) < 0)
        return -1;
    query_bind_text(&query, uid);
    int rc = query_next(&query, err);
    if (rc == 1)
        *ret_state = query_text(&query);
    return rc < 0 ? -1 : 0;
}

static int check_id_free(struct store *store, const struct sandbox_row *row, struct err *err)
{
    if (strcmp(row->state, "gone") == 0)
        return 0;
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT 1 FROM sandboxes WHERE id=? AND state<>'gone' AND uid<>?", &query,
                   err) < 0)
        return -1;
    query_bind_text(&query, row->id);
    query_bind_text(&query, row->uid);
    int rc = query_next(&query, err);
    if (rc == 1)
        return err_set(err, ERR_ALREADY_EXISTS, "sandbox '%s' exists already", row->id);
    return rc;
}

static int add_state(struct store *store, const struct sandbox_row *row, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "INSERT INTO states(uid,state,reason,message,at) VALUES(?,?,?,?,?)",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, row->uid);
    query_bind_text(&query, row->state);
    query_bind_text(&query, row->reason);
    query_bind_text(&query, row->message);
    query_bind_int(&query, row->since);
    return query_run(&query, err);
}

static int upsert(struct store *store, const struct sandbox_row *row, struct err *err)
{
    /* id, owner and created never change, so their indexes are left alone. An exec that was
     * recorded since the caller looked has raised last_exec. */
    static const char sql[] =
        "INSERT INTO sandboxes(" COLUMNS ") VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(uid) DO UPDATE SET state=excluded.state, reason=excluded.reason,"
        " message=excluded.message, image=excluded.image, spec=excluded.spec,"
        " labels=excluded.labels, sealed=excluded.sealed, sealed_version=excluded.sealed_version,"
        " digest=excluded.digest, box_uid=excluded.box_uid, node=excluded.node,"
        " container_id=excluded.container_id, since=excluded.since, ready=excluded.ready,"
        " ended=excluded.ended, deadline=excluded.deadline,"
        " last_exec=max(last_exec, excluded.last_exec)";
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    bind_row(&query, row);
    return query_run(&query, err);
}

static int put(struct store *store, const struct sandbox_row *row, struct err *err)
{
    cleanup_free char *before = NULL;
    if (read_state(store, row->uid, &before, err) < 0 || check_id_free(store, row, err) < 0 ||
        upsert(store, row, err) < 0)
        return -1;
    if (before != NULL && strcmp(before, row->state) == 0)
        return 0;
    return add_state(store, row, err);
}

int store_put_sandbox(struct store *store, const struct sandbox_row *row, bool durable,
                      struct err *err)
{
    LOCK_STORE(store);
    if (write_begin(store, durable, err) < 0)
        return -1;
    return write_end(store, put(store, row, err), err);
}

/* 1: found. */
static int find(struct store *store, const char *sql, const char *name, struct sandbox_row *ret_row,
                struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, name);
    int rc = query_next(&query, err);
    if (rc == 1)
        read_row(&query, ret_row);
    return rc;
}

int store_get_sandbox(struct store *store, const char *id, struct sandbox_row *ret_row,
                      struct err *err)
{
    LOCK_STORE(store);
    int rc = find(store, "SELECT " COLUMNS " FROM sandboxes WHERE id=? AND state<>'gone'", id,
                  ret_row, err);
    if (rc == 0)
        rc = find(store,
                  "SELECT " COLUMNS " FROM sandboxes WHERE id=?"
                  " ORDER BY created DESC, rowid DESC LIMIT 1",
                  id, ret_row, err);
    if (rc == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no sandbox '%s'", id);
    return rc < 0 ? -1 : 0;
}

int store_get_sandbox_uid(struct store *store, const char *uid, struct sandbox_row *ret_row,
                          struct err *err)
{
    LOCK_STORE(store);
    int rc = find(store, "SELECT " COLUMNS " FROM sandboxes WHERE uid=?", uid, ret_row, err);
    if (rc == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no sandbox with uid '%s'", uid);
    return rc < 0 ? -1 : 0;
}

/* A cursor is the key of the last row, "created:uid", in hex: it needs no escaping in a URL. */
struct position {
    int64_t created;
    char *uid;
};

static void position_done(struct position *position)
{
    free(position->uid);
}

static char *cursor_of(const struct sandbox_row *row)
{
    cleanup_buf struct buf plain = BUF_INIT(KIB);
    struct buf hex = BUF_INIT(2 * KIB + 1);
    if (!buf_printf(&plain, "%lld:%s", (long long)row->created, row->uid) ||
        !hex_encode(&hex, plain.ptr, plain.len))
        abort(); /* uids are ours, and short */
    return buf_take(&hex, NULL);
}

static int cursor_parse(const char *cursor, struct position *ret_position, struct err *err)
{
    cleanup_buf struct buf plain = BUF_INIT(KIB);
    if (!hex_decode(&plain, str_of(cursor)) || plain.len == 0)
        return err_set(err, ERR_INVALID_FIELD, "cursor: not one of ours");
    const char *colon = memchr(plain.ptr, ':', plain.len);
    uint64_t created = 0;
    if (colon == NULL || memchr(plain.ptr, 0, plain.len) != NULL ||
        !utf8_valid(plain.ptr, plain.len) ||
        !str_to_u64((struct str){plain.ptr, (size_t)(colon - plain.ptr)}, INT64_MAX, &created))
        return err_set(err, ERR_INVALID_FIELD, "cursor: not one of ours");
    ret_position->created = (int64_t)created;
    ret_position->uid = xstrdup(colon + 1);
    return 0;
}

enum which { LIVING, ALL, ONE_STATE };

static enum which which_of(const struct sandbox_filter *filter)
{
    if (filter->state == NULL)
        return LIVING;
    return strcmp(filter->state, "all") == 0 ? ALL : ONE_STATE;
}

/* Names the index, so that a page of 10,000 records never becomes a sort of them all. */
static bool build_list(const struct sandbox_filter *filter, struct buf *sql)
{
    enum which which = which_of(filter);
    bool gone_too = which == ALL || (which == ONE_STATE && strcmp(filter->state, "gone") == 0);
    const char *index = gone_too ? "created" : "living";
    if (filter->owner != NULL)
        index = gone_too ? "owner" : "living_owner";
    bool ok = buf_printf(sql, "SELECT " COLUMNS " FROM sandboxes INDEXED BY sandboxes_%s WHERE %s",
                         index, gone_too ? "1" : "state<>'gone'");
    if (which == ONE_STATE)
        ok = ok && buf_append_str(sql, " AND state=?");
    if (filter->owner != NULL)
        ok = ok && buf_append_str(sql, " AND owner=?");
    if (filter->cursor != NULL)
        ok = ok && buf_append_str(sql, " AND (created,uid)<(?,?)");
    for (size_t i = 0; i < filter->labels; i++)
        ok = ok &&
             buf_append_str(sql, " AND EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(labels)"
                                 " THEN labels END) WHERE key=? AND value=?)");
    return ok && buf_append_str(sql, " ORDER BY created DESC, uid DESC LIMIT ?");
}

static void bind_list(struct query *query, const struct sandbox_filter *filter,
                      const struct position *after, size_t limit)
{
    if (which_of(filter) == ONE_STATE)
        query_bind_text(query, filter->state);
    if (filter->owner != NULL)
        query_bind_text(query, filter->owner);
    if (filter->cursor != NULL) {
        query_bind_int(query, after->created);
        query_bind_text(query, after->uid);
    }
    for (size_t i = 0; i < filter->labels; i++) {
        query_bind_text(query, filter->label_names[i]);
        query_bind_text(query, filter->label_values[i]);
    }
    query_bind_int(query, (int64_t)limit);
}

static size_t length(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

static size_t row_bytes(const struct sandbox_row *row)
{
    return sizeof(*row) + length(row->message) + length(row->spec) + length(row->labels) +
           row->sealed_len;
}

struct page {
    struct sandbox_row *rows;
    size_t count;
    bool more;
};

static void page_done(struct page *page)
{
    sandbox_rows_free(page->rows, page->count);
}

/* One row more than LIMIT was asked for, to know whether there is another page. */
static int read_page(struct query *query, size_t limit, struct page *page, struct err *err)
{
    size_t bytes = 0;
    int rc;
    while ((rc = query_next(query, err)) == 1) {
        if (page->count == limit || bytes > PAGE_BYTES) {
            page->more = true;
            return 0;
        }
        page->rows = xrealloc(page->rows, (page->count + 1) * sizeof(*page->rows));
        read_row(query, &page->rows[page->count]);
        bytes += row_bytes(&page->rows[page->count++]);
    }
    return rc;
}

int store_list_sandboxes(struct store *store, const struct sandbox_filter *filter,
                         struct sandbox_row **ret_rows, size_t *ret_count, char **ret_next,
                         struct err *err)
{
    cleanup(position_done) struct position after = {.uid = NULL};
    if (filter->cursor != NULL && cursor_parse(filter->cursor, &after, err) < 0)
        return -1;
    cleanup_buf struct buf sql = BUF_INIT(CAP_SMALL);
    if (filter->labels > CAP_LABELS || !build_list(filter, &sql))
        return err_set(err, ERR_INVALID_FIELD, "label: more than %d", CAP_LABELS);
    size_t limit = filter->limit;
    if (limit == 0 || limit > CAP_LIST_LIMIT)
        limit = CAP_LIST_LIMIT;

    LOCK_STORE(store);
    cleanup(page_done) struct page page = {.rows = NULL};
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, buf_text(&sql), &query, err) < 0)
        return -1;
    bind_list(&query, filter, &after, limit + 1);
    if (read_page(&query, limit, &page, err) < 0)
        return -1;
    *ret_next = page.more ? cursor_of(&page.rows[page.count - 1]) : NULL;
    *ret_count = page.count;
    *ret_rows = TAKE_PTR(page.rows);
    page.count = 0;
    return 0;
}

static void read_state_row(struct query *query, void *ret_row)
{
    struct state_row *row = ret_row;
    row->state = query_text(query);
    row->reason = query_text(query);
    row->message = query_text(query);
    row->at = query_int(query);
}

void state_rows_free(struct state_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].state);
        free(rows[i].reason);
        free(rows[i].message);
    }
    free(rows);
}

static void free_states(void *rows, size_t count)
{
    state_rows_free(rows, count);
}

int store_states(struct store *store, const char *uid, struct state_row **ret_rows,
                 size_t *ret_count, struct err *err)
{
    static const struct row_type type = {sizeof(struct state_row), read_state_row, free_states,
                                         NULL};
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT state,reason,message,at FROM states WHERE uid=? ORDER BY seq",
                   &query, err) < 0)
        return -1;
    query_bind_text(&query, uid);
    return query_rows(&query, &type, ret_rows, ret_count, err);
}
