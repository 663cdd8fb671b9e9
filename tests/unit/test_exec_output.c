#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sandbox/exec_data.h"
#include "sandbox/fields.h"
#include "tests/unit/exec_script.h"

/* Output of executions in replies and by ranges, with secrets in it. */

/* --- output in a reply ------------------------------------------------------------------- */

START_TEST(test_text_and_bytes)
{
    static const struct {
        const char *bytes, *shown, *encoding;
    } cases[] = {
        {"", "", "utf-8"},
        {"caf\xc3\xa9", "caf\xc3\xa9", "utf-8"},
        {"\xff\xfe"
         "a\xc0\xaf",
         "//5hwK8=", "base64"},
        {"cut \xe2\x82", "Y3V0IOKC", "base64"}, /* it ended so: nothing of it is hidden */
    };
    struct json *json = run_printing(cases[_i].bytes, strlen(cases[_i].bytes));
    check_text(json, "stdout", cases[_i].shown);
    check_text(json, "stdout_encoding", cases[_i].encoding);
    json_free(json);
}
END_TEST

START_TEST(test_a_character_over_two_frames)
{
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_output(channel, 1, 0, "\xe2\x82");
    struct json *json = record_of(1);
    check_text(json, "stdout", ""); /* the rest of it will come */
    check_text(json, "stdout_encoding", "utf-8");
    json_free(json);
    say_output(channel, 1, 2, "\xac");
    json = record_of(1);
    check_text(json, "stdout", "\xe2\x82\xac");
    json_free(json);
    exec_unref(exec);
}
END_TEST

static char *lines(size_t count, size_t *ret_len)
{
    struct buf text = BUF_INIT((size_t)64 << 20);
    for (size_t i = 0; i < count; i++)
        ck_assert(buf_printf(&text, "%zu \xe2\x82\xac\n", i));
    return buf_take(&text, ret_len);
}

START_TEST(test_head_and_tail)
{
    size_t len, max = 1000;
    char *text = lines(20000, &len);
    struct exec_spec spec = spec_of("x");
    spec.max_output = (int64_t)max;
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    for (size_t at = 0; at < len;) {
        size_t size = len - at < 30000 ? len - at : 30000;
        fake_agent_data(&domain.agent, channel, 1, at, text + at, size);
        at += size;
    }
    say_result(channel, TAG_EXIT_CODE, 0);
    struct json *json = record_of(1);
    check_text(json, "stdout_encoding", "utf-8");
    check_int(json, "stdout_bytes", (int64_t)len);
    ck_assert(json_get_bool(json, "truncated", false));
    const char *shown = json_get_text(json, "stdout");
    size_t head = (size_t)json_get_int(json_get(json, "stdout_omitted"), "offset", -1);
    size_t bytes = (size_t)json_get_int(json_get(json, "stdout_omitted"), "bytes", -1);
    ck_assert_uint_le(head, max / 2);
    ck_assert_uint_gt(head, max / 2 - 4);
    size_t tail = len - head - bytes;
    ck_assert_uint_le(tail, max / 2);
    ck_assert_uint_gt(tail, max / 2 - 4);
    ck_assert_uint_eq(strlen(shown), head + tail);
    ck_assert_mem_eq(shown, text, head);
    ck_assert_mem_eq(shown + head, text + len - tail, tail);
    json_free(json);
    exec_unref(exec);
    free(text);
}
END_TEST

/* More than the journal keeps. */
START_TEST(test_beyond_the_quota)
{
    enum { TOTAL = 40 << 20 };
    char *piece = xmalloc(30000);
    struct err err;
    struct buf out = BUF_INIT(1 << 20);
    struct exec_reading reading;
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    size_t at = 0;
    while (at < TOTAL) {
        memset(piece, 'a' + (int)(at / 30000 % 26), 30000);
        fake_agent_data(&domain.agent, channel, 1, at, piece, 30000);
        at += 30000;
    }
    say_result(channel, TAG_EXIT_CODE, 0);
    struct json *json = record_of(1);
    check_int(json, "stdout_bytes", (int64_t)at);
    ck_assert_uint_eq(strlen(json_get_text(json, "stdout")), 1 << 20);
    json_free(json);
    ck_assert_int_eq(read_range(1, at - 10, 100, &out, &reading, &err), 0);
    ck_assert_uint_eq(out.len, 10);
    ck_assert_uint_eq(reading.total, at);
    buf_reset(&out);
    ck_assert_int_eq(read_range(1, 20 << 20, 10, &out, &reading, &err), -1);
    ck_assert_int_eq(err.code, ERR_RANGE_NOT_SATISFIABLE);
    buf_done(&out);
    free(piece);
    exec_unref(exec);
}
END_TEST

