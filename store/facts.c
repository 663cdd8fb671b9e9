/* What is true of the whole file. */
#include <string.h>

#include "store/query.h"

#define SEALING_KEY "sealing key"

/* 1: RET_VALUE (malloc'd) is there; 0: it is not. */
static int find(struct store *store, const char *name, void **ret_value, size_t *ret_len,
                struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "SELECT value FROM facts WHERE name=?", &query, err) < 0)
        return -1;
    query_bind_text(&query, name);
    int rc = query_next(&query, err);
    if (rc == 1)
        *ret_value = query_blob(&query, ret_len);
    return rc;
}

static int insert(struct store *store, const char *name, const void *value, size_t len,
                  struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "INSERT INTO facts(name,value) VALUES(?,?)", &query, err) < 0)
        return -1;
    query_bind_text(&query, name);
    query_bind_blob(&query, value, len);
    return query_run(&query, err);
}

int store_check_key(struct store *store, const uint8_t *hash, size_t len, struct err *err)
{
    cleanup_free void *before = NULL;
    size_t before_len = 0;
    LOCK_STORE(store);
    int found = find(store, SEALING_KEY, &before, &before_len, err);
    if (found < 0)
        return -1;
    if (found == 0) {
        if (write_begin(store, true, err) < 0)
            return -1;
        return write_end(store, insert(store, SEALING_KEY, hash, len, err), err);
    }
    if (!before || before_len != len || memcmp(before, hash, len) != 0)
        return err_set(err, ERR_CONFIG, "what it holds was sealed with another key");
    return 0;
}
