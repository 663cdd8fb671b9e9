#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes [start, end) of a stream, by absolute offset. Grows in powers of two, gives its memory
 * back when it is emptied from a large size. */
#define RING_MAX ((size_t)1 << 20)

struct ring {
    uint8_t *ptr;
    size_t cap; /* a power of two, or 0 */
    uint64_t start, end;
};

size_t ring_len(const struct ring *ring);
/* At most RING_MAX in all (the caller sees to it); false when memory is out. */
bool ring_append(struct ring *ring, const void *data, size_t len);
/* The contiguous bytes from OFFSET on (within [start, end]); returns how many. */
size_t ring_peek(const struct ring *ring, uint64_t offset, const uint8_t **ret_ptr);
/* Forgets what lies below OFFSET (at most `end`). */
void ring_drop(struct ring *ring, uint64_t offset);
/* Empties it and goes on at OFFSET. */
void ring_reset(struct ring *ring, uint64_t offset);
void ring_free(struct ring *ring);
