#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sandbox/exec_data.h"
#include "sandbox/follow.h"
#include "tests/unit/exec_script.h"
#include "tests/unit/fake_clock.h"

/* An execution followed as its output comes: what is said when, and what a reader has in the end.
 */

#define PIPE_SIZE ((size_t)1 << 20)

struct reader {
    struct pipe *pipe;
    struct buf text; /* all lines so far */
};

static void reader_begin(struct reader *reader, int64_t number, struct follow_position from)
{
    const struct exec_key key = {.uid = domain.sandbox->uid, .number = number};
    struct err err;
    *reader = (struct reader){.pipe = pipe_new(PIPE_SIZE), .text = BUF_INIT(PIPE_SIZE)};
    ck_assert_int_eq(follow_events(domain.all, &key, FOLLOW_NDJSON, &from, reader->pipe, &err), 0);
}

static void reader_take(struct reader *reader)
{
    char piece[4096];
    size_t got;
    fake_domain_run(&domain);
    while ((got = pipe_read(reader->pipe, piece, sizeof(piece))) > 0) {
        ck_assert(buf_append(&reader->text, piece, got));
        fake_domain_run(&domain);
    }
}

static void reader_end(struct reader *reader)
{
    pipe_abandon(reader->pipe, NULL);
    fake_domain_run(&domain);
    pipe_unref(reader->pipe);
    buf_done(&reader->text);
}

static void pass(int64_t ms)
{
    fake_clock_advance(ms);
    fake_loop_advance(domain.loop, ms);
    fake_domain_run(&domain);
}

/* The next event of TEXT. */
static struct json *event_at(const char **text)
{
    struct json *json = NULL;
    struct err err;
    size_t len = strcspn(*text, "\n");
    if (len == 0)
        return NULL;
    ck_assert_int_eq(json_parse(*text, len, JSON_STRICT, &json, &err), 0);
    *text += len + 1;
    return json;
}

/* All data of a stream, one after the other. */
static char *data_of(const struct reader *reader, const char *stream)
{
    struct buf data = BUF_INIT(PIPE_SIZE);
    const char *text = buf_text(&reader->text);
    for (struct json *event = event_at(&text); event; event = event_at(&text)) {
        if (strcmp(json_get_text(event, "type"), stream) == 0)
            ck_assert(buf_append_str(&data, json_get_text(event, "data")));
        json_free(event);
    }
    return buf_take(&data, NULL);
}

static char *types_of(const struct reader *reader)
{
    struct buf types = BUF_INIT(4096);
    const char *text = buf_text(&reader->text);
    for (struct json *event = event_at(&text); event; event = event_at(&text)) {
        ck_assert(buf_printf(&types, "%s ", json_get_text(event, "type")));
        json_free(event);
    }
    return buf_take(&types, NULL);
}

static void check_types(const struct reader *reader, const char *expected)
{
    cleanup_free char *types = types_of(reader);
    ck_assert_str_eq(types, expected);
}

static uint32_t begin_command(int64_t number, struct exec **ret_exec)
{
    char id[24];
    (void)snprintf(id, sizeof(id), "%lld", (long long)number);
    *ret_exec = start_command("x");
    uint32_t channel = take_open(id, false, NULL);
    say_started(channel, 0);
    fake_domain_run(&domain);
    return channel;
}

static void end_command(uint32_t channel)
{
    say_result(channel, TAG_EXIT_CODE, 3);
    fake_domain_run(&domain);
    struct frame frame;
    while (fake_agent_take(&domain.agent, &frame))
        ;
}

/* --- secrets ------------------------------------------------------------------------------------
 */

static const char *const forms[] = {
    "a-long-secret-value12",                      /* raw */
    "YS1sb25nLXNlY3JldC12YWx1ZTEy",               /* base64 */
    "612d6c6f6e672d7365637265742d76616c75653132", /* hex */
    "short-one",
};
static const char *const secrets[] = {"a-long-secret-value12", "short-one", NULL};

static size_t shown_max(const char *form)
{
    return strlen(form) / 4 > 4 ? strlen(form) / 4 : 4;
}

