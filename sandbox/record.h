#pragma once

#include "sandbox/sandbox.h"

/* A sandbox as a row of the store, as JSON for callers, and as the sealed blob that its agent
 * keeps. */

const char *sandbox_state_name(enum sandbox_state state);
bool sandbox_state_from_name(const char *name, enum sandbox_state *ret_state);

/* A row that owns its texts, without what is secret. Takes all->lock. */
void record_row(struct sandbox *sandbox, struct sandbox_row *ret_row);
/* Masks what callers wrote into ROW: to be shown, and in a tombstone, which keeps no secrets to
 * mask by. A row that is loaded again must stay as it is. Takes all->lock. */
void record_mask(struct sandbox *sandbox, struct sandbox_row *row);
/* Adds what is secret, sealed; a tombstone has none. Takes all->lock. */
int record_seal(struct sandbox *sandbox, struct sandbox_row *row, struct err *err) must_check;
/* A new sandbox (reference 1, not in the table) from its row. */
struct sandbox *record_load(struct sandboxes *all, const struct sandbox_row *row);
void shown_record_free(struct shown_record *shown);
/* The record of a row, for sandboxes that are not in memory. */
struct json *record_row_json(const struct sandboxes *all, const struct sandbox_row *row);

/* --- info.c --- */
struct json *record_info_locked(const struct sandbox *sandbox);

/* --- blob.c -------------------------------------------------------------------------------------
 * The blob: labels, secrets and all that a server with an empty store needs; sealed for the box.
 * Whatever a spec and its updates may hold fits into it. */

/* RET_VERSION: of what is in it. Takes all->lock. */
int record_seal_blob(struct sandbox *sandbox, struct buf *out, uint64_t *ret_version,
                     struct err *err) must_check;

struct blob {
    struct text_map labels;
    struct text_list secrets;
    char *spec;  /* JSON */
    char *decoy; /* NULL: none */
    int64_t created, last_exec;
    struct scrubber *scrubber;
};
void blob_done(struct blob *blob);
/* Takes all->lock. */
int record_open_blob(struct sandbox *sandbox, const void *sealed, size_t len, struct blob *ret_blob,
                     struct err *err) must_check;
/* Takes what BLOB holds into the sandbox; its spec only while it is being adopted. */
void record_take_blob_locked(struct sandbox *sandbox, struct blob *blob);

/* JSON of maps and lists of texts, and back (adding). */
struct json *text_map_json(const struct text_map *map);
void text_map_restore(const struct json *json, struct text_map *map);
