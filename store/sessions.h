#pragma once

#include "store/store.h"

/* Of the executions of UID those that are shell sessions, as store_list_execs() gives them. */
struct exec_page {
    const char *uid;
    int64_t before;
    size_t limit;
};
int store_list_sessions(struct store *store, const struct exec_page *page,
                        struct exec_row **ret_rows, size_t *ret_count, struct err *err) must_check;
