#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/exec_data.h"
#include "sandbox/fields.h"
#include "tests/unit/exec_script.h"

/* What the agent is told of an execution, how it ends, and what callers see. */

/* --- one that ends well ------------------------------------------------------------------ */

START_TEST(test_round_trip)
{
    struct frame frame;
    struct exec_spec spec = spec_of("echo hi");
    spec.workdir = xstrdup("/tmp");
    text_map_set(&spec.env, "A", "b=c");
    struct exec *exec = start(&spec);
    ck_assert_ptr_null(spec.cmd.items);
    ck_assert(!exec_done(exec));
    ck_assert_uint_eq(domain.sandbox->running_execs, 1);

    uint32_t channel = take_open("1", false, &frame);
    cleanup_free char *entry = frame_text(&frame, TAG_ENV);
    cleanup_free char *workdir = frame_text(&frame, TAG_WORKDIR);
    ck_assert_str_eq(entry, "A=b=c");
    ck_assert_str_eq(workdir, "/tmp");
    ck_assert_uint_eq(frame_u64(&frame, TAG_TIMEOUT_MS, 0), 5000);
    ck_assert_uint_eq(frame_u64(&frame, TAG_STDIN, 0), 0);
    ck_assert_uint_eq(frame_u64(&frame, TAG_KEEP, 0), 0);

    say_started(channel, 0);
    say_output(channel, 1, 0, "hi\n");
    say_output(channel, 2, 0, "oops");
    struct json *running = record_of(1);
    check_text(running, "state", "running");
    check_text(running, "stdout", "hi\n");
    check_null(running, "exit_code");
    check_null(running, "ended");
    json_free(running);
    say_result(channel, TAG_EXIT_CODE, 3);
    ck_assert(exec_done(exec) && exec_ended(exec));
    expect_commit(channel);
    ck_assert_ptr_null(exec_find(domain.sandbox, 1));
    ck_assert_uint_eq(domain.sandbox->running_execs, 0);
    exec_unref(exec);

    struct json *json = record_of(1);
    check_int(json, "id", 1);
    check_text(json, "state", "exited");
    check_int(json, "exit_code", 3);
    check_null(json, "signal");
    check_text(json, "stdout", "hi\n");
    check_text(json, "stdout_encoding", "utf-8");
    check_text(json, "stderr", "oops");
    check_int(json, "stdout_bytes", 3);
    check_int(json, "stderr_bytes", 4);
    check_null(json, "stdout_omitted");
    check_null(json, "error");
    check_text(json, "workdir", "/tmp");
    ck_assert(!json_get_bool(json, "truncated", true));
    ck_assert(!json_get_bool(json, "timed_out", true));
    ck_assert(!json_get_bool(json, "oom_killed", true));
    check_int(json, "max_rss", 4096);
    ck_assert_str_eq(json_text(json_at(json_get(json, "cmd"), 2)), "echo hi");
    struct buf text = BUF_INIT(1 << 16);
    ck_assert(json_print(json, &text));
    ck_assert_ptr_nonnull(strstr(text.ptr, "\"duration\":1.5,"));
    ck_assert_ptr_nonnull(strstr(text.ptr, "\"cpu_time\":0.25,"));
    buf_done(&text);
    json_free(json);
}
END_TEST

START_TEST(test_commit_only_after_the_store)
{
    struct exec *exec = start_command("true");
    uint32_t channel = take_open("1", false, NULL);
    say_started(channel, 0);
    store_fails = true;
    say_result(channel, TAG_EXIT_CODE, 0);
    /* Who waits is answered; the agent keeps it. */
    ck_assert(exec_ended(exec));
    fake_agent_expect_nothing(&domain.agent);
    struct json *json = record_of(1);
    check_int(json, "exit_code", 0);
    json_free(json);
    fake_loop_advance(domain.loop, 5000);
    fake_domain_run(&domain);
    fake_agent_expect_nothing(&domain.agent);
    store_fails = false;
    fake_loop_advance(domain.loop, 5000);
    fake_domain_run(&domain);
    expect_commit(channel);
    ck_assert_ptr_null(domain.sandbox->execs);
    exec_unref(exec);
}
END_TEST

START_TEST(test_not_stored_not_started)
{
    struct exec *exec = NULL;
    struct err err;
    struct exec_spec spec = spec_of("true");
    store_fails = true;
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &exec, &err), -1);
    ck_assert_int_eq(err.code, ERR_STORE_FULL);
    fake_domain_run(&domain);
    fake_agent_expect_nothing(&domain.agent);
    ck_assert_uint_eq(domain.sandbox->running_execs, 0);
    ck_assert_ptr_null(domain.sandbox->execs);
    ck_assert_ptr_null(spec.cmd.items);
}
END_TEST

