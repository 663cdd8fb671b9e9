#pragma once

#include "agent/frame.h"
#include "base/buf.h"
#include "sandbox/call.h"
#include "server/request.h"

/* What an agent lists on stream 1 of a call: entries of u32 length and fields, collected whole. It
 * is, or begins, the state of its request. */
struct listing {
    struct call *call;
    struct pipe *pipe;
    struct buf entries;
    handler_fn done; /* once the result is there; a failure has been answered */
};

void listing_init(struct listing *listing, enum proto_op op, size_t max, handler_fn done);
void listing_done(struct listing *listing); /* ends the call, if it runs still */
enum verdict listing_run(struct request *request, struct listing *listing);
/* The next of ENTRIES; false at the end. */
bool listing_next(struct str *entries, struct field_reader *ret_fields);
