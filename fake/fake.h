#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "driver/driver.h"
#include "fake/calls.h"

/* The driver for testing code that uses the API: a sandbox is a table of files and of answers that
 * were prepared, in this process. Everything above the driver is the same as for the others, and no
 * process is started. A sandbox is lost with the server. */
struct fake;
struct loop;

int fake_driver_new(struct loop *loop, struct driver *ret_driver, struct err *err) must_check;
/* NULL when DRIVER is another one. */
struct fake *fake_of(const struct driver *driver);

/* --- what the routes below /v1/fake do; from any thread -----------------------------------------
 */

/* Replaces all rules by those of the request. */
int fake_put_replies(struct fake *fake, const struct json *body, struct err *err) must_check;
struct json *fake_replies(struct fake *fake);
void fake_delete_replies(struct fake *fake);

/* Files for the next create, of an id or of any. */
int fake_put_files(struct fake *fake, const struct json *body, struct err *err) must_check;
struct json *fake_files(struct fake *fake);
void fake_delete_files(struct fake *fake);

/* How the next creates fail, of an id or of any. */
int fake_put_creates(struct fake *fake, const struct json *body, struct err *err) must_check;
struct json *fake_creates(struct fake *fake);
void fake_delete_creates(struct fake *fake);

/* Ids for the next creates that name none, in their order; fake_take_id() gives NULL when there is
 * none (any more), else the caller frees it. */
int fake_put_ids(struct fake *fake, const struct json *body, struct err *err) must_check;
struct json *fake_ids(struct fake *fake);
void fake_delete_ids(struct fake *fake);
char *fake_take_id(struct fake *fake);

struct json *fake_calls(struct fake *fake, const struct calls_query *query);
void fake_delete_calls(struct fake *fake);

/* What only the domain sees of a call. A preview is noted before its command begins. */
struct fake_preview {
    int64_t port;
    const char *subdomain; /* NULL: the id */
    const struct text_list *command;
    const struct text_map *env;
};
void fake_note_preview(struct fake *fake, const char *id, const struct fake_preview *preview);
void fake_note_preview_removed(struct fake *fake, const char *id, int64_t port);
void fake_note_secrets(struct fake *fake, const char *id, size_t count);
