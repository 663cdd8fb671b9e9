/* An agent that sends on and on what comes to nothing: it has a worker for a turn at a time, and
 * none any more when nobody reads. */
#include <string.h>

#include "agent/entries.h"
#include "base/caps.h"
#include "sandbox/file_watch.h"
#include "sandbox/pack.h"
#include "tests/unit/suite.h"
#include "tests/unit/world.h"

#define SENT (8 * MIB)
#define TURN (512 * KIB) /* that one step may take, at most */

static struct world world;
static struct sandbox *sandbox;
static struct pipe *raw, *out;

static void setup(void)
{
    world_init(&world);
    sandbox = world_create(&world, "{}");
    raw = pipe_new(SENT);
    out = pipe_new(64 * KIB);
}

static void teardown(void)
{
    world_run(&world);
    pipe_unref(raw);
    pipe_unref(out);
    world_done(&world);
}

static void fill(const void *bytes, size_t len)
{
    while (pipe_space(raw) >= len)
        ck_assert_uint_eq(pipe_write(raw, bytes, len), len);
}

static void check_turns(void)
{
    size_t used = pipe_used(raw);
    for (int turn = 0; turn < 3; turn++) {
        ck_assert(stepper_step());
        ck_assert_uint_lt(pipe_used(raw), used);
        ck_assert_uint_le(used - pipe_used(raw), TURN);
        used = pipe_used(raw);
    }
    pipe_abandon(out, NULL);
    world_run(&world);
    ck_assert_uint_ge(used, pipe_used(raw));
    ck_assert_int_eq(pipe_state(raw, NULL), PIPE_ABANDONED);
}

/* Events of a type that there is not. */
START_TEST(test_events)
{
    static const uint8_t events[1024]; /* of no length */
    struct call *call = call_new(OP_WATCH);
    fill(events, sizeof(events));
    file_watch_start(sandbox, call, raw, WATCH_NDJSON, out);
    check_turns();
    call_unref(call);
}
END_TEST

/* Notes about what is not sent: beyond a number they are counted alone. */
START_TEST(test_entries)
{
    uint8_t room[64];
    struct field_writer fields = {.ptr = room + 4, .cap = sizeof(room) - 4};
    struct err err;
    field_put_text(&fields, TAG_TYPE, "n");
    field_put_text(&fields, TAG_PATH, "name");
    wire_put_u32(room, (uint32_t)fields.len);
    fill(room, 4 + fields.len);
    ck_assert_int_eq(pack_start(sandbox, raw, TAR_PLAIN, out, &err), 0);
    check_turns();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_events, test_entries, NULL};
    return run_suite("pump_endless", tests, setup, teardown);
}