/* --- secrets ----------------------------------------------------------------------------- */

static void check_not_on_disk(const char *name, const char *secret)
{
    cleanup_free char *path = temp_path(&domain.dir, name);
    FILE *file = fopen(path, "r");
    char bytes[65536];
    ck_assert_ptr_nonnull(file);
    size_t len = fread(bytes, 1, sizeof(bytes), file);
    (void)fclose(file);
    ck_assert_ptr_null(memmem(bytes, len, secret, strlen(secret)));
}

START_TEST(test_scrubbed)
{
    static const char *const secrets[] = {"hunter2hunter2", "q", NULL};
    fake_domain_set_secrets(&domain, secrets);
    struct exec_spec spec = spec_of("echo hunter2hunter2");
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    say_output(channel, 1, 0, "<hunter2");
    say_output(channel, 1, 8, "hunter2> **q**");
    say_output(channel, 2, 0, "\xff hunter2hunter2");
    say_result(channel, TAG_EXIT_CODE, 0);
    struct json *json = record_of(1);
    check_text(json, "stdout", "<***> *******"); /* ** and *** and ** */
    check_int(json, "stdout_bytes", 22);
    check_text(json, "stderr_encoding", "base64");
    check_text(json, "stderr", "/yAqKioqKioqKioqKioqKg==");
    ck_assert_str_eq(json_text(json_at(json_get(json, "cmd"), 2)), "echo ***");
    json_free(json);
    check_not_on_disk("u-1/1.out", "hunter2");
    exec_unref(exec);
}
END_TEST

START_TEST(test_secret_registered_later)
{
    static const char *const secrets[] = {"tell-nobody", NULL};
    struct buf out = BUF_INIT(1 << 20);
    struct exec_reading reading;
    struct err err;
    struct json *json = run_printing("a tell-nobody b", 15);
    check_text(json, "stdout", "a tell-nobody b");
    json_free(json);
    fake_domain_set_secrets(&domain, secrets);
    json = record_of(1);
    check_text(json, "stdout", "a *** b");
    json_free(json);
    /* By any range. */
    for (uint64_t from = 0; from < 15; from++) {
        for (size_t len = 1; len <= 15 - from; len++) {
            buf_reset(&out);
            ck_assert_int_eq(read_range(1, from, (int64_t)len, &out, &reading, &err), 0);
            ck_assert_uint_eq(out.len, len);
            ck_assert_mem_eq(out.ptr, &"a *********** b"[from], len);
            ck_assert_uint_eq(reading.scrubbed, from < 13 && from + len > 2);
        }
    }
    buf_done(&out);
}
END_TEST

/* What was written down before is masked when the secret comes, so that it stays so when the
 * sandbox, and its list of secrets with it, is gone. */
START_TEST(test_masked_at_rest)
{
    static const char *const secrets[] = {"tell-nobody", NULL};
    static const char *const none[] = {NULL};
    struct exec_spec spec = spec_of("echo tell-nobody");
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    say_output(channel, 1, 0, "a tell-nobody b");
    say_output(channel, 2, 0, "tell-nobody \xff");
    struct buf fields = BUF_INIT(1000);
    fields_put_u64(&fields, TAG_EXIT_CODE, 1);
    fields_put_text(&fields, TAG_ERROR, "exec_failed");
    fields_put_text(&fields, TAG_MESSAGE, "no tell-nobody");
    fake_agent_tell(&domain.agent, channel, FRAME_RESULT, &fields);
    fake_domain_run(&domain);
    expect_commit(channel);
    exec_unref(exec);
    exec = start_command("runs");
    channel = take_open("2", false, NULL);
    say_output(channel, 1, 0, "[tell-nobody]");
    fake_domain_set_secrets(&domain, secrets);
    execs_scrub(domain.sandbox);
    fake_domain_run(&domain);
    say_result(channel, TAG_EXIT_CODE, 0);
    fake_domain_set_secrets(&domain, none); /* as for a sandbox that is gone */
    struct json *json = record_of(1);
    check_text(json, "stdout", "a *** b");
    check_text(json, "stderr", "KioqKioqKioqKiog/w==");
    check_text(json, "error.code", "exec_failed");
    check_text(json, "error.message", "no ***");
    check_int(json, "stdout_bytes", 15);
    ck_assert_str_eq(json_text(json_at(json_get(json, "cmd"), 2)), "echo ***");
    json_free(json);
    json = record_of(2);
    check_text(json, "stdout", "[***]");
    json_free(json);
    check_not_on_disk("u-1/1.out", secrets[0]);
    check_not_on_disk("u-1/1.err", secrets[0]);
    check_not_on_disk("u-1/2.out", secrets[0]);
    execs_scrub(domain.sandbox); /* nothing to look for */
    fake_domain_run(&domain);
    exec_unref(exec);
}
END_TEST

