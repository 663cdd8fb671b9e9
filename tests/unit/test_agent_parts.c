/* The parts of the agent that need no process: rings, messages, environments, numbers. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/environment.h"
#include "agent/message.h"
#include "agent/number.h"
#include "agent/port.h"
#include "agent/ring.h"

/* --- ring ----------------------------------------------------------------------------------------
 */

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 31 + (offset >> 8));
}

static void append(struct ring *ring, size_t len)
{
    static uint8_t bytes[RING_MAX];
    for (size_t i = 0; i < len; i++)
        bytes[i] = byte_at(ring->end + i);
    ck_assert(ring_append(ring, bytes, len));
}

static void check_from(const struct ring *ring, uint64_t offset)
{
    while (offset < ring->end) {
        const uint8_t *ptr = NULL;
        size_t len = ring_peek(ring, offset, &ptr);
        ck_assert_uint_gt(len, 0);
        size_t same = 0;
        while (same < len && ptr[same] == byte_at(offset + same))
            same++;
        ck_assert_uint_eq(same, len);
        offset += len;
    }
}

/* Wraps and grows at every alignment. */
START_TEST(test_ring)
{
    struct ring ring = {0};
    unsigned seed = 1;
    for (int i = 0; i < 1000; i++) {
        seed = seed * 1103515245 + 12345;
        size_t len = (seed >> 8) % (i % 50 == 0 ? 60000 : 900);
        if (ring_len(&ring) + len <= RING_MAX)
            append(&ring, len);
        check_from(&ring, ring.start + ring_len(&ring) / 2);
        ring_drop(&ring, ring.start + (seed >> 4) % (ring_len(&ring) + 10));
        ck_assert_uint_le(ring.start, ring.end);
    }
    check_from(&ring, ring.start);
    ring_free(&ring);
}
END_TEST

START_TEST(test_ring_full_and_empty)
{
    struct ring ring = {0};
    const uint8_t *ptr = NULL;
    append(&ring, RING_MAX);
    ck_assert_uint_eq(ring.cap, RING_MAX);
    check_from(&ring, 0);
    ck_assert_uint_eq(ring_peek(&ring, RING_MAX, &ptr), 0);
    ring_drop(&ring, UINT64_MAX); /* no further than what is there */
    ck_assert_uint_eq(ring.start, RING_MAX);
    ck_assert_ptr_null(ring.ptr); /* a large one gives its memory back */
    append(&ring, 10);
    check_from(&ring, RING_MAX);
    ring_reset(&ring, RING_MAX + 1000);
    ck_assert_uint_eq(ring_len(&ring), 0);
    append(&ring, 5);
    check_from(&ring, RING_MAX + 1000);
    ring_free(&ring);
}
END_TEST

/* --- message -------------------------------------------------------------------------------------
 */

START_TEST(test_message)
{
    uint8_t room[256];
    struct field_writer writer = {.ptr = room, .cap = sizeof(room)};
    struct message message;
    char text[8];
    size_t count = 0;
    field_put_text(&writer, TAG_ARG, "one");
    field_put_u64(&writer, TAG_PORT, 80);
    field_put_text(&writer, TAG_ARG, "");
    field_put(&writer, TAG_PATH, "a\0b", 3);
    field_put_text(&writer, TAG_TO, "12345678");
    field_put_text(&writer, TAG_WORKDIR, "1234567");
    ck_assert(message_copy(&message, room, writer.len));
    ck_assert(message_well_formed(&message));
    ck_assert_uint_eq(message_u64(&message, TAG_PORT, 1), 80);
    ck_assert_uint_eq(message_u64(&message, TAG_MODE, 1), 1);
    ck_assert_uint_eq(message_u64(&message, TAG_ARG, 1), 1); /* no number */
    ck_assert_int_eq(message_text(&message, TAG_PATH, text, sizeof(text)), -1);
    ck_assert_int_eq(message_text(&message, TAG_TO, text, sizeof(text)), -1);
    ck_assert_int_eq(message_text(&message, TAG_WORKDIR, text, sizeof(text)), 1);
    ck_assert_str_eq(text, "1234567");
    ck_assert_int_eq(message_text(&message, TAG_ENV, text, sizeof(text)), 0);

    char **texts = message_texts(&message, TAG_ARG, &count);
    ck_assert_ptr_nonnull(texts);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(texts[0], "one");
    ck_assert_str_eq(texts[1], "");
    ck_assert_ptr_null(texts[2]);
    free(texts);
    errno = 0;
    ck_assert_ptr_null(message_texts(&message, TAG_PATH, &count));
    ck_assert_int_eq(errno, EINVAL);
    message.len--;
    ck_assert(!message_well_formed(&message));
    message_free(&message);
}
END_TEST

/* An environment is never written to, but its type is that of main(). */
#define T(text) ((char *)(uintptr_t)(text))

/* --- environment ---------------------------------------------------------------------------------
 */

static void expect(char *const *entries, const char *name, const char *value)
{
    const char *found = environment_get(entries, name);
    if (value == NULL)
        ck_assert_ptr_null(found);
    else
        ck_assert_str_eq(found, value);
}

START_TEST(test_environment_order)
{
    char *image[] = {T("A=image"), T("B=image"), T("C=image"), T("HOME=/"), NULL};
    char *configured[] = {T("B=configured"), T("C=configured"), T("AB=x"), T("EMPTY="), NULL};
    char *own[] = {T("C=own"), T("C=last"), T("D=a=b"), NULL};
    const struct environment_facts facts = {.workdir = "/work", .info = "/tmp/info"};
    char **built = environment_build(image, configured, own, &facts);
    expect(built, "A", "image");
    expect(built, "B", "configured");
    expect(built, "C", "last");
    expect(built, "D", "a=b");
    expect(built, "EMPTY", "");
    expect(built, "GIT_CONFIG_COUNT", "1");
    expect(built, "GIT_CONFIG_KEY_0", "safe.directory");
    expect(built, "GIT_CONFIG_VALUE_0", "/work");
    expect(built, "PODSANDBOX_INFO", "/tmp/info");
    expect(built, "GOMAXPROCS", NULL); /* no limit is known */
    expect(built, "TERM", NULL);
    size_t count = 0;
    while (built[count] != NULL)
        count++;
    ck_assert_uint_eq(count, 11);
    free(built);
}
END_TEST

