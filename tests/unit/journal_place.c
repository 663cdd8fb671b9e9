#include "tests/unit/journal_place.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 0x2545f4914f6cdd1du;

size_t random_below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state >> 11) % bound;
}

void journal_place_make(struct journal_place *place)
{
    temp_dir_make(&place->dir);
    place->path = temp_path(&place->dir, "1.stdout");
}

void journal_place_remove(struct journal_place *place)
{
    free(place->path);
    temp_dir_remove(&place->dir);
}

struct journal *journal_at(const struct journal_place *place, uint64_t head_max, uint64_t tail_max)
{
    struct journal *journal = NULL;
    struct err err;
    ck_assert_msg(journal_open(place->path, head_max, tail_max, &journal, &err) == 0, "%s",
                  err.msg);
    return journal;
}

void append(struct journal *journal, uint64_t offset, const void *data, size_t len)
{
    struct err err;
    ck_assert_msg(journal_append(journal, offset, data, len, &err) == 0, "%s", err.msg);
}

size_t read_at(struct journal *journal, uint64_t offset, void *data, size_t len)
{
    struct err err;
    size_t n = 0;
    ck_assert_msg(journal_read(journal, offset, data, len, &n, &err) == 0, "%s", err.msg);
    return n;
}

void assert_text(struct journal *journal, uint64_t offset, const char *expected)
{
    char data[256];
    size_t n = read_at(journal, offset, data, sizeof(data));
    ck_assert_uint_eq(n, strlen(expected));
    ck_assert_mem_eq(data, expected, n);
}
