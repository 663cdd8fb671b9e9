/* An Aho-Corasick automaton over all forms of all secrets, so that the time is linear in the text,
 * whatever the text and the secrets are. Most patterns share nothing but their first bytes: a
 * node's first child is simply the next node, and only further children are looked up in a hash
 * table. */
#include "sandbox/scrub.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sandbox/scrub_forms.h"
#include "sandbox/scrub_skip.h"

#define PATTERN_MAX ((size_t)1 << 24)
#define ROOT 0
#define SHOWN_MIN 4 /* bytes of a pattern's beginning that may be shown after a moment */

struct node {
    uint32_t fail;             /* the longest other suffix that begins a pattern */
    unsigned int depth : 24;   /* bytes from the root */
    unsigned int byte : 8;     /* that leads here */
    unsigned int match : 24;   /* bytes of the longest pattern that ends here; 0: none */
    unsigned int chained : 1;  /* a child of the node before */
    unsigned int branches : 1; /* has children in the table */
    unsigned int firm : 1;  /* so much of a pattern that it is not shown, however long it takes */
    unsigned int decoy : 1; /* a form of it ends here */
};

struct edge {
    uint32_t parent;
    uint32_t child; /* 0: a free place */
};

/* The first two bytes of all patterns, a bit each: most text is passed over by them alone. */
struct pairs {
    uint64_t bits[65536 / 64];
};

struct scrubber {
    atomic_uint refs;
    uint32_t first[256];     /* the root's children */
    struct pairs *pairs;     /* NULL when there is no pattern */
    struct scrub_skip *skip; /* NULL when there is none, or a very short one */
    struct node *nodes;      /* one more than `count`, so that the next one can be looked at */
    size_t count;
    size_t room;
    struct edge
        *edges; /* open addressing; `edge_room` is a power of two, at least twice the edges */
    size_t edge_count;
    size_t edge_room;
    size_t longest, shortest; /* patterns */
    bool adding_decoy;        /* while it is built */
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t edge_place(const struct scrubber *scrubber, uint32_t parent, unsigned int byte)
{
    uint64_t hash = ((uint64_t)parent << 8 | byte) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 32) & (scrubber->edge_room - 1);
}

static uint32_t edge_find(const struct scrubber *scrubber, uint32_t parent, unsigned int byte)
{
    size_t place = edge_place(scrubber, parent, byte);
    for (;; place = (place + 1) & (scrubber->edge_room - 1)) {
        const struct edge *edge = &scrubber->edges[place];
        if (edge->child == 0 ||
            (edge->parent == parent && scrubber->nodes[edge->child].byte == byte))
            return edge->child;
    }
}

static void edge_put(struct scrubber *scrubber, struct edge edge)
{
    size_t place = edge_place(scrubber, edge.parent, scrubber->nodes[edge.child].byte);
    while (scrubber->edges[place].child != 0)
        place = (place + 1) & (scrubber->edge_room - 1);
    scrubber->edges[place] = edge;
}

static void edge_add(struct scrubber *scrubber, uint32_t parent, uint32_t child)
{
    if (2 * (scrubber->edge_count + 1) > scrubber->edge_room) {
        struct edge *old = scrubber->edges;
        size_t old_room = scrubber->edge_room;
        scrubber->edge_room = old_room == 0 ? 64 : 2 * old_room;
        scrubber->edges = xcalloc(scrubber->edge_room, sizeof(*scrubber->edges));
        for (size_t i = 0; i < old_room; i++) {
            if (old[i].child != 0)
                edge_put(scrubber, old[i]);
        }
        free(old);
    }
    edge_put(scrubber, (struct edge){.parent = parent, .child = child});
    scrubber->edge_count++;
}

/* The child of NODE over BYTE, or 0. */
static inline uint32_t child_of(const struct scrubber *scrubber, uint32_t node, unsigned int byte)
{
    if (node == ROOT)
        return scrubber->first[byte];
    const struct node *next = &scrubber->nodes[node + 1];
    if (next->chained && next->byte == byte)
        return node + 1;
    return scrubber->nodes[node].branches ? edge_find(scrubber, node, byte) : 0;
}

static inline uint32_t step(const struct scrubber *scrubber, uint32_t node, unsigned int byte)
{
    for (;;) {
        uint32_t child = child_of(scrubber, node, byte);
        if (child != 0 || node == ROOT)
            return child;
        node = scrubber->nodes[node].fail;
    }
}

