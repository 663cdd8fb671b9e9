#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/pipe.h"

/* Somebody who is attached to an execution: he sees its output from any offset on, and types when
 * he is its writer, of which there is one at most. He comes and goes; the execution stays. What the
 * writer has not read yet is kept for him, and the command waits while there is no room for it, as
 * a terminal does; whoever only watches gets a gap instead. Thread-safe. */
struct attachment;
struct exec;
struct sandbox;

struct attachment_wish {
    int64_t number;    /* of the execution */
    int64_t offset[2]; /* of stdout and stderr; negative: so many of the last bytes */
    bool write;        /* become the writer if there is none */
    bool takeover;     /* or although there is one, who stays as a watcher */
};

/* What comes out for him is in PIPE: records of one byte (ATTACHMENT_TEXT: JSON, or
 * ATTACHMENT_BYTES: the stream's number and its bytes), the length in four bytes, the lowest first,
 * and so many bytes. It ends after the exit, or fails with why it cannot go on. ERR_NOT_FOUND. */
enum attachment_record { ATTACHMENT_TEXT = 1, ATTACHMENT_BYTES = 2 };
#define ATTACHMENT_RECORD_HEADER 5
#define ATTACHMENT_RECORD_MAX ((size_t)512 * 1024)
int attachment_open(struct sandbox *sandbox, const struct attachment_wish *wish, struct pipe *pipe,
                    struct attachment **ret_attachment, struct err *err) must_check;
void attachment_close(struct attachment *attachment); /* after pipe_abandon; NULL is allowed */

/* All of these: ERR_NOT_WRITER, or ERR_CONFLICT: it takes no input (any more), has no terminal. */

/* What he types. RET_TOOK less than LEN: there is room again when `attachment_writable` fires. */
int attachment_write(struct attachment *attachment, const void *data, size_t len, size_t *ret_took,
                     struct err *err) must_check;
struct event *attachment_writable(struct attachment *attachment); /* after a write */
/* To a terminal the character that means it. RET_DONE false: no room, as above. */
int attachment_end_input(struct attachment *attachment, bool *ret_done, struct err *err) must_check;
int attachment_resize(struct attachment *attachment, unsigned columns, unsigned rows,
                      struct err *err) must_check;
/* One thread at a time. ERR_BUSY: the agent has not taken the last ones yet. */
int attachment_signal(struct attachment *attachment, int number, bool tree,
                      struct err *err) must_check;
/* ERR_CONFLICT: it has ended. */
int attachment_take_over(struct attachment *attachment, struct err *err) must_check;
void attachment_release(struct attachment *attachment); /* is a watcher from now on */

/* The same of any execution. */
int exec_resize(struct exec *exec, unsigned columns, unsigned rows, struct err *err) must_check;
bool exec_has_terminal(struct exec *exec);
