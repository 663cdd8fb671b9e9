/* Bytes on their way through the scrubber. */
#include <string.h>

#include "sandbox/pump.h"
#include "tests/unit/suite.h"
#include "tests/unit/world.h"

static struct world world;
static struct scrubber *scrubber;

static void setup(void)
{
    struct text_list secrets = {0};
    world_init(&world);
    text_list_add(&secrets, "hunter2hunter2");
    text_list_add(&secrets, "Z");
    scrubber = scrubber_new(&secrets);
    text_list_done(&secrets);
}

static void teardown(void)
{
    scrubber_unref(scrubber);
    world_done(&world);
}

static const struct pump_range whole = {.length = -1};

/* What comes out when TEXT goes in in pieces of STEP through pipes of CAPACITY. */
static char *pumped(const char *text, size_t step, size_t capacity, const struct pump_range *range,
                    enum pipe_state *ret_state)
{
    struct pipe *from = pipe_new(capacity), *to = pipe_new(capacity);
    struct buf out = BUF_INIT(8 * MIB);
    size_t len = strlen(text), at = 0;
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), scrubber, range, to);
    while (pipe_state(to, NULL) == PIPE_OPEN) {
        char piece[64];
        size_t left = len - at;
        at += pipe_write(from, text + at, left < step ? left : step);
        if (at == len) {
            pipe_finish(from, NULL);
        }
        world_run(&world);
        size_t got = pipe_read(to, piece, sizeof(piece));
        ck_assert(buf_append(&out, piece, got));
        if (pipe_state(from, NULL) == PIPE_ABANDONED) {
            at = len;
        }
    }
    *ret_state = pipe_state(to, NULL);
    world_run(&world);
    pipe_unref(from);
    pipe_unref(to);
    return buf_take(&out, NULL);
}

START_TEST(test_everything)
{
    static const char text[] = "a Z and hunter2hunter2, hunter2hunter and a Z";
    static const char masked[] = "a * and **************, hunter2hunter and a *";
    static const size_t sizes[] = {1, 2, 3, 7, 14, 15, 64, 4096};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (size_t j = 0; j < ARRAY_LEN(sizes); j++) {
            enum pipe_state state;
            cleanup_free char *out = pumped(text, sizes[i], sizes[j], &whole, &state);
            ck_assert_str_eq(out, masked);
            ck_assert_int_eq(state, PIPE_ENDED);
        }
    }
}
END_TEST

START_TEST(test_large)
{
    struct buf text = BUF_INIT(4 * MIB), masked = BUF_INIT(4 * MIB);
    for (int i = 0; i < 20000; i++) {
        ck_assert(buf_printf(&text, "%d hunter2hunter2\n", i));
        ck_assert(buf_printf(&masked, "%d **************\n", i));
    }
    enum pipe_state state;
    cleanup_free char *out = pumped(buf_text(&text), 50000, 60000, &whole, &state);
    ck_assert_str_eq(out, buf_text(&masked));
    buf_done(&text);
    buf_done(&masked);
}
END_TEST

START_TEST(test_nothing)
{
    enum pipe_state state;
    cleanup_free char *out = pumped("", 1, 10, &whole, &state);
    ck_assert_str_eq(out, "");
    ck_assert_int_eq(state, PIPE_ENDED);
}
END_TEST

/* A range, with bytes around it for what stands across its ends. */
START_TEST(test_ranges)
{
    static const char text[] = "0123hunter2hunter2456789";
    static const char masked[] = "0123**************456789";
    for (size_t from = 0; from <= strlen(text); from++) {
        for (size_t to = from; to <= strlen(text); to++) {
            enum pipe_state state;
            const struct pump_range range = {.lead = from, .length = (int64_t)(to - from)};
            cleanup_free char *out = pumped(text, 5, 11, &range, &state);
            cleanup_free char *want = xstrndup(masked + from, to - from);
            ck_assert_str_eq(out, want);
            ck_assert_int_eq(state, PIPE_ENDED);
        }
    }
}
END_TEST

START_TEST(test_no_secrets)
{
    struct pipe *from = pipe_new(100), *to = pipe_new(100);
    char text[100] = "";
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), NULL, &whole, to);
    ck_assert_uint_eq(pipe_write(from, "hunter2hunter2", 14), 14);
    pipe_finish(from, NULL);
    world_run(&world);
    ck_assert_uint_eq(pipe_read(to, text, sizeof(text)), 14);
    ck_assert_str_eq(text, "hunter2hunter2");
    ck_assert_int_eq(pipe_state(to, NULL), PIPE_ENDED);
    pipe_unref(from);
    pipe_unref(to);
}
END_TEST

