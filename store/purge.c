/* Forgetting tombstones, and counting what there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/query.h"

/* max(ended, since): a record that became gone without an end time still goes some day. */
#define ENDED "state='gone' AND max(ended,since)<?"

static void read_uid(struct query *query, void *ret_row)
{
    *(char **)ret_row = query_text(query);
}

static void free_uids(void *rows, size_t count)
{
    char **uids = rows;
    for (size_t i = 0; i < count; i++)
        free(uids[i]);
    free(rows);
}

static int find_ended(struct store *store, int64_t before, size_t limit, char ***ret_uids,
                      size_t *ret_count, struct err *err)
{
    static const struct row_type type = {sizeof(char *), read_uid, free_uids, NULL};
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store,
                   "SELECT uid FROM sandboxes INDEXED BY sandboxes_ended WHERE " ENDED
                   " ORDER BY max(ended,since) LIMIT ?",
                   &query, err) < 0)
        return -1;
    query_bind_int(&query, before);
    query_bind_int(&query, page_limit(limit));
    return query_rows(&query, &type, ret_uids, ret_count, err);
}

/* All that hangs on it goes by ON DELETE CASCADE. */
static int delete_one(struct store *store, const char *uid, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "DELETE FROM sandboxes WHERE uid=?", &query, err) < 0)
        return -1;
    query_bind_text(&query, uid);
    return query_run(&query, err);
}

static int delete_all(struct store *store, char *const *uids, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (delete_one(store, uids[i], err) < 0)
            return -1;
    }
    return 0;
}

int store_purge(struct store *store, int64_t before, size_t limit, char ***ret_uids,
                size_t *ret_count, struct err *err)
{
    LOCK_STORE(store);
    char **uids = NULL;
    size_t count = 0;
    if (find_ended(store, before, limit, &uids, &count, err) < 0)
        return -1;
    int rc = 0;
    if (count > 0) {
        rc = write_begin(store, true, err);
        if (rc == 0)
            rc = write_end(store, delete_all(store, uids, count, err), err);
    }
    if (rc < 0) {
        free_uids(uids, count);
        return -1;
    }
    *ret_uids = uids;
    *ret_count = count;
    return 0;
}

int store_counts(struct store *store, struct state_count *ret_counts, size_t max, size_t *ret_count,
                 struct err *err)
{
    LOCK_STORE(store);
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT state,count(*) FROM sandboxes GROUP BY state ORDER BY state",
                   &query, err) < 0)
        return -1;
    size_t count = 0;
    int rc = 0;
    while (count < max && (rc = query_next(&query, err)) == 1) {
        cleanup_free char *state = query_text(&query);
        (void)snprintf(ret_counts[count].state, sizeof(ret_counts[count].state), "%s", state);
        ret_counts[count++].count = query_int(&query);
    }
    if (rc < 0)
        return -1;
    *ret_count = count;
    return 0;
}