START_TEST(test_environment_of_the_caller_wins)
{
    char *configured[] = {T("HOME=/tmp"), T("GIT_CONFIG_COUNT=0"), NULL};
    char *own[] = {T("HOME=/does/not/exist"), NULL};
    const struct environment_facts facts = {.workdir = "/work", .terminal = true};
    const struct environment_facts none = {.terminal = true};
    char **built = environment_build(NULL, configured, own, &facts);
    expect(built, "HOME", "/does/not/exist");
    expect(built, "GIT_CONFIG_COUNT", "0");
    expect(built, "GIT_CONFIG_KEY_0", NULL);
    expect(built, "TERM", "xterm-256color");
    free(built);
    char *useless[] = {T("HOME=/proc/version"), NULL};
    char *plain[] = {T("TERM=dumb"), NULL};
    built = environment_build(useless, useless, plain, &none);
    expect(built, "TERM", "dumb");
    expect(built, "HOME", "/tmp");
    expect(built, "GIT_CONFIG_COUNT", NULL);
    free(built);
}
END_TEST

START_TEST(test_environment_tells_of_processors)
{
    static const char *const names[] = {
        "GOMAXPROCS",
        "OMP_NUM_THREADS",
        "RAYON_NUM_THREADS",
        "CARGO_BUILD_JOBS",
        "PYTHON_CPU_COUNT",
        "CMAKE_BUILD_PARALLEL_LEVEL",
        "DOTNET_PROCESSOR_COUNT",
    };
    const struct environment_facts facts = {.cpus = 3};
    char **built = environment_build(NULL, NULL, NULL, &facts);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        expect(built, names[i], "3");
    expect(built, "MAKEFLAGS", "-j3");
    free(built);
    char *image[] = {T("GOMAXPROCS=7"), NULL};
    char *configured[] = {T("OMP_NUM_THREADS="), NULL};
    char *own[] = {T("MAKEFLAGS=-j1 -k"), T("PODSANDBOX_INFO=mine"), NULL};
    built = environment_build(image, configured, own, &facts);
    expect(built, "GOMAXPROCS", "7");
    expect(built, "OMP_NUM_THREADS", "");
    expect(built, "MAKEFLAGS", "-j1 -k");
    expect(built, "RAYON_NUM_THREADS", "3");
    expect(built, "PODSANDBOX_INFO", "mine");
    free(built);
}
END_TEST

START_TEST(test_environment_names)
{
    static const char *const cases[] = {"=x", "A", "A\nB=x", "", "\177=", "A=x\ny", "1 b;$(x)="};
    static const bool good[] = {false, false, false, false, false, true, true};
    char *entries[] = {T(cases[_i]), NULL};
    ck_assert_int_eq(environment_well_formed(entries), good[_i]);
}
END_TEST

/* --- numbers -------------------------------------------------------------------------------------
 */

START_TEST(test_number)
{
    uint64_t value = 77;
    const char *end = NULL;
    ck_assert(number_read("18446744073709551615", UINT64_MAX, &value, NULL) && value == UINT64_MAX);
    ck_assert(!number_read("18446744073709551616", UINT64_MAX, &value, NULL));
    ck_assert(number_read("100 x", 100, &value, &end) && value == 100);
    ck_assert_str_eq(end, " x");
    ck_assert(!number_read("101", 100, &value, NULL));
    ck_assert(!number_read("9", 8, &value, NULL));
    ck_assert(!number_read("", 8, &value, NULL));
    ck_assert(!number_read("-1", 8, &value, NULL));
    ck_assert_uint_eq(value, 100);
}
END_TEST

/* How often a port is looked at that never opens. */
static unsigned looks(uint64_t timeout_ms)
{
    unsigned count = 1;
    for (uint64_t passed = 0; passed < timeout_ms; count++) {
        int pause = port_pause_ms(passed, timeout_ms);
        ck_assert_int_gt(pause, 0);
        passed += (uint64_t)pause;
        ck_assert_uint_le(passed, timeout_ms);
    }
    return count;
}

START_TEST(test_looks_at_a_port)
{
    ck_assert_int_eq(port_pause_ms(0, 60000), 20); /* soon, for a program that is as quick */
    ck_assert_int_eq(port_pause_ms(59999, 60000), 1);
    ck_assert_int_le(port_pause_ms(10000, 60000), 500); /* late by a twentieth at most */
    ck_assert_uint_eq(looks(0), 1);
    ck_assert_uint_ge(looks(1000), 40);
    ck_assert_uint_le(looks(60000), 200);
    ck_assert_uint_le(looks(600000), 800);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent_parts");
    TCase *tests = tcase_create("agent_parts");
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, test_ring);
    tcase_add_test(tests, test_ring_full_and_empty);
    tcase_add_test(tests, test_message);
    tcase_add_test(tests, test_environment_order);
    tcase_add_test(tests, test_environment_of_the_caller_wins);
    tcase_add_test(tests, test_environment_tells_of_processors);
    tcase_add_loop_test(tests, test_environment_names, 0, 7);
    tcase_add_test(tests, test_number);
    tcase_add_test(tests, test_looks_at_a_port);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
