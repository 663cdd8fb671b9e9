#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/event.h"

/* A bounded byte queue between two threads: request bodies to the agent, file contents to a reply.
 * Reference-counted; each side holds a reference. */
struct pipe;

struct pipe *pipe_new(size_t capacity);
struct pipe *pipe_ref(struct pipe *pipe);
void pipe_unref(struct pipe *pipe); /* NULL is allowed */

/* Writer: takes as much as fits and returns how much; 0 when full or when the reader is gone. */
size_t pipe_write(struct pipe *pipe, const void *data, size_t len);
/* Writer: no more will come; the first call counts. WHY is NULL at the true end of the data, else
 * what cut it short. */
void pipe_finish(struct pipe *pipe, const struct err *why);

/* Reader: copies out up to LEN bytes and returns how many. */
size_t pipe_read(struct pipe *pipe, void *data, size_t len);
/* Reader: wants no more; pipe_write takes nothing from then on. WHY as above (NULL: had enough).
 * Does nothing when all was read already. */
void pipe_abandon(struct pipe *pipe, const struct err *why);

enum pipe_state {
    PIPE_OPEN,     /* more may come */
    PIPE_ENDED,    /* finished without error and all read */
    PIPE_FAILED,   /* finished with an error (and all before it read) */
    PIPE_ABANDONED /* the reader has gone */
};
/* RET_WHY (may be NULL) is set for PIPE_FAILED, and for PIPE_ABANDONED with an error. */
enum pipe_state pipe_state(struct pipe *pipe, struct err *ret_why);
/* Reader: no more for a while; an empty pipe needs no memory. */
void pipe_rest(struct pipe *pipe);
size_t pipe_used(struct pipe *pipe);
size_t pipe_space(struct pipe *pipe);

/* Fires when bytes or the end arrive: the reader waits on it. */
struct event *pipe_readable(struct pipe *pipe);
/* Fires when space appears or the reader goes: the writer waits on it. */
struct event *pipe_writable(struct pipe *pipe);
