#include "sandbox/scrub_skip.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define FREE_FACTOR 8  /* places for each block, so that few share one by chance */
#define PLACES_MIN 256 /* powers of two; the most is what a core's own cache holds */
#define PLACES_MAX ((size_t)1 << 17)

/* Of a block: where in a pattern it may lie (a bit for each offset modulo 8). */
#define WHERE(offset) (1u << ((offset) % 8))

struct scrub_skip {
    size_t window, stride;
    size_t places;
    unsigned int shift; /* makes a place of a hash */
    uint8_t *where;     /* of the block with that place */
    uint8_t *begins;    /* a pattern begins with it */
};

static uint32_t hash_of(const unsigned char *block)
{
    uint32_t value;
    memcpy(&value, block, sizeof(value));
    return value * UINT32_C(0x9e3779b1);
}

struct scrub_skip *scrub_skip_new(size_t shortest, size_t blocks)
{
    assert(shortest >= SCRUB_BLOCK);
    struct scrub_skip *skip = xcalloc(1, sizeof(*skip));
    unsigned int bits = 8;
    skip->places = PLACES_MIN;
    while (skip->places < PLACES_MAX && skip->places < FREE_FACTOR * blocks) {
        skip->places *= 2;
        bits++;
    }
    skip->shift = 32 - bits;
    skip->window = shortest < SCRUB_WINDOW_MAX ? shortest : SCRUB_WINDOW_MAX;
    skip->stride = skip->window - SCRUB_BLOCK + 1;
    skip->where = xcalloc(skip->places, 1);
    skip->begins = xcalloc(skip->places / 8, 1);
    return skip;
}

void scrub_skip_free(struct scrub_skip *skip)
{
    if (skip == NULL)
        return;
    free_secret(skip->where, skip->places);
    free_secret(skip->begins, skip->places / 8);
    free(skip);
}

size_t scrub_skip_window(const struct scrub_skip *skip)
{
    return skip->window;
}

void scrub_skip_add(struct scrub_skip *skip, const unsigned char block[SCRUB_BLOCK], size_t len)
{
    uint32_t place = hash_of(block) >> skip->shift;
    skip->where[place] |= (uint8_t)WHERE(len - SCRUB_BLOCK);
    if (len == SCRUB_BLOCK)
        skip->begins[place / 8] |= (uint8_t)(1u << (place % 8));
}

static bool may_begin(const struct scrub_skip *skip, const unsigned char *block)
{
    uint32_t place = hash_of(block) >> skip->shift;
    return skip->begins[place / 8] >> (place % 8) & 1;
}

size_t scrub_skip(const struct scrub_skip *skip, const unsigned char *data, size_t at, size_t len)
{
    const size_t stride = skip->stride, window = skip->window;
    const uint8_t *table = skip->where;
    for (; len - at >= window; at += stride) {
        const unsigned char *last = data + at + stride - 1;
        unsigned int where = table[hash_of(last) >> skip->shift];
        for (size_t back = where == 0 ? 0 : stride; back-- > 0;) {
            if (where & WHERE(back) && may_begin(skip, last - back))
                return (size_t)(last - back - data);
        }
    }
    return at;
}
