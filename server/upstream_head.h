#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/framing.h"

/* What a program answers, as HTTP/1.1: pure functions on bytes that may be hostile. */

#define UPSTREAM_HEAD_MAX ((size_t)32 << 10)
#define UPSTREAM_INTERIM_MAX 1000 /* 100, 103 before one answer */
#define UPSTREAM_FIELDS_MAX 200

enum body_kind {
    BODY_EMPTY,
    BODY_LENGTH,
    BODY_CHUNKED,
    BODY_TO_END, /* of the connection */
};

struct upstream_head {
    int status;
    struct text_field *fields; /* those for the client, in order; not the ones of the connection */
    size_t count;
    enum body_kind kind;
    int64_t length;  /* as said by Content-Length, also where no body follows; -1: not */
    bool persistent; /* the connection may be used again after the body */
};
void upstream_head_done(struct upstream_head *head);

/* The head at the beginning of DATA. RET_LEN: of it; 0: it is not complete yet. TO_HEAD: the answer
 * to a HEAD, without a body. ERR_BAD_ANSWER. */
int upstream_head_parse(const char *data, size_t len, bool to_head, struct upstream_head *ret_head,
                        size_t *ret_len, struct err *err) must_check;

/* The body behind it, as it comes. */
struct upstream_body {
    enum body_kind kind;
    uint64_t left;  /* of the length, or of the chunk */
    unsigned state; /* of a chunked one */
    size_t line;    /* bytes of the line so far, against endless ones */
    bool ended, broken;
};
void upstream_body_init(struct upstream_body *body, const struct upstream_head *head);
/* Takes the framing out of DATA, in place: returns how many bytes of body it begins with then.
 * RET_USED: how many were looked at; less than LEN only when it has ended or is broken. */
size_t upstream_body_decode(struct upstream_body *body, char *data, size_t len, size_t *ret_used);
