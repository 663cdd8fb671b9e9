#include "agent/entries.h"

#include <limits.h>
#include <string.h>

#include "agent/proto.h"

void entry_parser_init(struct entry_parser *parser)
{
    parser->state = ENTRY_IN_LENGTH;
    parser->have = 0;
    parser->want = 4;
}

bool entry_parser_between(const struct entry_parser *parser)
{
    return parser->state == ENTRY_IN_LENGTH && parser->have == 0;
}

void entry_chunk_write(uint8_t ret_header[ENTRY_CHUNK_HEADER], uint32_t len, uint64_t offset)
{
    wire_put_u32(ret_header, len);
    wire_put_u64(ret_header + 4, offset);
}

static void go_to(struct entry_parser *parser, enum entry_state state, size_t want)
{
    parser->state = state;
    parser->have = 0;
    parser->want = want;
}

/* False: not all of it is there yet. */
static bool gather(struct entry_parser *parser, const uint8_t **data, size_t *len)
{
    size_t lacks = parser->want - parser->have;
    size_t take = *len < lacks ? *len : lacks;
    memcpy(parser->head + parser->have, *data, take);
    parser->have += take;
    *data += take;
    *len -= take;
    return parser->have == parser->want;
}

static enum entry_event begin(struct entry_parser *parser, struct entry_item *item)
{
    struct field_reader reader;
    struct field field;
    bool content = false;
    field_reader_init(&reader, parser->head, parser->have);
    while (field_next(&reader, &field)) {
        if (field.tag == TAG_TYPE)
            content = field.len == 1 && field.data[0] == 'f';
    }
    if (reader.broken)
        return ENTRY_BROKEN;
    field_reader_init(&item->fields, parser->head, parser->have);
    if (content)
        go_to(parser, ENTRY_IN_CHUNK_HEADER, ENTRY_CHUNK_HEADER);
    else
        go_to(parser, ENTRY_IN_LENGTH, 4);
    return ENTRY_BEGIN;
}

static enum entry_event chunk(struct entry_parser *parser, struct entry_item *item)
{
    uint32_t len = wire_u32(parser->head);
    uint64_t offset = wire_u64(parser->head + 4);
    if (len == 0) {
        item->end = offset;
        go_to(parser, ENTRY_IN_LENGTH, 4);
        return ENTRY_END;
    }
    if (len > ENTRY_CHUNK_MAX || offset > INT64_MAX - ENTRY_CHUNK_MAX)
        return ENTRY_BROKEN;
    parser->left = len;
    parser->offset = offset;
    parser->state = ENTRY_IN_CHUNK;
    return ENTRY_MORE;
}

static enum entry_event content(struct entry_parser *parser, const uint8_t **data, size_t *len,
                                struct entry_item *item)
{
    size_t take = *len < parser->left ? *len : parser->left;
    item->data = *data;
    item->len = take;
    item->offset = parser->offset;
    *data += take;
    *len -= take;
    parser->left -= (uint32_t)take;
    parser->offset += take;
    if (parser->left == 0)
        go_to(parser, ENTRY_IN_CHUNK_HEADER, ENTRY_CHUNK_HEADER);
    return ENTRY_DATA;
}

enum entry_event entry_parse(struct entry_parser *parser, const uint8_t **data, size_t *len,
                             struct entry_item *ret_item)
{
    enum entry_event event = ENTRY_MORE;
    while (*len > 0 && event == ENTRY_MORE) {
        if (parser->state == ENTRY_IN_CHUNK)
            return content(parser, data, len, ret_item);
        if (!gather(parser, data, len))
            break;
        if (parser->state == ENTRY_IN_CHUNK_HEADER) {
            event = chunk(parser, ret_item);
        } else if (parser->state == ENTRY_IN_HEAD) {
            event = begin(parser, ret_item);
        } else {
            uint32_t length = wire_u32(parser->head);
            if (length == 0 || length > ENTRY_HEAD_MAX)
                return ENTRY_BROKEN;
            go_to(parser, ENTRY_IN_HEAD, length);
        }
    }
    return event;
}

const char *entry_path(const char *path, size_t len, char *ret_path)
{
    size_t at = 0, depth = 0;
    if (len >= PATH_MAX)
        return "the path is longer than 4095 bytes";
    if (len > 0 && path[0] == '/')
        return "the path is absolute";
    for (size_t from = 0, to; from < len; from = to + 1) {
        for (to = from; to < len && path[to] != '/'; to++)
            continue;
        size_t name = to - from;
        if (memchr(path + from, 0, name) != NULL)
            return "the path has a NUL byte";
        if (name == 0 || (name == 1 && path[from] == '.'))
            continue;
        if (name == 2 && memcmp(path + from, "..", 2) == 0)
            return "the path has a \"..\"";
        if (name > NAME_MAX)
            return "a name is longer than 255 bytes";
        if (++depth > ENTRY_DEPTH_MAX)
            return "the path has more than 128 names";
        if (at > 0)
            ret_path[at++] = '/';
        memcpy(ret_path + at, path + from, name);
        at += name;
    }
    ret_path[at] = '\0';
    return NULL;
}
