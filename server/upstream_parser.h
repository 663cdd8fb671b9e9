#pragma once

#include <http_parser.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "server/upstream_head.h"

/* Takes apart what a program answers, with http_parser: bytes that may be hostile, as they come.
 *
 * Debian builds http_parser without its strict mode, which lets any byte stand for the line feed
 * behind some carriage returns and any two bytes stand for the line end behind a chunk. So the line
 * ends are looked at here, too: in a head a CR is followed by a LF (a LF alone ends a line as
 * well), in the framing of chunks they come only together. */

/* Also of the lines around a chunk, and of trailers. Below http_parser's own limit, which is one
 * for the whole process. */
#define UPSTREAM_HEAD_MAX ((size_t)32 << 10)
#define UPSTREAM_FIELDS_MAX 200

struct upstream_parser {
    http_parser http;
    bool to_head;
    struct upstream_head head; /* while it is read, then as it is for the client */
    bool headed, ended, broken;
    const char *why; /* it is no answer */

    struct buf name, value; /* of the field that is read */
    bool in_value;
    char last;    /* byte of the head or the framing */
    size_t lines; /* bytes of them so far, since the last byte of a body */

    char *to;           /* where the next bytes of the body go */
    const char *framed; /* the bytes from here to the body's next are framing */
};

/* TO_HEAD: the answer to a HEAD, without a body. */
void upstream_parser_init(struct upstream_parser *parser, bool to_head);
void upstream_parser_done(struct upstream_parser *parser);

/* Reads on in the head. 1: it is complete, 0: not yet; ERR_BAD_ANSWER. RET_USED: how much of DATA
 * belongs to it. */
int upstream_parse_head(struct upstream_parser *parser, const char *data, size_t len,
                        size_t *ret_used, struct err *err) must_check;
/* Takes the framing out of DATA, in place: returns how many bytes of body it begins with then.
 * RET_USED: how many were looked at; less than LEN only when it has ended or is broken. */
size_t upstream_parse_body(struct upstream_parser *parser, char *data, size_t len,
                           size_t *ret_used);
