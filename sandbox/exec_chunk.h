#pragma once

#include "sandbox/exec_piece.h"

/* The next of a stream's output for somebody who reads on from OFFSET. */
enum chunk_kind {
    CHUNK_NONE,  /* no more now, or all of it */
    CHUNK_BYTES, /* `piece` */
    CHUNK_GAP,   /* lost, or dropped */
};

struct chunk {
    enum chunk_kind kind;
    uint64_t to; /* offset of the stream behind it */
    struct piece piece;
    bool is_text;
    int64_t again_ms; /* CHUNK_NONE: ask again after so long, also if nothing comes; 0: no need */
};

struct chunk_wish {
    size_t max;
    bool text;  /* characters are not cut in two, nor secrets, as far as that can be */
    bool flush; /* and not waited for any longer */
};
int chunk_next(const struct output *output, uint64_t offset, const struct chunk_wish *wish,
               struct chunk *ret_chunk, struct err *err) must_check;
void chunk_done(struct chunk *chunk);
