#pragma once

#include "base/event.h"
#include "base/json.h"
#include "base/pipe.h"
#include "base/text.h"

/* An archive on its way into a sandbox: tar, tar.gz or tar.zst, told by its content. A thread of
 * its own reads it, since the library blocks where bytes lack, and sends its entries to the agent
 * (OP_UNPACK). The caller bounds how many there are at once. */
struct sandbox;
struct unpack;

/* BODY is referenced. PATH is the directory, absolute. */
int unpack_start(struct sandbox *sandbox, const char *path, struct pipe *body,
                 struct unpack **ret_unpack, struct err *err) must_check;
/* Fires at the end. */
struct event *unpack_changed(struct unpack *unpack);
/* Whether it has ended; then RET_ERR's code is ERR_NONE, or why not all of it is there. */
bool unpack_done(struct unpack *unpack, struct err *ret_err);
/* After the end: {files, directories, links, bytes, skipped, skipped_total}. What an entry that was
 * refused comes after is there, as before it. */
struct json *unpack_json(struct unpack *unpack);
/* Ends it where it runs still, and waits for that. NULL is allowed. */
void unpack_free(struct unpack *unpack);
