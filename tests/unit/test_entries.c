#include <check.h>
#include <limits.h>
#include <string.h>

#include "agent/entries.h"
#include "agent/proto.h"
#include "tests/unit/suite.h"

START_TEST(test_paths)
{
    static const struct {
        const char *given, *plain; /* NULL: refused */
    } rows[] = {
        {"a", "a"},
        {"./a/", "a"},
        {"a//b/./c", "a/b/c"},
        {".", ""},
        {"", ""},
        {"./", ""},
        {"...", "..."},
        {"..a/b..", "..a/b.."},
        {"/a", NULL},
        {"/", NULL},
        {"..", NULL},
        {"../a", NULL},
        {"a/..", NULL},
        {"a/../b", NULL},
        {"a/../../b", NULL},
        {"./..", NULL},
        {"a\\..\\b", "a\\..\\b"},
    };
    char plain[PATH_MAX];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *why = entry_path(rows[i].given, strlen(rows[i].given), plain);
        ck_assert_msg((why == NULL) == (rows[i].plain != NULL), "'%s'", rows[i].given);
        if (rows[i].plain != NULL)
            ck_assert_str_eq(plain, rows[i].plain);
    }
}
END_TEST

START_TEST(test_limits_of_paths)
{
    char given[PATH_MAX + 2], plain[PATH_MAX];
    memset(given, 'n', sizeof(given));
    ck_assert_ptr_null(entry_path(given, NAME_MAX, plain));
    ck_assert_ptr_nonnull(entry_path(given, NAME_MAX + 1, plain));
    for (size_t i = 1; i < sizeof(given); i += 2)
        given[i] = '/';
    ck_assert_ptr_null(entry_path(given, 2 * ENTRY_DEPTH_MAX, plain));
    ck_assert_ptr_nonnull(entry_path(given, 2 * ENTRY_DEPTH_MAX + 1, plain));
    for (size_t i = 1; i < sizeof(given); i++)
        given[i] = i % 200 == 0 ? '/' : 'n';
    ck_assert_ptr_null(entry_path(given, PATH_MAX - 1, plain));
    ck_assert_ptr_nonnull(entry_path(given, PATH_MAX, plain));
    ck_assert_ptr_nonnull(entry_path("a\0b", 3, plain));
}
END_TEST

/* A file in pieces of each size: its head, its bytes in their places, its end. */
START_TEST(test_any_pieces)
{
    uint8_t bytes[256];
    struct field_writer fields = {.ptr = bytes + 4, .cap = sizeof(bytes) - 4};
    static struct entry_parser parser;
    field_put_text(&fields, TAG_TYPE, "f");
    field_put_text(&fields, TAG_PATH, "name");
    wire_put_u32(bytes, (uint32_t)fields.len);
    size_t len = 4 + fields.len;
    entry_chunk_write(bytes + len, 5, 1000);
    memcpy(bytes + len + ENTRY_CHUNK_HEADER, "hello", 5);
    len += ENTRY_CHUNK_HEADER + 5;
    entry_chunk_write(bytes + len, 0, ENTRY_CHANGED);
    len += ENTRY_CHUNK_HEADER;

    for (size_t piece = 1; piece <= len; piece++) {
        char content[6] = "";
        int begun = 0, ended = 0;
        entry_parser_init(&parser);
        for (size_t at = 0; at < len; at += piece) {
            const uint8_t *ptr = bytes + at;
            size_t left = piece < len - at ? piece : len - at;
            struct entry_item item;
            enum entry_event event;
            while ((event = entry_parse(&parser, &ptr, &left, &item)) != ENTRY_MORE) {
                ck_assert_int_ne(event, ENTRY_BROKEN);
                begun += event == ENTRY_BEGIN;
                if (event == ENTRY_DATA) {
                    ck_assert_uint_ge(item.offset, 1000);
                    ck_assert_uint_le(item.offset + item.len, 1005);
                    memcpy(content + (item.offset - 1000), item.data, item.len);
                }
                if (event == ENTRY_END) {
                    ck_assert_uint_eq(item.end, ENTRY_CHANGED);
                    ended++;
                }
            }
            ck_assert(at + piece >= len || !ended);
        }
        ck_assert_str_eq(content, "hello");
        ck_assert_int_eq(begun, 1);
        ck_assert_int_eq(ended, 1);
        ck_assert(entry_parser_between(&parser));
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_paths, test_limits_of_paths, test_any_pieces, NULL};
    return run_suite("entries", tests, NULL, NULL);
}
