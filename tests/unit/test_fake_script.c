/* The bounds of what tests prepare and of what is remembered; what rules mean is tested over HTTP.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "fake/calls.h"
#include "fake/script.h"
#include "tests/unit/suite.h"

static struct err err;

static int put(struct script *script, const char *text)
{
    cleanup_json struct json *body = NULL;

    ck_assert_int_eq(json_parse(text, strlen(text), JSON_STRICT, &body, &err), 0);
    return script_put_rules(script, body, &err);
}

static int exit_code(struct script *script, const char *sandbox, const char *command)
{
    char *argv[] = {(char *)(uintptr_t)command, NULL};
    struct script_answer answer;

    script_answer(script, sandbox, argv, &answer);
    ck_assert_ptr_null(answer.callback);
    int code = answer.reply != NULL ? answer.reply->exit_code : -1;
    fake_reply_unref(answer.reply);
    return code;
}

START_TEST(a_reply_outlives_its_rule)
{
    struct script *script = script_new();
    char *argv[] = {(char *)(uintptr_t) "x", NULL};
    struct script_answer answer;

    ck_assert_int_eq(put(script, "{\"rules\":[{\"replies\":[{\"stdout\":\"kept\"}]}]}"), 0);
    script_answer(script, "s", argv, &answer);
    script_clear_rules(script);
    ck_assert_str_eq(answer.reply->out[0], "kept");
    fake_reply_unref(answer.reply);
    ck_assert_int_eq(exit_code(script, "s", "x"), -1);
    script_free(script);
}
END_TEST

START_TEST(a_rule_that_is_used_up_lets_the_next_one_answer)
{
    struct script *script = script_new();

    ck_assert_int_eq(
        put(script, "{\"rules\":["
                    "{\"sandbox\":\"one\",\"replies\":[{\"exit_code\":1}],\"repeat\":\"none\"},"
                    "{\"match\":{\"regex\":\"^l[sl]$\"},\"replies\":[{\"exit_code\":2}]}]}"),
        0);
    ck_assert_int_eq(exit_code(script, "one", "ls"), 1);
    ck_assert_int_eq(exit_code(script, "one", "ls"), 2);
    ck_assert_int_eq(exit_code(script, "two", "ll"), 2);
    ck_assert_int_eq(exit_code(script, "two", "lx"), -1);
    script_free(script);
}
END_TEST

START_TEST(a_command_longer_than_is_looked_at_still_matches_by_its_beginning)
{
    struct script *script = script_new();
    cleanup_free char *large = xmalloc(2 * MIB);
    char *argv[] = {(char *)(uintptr_t) "run", large, NULL};
    struct script_answer answer;

    memset(large, 'x', 2 * MIB - 1);
    large[2 * MIB - 1] = '\0';
    ck_assert_int_eq(
        put(script,
            "{\"rules\":[{\"match\":{\"regex\":\"^run \"},\"replies\":[{\"exit_code\":5}]}]}"),
        0);
    script_answer(script, "s", argv, &answer);
    ck_assert_ptr_nonnull(answer.reply);
    ck_assert_int_eq(answer.reply->exit_code, 5);
    fake_reply_unref(answer.reply);
    script_free(script);
}
END_TEST

START_TEST(the_oldest_calls_are_dropped_and_counted)
{
    struct calls *calls = calls_new();
    const struct calls_query all = {.limit = 3};

    for (size_t i = 0; i < CAP_FAKE_CALLS + 10; i++)
        (void)calls_add(calls, "s", "exec", json_new_object());
    cleanup_json struct json *page = calls_list(calls, &all);
    ck_assert_int_eq(json_get_int(page, "dropped", -1), 10);
    ck_assert_int_eq(json_get_int(json_at(json_get(page, "items"), 0), "number", -1), 11);
    ck_assert_int_eq(json_get_int(page, "next", -1), 13);
    calls_free(calls);
}
END_TEST

START_TEST(large_calls_are_dropped_by_their_size)
{
    struct calls *calls = calls_new();
    const struct calls_query all = {.limit = 1000};
    cleanup_free char *large = xmalloc(MIB);

    memset(large, 'x', MIB - 1);
    large[MIB - 1] = '\0';
    for (int i = 0; i < 100; i++) {
        struct json *call = json_new_object();

        json_set_text(call, "cmd", large);
        (void)calls_add(calls, "s", "exec", call);
    }
    cleanup_json struct json *page = calls_list(calls, &all);
    ck_assert_int_ge(json_get_int(page, "dropped", -1), 36);
    ck_assert_uint_le(json_count(json_get(page, "items")), 16); /* a page is bounded, too */
    calls_free(calls);
}
END_TEST

START_TEST(a_call_can_be_completed_while_it_is_there)
{
    struct calls *calls = calls_new();
    struct json *more = json_new_object();
    const struct calls_query all = {.limit = 10};
    int64_t number = calls_add(calls, "s", "exec", json_new_object());

    calls_put_bytes(more, "stdin", STR("a\0b"), 3);
    calls_amend(calls, number, more);
    calls_amend(calls, number + 1, json_new_object());
    cleanup_json struct json *page = calls_list(calls, &all);
    const struct json *call = json_at(json_get(page, "items"), 0);
    ck_assert_str_eq(json_get_text(call, "stdin"), "YQBi");
    ck_assert_str_eq(json_get_text(call, "stdin_encoding"), "base64");
    calls_free(calls);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_reply_outlives_its_rule,
        a_rule_that_is_used_up_lets_the_next_one_answer,
        a_command_longer_than_is_looked_at_still_matches_by_its_beginning,
        the_oldest_calls_are_dropped_and_counted,
        large_calls_are_dropped_by_their_size,
        a_call_can_be_completed_while_it_is_there,
        NULL,
    };
    return run_suite("fake_script", tests, NULL, NULL);
}