static inline bool is_pair(const struct pairs *pairs, unsigned int first, unsigned int second)
{
    unsigned int pair = first << 8 | second;
    return pairs->bits[pair / 64] >> (pair % 64) & 1;
}

/* Building. */

static void set_room(struct scrubber *scrubber, size_t room)
{
    struct node *nodes = xcalloc(room, sizeof(*nodes));
    if (scrubber->nodes != NULL)
        memcpy(nodes, scrubber->nodes, scrubber->count * sizeof(*nodes));
    free_secret(scrubber->nodes, scrubber->room * sizeof(*nodes));
    scrubber->nodes = nodes;
    scrubber->room = room;
}

static uint32_t add_node(struct scrubber *scrubber, uint32_t parent, unsigned int byte)
{
    if (scrubber->count + 1 == scrubber->room)
        set_room(scrubber, 2 * scrubber->room);
    uint32_t node = (uint32_t)scrubber->count++;
    struct node *nodes = scrubber->nodes;
    bool chained = parent != ROOT && parent + 1 == node;
    nodes[node] = (struct node){
        .depth = (nodes[parent].depth + 1) & 0xffffff, .byte = byte & 0xff, .chained = chained};
    if (parent == ROOT) {
        scrubber->first[byte] = node;
    } else if (!chained) {
        nodes[parent].branches = 1;
        edge_add(scrubber, parent, node);
    }
    return node;
}

static void add_pattern(void *arg, const char *data, size_t len)
{
    struct scrubber *scrubber = arg;
    assert(len > 0 && len < PATTERN_MAX);
    uint32_t node = ROOT;
    for (size_t i = 0; i < len; i++) {
        unsigned int byte = (unsigned char)data[i];
        uint32_t child = child_of(scrubber, node, byte);
        node = child != 0 ? child : add_node(scrubber, node, byte);
    }
    scrubber->nodes[node].match = len & 0xffffff;
    scrubber->nodes[node].decoy |= scrubber->adding_decoy;
    if (len > scrubber->longest)
        scrubber->longest = len;
    if (scrubber->shortest == 0 || len < scrubber->shortest)
        scrubber->shortest = len;
}

/* The nodes by their depth: `fail` of a node needs those of all shorter ones. */
static uint32_t *sort_by_depth(const struct scrubber *scrubber)
{
    size_t *start = xcalloc(scrubber->longest + 2, sizeof(*start));
    for (size_t i = 0; i < scrubber->count; i++)
        start[scrubber->nodes[i].depth + 1]++;
    for (size_t i = 1; i < scrubber->longest + 2; i++)
        start[i] += start[i - 1];
    uint32_t *order = xcalloc(scrubber->count, sizeof(*order));
    for (size_t i = 0; i < scrubber->count; i++)
        order[start[scrubber->nodes[i].depth]++] = (uint32_t)i;
    free(start);
    return order;
}

static uint32_t *find_parents(const struct scrubber *scrubber)
{
    uint32_t *parents = xcalloc(scrubber->count, sizeof(*parents));
    for (size_t i = 1; i < scrubber->count; i++)
        parents[i] = scrubber->nodes[i].chained ? (uint32_t)(i - 1) : ROOT;
    for (size_t i = 0; i < scrubber->edge_room; i++) {
        if (scrubber->edges[i].child != 0)
            parents[scrubber->edges[i].child] = scrubber->edges[i].parent;
    }
    return parents;
}

/* By the shortest pattern that goes through a node: more than four bytes and a quarter of it. */
static void find_firm(struct scrubber *scrubber, const uint32_t *order, const uint32_t *parents)
{
    cleanup_free size_t *shortest = xcalloc(scrubber->count, sizeof(*shortest));
    for (size_t i = scrubber->count; i-- > 1;) {
        uint32_t at = order[i];
        struct node *node = &scrubber->nodes[at];
        size_t *parent = &shortest[parents[at]];
        if (node->match > 0)
            shortest[at] = node->match;
        if (*parent == 0 || shortest[at] < *parent)
            *parent = shortest[at];
        node->firm = node->depth > SHOWN_MIN && node->depth > shortest[at] / 4;
    }
}

