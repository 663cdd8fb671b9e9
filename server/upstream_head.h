#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "server/framing.h"

/* The head of what a program answers. */

enum body_kind {
    BODY_EMPTY,
    BODY_LENGTH,
    BODY_CHUNKED,
    BODY_TO_END, /* of the connection */
};

struct upstream_head {
    int status;
    struct text_field *fields; /* in order */
    size_t count;
    enum body_kind kind;
    int64_t length;  /* as said by Content-Length, also where no body follows; -1: not */
    bool persistent; /* the connection may be used again after the body */
};
void upstream_head_done(struct upstream_head *head);

/* Leaves the fields that are for the client: not those of the connection, and no cookie's domain.
 */
void upstream_head_clean(struct upstream_head *head);
