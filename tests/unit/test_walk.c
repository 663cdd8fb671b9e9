#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/walk.h"
#include "tests/unit/suite.h"
#include "tests/unit/temp_dir.h"

/* Walks one after the other, as a watch makes them, of which one finds no memory. */

#define FILES 40
#define FIRST 4096 /* bytes of names that there is memory for; 40 names are more */

static bool memory_is_out;

/* NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker wants */
void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size)
{
    return memory_is_out && size > FIRST ? NULL : __real_realloc(ptr, size);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static struct temp_dir dir;

static void setup(void)
{
    memory_is_out = false;
    temp_dir_make(&dir);
    for (int i = 0; i < FILES; i++) {
        char path[4096];
        (void)snprintf(path, sizeof(path), "%s/%0200d", dir.path, i);
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        (void)close(fd);
    }
}

static void teardown(void)
{
    temp_dir_remove(&dir);
}

static enum walk_turn count_one(void *arg, const struct walk_entry *entry)
{
    (void)entry;
    (*(int *)arg)++;
    return WALK_ON;
}

static bool walks(int *ret_count)
{
    const struct walk_plan plan = {.arg = ret_count, .visit = count_one};
    *ret_count = 0;
    return walk(dir.path, &plan);
}

START_TEST(test_a_walk_leaves_nothing_to_the_next)
{
    int count;
    memory_is_out = true;
    ck_assert(!walks(&count));
    ck_assert_int_eq(count, 0);
    memory_is_out = false;
    for (int i = 0; i < 2; i++) {
        ck_assert(walks(&count));
        ck_assert_int_eq(count, FILES);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_a_walk_leaves_nothing_to_the_next, NULL};
    return run_suite("walk", tests, setup, teardown);
}