/* The four bytes that end at each node of the patterns' beginnings. */
static void find_blocks(struct scrubber *scrubber, const uint32_t *parents)
{
    if (scrubber->shortest < SCRUB_BLOCK)
        return;
    size_t blocks = 0, most = smaller(scrubber->shortest, SCRUB_WINDOW_MAX);
    for (size_t i = 1; i < scrubber->count; i++)
        blocks += scrubber->nodes[i].depth <= most;
    scrubber->skip = scrub_skip_new(scrubber->shortest, blocks);
    for (size_t i = 1; i < scrubber->count; i++) {
        size_t depth = scrubber->nodes[i].depth;
        unsigned char block[SCRUB_BLOCK];
        if (depth < SCRUB_BLOCK || depth > scrub_skip_window(scrubber->skip))
            continue;
        size_t node = i;
        for (size_t at = SCRUB_BLOCK; at-- > 0; node = parents[node])
            block[at] = scrubber->nodes[node].byte;
        scrub_skip_add(scrubber->skip, block, depth);
        explicit_bzero(block, sizeof(block));
    }
}

static void link_nodes(struct scrubber *scrubber)
{
    cleanup_free uint32_t *order = sort_by_depth(scrubber);
    cleanup_free uint32_t *parents = find_parents(scrubber);
    find_firm(scrubber, order, parents);
    find_blocks(scrubber, parents);
    for (size_t i = 1; i < scrubber->count; i++) {
        struct node *node = &scrubber->nodes[order[i]];
        if (node->depth > 1)
            node->fail = step(scrubber, scrubber->nodes[parents[order[i]]].fail, node->byte);
        if (node->match == 0)
            node->match = scrubber->nodes[node->fail].match;
        node->decoy |= scrubber->nodes[node->fail].decoy;
    }
}

/* A pattern of one byte is one with whatever follows. */
static void find_pairs(struct scrubber *scrubber)
{
    scrubber->pairs = xcalloc(1, sizeof(*scrubber->pairs));
    for (unsigned int first = 0; first < 256; first++) {
        uint32_t node = scrubber->first[first];
        for (unsigned int second = 0; node != 0 && second < 256; second++) {
            unsigned int pair = first << 8 | second;
            if (scrubber->nodes[node].match > 0 || child_of(scrubber, node, second) != 0)
                scrubber->pairs->bits[pair / 64] |= (uint64_t)1 << (pair % 64);
        }
    }
}

struct scrubber *scrubber_new_with_decoy(const struct text_list *values, const char *decoy)
{
    struct scrubber *scrubber = xcalloc(1, sizeof(*scrubber));
    atomic_init(&scrubber->refs, 1);
    set_room(scrubber, 64);
    scrubber->count = 1;
    for (size_t i = 0; values != NULL && i < values->count; i++)
        scrub_forms(values->items[i], add_pattern, scrubber);
    scrubber->adding_decoy = true;
    if (decoy != NULL)
        scrub_forms(decoy, add_pattern, scrubber);
    link_nodes(scrubber);
    set_room(scrubber, scrubber->count + 1);
    if (scrubber->count > 1)
        find_pairs(scrubber);
    return scrubber;
}

struct scrubber *scrubber_new(const struct text_list *values)
{
    return scrubber_new_with_decoy(values, NULL);
}

struct scrubber *scrubber_ref(const struct scrubber *scrubber)
{
    struct scrubber *counted = (struct scrubber *)scrubber; /* the count is no part of its value */
    atomic_fetch_add_explicit(&counted->refs, 1, memory_order_relaxed);
    return counted;
}

void scrubber_unref(struct scrubber *scrubber)
{
    if (scrubber == NULL ||
        atomic_fetch_sub_explicit(&scrubber->refs, 1, memory_order_acq_rel) != 1)
        return;
    free_secret(scrubber->nodes, scrubber->room * sizeof(*scrubber->nodes));
    free(scrubber->edges);
    if (scrubber->pairs != NULL)
        free_secret(scrubber->pairs, sizeof(*scrubber->pairs));
    scrub_skip_free(scrubber->skip);
    free_secret(scrubber, sizeof(*scrubber));
}

bool scrubber_empty(const struct scrubber *scrubber)
{
    return scrubber->longest == 0;
}

size_t scrubber_longest(const struct scrubber *scrubber)
{
    return scrubber->longest;
}

/* Scanning. */

/* What is to be masked: FROM up to but without TO. */
struct span {
    uint64_t from, to;
};

