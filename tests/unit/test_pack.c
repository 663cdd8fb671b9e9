/* What an agent packs, as an archive. */
#include <stdio.h>
#include <string.h>

#include "agent/entries.h"
#include "base/caps.h"
#include "sandbox/pack.h"
#include "tests/unit/suite.h"
#include "tests/unit/world.h"

static struct world world;
static struct sandbox *sandbox;
static struct pipe *raw, *out;

static void setup(void)
{
    world_init(&world);
    sandbox = world_create(&world, "{}");
    raw = pipe_new(8 * MIB);
    out = pipe_new(16 * MIB);
}

static void teardown(void)
{
    pipe_unref(raw);
    pipe_unref(out);
    world_done(&world);
}

static void put_note(const char *path)
{
    static uint8_t room[4 + ENTRY_HEAD_MAX];
    struct field_writer fields = {.ptr = room + 4, .cap = ENTRY_HEAD_MAX};
    field_put_text(&fields, TAG_TYPE, "n");
    field_put_text(&fields, TAG_PATH, path);
    field_put_text(&fields, TAG_ERROR, "permission_denied");
    wire_put_u32(room, (uint32_t)fields.len);
    ck_assert_uint_eq(pipe_write(raw, room, 4 + fields.len), 4 + fields.len);
}

static void pack(struct buf *ret_archive)
{
    struct err err = {0};
    pipe_finish(raw, NULL);
    ck_assert_int_eq(pack_start(sandbox, raw, TAR_PLAIN, out, &err), 0);
    world_run(&world);
    ck_assert_msg(pipe_state(out, &err) != PIPE_FAILED, "%s", err.msg);
    size_t len = pipe_used(out);
    char *space = buf_reserve(ret_archive, len);
    ck_assert_ptr_nonnull(space);
    ck_assert_uint_eq(pipe_read(out, space, len), len);
    buf_grew(ret_archive, len);
    ck_assert_int_eq(pipe_state(out, NULL), PIPE_ENDED);
}

/* As many as a report names, with the longest paths, and what is longest as JSON. */
START_TEST(test_a_report_of_long_paths)
{
    struct buf archive = BUF_INIT(16 * MIB);
    char path[4001];
    memset(path, '\1', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    for (size_t i = 200; i < sizeof(path) - 1; i += 200)
        path[i] = '/';
    for (int i = 0; i < CAP_ARCHIVE_NOTES; i++)
        put_note(path);
    pack(&archive);
    char count[40];
    (void)snprintf(count, sizeof(count), "\"not_as_they_are\":%d", CAP_ARCHIVE_NOTES);
    ck_assert_ptr_nonnull(memmem(archive.ptr, archive.len, count, strlen(count)));
    ck_assert_ptr_nonnull(memmem(archive.ptr, archive.len, "permission_denied", 17));
    buf_done(&archive);
}
END_TEST

/* Paths as they are usually are all named. */
START_TEST(test_a_report_of_many)
{
    struct buf archive = BUF_INIT(16 * MIB);
    char path[120];
    for (int i = 0; i <= CAP_ARCHIVE_NOTES; i++) {
        (void)snprintf(path, sizeof(path), "%0100d", i);
        put_note(path);
    }
    pack(&archive);
    (void)snprintf(path, sizeof(path), "%0100d", CAP_ARCHIVE_NOTES - 1);
    ck_assert_ptr_nonnull(memmem(archive.ptr, archive.len, path, strlen(path)));
    (void)snprintf(path, sizeof(path), "%0100d", CAP_ARCHIVE_NOTES);
    ck_assert_ptr_null(memmem(archive.ptr, archive.len, path, strlen(path)));
    buf_done(&archive);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_a_report_of_long_paths, test_a_report_of_many, NULL};
    return run_suite("pack", tests, setup, teardown);
}
