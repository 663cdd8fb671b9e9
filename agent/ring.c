#include "agent/ring.h"

#include <stdlib.h>
#include <string.h>

#define RING_MIN ((size_t)4096)
#define RING_KEEP ((size_t)65536) /* an empty ring up to this size keeps its memory */

size_t ring_len(const struct ring *ring)
{
    return (size_t)(ring->end - ring->start);
}

size_t ring_peek(const struct ring *ring, uint64_t offset, const uint8_t **ret_ptr)
{
    if (offset >= ring->end)
        return 0;
    size_t index = (size_t)offset & (ring->cap - 1);
    size_t left = (size_t)(ring->end - offset);
    *ret_ptr = ring->ptr + index;
    return left < ring->cap - index ? left : ring->cap - index;
}

static bool grow(struct ring *ring, size_t need)
{
    size_t cap = ring->cap != 0 ? ring->cap : RING_MIN;
    while (cap < need)
        cap *= 2;
    uint8_t *ptr = malloc(cap);
    if (ptr == NULL)
        return false;
    for (uint64_t offset = ring->start; offset < ring->end;) {
        const uint8_t *from = NULL;
        size_t count = ring_peek(ring, offset, &from);
        size_t index = (size_t)offset & (cap - 1);
        if (count > cap - index)
            count = cap - index;
        memcpy(ptr + index, from, count);
        offset += count;
    }
    free(ring->ptr);
    ring->ptr = ptr;
    ring->cap = cap;
    return true;
}

bool ring_append(struct ring *ring, const void *data, size_t len)
{
    if (ring_len(ring) + len > ring->cap && !grow(ring, ring_len(ring) + len))
        return false;
    const uint8_t *from = data;
    while (len > 0) {
        size_t index = (size_t)ring->end & (ring->cap - 1);
        size_t count = len < ring->cap - index ? len : ring->cap - index;
        memcpy(ring->ptr + index, from, count);
        ring->end += count;
        from += count;
        len -= count;
    }
    return true;
}

void ring_drop(struct ring *ring, uint64_t offset)
{
    if (offset > ring->start)
        ring->start = offset < ring->end ? offset : ring->end;
    if (ring->start == ring->end && ring->cap > RING_KEEP) {
        free(ring->ptr);
        ring->ptr = NULL;
        ring->cap = 0;
    }
}

void ring_reset(struct ring *ring, uint64_t offset)
{
    ring->start = ring->end = offset;
}

void ring_free(struct ring *ring)
{
    free(ring->ptr);
    ring->ptr = NULL;
    ring->cap = 0;
    ring->start = ring->end;
}