/* Two pieces, cut at every byte; between them no time, or more than a beginning is held for. */
static void cut_at(const char *form, size_t cut, bool slowly, int64_t number)
{
    char first[64];
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(number, &exec);
    reader_begin(&reader, number, (struct follow_position){0});
    (void)snprintf(first, sizeof(first), "%.*s", (int)cut, form);
    say_output(channel, 1, 0, first);
    reader_take(&reader);
    if (slowly)
        pass(60);
    reader_take(&reader);
    cleanup_free char *early = data_of(&reader, "stdout");
    size_t most = slowly ? shown_max(form) : 0;
    ck_assert_msg(strlen(early) <= most, "%s cut at %zu: '%s'", form, cut, early);
    ck_assert_int_eq(strncmp(early, form, strlen(early)), 0);
    if (slowly && cut <= 4)
        ck_assert_msg(strlen(early) == cut, "%s cut at %zu: '%s'", form, cut, early);
    say_output(channel, 1, cut, form + cut);
    reader_take(&reader);
    end_command(channel);
    reader_take(&reader);
    cleanup_free char *all = data_of(&reader, "stdout");
    cleanup_free char *expected = xasprintf("%s***", early);
    ck_assert_str_eq(all, expected);
    reader_end(&reader);
    exec_unref(exec);
}

START_TEST(test_secrets_cut_at_every_byte)
{
    fake_domain_set_secrets(&domain, secrets);
    const char *form = forms[_i];
    int64_t number = 1;
    for (size_t cut = 1; cut < strlen(form); cut++) {
        cut_at(form, cut, false, number++);
        cut_at(form, cut, true, number++);
    }
}
END_TEST

START_TEST(test_what_was_no_secret_is_shown)
{
    struct exec *exec;
    struct reader reader;
    fake_domain_set_secrets(&domain, secrets);
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    say_output(channel, 1, 0, "see a-long-secret-val");
    pass(5000);
    reader_take(&reader);
    cleanup_free char *before = data_of(&reader, "stdout");
    ck_assert_str_eq(before, "see ");
    say_output(channel, 1, 21, "id");
    reader_take(&reader);
    cleanup_free char *after = data_of(&reader, "stdout");
    ck_assert_str_eq(after, "see a-long-secret-valid");
    end_command(channel);
    reader_end(&reader);
    exec_unref(exec);
}
END_TEST

/* --- what is said -------------------------------------------------------------------------------
 */

START_TEST(test_from_start_to_exit)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    say_output(channel, 1, 0, "out");
    reader_take(&reader);
    say_output(channel, 2, 0, "err");
    reader_take(&reader);
    check_types(&reader, "started stdout stderr ");
    ck_assert_int_eq(pipe_state(reader.pipe, NULL), PIPE_OPEN);
    end_command(channel);
    reader_take(&reader);
    check_types(&reader, "started stdout stderr exit ");
    ck_assert_int_eq(pipe_state(reader.pipe, NULL), PIPE_ENDED);
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"id\":\"4:3:3\""));
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"exit_code\":3"));
    reader_end(&reader);
    /* Now from the store, and from within. */
    exec_unref(exec);
    fake_domain_run(&domain);
    ck_assert_ptr_null(exec_find(domain.sandbox, 1));
    reader_begin(&reader, 1, (struct follow_position){.sequence = 2, .offset = {2, 0}});
    reader_take(&reader);
    check_types(&reader, "stdout stderr exit ");
    cleanup_free char *rest = data_of(&reader, "stdout");
    ck_assert_str_eq(rest, "t");
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"id\":\"5:3:3\""));
    reader_end(&reader);
}
END_TEST

START_TEST(test_heartbeats)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    reader_take(&reader);
    pass(9000);
    reader_take(&reader);
    check_types(&reader, "started ");
    pass(1000);
    reader_take(&reader);
    check_types(&reader, "started heartbeat ");
    pass(4000);
    say_output(channel, 1, 0, "x");
    reader_take(&reader);
    pass(9000);
    reader_take(&reader);
    check_types(&reader, "started heartbeat stdout ");
    pass(1000);
    reader_take(&reader);
    check_types(&reader, "started heartbeat stdout heartbeat ");
    end_command(channel);
    reader_end(&reader);
    exec_unref(exec);
}
END_TEST

