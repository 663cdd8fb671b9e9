#pragma once

#include "store/store.h"

/* For the tests of store/: every call must succeed. */
struct store *store_open_at(const char *path);

/* A sandbox that runs, with the id "UID-id" and the owner "me". What it points to is static or
 * UID's. */
struct sandbox_row sandbox_of(const char *uid, const char *id, const char *state);
void put_sandbox(struct store *store, const struct sandbox_row *row);
void put_exec(struct store *store, const char *uid, int64_t number, const char *state);
void add_event(struct store *store, const char *uid, const char *type);

/* Runs SQL on the file at PATH by a connection of its own, and gives the first number of the
 * result. */
int64_t sql_number(const char *path, const char *sql);
