#include "sandbox/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

bool ranges_add(struct ranges *ranges, uint64_t from, uint64_t to)
{
    struct range *last = ranges->count > 0 ? &ranges->items[ranges->count - 1] : NULL;
    if (last && from <= last->to) {
        if (to > last->to)
            last->to = to;
        return true;
    }
    if (from >= to)
        return true;
    if (ranges->count == RANGES_MAX)
        return false;
    if ((ranges->count & (ranges->count - 1)) == 0) { /* full: its room is a power of two */
        size_t room = ranges->count ? ranges->count * 2 : 1;
        ranges->items = xrealloc(ranges->items, room * sizeof(ranges->items[0]));
    }
    ranges->items[ranges->count++] = (struct range){from, to};
    return true;
}

void ranges_copy(struct ranges *ret_ranges, const struct ranges *from)
{
    *ret_ranges = (struct ranges){0};
    for (size_t i = 0; i < from->count; i++)
        (void)ranges_add(ret_ranges, from->items[i].from,
                         from->items[i].to); /* no more than there */
}

void ranges_done(struct ranges *ranges)
{
    free(ranges->items);
    *ranges = (struct ranges){0};
}

void ranges_merge(struct ranges *ranges, const struct ranges *more)
{
    struct ranges all = {0};
    size_t a = 0, b = 0;
    while (a < ranges->count || b < more->count) {
        bool first =
            b == more->count || (a < ranges->count && ranges->items[a].from <= more->items[b].from);
        const struct range *next = first ? &ranges->items[a++] : &more->items[b++];
        if (!ranges_add(&all, next->from, next->to))
            break; /* too many: the rest is masked all the same, byte by byte */
    }
    ranges_done(ranges);
    *ranges = all;
}

void ranges_clip(const struct ranges *ranges, uint64_t from, uint64_t to, struct ranges *ret_ranges)
{
    *ret_ranges = (struct ranges){0};
    for (size_t i = 0; i < ranges->count; i++) {
        uint64_t begin = ranges->items[i].from > from ? ranges->items[i].from : from;
        uint64_t end = ranges->items[i].to < to ? ranges->items[i].to : to;
        if (begin < end)
            (void)ranges_add(ret_ranges, begin, end); /* no more than there */
    }
}

char *ranges_text(const struct ranges *ranges)
{
    struct buf text = BUF_INIT((size_t)64 * RANGES_MAX);
    for (size_t i = 0; i < ranges->count; i++)
        (void)buf_printf(&text, "%s%llu-%llu", i ? " " : "",
                         (unsigned long long)ranges->items[i].from,
                         (unsigned long long)ranges->items[i].to);
    return buf_take(&text, NULL);
}

static bool take_number(struct str *text, char end, uint64_t *ret_value)
{
    size_t len = 0;
    while (len < text->len && text->ptr[len] != end)
        len++;
    if (!str_to_u64((struct str){text->ptr, len}, INT64_MAX, ret_value))
        return false;
    size_t used = len < text->len ? len + 1 : len;
    text->ptr += used;
    text->len -= used;
    return true;
}

bool ranges_parse(const char *text, struct ranges *ret_ranges)
{
    struct ranges ranges = {0};
    struct str left = str_of(text);
    while (left.len > 0) {
        uint64_t from, to;
        if (!take_number(&left, '-', &from) || !take_number(&left, ' ', &to) || from >= to ||
            !ranges_add(&ranges, from, to)) {
            ranges_done(&ranges);
            return false;
        }
    }
    *ret_ranges = ranges;
    return true;
}

bool ranges_squeeze(const struct ranges *without, uint64_t at, uint64_t *ret_offset)
{
    uint64_t skipped = 0;
    for (size_t i = 0; i < without->count && at >= without->items[i].from; i++) {
        if (at < without->items[i].to)
            return false;
        skipped += without->items[i].to - without->items[i].from;
    }
    *ret_offset = at - skipped;
    return true;
}

uint64_t ranges_expand(const struct ranges *without, uint64_t offset, bool after)
{
    for (size_t i = 0; i < without->count; i++) {
        const struct range *range = &without->items[i];
        if (offset < range->from || (offset == range->from && !after))
            break;
        offset += range->to - range->from;
    }
    return offset;
}
