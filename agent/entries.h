#pragma once

#include "agent/frame.h"

/* The entries of an archive on a stream, as OP_PACK sends and OP_UNPACK takes them. Shared by both
 * sides, libc only.
 *
 *   u32 length, fields: TYPE (f d l, h: a hard link to LINK, n: a note about a PATH that is not
 *   sent, with ERROR), PATH, and of those but n SIZE, MODE, MTIME_S, MTIME_NS, LINK, EXTENT*
 *   after a TYPE f its content, as chunks in the order of their offsets, and one without bytes:
 *   u32 length, u64 offset, bytes        u32 0, u64 enum entry_end
 */
#define ENTRY_HEAD_MAX 16384
#define ENTRY_CHUNK_HEADER 12
#define ENTRY_CHUNK_MAX 32768
#define ENTRY_EXTENTS 256 /* EXTENT: u64 offset, u64 length of what is no hole; none: all of it */
#define ENTRY_EXTENT_LEN 16
#define ENTRY_DEPTH_MAX 128 /* names in a path */

enum entry_end {
    ENTRY_WHOLE = 0,
    ENTRY_CHANGED = 1,    /* it was another size while it was read: what lacks is zeros */
    ENTRY_UNREADABLE = 2, /* what lacks could not be read, and is zeros */
    ENTRY_CUT = 3,        /* what lacks will not come: it is not to be kept */
};

enum entry_state { ENTRY_IN_LENGTH, ENTRY_IN_HEAD, ENTRY_IN_CHUNK_HEADER, ENTRY_IN_CHUNK };

/* Takes bytes in any pieces. Treats its input as hostile. */
struct entry_parser {
    enum entry_state state;
    size_t have, want;
    uint64_t offset; /* of the chunk's next byte */
    uint32_t left;   /* of the chunk */
    uint8_t head[ENTRY_HEAD_MAX];
};

enum entry_event {
    ENTRY_MORE,   /* all bytes are used up */
    ENTRY_BEGIN,  /* `fields` stand until the next call */
    ENTRY_DATA,   /* `data` points into the bytes that were given */
    ENTRY_END,    /* of the content that began; `end` is not checked */
    ENTRY_BROKEN, /* no sense in it; the parser must not be used any more */
};

struct entry_item {
    struct field_reader fields;
    const uint8_t *data;
    size_t len;
    uint64_t offset;
    uint64_t end;
};

void entry_parser_init(struct entry_parser *parser);
enum entry_event entry_parse(struct entry_parser *parser, const uint8_t **data, size_t *len,
                             struct entry_item *ret_item);
/* Whether the stream may end here. */
bool entry_parser_between(const struct entry_parser *parser);

void entry_chunk_write(uint8_t ret_header[ENTRY_CHUNK_HEADER], uint32_t len, uint64_t offset);

/* PATH of an archive as a plain one below its root: without "." and empty names, "" for the root.
 * Returns NULL, or why it must not be used (absolute, "..", too long, too deep). RET_PATH has room
 * for PATH_MAX bytes. */
const char *entry_path(const char *path, size_t len, char *ret_path);
