#pragma once

#include "agent/worker.h"

/* Stream 0 of a request: bytes that come in order, with credit for more. */
struct intake {
    uint64_t received, granted, window;
};

void intake_init(struct intake *intake);
/* The bytes of FRAME (DATA) that are new. False: answered, it leaves a hole or passes its limit. */
bool intake_take(struct worker *worker, struct intake *intake, const struct frame *frame,
                 const uint8_t **ret_data, size_t *ret_len);
/* They are stored: more may come. */
void intake_stored(struct worker *worker, struct intake *intake, size_t len);
