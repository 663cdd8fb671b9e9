#include "tests/unit/store_rows.h"

#include <check.h>
#include <sqlite3.h>
#include <stdlib.h>

struct store *store_open_at(const char *path)
{
    struct store *store = NULL;
    struct err err;
    ck_assert_msg(store_open(path, &store, &err) == 0, "%s", err.msg);
    return store;
}

struct sandbox_row sandbox_of(const char *uid, const char *id, const char *state)
{
    return (struct sandbox_row){.uid = (char *)uid,
                                .id = (char *)id,
                                .owner = (char *)"me",
                                .state = (char *)state,
                                .image = (char *)"image:1",
                                .created = 1000,
                                .since = 1001};
}

void put_sandbox(struct store *store, const struct sandbox_row *row)
{
    struct err err;
    ck_assert_msg(store_put_sandbox(store, row, false, &err) == 0, "%s", err.msg);
}

void put_exec(struct store *store, const char *uid, int64_t number, const char *state)
{
    struct err err;
    struct exec_row row = {.uid = (char *)uid,
                           .number = number,
                           .state = (char *)state,
                           .spec = (char *)"{\"cmd\":[\"true\"]}",
                           .created = 2000 + number};
    ck_assert_msg(store_put_exec(store, &row, &err) == 0, "%s", err.msg);
}

void add_event(struct store *store, const char *uid, const char *type)
{
    struct err err;
    struct event_row row = {
        .uid = (char *)uid, .type = (char *)type, .detail = (char *)"{}", .at = 3000};
    ck_assert_msg(store_add_event(store, &row, &err) == 0, "%s", err.msg);
}

static int take_number(void *arg, int columns, char **values, char **names)
{
    (void)names;
    if (columns > 0 && values[0] != NULL)
        *(int64_t *)arg = strtoll(values[0], NULL, 10);
    return 0;
}

int64_t sql_number(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    int64_t number = -1;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    char *message = NULL;
    ck_assert_msg(sqlite3_exec(db, sql, take_number, &number, &message) == SQLITE_OK, "%s: %s", sql,
                  message);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    return number;
}
