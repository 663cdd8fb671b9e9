/* Output in pieces for somebody who follows it. */
#include "sandbox/exec_chunk.h"

#define TRIES 4

void chunk_done(struct chunk *chunk)
{
    piece_done(&chunk->piece);
    *chunk = (struct chunk){.kind = CHUNK_NONE};
}

/* True when the byte at OFFSET is lost or was dropped: RET_TO is where it goes on. */
static bool gap_at(const struct output *output, uint64_t offset, uint64_t *ret_to)
{
    uint64_t from, begin, end;
    if (!ranges_squeeze(&output->lost, offset, &from)) {
        for (size_t i = 0; i < output->lost.count; i++) {
            if (offset >= output->lost.items[i].from && offset < output->lost.items[i].to)
                *ret_to = output->lost.items[i].to;
        }
        return true;
    }
    output_region(output, from, &begin, &end);
    if (from >= begin)
        return false;
    *ret_to = ranges_expand(&output->lost, begin, true);
    return true;
}

/* A secret that goes on behind the piece is left to the next one, so that it is one `***`. */
static void leave_cut_mask(struct piece *piece)
{
    if (piece->masks.count == 0)
        return;
    const struct range *last = &piece->masks.items[piece->masks.count - 1];
    if (last->to == piece->to && last->from > piece->from)
        piece_shorten(piece, 0, (size_t)(last->from - piece->from));
}

/* False: nothing of it is to be given yet. */
static bool make_text(struct chunk *chunk, const struct journal_range *range, bool flush)
{
    struct piece *piece = &chunk->piece;
    size_t skip, len;
    if (range->grows && !flush)
        leave_cut_mask(piece);
    chunk->is_text = piece_trim(piece, false, range->grows && !flush, &skip, &len);
    if (!chunk->is_text)
        return true;
    if (len == 0)
        return false; /* the beginning of one character */
    piece_shorten(piece, 0, len);
    return true;
}

static int bytes_at(const struct output *output, uint64_t offset, const struct chunk_wish *wish,
                    struct chunk *ret_chunk, struct err *err)
{
    struct chunk chunk = {.kind = CHUNK_NONE};
    struct journal_range range;
    if (output_range(output, offset, wish->max, &range, err))
        return -1;
    if (range.from == range.to) {
        chunk.again_ms = range.briefly ? OUTPUT_HOLD_MS : 0;
        *ret_chunk = chunk;
        return 0;
    }
    if (piece_read(output, range.from, range.to, &chunk.piece, err))
        return -1;
    bool unsettled = wish->text && chunk.piece.unsettled;
    if (unsettled || (wish->text && !make_text(&chunk, &range, wish->flush))) {
        chunk_done(&chunk);
        chunk.again_ms = unsettled ? OUTPUT_HOLD_MS : 0;
    } else {
        chunk.kind = CHUNK_BYTES;
        chunk.to = offset + (chunk.piece.to - chunk.piece.from);
    }
    *ret_chunk = chunk;
    return 0;
}

int chunk_next(const struct output *output, uint64_t offset, const struct chunk_wish *wish,
               struct chunk *ret_chunk, struct err *err)
{
    struct chunk chunk = {.kind = CHUNK_NONE};
    struct err why = {0};
    if (offset >= output->total) {
        *ret_chunk = chunk;
        return 0;
    }
    /* The tail of a running one moves on while it is read. */
    for (int i = 0; i < TRIES; i++) {
        if (gap_at(output, offset, &chunk.to)) {
            chunk.kind = CHUNK_GAP;
            *ret_chunk = chunk;
            return 0;
        }
        if (bytes_at(output, offset, wish, ret_chunk, &why) == 0)
            return 0;
        if (why.code != ERR_RANGE_NOT_SATISFIABLE)
            break;
    }
    return err_set(err, why.code, "%s", why.msg);
}