struct scan {
    const struct scrubber *scrubber;
    uint32_t node;
    uint64_t at;        /* bytes seen */
    bool decoy;         /* seen */
    struct span *spans; /* in order, disjoint */
    size_t count;
    size_t room;
};

static void scan_done(struct scan *scan)
{
    free(scan->spans);
}

/* A match ends at TO. A longer one that ends later may reach back over several earlier ones. */
static void add_span(struct scan *scan, uint64_t from, uint64_t to)
{
    while (scan->count > 0 && scan->spans[scan->count - 1].to > from) {
        scan->count--;
        if (scan->spans[scan->count].from < from)
            from = scan->spans[scan->count].from;
    }
    if (scan->count == scan->room) {
        scan->room = scan->room == 0 ? 16 : 2 * scan->room;
        scan->spans = xrealloc(scan->spans, scan->room * sizeof(*scan->spans));
    }
    scan->spans[scan->count++] = (struct span){from, to};
}

/* Where the next pattern may begin in DATA from AT on, at the root. The last byte may always. */
static size_t skip(const struct scrubber *scrubber, const unsigned char *data, size_t at,
                   size_t len)
{
    for (; at + 1 < len; at++) {
        if (scrubber->skip != NULL)
            at = scrub_skip(scrubber->skip, data, at, len);
        if (at + 1 < len && is_pair(scrubber->pairs, data[at], data[at + 1]))
            break;
    }
    return at;
}

static void scan_bytes(struct scan *scan, const char *data, size_t len)
{
    const struct scrubber *scrubber = scan->scrubber;
    const unsigned char *bytes = (const unsigned char *)data;
    uint32_t node = scan->node;
    for (size_t i = 0; i < len; i++) {
        if (node == ROOT)
            i = skip(scrubber, bytes, i, len);
        node = step(scrubber, node, bytes[i]);
        size_t match = scrubber->nodes[node].match;
        if (match > 0) {
            add_span(scan, scan->at + i + 1 - match, scan->at + i + 1);
            scan->decoy = scan->decoy || scrubber->nodes[node].decoy;
        }
    }
    scan->node = node;
    scan->at += len;
}

/* Bytes at the end that may yet become part of a match. What ends a pattern and begins no other is
 * decided, as far as it is not the beginning of one in itself. */
static size_t undecided(const struct scan *scan, bool firm)
{
    const struct node *nodes = scan->scrubber->nodes;
    uint32_t node = scan->node;
    while (node != ROOT &&
           ((!nodes[node].branches && !nodes[node + 1].chained) || (firm && !nodes[node].firm)))
        node = nodes[node].fail;
    return nodes[node].depth;
}

size_t scrubber_mask(const struct scrubber *scrubber, char *data, size_t len)
{
    if (scrubber_empty(scrubber))
        return 0;
    cleanup(scan_done) struct scan scan = {.scrubber = scrubber};
    scan_bytes(&scan, data, len);
    for (size_t i = 0; i < scan.count; i++)
        memset(data + scan.spans[i].from, '*', scan.spans[i].to - scan.spans[i].from);
    return scan.count;
}

bool scrubber_text(const struct scrubber *scrubber, const char *data, size_t len, struct buf *out)
{
    cleanup(scan_done) struct scan scan = {.scrubber = scrubber};
    if (!scrubber_empty(scrubber))
        scan_bytes(&scan, data, len);
    size_t at = 0;
    for (size_t i = 0; i < scan.count; i++) {
        if (!buf_append(out, data + at, scan.spans[i].from - at) || !buf_append_str(out, "***"))
            return false;
        at = scan.spans[i].to;
    }
    return buf_append(out, data + at, len - at);
}

/* Streams. */

struct scrub_stream {
    struct scrubber *scrubber;
    struct scan scan;
    struct buf held; /* as it came; ends at scan.at */
    size_t done;     /* spans at the front that were appended as a whole, not yet removed */
    size_t matches;
    uint64_t masked;
    void (*note)(void *arg, uint64_t from, uint64_t to); /* or NULL */
    void *note_arg;
};

struct scrub_stream *scrub_stream_new(const struct scrubber *scrubber)
{
    struct scrub_stream *stream = xcalloc(1, sizeof(*stream));
    stream->scrubber = scrubber_ref(scrubber);
    stream->scan.scrubber = scrubber;
    stream->held = BUF_INIT(PATTERN_MAX);
    return stream;
}

