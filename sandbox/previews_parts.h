#pragma once

#include "sandbox/sandbox.h"

/* What previews.c and previews_sweep.c share. All block on the store or the substrate. */

struct preview_rows {
    struct preview_row *items;
    size_t count;
};
void preview_rows_done(struct preview_rows *rows);
int preview_rows_load(struct sandbox *sandbox, struct preview_rows *ret_rows,
                      struct err *err) must_check;
const struct preview_row *preview_rows_of(const struct preview_rows *rows,
                                          int64_t port); /* or NULL */

/* Served by this server, whose hosts need nothing in the substrate. */
bool preview_is_proxied(const struct preview_row *row);
/* NAMES are the row's from then on. */
int preview_publish_row(struct sandbox *sandbox, struct preview_row *row,
                        struct preview_names *names, struct err *err) must_check;
/* What was begun, or was there before, goes. What cannot be removed now the sweep finds. */
void preview_take_down(struct sandbox *sandbox, const struct preview_row *row);
void preview_tell(struct sandbox *sandbox, const struct preview_row *row); /* the event */
/* One whose change was cut off, or could not be undone: previews_finish() looks at its row. */
void preview_leave_to_sweep(struct sandbox *sandbox);
