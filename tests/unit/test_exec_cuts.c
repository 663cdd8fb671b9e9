#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/exec_data.h"
#include "sandbox/fields.h"
#include "tests/unit/exec_script.h"

/* Executions when streams break, clients leave and servers are killed. */

/* --- cuts -------------------------------------------------------------------------------- */

START_TEST(test_joined_after_a_cut)
{
    static const uint64_t known[] = {1, 0};
    struct frame frame;
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    say_output(channel, 1, 0, "one ");
    fake_agent_cut(&domain.agent, ERR_NONE);
    ck_assert(!exec_done(exec));
    fake_domain_run(&domain);
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    channel = take_open("1", true, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 4);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_ERR, 99), 0);
    say_started(channel, 0);
    say_output(channel, 1, 0, "one two "); /* a sender may repeat */
    say_output(channel, 1, 8, "three");
    say_result(channel, TAG_EXIT_CODE, 5);
    expect_commit(channel);
    struct json *json = record_of(1);
    check_text(json, "stdout", "one two three");
    check_int(json, "exit_code", 5);
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_cut_before_it_was_started)
{
    struct exec *exec = start_command("x");
    (void)take_open("1", false, NULL);
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_domain_run(&domain);
    fake_agent_greet(&domain.agent, NULL);
    uint32_t channel = take_open("1", false, NULL); /* joins or starts */
    say_started(channel, 0);
    say_result(channel, TAG_EXIT_CODE, 0);
    ck_assert(exec_ended(exec));
    exec_unref(exec);
}
END_TEST

START_TEST(test_agent_restarted)
{
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    say_output(channel, 1, 0, "so far");
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_domain_run(&domain);
    fake_agent_greet(&domain.agent, NULL);
    channel = take_open("1", true, NULL);
    fake_agent_error(&domain.agent, channel, FRAME_RESULT, "not_found", "no such exec");
    fake_domain_run(&domain);
    fake_agent_expect_nothing(&domain.agent);
    ck_assert(exec_ended(exec));
    struct json *json = record_of(1);
    check_null(json, "exit_code");
    check_text(json, "error.code", "stream_lost");
    check_text(json, "stdout", "so far");
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_unreachable_for_long)
{
    static const uint64_t known[] = {1, 0};
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    uint64_t count = event_count(exec_changed(exec));
    domain.agent.refusal = (struct err){.code = ERR_NOT_READY, .msg = "unreachable"};
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_loop_advance(domain.loop, 29999);
    ck_assert(!exec_done(exec));
    fake_loop_advance(domain.loop, 1);
    ck_assert(exec_done(exec));
    ck_assert(!exec_ended(exec));
    ck_assert_uint_gt(event_count(exec_changed(exec)), count);
    struct json *json = record_of(1);
    check_null(json, "exit_code");
    check_text(json, "error.code", "stream_lost");
    check_text(json, "state", "running");
    json_free(json);
    /* It was only the network: the true result is there later. */
    domain.agent.refusal.code = ERR_NONE;
    fake_loop_advance(domain.loop, 60000);
    fake_agent_greet(&domain.agent, known);
    channel = take_open("1", true, NULL);
    ck_assert(!exec_done(exec));
    say_result(channel, TAG_EXIT_CODE, 0);
    json = record_of(1);
    check_int(json, "exit_code", 0);
    check_null(json, "error");
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_started_while_unreachable)
{
    domain.agent.refusal = (struct err){.code = ERR_NOT_READY, .msg = "unreachable"};
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_loop_advance(domain.loop, 100000);
    struct exec *exec = start_command("x");
    ck_assert(!exec_done(exec));
    fake_loop_advance(domain.loop, 30000);
    ck_assert(exec_done(exec));
    /* Nobody waits any more, and the agent never heard of it: it never runs. */
    exec_join(exec);
    exec_leave(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 10000);
    fake_domain_run(&domain);
    ck_assert(exec_ended(exec));
    domain.agent.refusal.code = ERR_NONE;
    fake_loop_advance(domain.loop, 10000);
    fake_agent_greet(&domain.agent, NULL);
    fake_agent_expect_nothing(&domain.agent);
    struct json *json = record_of(1);
    check_text(json, "error.code", "cancelled");
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_sandbox_ended)
{
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_output(channel, 1, 0, "partial");
    fake_domain_end(&domain, "oom_killed");
    ck_assert(exec_ended(exec));
    struct json *json = record_of(1);
    check_null(json, "exit_code");
    check_text(json, "error.code", "sandbox_gone");
    check_text(json, "error.message", "oom_killed");
    check_text(json, "stdout", "partial");
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_result_before_the_cut_commit_after_it)
{
    static const uint64_t known[] = {1, 0};
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    struct buf fields = BUF_INIT(1024);
    say_output(channel, 1, 0, "out");
    fields_put_u64(&fields, TAG_EXIT_CODE, 4);
    fake_agent_tell(&domain.agent, channel, FRAME_RESULT, &fields);
    fake_agent_cut(&domain.agent, ERR_NONE); /* before the store has it */
    fake_domain_run(&domain);
    ck_assert(exec_ended(exec));
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    struct frame frame;
    channel = take_open("1", true, &frame); /* only to be told to forget it */
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 3);
    struct json *json = record_of(1);
    check_int(json, "exit_code", 4);
    json_free(json);
    say_result(channel, TAG_EXIT_CODE, 99);
    expect_commit(channel);
    json = record_of(1);
    check_int(json, "exit_code", 4);
    json_free(json);
    ck_assert_ptr_null(domain.sandbox->execs);
    exec_unref(exec);
}
END_TEST