/* --- how it ended ------------------------------------------------------------------------ */

START_TEST(test_signal)
{
    struct json *json = run_to(TAG_SIGNAL, 9, NULL, false);
    check_null(json, "exit_code");
    check_text(json, "signal", "KILL");
    check_null(json, "error");
    check_null(json, "oom_killed"); /* the agent does not know */
    json_free(json);
}
END_TEST

START_TEST(test_timeout)
{
    /* Also where the program caught TERM and ended with 0. */
    struct json *json =
        run_to(_i == 0 ? TAG_SIGNAL : TAG_EXIT_CODE, _i == 0 ? 15 : 0, "timeout", true);
    check_null(json, "exit_code");
    ck_assert(json_get_bool(json, "timed_out", false));
    check_text(json, "error.code", "timeout");
    json_free(json);
}
END_TEST

START_TEST(test_missing_program)
{
    struct json *json = run_to(TAG_EXIT_CODE, _i == 0 ? 127 : 126,
                               _i == 0 ? "command_not_found" : "not_executable", false);
    check_int(json, "exit_code", _i == 0 ? 127 : 126);
    check_text(json, "error.code", _i == 0 ? "command_not_found" : "not_executable");
    check_text(json, "error.message", "said the agent");
    json_free(json);
}
END_TEST

START_TEST(test_problems)
{
    static const char *const codes[] = {"workdir_not_found", "argument_too_long", "busy"};
    ck_assert_ptr_null(run_to(0, 0, codes[_i], false));
    ck_assert_uint_eq(domain.sandbox->running_execs, 0);
}
END_TEST

START_TEST(test_an_end_that_says_nothing_is_no_success)
{
    struct json *json = run_to(0, 0, NULL, false);
    check_null(json, "exit_code");
    check_null(json, "signal");
    check_text(json, "error.code", "exec_failed");
    json_free(json);
}
END_TEST

START_TEST(test_an_error_of_a_newer_agent)
{
    struct json *json = run_to(0, 0, "gremlins", false);
    check_null(json, "exit_code");
    check_text(json, "error.code", "exec_failed");
    check_text(json, "error.message", "gremlins: said the agent");
    json_free(json);
}
END_TEST

/* --- bad requests ------------------------------------------------------------------------ */

START_TEST(test_argument_too_long)
{
    struct exec *exec = NULL;
    struct err err;
    struct exec_spec spec = spec_of("x");
    char *text = xcalloc(1, CAP_ARG + 2);
    memset(text, 'a', CAP_ARG);
    text_list_add(&spec.cmd, text);
    exec = start(&spec);
    exec_unref(exec);
    spec = spec_of("x");
    text[CAP_ARG] = 'a';
    text_list_add(&spec.cmd, text);
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &exec, &err), -1);
    ck_assert_int_eq(err.code, ERR_ARGUMENT_TOO_LONG);
    text[CAP_ARG] = '\0';
    spec = spec_of("x");
    for (size_t i = 0; i < CAP_ARGV_BYTES / CAP_ARG + 1; i++)
        text_list_add(&spec.cmd, text);
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &exec, &err), -1);
    ck_assert_int_eq(err.code, ERR_ARGUMENT_TOO_LONG);
    free(text);
}
END_TEST

START_TEST(test_bounds)
{
    struct exec *exec, *other = NULL;
    struct err err;
    domain.all->config.max_execs = 1;
    exec = start_command("a");
    struct exec_spec spec = spec_of("b");
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &other, &err), -1);
    ck_assert_int_eq(err.code, ERR_BUSY);
    spec = spec_of("preview");
    spec.service = true; /* is not counted */
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &other, &err), 0);
    ck_assert_uint_eq(domain.sandbox->running_execs, 1);
    exec_unref(other);
    domain.all->config.max_execs = 10;
    atomic_fetch_add(&domain.all->pending_bytes, CAP_EXEC_PENDING);
    spec = spec_of("c");
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &other, &err), -1);
    ck_assert_int_eq(err.code, ERR_BUSY);
    ck_assert_uint_eq(domain.sandbox->running_execs, 1);
    atomic_fetch_sub(&domain.all->pending_bytes, CAP_EXEC_PENDING);
    exec_unref(exec);
}
END_TEST