START_TEST(test_secret_across_the_cut)
{
    static const char *const secrets[] = {"across-the-cut", NULL};
    char text[4000];
    struct exec_spec spec = spec_of("x");
    fake_domain_set_secrets(&domain, secrets);
    memset(text, '.', sizeof(text));
    memcpy(text + 95, secrets[0], strlen(secrets[0])); /* over the end of the head at 100 */
    memcpy(text + sizeof(text) - 107, secrets[0],
           strlen(secrets[0])); /* over the start of the tail */
    spec.max_output = 200;
    struct exec *exec = start(&spec);
    uint32_t channel = take_open("1", false, NULL);
    fake_agent_data(&domain.agent, channel, 1, 0, text, sizeof(text));
    say_result(channel, TAG_EXIT_CODE, 0);
    struct json *json = record_of(1);
    const char *shown = json_get_text(json, "stdout");
    ck_assert_uint_eq(strlen(shown), 95 + 3 + 3 + 93);
    ck_assert_mem_eq(shown + 94, ".******.", 8);
    json_free(json);
    exec_unref(exec);
}
END_TEST

START_TEST(test_half_a_secret_is_held_back)
{
    static const char *const secrets[] = {"a-long-secret-value", NULL};
    struct buf out = BUF_INIT(1 << 20);
    struct exec_reading reading;
    struct err err;
    fake_domain_set_secrets(&domain, secrets);
    struct exec *exec = start_command("x");
    uint32_t channel = take_open("1", false, NULL);
    say_output(channel, 1, 0, "see a-long-secret");
    ck_assert_int_eq(read_range(1, 0, 100, &out, &reading, &err), 0);
    ck_assert_str_eq(buf_text(&out), "see ");
    struct json *json = record_of(1);
    check_text(json, "stdout", "see ");
    json_free(json);
    say_output(channel, 1, 17, "-value!");
    buf_reset(&out);
    ck_assert_int_eq(read_range(1, 4, 100, &out, &reading, &err), 0);
    ck_assert_str_eq(buf_text(&out), "*******************!");
    ck_assert_uint_eq(reading.scrubbed, 1);
    buf_done(&out);
    exec_unref(exec);
}
END_TEST

START_TEST(test_error_of_the_agent_is_scrubbed)
{
    static const char *const secrets[] = {"said", NULL};
    fake_domain_set_secrets(&domain, secrets);
    struct json *json = run_to(TAG_EXIT_CODE, 127, "command_not_found", false);
    check_text(json, "error.message", "*** the agent");
    json_free(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exec_output");
    TCase *tcase = tcase_create("exec_output");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, exec_script_setup, exec_script_teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_loop_test(tcase, test_text_and_bytes, 0, 4);
    tcase_add_test(tcase, test_a_character_over_two_frames);
    tcase_add_test(tcase, test_head_and_tail);
    tcase_add_test(tcase, test_beyond_the_quota);
    tcase_add_test(tcase, test_scrubbed);
    tcase_add_test(tcase, test_secret_registered_later);
    tcase_add_test(tcase, test_masked_at_rest);
    tcase_add_test(tcase, test_secret_across_the_cut);
    tcase_add_test(tcase, test_half_a_secret_is_held_back);
    tcase_add_test(tcase, test_error_of_the_agent_is_scrubbed);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