START_TEST(test_full_disk)
{
    struct frame frame;
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    say_output(channel, 1, 0, "kept ");
    /* A directory where the journal of stderr should be: it cannot be written. */
    cleanup_free char *path = temp_path(&domain.dir, "u-1/1.err");
    cleanup_free char *command = xasprintf("%s/x", path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(mkdir(command, 0700), 0);
    say_output(channel, 2, 0, "not kept");
    say_output(channel, 1, 5, "ignored"); /* the channel is closed: it is asked for again */
    ck_assert_int_eq(rmdir(command), 0);
    ck_assert_int_eq(rmdir(path), 0);
    fake_loop_advance(domain.loop, 5000);
    channel = take_open("1", true, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 5);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_ERR, 99), 0);
    say_output(channel, 2, 0, "not kept");
    say_result(channel, TAG_EXIT_CODE, 0);
    struct json *json = record_of(1);
    check_text(json, "stdout", "kept ");
    check_text(json, "stderr", "not kept");
    json_free(json);
    exec_unref(exec);
}
END_TEST

/* --- clients that leave ------------------------------------------------------------------ */

START_TEST(test_the_last_one_leaves)
{
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    exec_join(exec);
    exec_join(exec);
    exec_leave(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 20000);
    exec_leave(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 9999);
    expect_only_pings();
    fake_loop_advance(domain.loop, 1);
    struct frame frame = expect_in_time(channel, FRAME_SIGNAL);
    ck_assert_uint_eq(frame_u64(&frame, TAG_GRACE_MS, 0), 2000);
    say_result(channel, TAG_SIGNAL, 15);
    struct json *json = record_of(1);
    check_text(json, "signal", "TERM");
    check_text(json, "error.code", "cancelled");
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_one_comes_back)
{
    struct exec *exec = start_command("x");
    (void)take_open("1", false, NULL);
    exec_join(exec);
    exec_leave(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 9000);
    exec_join(exec);
    fake_loop_advance(domain.loop, 20000);
    expect_only_pings();
    exec_leave(exec);
    fake_domain_run(&domain);
    exec_unref(exec);
}
END_TEST

START_TEST(test_kept)
{
    struct frame frame;
    struct exec_spec spec = spec_of("x");
    spec.keep = true;
    struct exec *exec = start(&spec);
    (void)take_open("1", false, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_KEEP, 0), 1);
    exec_join(exec);
    exec_leave(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 25000);
    expect_only_pings();
    exec_kill(exec, 100);
    fake_domain_run(&domain);
    frame = expect_in_time(1, FRAME_SIGNAL);
    ck_assert_uint_eq(frame_u64(&frame, TAG_GRACE_MS, 0), 100);
    exec_unref(exec);
}
END_TEST

