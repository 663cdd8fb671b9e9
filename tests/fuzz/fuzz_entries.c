/* Entries of an archive from a hostile peer. The first byte says in what pieces they arrive; in
 * whatever pieces, the same must come out, and no path that leads out. */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/entries.h"
#include "agent/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int good)
{
    if (!good)
        abort();
}

static uint64_t mix(uint64_t sum, const void *data, size_t len)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static void check_path(const uint8_t *path, size_t len)
{
    char plain[PATH_MAX];
    if (entry_path((const char *)path, len, plain) != NULL)
        return;
    size_t depth = 0;
    check(plain[0] != '/' && strlen(plain) <= len);
    for (const char *at = plain; *at != '\0';) {
        size_t name = strcspn(at, "/");
        check(name > 0 && name <= NAME_MAX && ++depth <= ENTRY_DEPTH_MAX);
        check(name != 1 || at[0] != '.');
        check(name != 2 || memcmp(at, "..", 2) != 0);
        at += name + (at[name] == '/');
    }
}

static uint64_t take(uint64_t sum, enum entry_event event, const struct entry_item *item)
{
    struct field_reader fields = item->fields;
    struct field field;
    switch (event) {
    case ENTRY_BEGIN:
        check(fields.left <= ENTRY_HEAD_MAX);
        while (field_next(&fields, &field)) {
            sum = mix(sum, field.data, field.len);
            if (field.tag == TAG_PATH || field.tag == TAG_LINK)
                check_path(field.data, field.len);
        }
        check(!fields.broken);
        return sum + 1;
    case ENTRY_DATA:
        check(item->len > 0 && item->len <= ENTRY_CHUNK_MAX && item->offset <= INT64_MAX);
        /* Where it is cut is the pieces' affair. */
        for (size_t i = 0; i < item->len; i++) {
            uint64_t offset = item->offset + i;
            sum = mix(mix(sum, &offset, sizeof(offset)), item->data + i, 1);
        }
        return sum;
    case ENTRY_END:
        return mix(sum, &item->end, sizeof(item->end));
    case ENTRY_MORE:
    case ENTRY_BROKEN:
        break;
    }
    return sum;
}

static uint64_t parse(const uint8_t *data, size_t size, size_t piece)
{
    static struct entry_parser parser;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    entry_parser_init(&parser);
    for (size_t at = 0; at < size; at += piece) {
        const uint8_t *ptr = data + at;
        size_t left = piece < size - at ? piece : size - at;
        struct entry_item item;
        enum entry_event event;
        while ((event = entry_parse(&parser, &ptr, &left, &item)) != ENTRY_MORE) {
            if (event == ENTRY_BROKEN)
                return sum + 2;
            sum = take(sum, event, &item);
        }
        check(left == 0);
    }
    return sum + (entry_parser_between(&parser) ? 0 : 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    size_t piece = (size_t)data[0] + 1;
    check(parse(data + 1, size - 1, size) == parse(data + 1, size - 1, piece));
    check_path(data + 1, size - 1);
    return 0;
}
