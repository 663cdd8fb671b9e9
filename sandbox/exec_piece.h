#pragma once

#include "sandbox/exec_output.h"

/* Bytes [from, to) of a journal, masked byte by byte; `masks` says where, in its offsets. */
struct piece {
    uint64_t from, to;
    char *data;   /* in `memory` */
    char *memory; /* malloc'd */
    struct ranges masks;
    bool unsettled; /* there may be masks more: who can wait for the next `output` looks again */
};

/* ERR_RANGE_NOT_SATISFIABLE when some of it was dropped. */
int piece_read(const struct output *output, uint64_t from, uint64_t to, struct piece *ret_piece,
               struct err *err) must_check;
void piece_done(struct piece *piece);
void piece_shorten(struct piece *piece, size_t skip, size_t len); /* to LEN bytes behind SKIP */
/* Cuts off what the cut left of a character in FRONT and BACK, if the piece is text then. True when
 * it is. */
bool piece_trim(const struct piece *piece, bool front, bool back, size_t *ret_skip,
                size_t *ret_len);
/* With `***` for each mask; false when TEXT is full. */
bool piece_text(const struct piece *piece, struct buf *text);

/* Where LEN bytes from an offset of the stream are in the journal, without a hole in them. */
struct journal_range {
    uint64_t from, to;
    bool grows;   /* what follows is there, or may come, without a hole */
    bool briefly; /* more of it is held back, but only for a moment */
};
/* ERR_RANGE_NOT_SATISFIABLE when the byte at OFFSET is lost or was dropped. */
int output_range(const struct output *output, uint64_t offset, size_t len,
                 struct journal_range *ret_range, struct err *err) must_check;

uint64_t output_received(const struct output *output); /* the end of the journal */
/* The part of the journal around FROM that has no gap. */
void output_region(const struct output *output, uint64_t from, uint64_t *ret_begin,
                   uint64_t *ret_end);
/* How many bytes before END, which is the end of what there is so far, may be the beginning of a
 * secret. RET_SHORT (may be NULL): it is held for a moment only. */
int output_held(const struct output *output, uint64_t end, size_t *ret_held, bool *ret_short,
                struct err *err) must_check;