START_TEST(test_killed_while_unreachable)
{
    static const uint64_t known[] = {1, 0};
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    fake_agent_cut(&domain.agent, ERR_NONE);
    exec_kill(exec, 2000);
    fake_domain_run(&domain);
    fake_agent_greet(&domain.agent, known);
    channel = take_open("1", true, NULL);
    (void)fake_agent_expect(&domain.agent, channel, FRAME_SIGNAL);
    exec_unref(exec);
}
END_TEST

/* --- servers that were killed ------------------------------------------------------------ */

START_TEST(test_server_killed)
{
    static const uint64_t known[] = {1, 0};
    struct frame frame;
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    say_output(channel, 1, 0, "before ");
    exec_unref(exec);
    fake_domain_restart(&domain, true);
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    channel = take_open("1", true, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 7);
    say_started(channel, 0);
    say_output(channel, 1, 7, "and after");
    say_result(channel, TAG_EXIT_CODE, 0);
    expect_commit(channel);
    struct json *json = record_of(1);
    check_text(json, "stdout", "before and after");
    check_int(json, "exit_code", 0);
    json_free(json);
    exec = start_command("y");
    ck_assert_int_eq(exec_number(exec), 2);
    exec_unref(exec);
}
END_TEST

START_TEST(test_adopted_without_a_client)
{
    static const uint64_t known[] = {1, 0};
    struct exec *exec = start_command("x");
    (void)take_open("1", false, NULL);
    exec_unref(exec);
    fake_domain_restart(&domain, true);
    fake_agent_greet(&domain.agent, known);
    uint32_t channel = take_open("1", true, NULL);
    say_started(channel, 0);
    fake_loop_advance(domain.loop, 59000);
    expect_only_pings();
    fake_loop_advance(domain.loop, 1000);
    (void)expect_in_time(channel, FRAME_SIGNAL);
}
END_TEST

static uint32_t take_kept(const char *id, bool keep)
{
    struct buf fields = BUF_INIT(1024);
    uint32_t channel = take_open(id, true, NULL);
    fields_put_u64(&fields, TAG_PID, 10);
    fields_put_u64(&fields, TAG_KEEP, keep);
    fake_agent_tell(&domain.agent, channel, FRAME_STARTED, &fields);
    return channel;
}

/* The store is empty: whether a command lives on without a client is what the agent says, also
 * after another restart. */
START_TEST(test_kept_with_an_empty_store)
{
    static const uint64_t known[] = {41, 7, 0};
    fake_domain_restart(&domain, false);
    for (int i = 0; i < 2; i++) {
        fake_agent_greet(&domain.agent, known);
        fake_domain_run(&domain);
        /* The order of the store is another than the agent's. */
        if (i == 0)
            (void)take_kept("41", true);
        uint32_t second = take_kept("7", false);
        if (i == 1)
            (void)take_kept("41", true);
        fake_loop_advance(domain.loop, 59000);
        expect_only_pings();
        if (i == 0) {
            fake_domain_restart(&domain, true);
            continue;
        }
        fake_loop_advance(domain.loop, 1000);
        (void)expect_in_time(second, FRAME_SIGNAL);
        expect_only_pings();
        say_result(second, TAG_EXIT_CODE, 1);
        expect_commit(second);
    }
    struct exec *exec = exec_find(domain.sandbox, 41);
    ck_assert_ptr_nonnull(exec);
    exec_join(exec); /* who asks for it and leaves does not end it either */
    exec_leave(exec);
    exec_unref(exec);
    fake_domain_run(&domain);
    fake_loop_advance(domain.loop, 20000);
    fake_loop_advance(domain.loop, 40000);
    expect_only_pings();
}
END_TEST

START_TEST(test_committed_but_the_agent_did_not_hear)
{
    static const uint64_t known[] = {1, 0};
    struct json *json = run_printing("text", 4);
    json_free(json);
    fake_domain_restart(&domain, true);
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    struct frame frame;
    uint32_t channel = take_open("1", true, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 4);
    json = record_of(1); /* from the store all the while */
    check_int(json, "exit_code", 0);
    check_text(json, "stdout", "text");
    json_free(json);
    say_result(channel, TAG_EXIT_CODE, 0);
    expect_commit(channel);
    ck_assert_ptr_null(domain.sandbox->execs);
}
END_TEST

