#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "tests/unit/exec_script.h"

/* Input of executions: given with the request, or as it comes. */

static void give_bytes(struct exec_spec *spec, const char *text, size_t len)
{
    spec->stdin_kind = EXEC_STDIN_BYTES;
    buf_init(&spec->stdin_bytes, CAP_JSON_STDIN);
    ck_assert(buf_append(&spec->stdin_bytes, text, len));
}

START_TEST(test_stdin_bytes)
{
    struct frame frame;
    struct exec_spec spec = spec_of("cat");
    give_bytes(&spec, "abc", 3);
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_STDIN, 0), 1);
    ck_assert_uint_eq(frame_u64(&frame, TAG_STDIN_TOTAL, 99), 3);
    frame = fake_agent_expect(&domain.agent, channel, FRAME_DATA);
    ck_assert_mem_eq(frame.payload + FRAME_DATA_HEADER, "abc", 3);
    frame = fake_agent_expect(&domain.agent, channel, FRAME_END);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), 3);
    ck_assert(exec_stdin_done(exec));
    exec_unref(exec);
}
END_TEST

START_TEST(test_empty_stdin_ends_at_once)
{
    struct frame frame;
    struct exec_spec spec = spec_of("cat");
    give_bytes(&spec, "", 0);
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_STDIN, 0), 1);
    frame = fake_agent_expect(&domain.agent, channel, FRAME_END);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), 0);
    exec_unref(exec);
}
END_TEST

/* What the agent had not stored when the stream broke is sent again, and nothing twice. */
START_TEST(test_stdin_goes_on_after_a_cut)
{
    struct frame frame;
    static char text[100000];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 7 % 251);
    struct exec_spec spec = spec_of("cat");
    give_bytes(&spec, text, sizeof(text));
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    fake_agent_credit(&domain.agent, channel, 20000, 52000);
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_domain_run(&domain);
    static const uint64_t known[] = {1, 0};
    fake_agent_greet(&domain.agent, known);
    channel = take_open("1", true, NULL);
    fake_agent_expect_nothing(&domain.agent); /* until it is known where */
    say_started(channel, 30000);
    uint64_t at = 30000;
    while (at < sizeof(text)) {
        if (!fake_agent_take(&domain.agent, &frame)) {
            fake_agent_credit(&domain.agent, channel, at, at + PROTO_WINDOW);
            continue;
        }
        ck_assert_int_eq(frame.type, FRAME_DATA);
        ck_assert_uint_eq(wire_u64(frame.payload + 1), at);
        ck_assert_mem_eq(frame.payload + FRAME_DATA_HEADER, text + at,
                         frame.len - FRAME_DATA_HEADER);
        at += frame.len - FRAME_DATA_HEADER;
    }
    (void)fake_agent_expect(&domain.agent, channel, FRAME_END);
    ck_assert(exec_stdin_done(exec));
    exec_unref(exec);
}
END_TEST

START_TEST(test_stdin_pipe)
{
    struct err err;
    struct frame frame;
    struct pipe *pipe = pipe_new(65536);
    struct exec_spec spec = spec_of("cat");
    spec.stdin_kind = EXEC_STDIN_PIPE;
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_STDIN, 0), 1);
    ck_assert_int_eq(exec_feed(exec, pipe, &err), 0);
    fake_domain_run(&domain);
    fake_agent_expect_nothing(&domain.agent);
    ck_assert_uint_eq(pipe_write(pipe, "one", 3), 3);
    fake_domain_run(&domain);
    frame = fake_agent_expect(&domain.agent, channel, FRAME_DATA);
    ck_assert_mem_eq(frame.payload + FRAME_DATA_HEADER, "one", 3);
    ck_assert(!exec_stdin_done(exec));
    ck_assert_int_eq(exec_feed(exec, pipe, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFLICT);
    uint64_t count = event_count(exec_changed(exec));
    pipe_finish(pipe, NULL);
    fake_domain_run(&domain);
    frame = fake_agent_expect(&domain.agent, channel, FRAME_END);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), 3);
    ck_assert(exec_stdin_done(exec));
    ck_assert_uint_gt(event_count(exec_changed(exec)), count);
    pipe_unref(pipe);
    exec_unref(exec);
}
END_TEST

START_TEST(test_stdin_that_breaks_off_kills)
{
    struct err err, why = {.code = ERR_CANCELLED, .msg = "the client left"};
    struct pipe *pipe = pipe_new(65536);
    struct exec_spec spec = spec_of("cat");
    spec.stdin_kind = EXEC_STDIN_PIPE;
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    ck_assert_int_eq(exec_feed(exec, pipe, &err), 0);
    ck_assert_uint_eq(pipe_write(pipe, "half", 4), 4);
    pipe_finish(pipe, &why);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, channel, FRAME_DATA);
    struct frame frame = fake_agent_expect(&domain.agent, channel, FRAME_SIGNAL);
    ck_assert_uint_eq(frame_u64(&frame, TAG_GRACE_MS, 0), 2000);
    say_result(channel, TAG_SIGNAL, 15);
    struct json *json = record_of(1);
    check_null(json, "exit_code");
    check_text(json, "error.code", "cancelled");
    json_free(json);
    pipe_unref(pipe);
    exec_unref(exec);
}
END_TEST

START_TEST(test_end_with_input_left)
{
    struct err err;
    struct pipe *pipe = pipe_new(65536);
    struct exec_spec spec = spec_of("head -1");
    spec.stdin_kind = EXEC_STDIN_PIPE;
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    ck_assert_int_eq(exec_feed(exec, pipe, &err), 0);
    fake_domain_run(&domain);
    say_result(channel, TAG_EXIT_CODE, 0);
    ck_assert(exec_stdin_done(exec));
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_ABANDONED);
    ck_assert_int_eq(exec_feed(exec, pipe, &err), -1);
    pipe_unref(pipe);
    exec_unref(exec);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exec_input");
    TCase *tcase = tcase_create("exec_input");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, exec_script_setup, exec_script_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_stdin_bytes);
    tcase_add_test(tcase, test_empty_stdin_ends_at_once);
    tcase_add_test(tcase, test_stdin_goes_on_after_a_cut);
    tcase_add_test(tcase, test_stdin_pipe);
    tcase_add_test(tcase, test_stdin_that_breaks_off_kills);
    tcase_add_test(tcase, test_end_with_input_left);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