START_TEST(test_not_running)
{
    static const enum sandbox_state states[] = {SANDBOX_CREATING, SANDBOX_GONE};
    static const enum err_code codes[] = {ERR_NOT_READY, ERR_GONE};
    struct exec *exec = NULL;
    struct err err;
    struct exec_spec spec = spec_of("x");
    domain.sandbox->state = states[_i];
    ck_assert_int_eq(exec_start(domain.sandbox, &spec, &exec, &err), -1);
    ck_assert_int_eq(err.code, codes[_i]);
}
END_TEST

/* --- lists, and many --------------------------------------------------------------------- */

START_TEST(test_list)
{
    struct json *page = NULL;
    struct err err;
    for (int i = 0; i < 3; i++)
        json_free(run_printing("x", 1));
    struct exec *exec = start_command("runs");
    ck_assert_int_eq(exec_list_json(domain.all, "u-1", 0, 2, &page, &err), 0);
    const struct json *items = json_get(page, "items");
    ck_assert_uint_eq(json_count(items), 2);
    check_int(json_at(items, 0), "id", 4);
    check_text(json_at(items, 0), "state", "running");
    check_int(json_at(items, 1), "id", 3);
    ck_assert_ptr_null(json_get(json_at(items, 1), "stdout"));
    check_int(json_at(items, 1), "stdout_bytes", 1);
    check_text(page, "next", "3");
    json_free(page);
    ck_assert_int_eq(exec_list_json(domain.all, "u-1", 3, 2, &page, &err), 0);
    ck_assert_uint_eq(json_count(json_get(page, "items")), 2);
    check_null(page, "next");
    json_free(page);
    struct json *json = NULL;
    ck_assert_int_eq(exec_json(domain.all, "u-1", 99, true, &json, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    exec_unref(exec);
}
END_TEST

START_TEST(test_many_at_once)
{
    enum { COUNT = 2000 };
    struct exec **execs = xcalloc(COUNT, sizeof(struct exec *));
    uint32_t *channels = xcalloc(COUNT, sizeof(uint32_t));
    for (int i = 0; i < COUNT; i++) {
        struct exec_spec spec = spec_of("sleep 1");
        struct err err;
        char id[16];
        ck_assert_int_eq(exec_start(domain.sandbox, &spec, &execs[i], &err), 0);
        fake_domain_run(&domain);
        snprintf(id, sizeof(id), "%d", i + 1);
        channels[i] = take_open(id, false, NULL);
        say_started(channels[i], 0);
    }
    ck_assert_uint_eq(domain.sandbox->running_execs, COUNT);
    fake_agent_cut(&domain.agent, ERR_NONE);
    fake_domain_run(&domain);
    fake_agent_greet(&domain.agent, NULL);
    for (int i = 0; i < COUNT; i++) {
        struct frame frame;
        ck_assert(fake_agent_take(&domain.agent, &frame));
        ck_assert_int_eq(frame.type, FRAME_OPEN);
        cleanup_free char *id = frame_text(&frame, TAG_EXEC_ID);
        channels[strtoul(id, NULL, 10) - 1] = frame.channel;
    }
    for (int i = 0; i < COUNT; i++) {
        struct buf fields = BUF_INIT(100);
        fields_put_u64(&fields, TAG_EXIT_CODE, (uint64_t)i % 100);
        fake_agent_tell(&domain.agent, channels[i], FRAME_RESULT, &fields);
    }
    fake_domain_run(&domain);
    for (int i = 0; i < COUNT; i++) {
        ck_assert(exec_ended(execs[i]));
        exec_unref(execs[i]);
    }
    ck_assert_ptr_null(domain.sandbox->execs);
    ck_assert_uint_le(sizeof(struct exec), 1024);
    free(execs);
    free(channels);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exec");
    TCase *tcase = tcase_create("exec");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, exec_script_setup, exec_script_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_commit_only_after_the_store);
    tcase_add_test(tcase, test_not_stored_not_started);
    tcase_add_test(tcase, test_signal);
    tcase_add_loop_test(tcase, test_timeout, 0, 2);
    tcase_add_loop_test(tcase, test_missing_program, 0, 2);
    tcase_add_loop_test(tcase, test_problems, 0, 3);
    tcase_add_test(tcase, test_an_end_that_says_nothing_is_no_success);
    tcase_add_test(tcase, test_an_error_of_a_newer_agent);
    tcase_add_test(tcase, test_argument_too_long);
    tcase_add_test(tcase, test_bounds);
    tcase_add_loop_test(tcase, test_not_running, 0, 2);
    tcase_add_test(tcase, test_list);
    tcase_add_test(tcase, test_many_at_once);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
