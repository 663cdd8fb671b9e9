#pragma once

#include "sandbox/journal.h"
#include "tests/unit/temp_dir.h"

/* A journal in a directory of its own, for the tests of journals; every call must succeed. */
struct journal_place {
    struct temp_dir dir;
    char *path;
};
void journal_place_make(struct journal_place *place);
void journal_place_remove(struct journal_place *place);

struct journal *journal_at(const struct journal_place *place, uint64_t head_max, uint64_t tail_max);
void append(struct journal *journal, uint64_t offset, const void *data, size_t len);
size_t read_at(struct journal *journal, uint64_t offset, void *data, size_t len);
/* All that one read gives from OFFSET on. */
void assert_text(struct journal *journal, uint64_t offset, const char *expected);

/* Numbers that are the same in each run. */
size_t random_below(size_t bound);