void scrub_stream_free(struct scrub_stream *stream)
{
    if (stream == NULL)
        return;
    buf_wipe(&stream->held);
    scan_done(&stream->scan);
    scrubber_unref(stream->scrubber);
    free(stream);
}

void scrub_stream_watch(struct scrub_stream *stream,
                        void (*note)(void *arg, uint64_t from, uint64_t to), void *arg)
{
    stream->note = note;
    stream->note_arg = arg;
}

/* Masks what the bytes from BEGIN to END of the stream, which are at DATA, have in common with
 * SPAN; returns how many. */
static size_t mask_span(const struct scrub_stream *stream, struct span span, char *data,
                        uint64_t begin, uint64_t end)
{
    uint64_t from = span.from > begin ? span.from : begin;
    uint64_t to = span.to < end ? span.to : end;
    if (from >= to)
        return 0;
    memset(data + (from - begin), '*', to - from);
    if (stream->note != NULL)
        stream->note(stream->note_arg, span.from, span.to);
    return to - from;
}

static void mask_spans(struct scrub_stream *stream, char *data, uint64_t begin, uint64_t end)
{
    const struct scan *scan = &stream->scan;
    for (size_t i = stream->done; i < scan->count && scan->spans[i].from < end; i++) {
        stream->masked += mask_span(stream, scan->spans[i], data, begin, end);
        if (scan->spans[i].to <= end) {
            stream->matches++;
            stream->done++;
        }
    }
}

bool scrub_stream_peek(const struct scrub_stream *stream, struct buf *out, size_t *ret_masked)
{
    size_t at = out->len;
    if (!buf_append(out, stream->held.ptr, stream->held.len))
        return false;
    const struct scan *scan = &stream->scan;
    uint64_t begin = scan->at - stream->held.len;
    size_t masked = 0;
    for (size_t i = stream->done; i < scan->count; i++)
        masked += mask_span(stream, scan->spans[i], out->ptr + at, begin, scan->at);
    *ret_masked = masked;
    return true;
}

static void drop_done_spans(struct scrub_stream *stream)
{
    struct scan *scan = &stream->scan;
    if (stream->done == 0 || (stream->done < 64 && stream->done < scan->count))
        return;
    memmove(scan->spans, scan->spans + stream->done,
            (scan->count - stream->done) * sizeof(*scan->spans));
    scan->count -= stream->done;
    stream->done = 0;
}

/* All that is held and new goes to OUT's spare room; what is undecided is taken back from its end.
 */
bool scrub_stream_push(struct scrub_stream *stream, const char *data, size_t len, struct buf *out,
                       bool last)
{
    if (scrubber_empty(stream->scrubber))
        return buf_append(out, data, len);
    struct buf *held = &stream->held;
    size_t total = held->len + len;
    size_t most = smaller(total, stream->scrubber->longest - 1);
    if (most > held->len && buf_reserve(held, most - held->len) == NULL)
        return false;
    char *room = buf_reserve(out, total);
    if (room == NULL)
        return false;
    if (held->len > 0)
        memcpy(room, held->ptr, held->len);
    if (len > 0)
        memcpy(room + held->len, data, len);
    uint64_t begin = stream->scan.at - held->len;
    scan_bytes(&stream->scan, data, len);
    size_t keep = last ? 0 : undecided(&stream->scan, false);
    mask_spans(stream, room, begin, stream->scan.at - keep);
    drop_done_spans(stream);
    buf_reset(held);
    if (keep > 0 && !buf_append(held, room + total - keep, keep))
        abort(); /* its room was reserved */
    buf_grew(out, total - keep);
    if (last)
        stream->scan.node = ROOT;
    return true;
}

size_t scrub_stream_held(const struct scrub_stream *stream)
{
    return stream->held.len;
}

size_t scrub_stream_held_firmly(const struct scrub_stream *stream)
{
    return scrubber_empty(stream->scrubber) ? 0 : undecided(&stream->scan, true);
}

bool scrub_stream_saw_decoy(const struct scrub_stream *stream)
{
    return stream->scan.decoy;
}

size_t scrub_stream_matches(const struct scrub_stream *stream)
{
    return stream->matches;
}

uint64_t scrub_stream_masked(const struct scrub_stream *stream)
{
    return stream->masked;
}
