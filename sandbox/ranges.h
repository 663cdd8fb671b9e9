#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ranges of a stream, in order, none touching. Zero-initialised is empty. */
struct range {
    uint64_t from, to; /* up to but without `to` */
};

struct ranges {
    struct range *items;
    size_t count;
};

#define RANGES_MAX 4096

/* Adds at the end; what overlaps or touches the last one extends it. False when there are too many.
 */
bool ranges_add(struct ranges *ranges, uint64_t from, uint64_t to);
void ranges_copy(struct ranges *ret_ranges, const struct ranges *from);
void ranges_done(struct ranges *ranges);
/* Both in one; what overlaps becomes one. */
void ranges_merge(struct ranges *ranges, const struct ranges *more);

/* What of them lies in [FROM, TO). */
void ranges_clip(const struct ranges *ranges, uint64_t from, uint64_t to,
                 struct ranges *ret_ranges);

/* "0-10 20-25": for records. */
char *ranges_text(const struct ranges *ranges); /* malloc'd */
/* False when malformed; NULL is empty. */
bool ranges_parse(const char *text, struct ranges *ret_ranges);

/* A stream without some ranges, its bytes numbered anew: the offset there of stream offset AT.
 * False when AT lies in one of them. */
bool ranges_squeeze(const struct ranges *without, uint64_t at, uint64_t *ret_offset);
/* And back. AFTER: a range that begins at that place lies before it. */
uint64_t ranges_expand(const struct ranges *without, uint64_t offset, bool after);
