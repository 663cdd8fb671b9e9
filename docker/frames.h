#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* What an exec without a terminal writes: frames of eight bytes (stream, three zeroes, length) and
 * a payload, cut anywhere. A pure state machine that holds no payload. */
struct frames {
    uint8_t head[8];
    uint8_t have;  /* bytes of the head */
    uint32_t left; /* bytes of the payload still to come */
};

/* The output of DATA goes to OUT, which has room for LEN bytes; what came on standard error, or
 * from the engine itself, to WORDS as far as there is room. False: this is no such stream. */
bool frames_feed(struct frames *frames, const uint8_t *data, size_t len, uint8_t *out,
                 size_t *ret_out_len, struct buf *words) must_check;

/* Within a frame: an end here is a cut. */
bool frames_in_frame(const struct frames *frames);