/* --- ends ------------------------------------------------------------------------------------ */

START_TEST(test_source_fails)
{
    struct pipe *from = pipe_new(100), *to = pipe_new(100);
    struct err why = {0}, got = {0};
    char text[100] = "";
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), scrubber, &whole, to);
    ck_assert_uint_eq(pipe_write(from, "abc", 3), 3);
    world_run(&world);
    (void)err_set(&why, ERR_STREAM_LOST, "gone");
    pipe_finish(from, &why);
    world_run(&world);
    ck_assert_uint_eq(pipe_read(to, text, sizeof(text)), 3);
    ck_assert_int_eq(pipe_state(to, &got), PIPE_FAILED);
    ck_assert_int_eq(got.code, ERR_STREAM_LOST);
    pipe_unref(from);
    pipe_unref(to);
}
END_TEST

/* A source that just breaks off must not look like its end. */
struct broken {
    struct event never;
    unsigned *freed;
};

static ssize_t broken_read(void *arg, void *data, size_t len, struct err *err)
{
    (void)arg;
    (void)data;
    (void)len;
    (void)err;
    return -1;
}

static struct event *broken_event(void *arg)
{
    return &((struct broken *)arg)->never;
}

static void broken_free(void *arg)
{
    struct broken *broken = arg;
    (*broken->freed)++;
    event_done(&broken->never);
    free(broken);
}

static const struct pump_source broken_source = {broken_read, broken_event, broken_free};

START_TEST(test_source_breaks_off)
{
    struct pipe *to = pipe_new(100);
    unsigned freed = 0;
    struct broken *broken = xcalloc(1, sizeof(*broken));
    event_init(&broken->never);
    broken->freed = &freed;
    pump_start(world.all, &broken_source, broken, scrubber, &whole, to);
    world_run(&world);
    ck_assert_int_eq(pipe_state(to, NULL), PIPE_FAILED);
    ck_assert_uint_eq(freed, 1);
    pipe_unref(to);
}
END_TEST

/* Nobody reads any more, and the source says nothing: it is let go at once. */
START_TEST(test_reader_leaves)
{
    struct pipe *from = pipe_new(100), *to = pipe_new(100);
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), scrubber, &whole, to);
    world_run(&world);
    ck_assert_int_eq(pipe_state(from, NULL), PIPE_OPEN);
    pipe_abandon(to, NULL);
    world_run(&world);
    ck_assert_int_eq(pipe_state(from, NULL), PIPE_ABANDONED);
    pipe_unref(from);
    pipe_unref(to);
}
END_TEST

START_TEST(test_reader_leaves_a_full_pipe)
{
    struct pipe *from = pipe_new(100), *to = pipe_new(2);
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), scrubber, &whole, to);
    ck_assert_uint_eq(pipe_write(from, "abcdef", 6), 6);
    world_run(&world);
    ck_assert_uint_eq(pipe_used(to), 2);
    pipe_abandon(to, NULL);
    world_run(&world);
    ck_assert_int_eq(pipe_state(from, NULL), PIPE_ABANDONED);
    pipe_unref(from);
    pipe_unref(to);
}
END_TEST

/* What follows the range is not asked for. */
START_TEST(test_end_of_the_range)
{
    struct pipe *from = pipe_new(100), *to = pipe_new(100);
    const struct pump_range range = {.length = 3};
    pump_start(world.all, &pump_pipe_source, pipe_ref(from), scrubber, &range, to);
    ck_assert_uint_eq(pipe_write(from, "abcdef", 6), 6);
    world_run(&world);
    ck_assert_uint_eq(pipe_used(to), 3);
    ck_assert_int_eq(pipe_state(from, NULL), PIPE_ABANDONED);
    pipe_unref(from);
    pipe_unref(to);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_everything,
                                  test_large,
                                  test_nothing,
                                  test_ranges,
                                  test_no_secrets,
                                  test_source_fails,
                                  test_source_breaks_off,
                                  test_reader_leaves,
                                  test_reader_leaves_a_full_pipe,
                                  test_end_of_the_range,
                                  NULL};
    return run_suite("pump", tests, setup, teardown);
}
