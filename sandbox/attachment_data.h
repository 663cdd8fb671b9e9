#pragma once

#include "base/caps.h"
#include "sandbox/attachment.h"
#include "sandbox/call.h"
#include "sandbox/exec_data.h"
#include "sandbox/follower.h"

/* The data of an attachment, for attachment*.c. */
struct attachment {
    atomic_uint refs; /* the client's, and its follower's */
    struct sandbox *sandbox;
    struct exec *exec; /* NULL: it has ended and left memory */
    int64_t number;
    bool joined;                       /* counts as one who waits for it */
    unsigned columns, rows;            /* without an exec: its last size; 0: it had no terminal */
    struct call *signals[CAP_SIGNALS]; /* under way, or answered, or NULL */
    /* the follower's: what has been said */
    bool greeted, said_writer;
    unsigned said_columns, said_rows;
};
struct attachment *attachment_ref(struct attachment *attachment);
void attachment_unref(struct attachment *attachment);

/* What may change at any time. */
struct attachment_view {
    bool writer;
    unsigned columns, rows; /* 0: no terminal */
};
void attachment_look(struct attachment *attachment, struct attachment_view *ret_view);

/* --- attachment_messages.c: what `follower` makes ready next, as follow_next_event */
enum follow_turn follow_next_message(struct follower *follower, int64_t *ret_again_ms);

/* --- follow.c */
int follow_attachment(struct attachment *attachment, const struct follow_position *from,
                      struct pipe *pipe, struct err *err) must_check;

/* --- attachment_input.c */
/* A terminal, before the loop thread knows EXEC, or on it. ANEW: the agent knows how much input it
 * has had. */
void exec_make_terminal(struct exec *exec, unsigned columns, unsigned rows, bool anew);
/* `cols` and `rows` into a record, when it has a terminal. */
void exec_put_size(struct exec *exec, struct json *record);
/* Loop thread. The agent says in STARTED what its terminal is. False: it knows of none, but there
 * should be one. */
bool exec_take_terminal(struct exec *exec, const void *fields, size_t len);