/* The rest of a character is waited for, but not without an end. */
START_TEST(test_half_a_character)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    say_output(channel, 1, 0, "a\xe2\x82");
    reader_take(&reader);
    cleanup_free char *before = data_of(&reader, "stdout");
    ck_assert_str_eq(before, "a");
    pass(10000);
    reader_take(&reader);
    check_types(&reader, "started stdout stdout ");
    ck_assert_ptr_nonnull(
        strstr(buf_text(&reader.text), "\"encoding\":\"base64\",\"data\":\"4oI=\""));
    end_command(channel);
    reader_end(&reader);
    exec_unref(exec);
}
END_TEST

START_TEST(test_lost_output_is_a_gap)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    say_output(channel, 1, 0, "abc");
    say_output(channel, 1, 10, "xyz");
    end_command(channel);
    reader_take(&reader);
    check_types(&reader, "started stdout gap stdout exit ");
    ck_assert_ptr_nonnull(
        strstr(buf_text(&reader.text), "\"stream\":\"stdout\",\"from\":3,\"to\":10"));
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"offset\":10"));
    reader_end(&reader);
    /* From within what was lost. */
    reader_begin(&reader, 1, (struct follow_position){.sequence = 9, .offset = {5, 0}});
    reader_take(&reader);
    check_types(&reader, "gap stdout exit ");
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"from\":5,\"to\":10"));
    reader_end(&reader);
    exec_unref(exec);
}
END_TEST

START_TEST(test_the_server_stops)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    say_output(channel, 1, 0, "abc");
    reader_take(&reader);
    domain.all->newest = domain.sandbox;
    follows_stop(domain.all);
    domain.all->newest = NULL;
    reader_take(&reader);
    check_types(&reader, "started stdout error ");
    ck_assert_ptr_nonnull(strstr(buf_text(&reader.text), "\"code\":\"stopping\""));
    ck_assert_int_eq(pipe_state(reader.pipe, NULL), PIPE_ENDED);
    end_command(channel);
    reader_end(&reader);
    exec_unref(exec);
}
END_TEST

START_TEST(test_a_reader_that_leaves)
{
    struct exec *exec;
    struct reader reader;
    uint32_t channel = begin_command(1, &exec);
    reader_begin(&reader, 1, (struct follow_position){0});
    reader_take(&reader);
    ck_assert_ptr_nonnull(exec->readers);
    reader_end(&reader);
    ck_assert_ptr_null(exec->readers);
    say_output(channel, 1, 0, "nobody reads it");
    end_command(channel);
    exec_unref(exec);
}
END_TEST

START_TEST(test_positions)
{
    static const char *const bad[] = {
        "",      "1",      "1:2",  "1:2:3:4", "a:0:0",
        "1:-2:", "1:2:3 ", ":1:2", "1::2",    "1:2:99999999999999999999"};
    struct follow_position at;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(!follow_position_parse(bad[i], &at), "%s", bad[i]);
    ck_assert(follow_position_parse("7:14888:0", &at));
    ck_assert_uint_eq(at.sequence, 7);
    ck_assert_uint_eq(at.offset[0], 14888);
    ck_assert_uint_eq(at.offset[1], 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("follow");
    TCase *tcase = tcase_create("follow");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, exec_script_setup, exec_script_teardown);
    tcase_add_loop_test(tcase, test_secrets_cut_at_every_byte, 0, ARRAY_LEN(forms));
    tcase_add_test(tcase, test_what_was_no_secret_is_shown);
    tcase_add_test(tcase, test_from_start_to_exit);
    tcase_add_test(tcase, test_heartbeats);
    tcase_add_test(tcase, test_half_a_character);
    tcase_add_test(tcase, test_lost_output_is_a_gap);
    tcase_add_test(tcase, test_the_server_stops);
    tcase_add_test(tcase, test_a_reader_that_leaves);
    tcase_add_test(tcase, test_positions);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