/* The store is empty: what the agent remembers has no record. What it has forgotten of its output
 * since is told as lost, also after another restart. */
START_TEST(test_empty_store)
{
    static const uint64_t known[] = {41, 7, 0};
    struct err err;
    struct buf out = BUF_INIT(1 << 20);
    struct exec_reading reading;
    struct frame frame;
    fake_domain_restart(&domain, false);
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    uint32_t first = take_open("41", true, &frame);
    uint32_t second = take_open("7", true, NULL);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 0);
    say_started(first, 0);
    say_output(first, 1, 1000, "the rest");
    say_result(second, TAG_EXIT_CODE, 1);
    expect_commit(second);
    fake_domain_restart(&domain, true);
    fake_agent_greet(&domain.agent, known);
    fake_domain_run(&domain);
    first = take_open("41", true, &frame);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OFFSET_OUT, 99), 1008);
    say_output(first, 1, 1008, "!");
    second = take_open("7", true, NULL);
    say_result(second, TAG_EXIT_CODE, 1);
    say_result(first, TAG_EXIT_CODE, 0);
    struct json *json = record_of(41);
    check_int(json, "exit_code", 0);
    check_text(json, "stdout", "the rest!");
    check_int(json, "stdout_bytes", 1009);
    check_int(json_get(json, "stdout_omitted"), "offset", 0);
    check_int(json_get(json, "stdout_omitted"), "bytes", 1000);
    ck_assert(json_get_bool(json, "truncated", false));
    ck_assert_uint_eq(json_count(json_get(json, "cmd")), 0);
    json_free(json);
    ck_assert_int_eq(read_range(41, 1000, 4, &out, &reading, &err), 0);
    ck_assert_str_eq(buf_text(&out), "the ");
    ck_assert_uint_eq(reading.total, 1009);
    ck_assert_int_eq(read_range(41, 999, 4, &out, &reading, &err), -1);
    ck_assert_int_eq(err.code, ERR_RANGE_NOT_SATISFIABLE);
    buf_done(&out);
    struct exec *exec = start_command("x"); /* no number twice */
    ck_assert_int_eq(exec_number(exec), 42);
    exec_unref(exec);
}
END_TEST

/* A journal of another life of the number must not be continued. */
START_TEST(test_old_journal)
{
    struct json *json = run_printing("old", 3);
    json_free(json);
    fake_domain_restart(&domain, false);
    fake_agent_greet(&domain.agent, NULL);
    const char *text = _i ? "new and longer" : "";
    json = run_printing(text, strlen(text));
    check_text(json, "stdout", text);
    json_free(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exec_cuts");
    TCase *tcase = tcase_create("exec_cuts");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, exec_script_setup, exec_script_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_joined_after_a_cut);
    tcase_add_test(tcase, test_cut_before_it_was_started);
    tcase_add_test(tcase, test_agent_restarted);
    tcase_add_test(tcase, test_unreachable_for_long);
    tcase_add_test(tcase, test_started_while_unreachable);
    tcase_add_test(tcase, test_sandbox_ended);
    tcase_add_test(tcase, test_result_before_the_cut_commit_after_it);
    tcase_add_test(tcase, test_full_disk);
    tcase_add_test(tcase, test_the_last_one_leaves);
    tcase_add_test(tcase, test_one_comes_back);
    tcase_add_test(tcase, test_kept);
    tcase_add_test(tcase, test_killed_while_unreachable);
    tcase_add_test(tcase, test_server_killed);
    tcase_add_test(tcase, test_adopted_without_a_client);
    tcase_add_test(tcase, test_kept_with_an_empty_store);
    tcase_add_test(tcase, test_committed_but_the_agent_did_not_hear);
    tcase_add_test(tcase, test_empty_store);
    tcase_add_loop_test(tcase, test_old_journal, 0, 2);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
