#include "tests/unit/exec_script.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sandbox/fields.h"

struct fake_domain domain;
bool store_fails;

/* NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker wants */
int __real_store_put_exec(struct store *store, const struct exec_row *row, struct err *err);
int __wrap_store_put_exec(struct store *store, const struct exec_row *row, struct err *err);
int __wrap_store_put_exec(struct store *store, const struct exec_row *row, struct err *err)
{
    if (store_fails)
        return err_set(err, ERR_STORE_FULL, "no space is left");
    return __real_store_put_exec(store, row, err);
}
/* NOLINTEND(bugprone-reserved-identifier) */

void exec_script_setup(void)
{
    store_fails = false;
    fake_domain_init(&domain, NULL);
}

void exec_script_teardown(void)
{
    fake_domain_done(&domain);
}

/* --- asking ------------------------------------------------------------------------------ */

struct exec_spec spec_of(const char *command)
{
    struct exec_spec spec = {
        .timeout_ms = 5000, .max_output = 1 << 20, .disconnect_grace_ms = 10000};
    text_list_add(&spec.cmd, "sh");
    text_list_add(&spec.cmd, "-c");
    text_list_add(&spec.cmd, command);
    return spec;
}

struct exec *start(struct exec_spec *spec)
{
    struct exec *exec = NULL;
    struct err err;
    ck_assert_msg(exec_start(domain.sandbox, spec, &exec, &err) == 0, "%s", err.msg);
    fake_domain_run(&domain);
    return exec;
}

struct exec *start_command(const char *command)
{
    struct exec_spec spec = spec_of(command);
    return start(&spec);
}

struct json *record_of(int64_t number)
{
    struct json *json = NULL;
    struct err err;
    ck_assert_msg(exec_json(domain.all, "u-1", number, true, &json, &err) == 0, "%s", err.msg);
    return json;
}

void check_text(const struct json *json, const char *path, const char *expected)
{
    const char *text = json_text(json_path(json, path));
    ck_assert_msg(text && strcmp(text, expected) == 0, "%s: got %s, expected %s", path,
                  text ? text : "nothing", expected);
}

void check_null(const struct json *json, const char *name)
{
    ck_assert_msg(json_is_null(json_get(json, name)), "%s is not null", name);
}

void check_int(const struct json *json, const char *name, int64_t expected)
{
    ck_assert_int_eq(json_get_int(json, name, -77), expected);
}

/* --- answering --------------------------------------------------------------------------- */

uint32_t take_open(const char *id, bool join, struct frame *ret_frame)
{
    struct frame frame;
    ck_assert(fake_agent_take(&domain.agent, &frame));
    ck_assert_int_eq(frame.type, FRAME_OPEN);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OP, 0), OP_EXEC);
    ck_assert_uint_eq(frame_u64(&frame, TAG_JOIN, 0), join);
    cleanup_free char *got = frame_text(&frame, TAG_EXEC_ID);
    ck_assert_str_eq(got, id);
    if (ret_frame)
        *ret_frame = frame;
    return frame.channel;
}

void say_started(uint32_t channel, uint64_t stdin_done)
{
    struct buf fields = BUF_INIT(1024);
    fields_put_u64(&fields, TAG_PID, 10);
    fields_put_u64(&fields, TAG_STDIN_DONE, stdin_done);
    fake_agent_tell(&domain.agent, channel, FRAME_STARTED, &fields);
}

void say_output(uint32_t channel, int stream, uint64_t offset, const char *text)
{
    fake_agent_data(&domain.agent, channel, stream, offset, text, strlen(text));
}

void say_result(uint32_t channel, uint16_t tag, uint64_t value)
{
    struct buf fields = BUF_INIT(1024);
    fields_put_u64(&fields, tag, value);
    fields_put_u64(&fields, TAG_OOM, 0);
    fields_put_u64(&fields, TAG_WALL_US, 1500000);
    fields_put_u64(&fields, TAG_CPU_US, 250000);
    fields_put_u64(&fields, TAG_MAX_RSS, 4096);
    fake_agent_tell(&domain.agent, channel, FRAME_RESULT, &fields);
    fake_domain_run(&domain);
}

/* The next frame that is no PING. */
struct frame expect_in_time(uint32_t channel, enum frame_type type)
{
    struct frame frame = {0};
    do
        ck_assert_msg(fake_agent_take(&domain.agent, &frame), "no frame of type %d", (int)type);
    while (frame.type == FRAME_PING && type != FRAME_PING);
    ck_assert_int_eq(frame.type, type);
    ck_assert_uint_eq(frame.channel, channel);
    return frame;
}

void expect_only_pings(void)
{
    struct frame frame;
    while (fake_agent_take(&domain.agent, &frame))
        ck_assert_int_eq(frame.type, FRAME_PING);
}

void expect_commit(uint32_t channel)
{
    struct frame frame;
    do
        ck_assert_msg(fake_agent_take(&domain.agent, &frame), "no COMMIT");
    while (frame.type == FRAME_CREDIT);
    ck_assert_int_eq(frame.type, FRAME_COMMIT);
    ck_assert_uint_eq(frame.channel, channel);
}

/* The whole life of one that prints TEXT on stdout; its record. */
struct json *run_printing(const char *text, size_t len)
{
    struct exec *exec = start_command("print");
    char id[24];
    snprintf(id, sizeof(id), "%lld", (long long)exec_number(exec));
    uint32_t channel = take_open(id, false, NULL);
    say_started(channel, 0);
    for (size_t at = 0; at < len;) {
        size_t size = len - at < FRAME_DATA_MAX ? len - at : FRAME_DATA_MAX;
        fake_agent_data(&domain.agent, channel, 1, at, text + at, size);
        at += size;
    }
    fake_agent_end(&domain.agent, channel, 1, len);
    fake_agent_end(&domain.agent, channel, 2, 0);
    say_result(channel, TAG_EXIT_CODE, 0);
    expect_commit(channel);
    struct json *json = record_of(exec_number(exec));
    exec_unref(exec);
    return json;
}

struct json *run_to(uint16_t tag, uint64_t value, const char *code, bool timed_out)
{
    struct exec *exec = start_command("x");
    struct buf fields = BUF_INIT(1024);
    uint32_t channel = take_open("1", false, NULL);
    if (tag)
        fields_put_u64(&fields, tag, value);
    if (code) {
        fields_put_text(&fields, TAG_ERROR, code);
        fields_put_text(&fields, TAG_MESSAGE, "said the agent");
    }
    fields_put_u64(&fields, TAG_TIMED_OUT, timed_out);
    fake_agent_tell(&domain.agent, channel, FRAME_RESULT, &fields);
    fake_domain_run(&domain);
    struct json *json = NULL;
    struct err err;
    ck_assert(exec_done(exec));
    if (!exec_problem(exec, &err))
        json = record_of(1);
    else
        ck_assert_str_eq(err_code_name(err.code), code);
    exec_unref(exec);
    return json;
}

int read_range(int64_t number, uint64_t offset, int64_t length, struct buf *out,
               struct exec_reading *ret_reading, struct err *err)
{
    const struct exec_key key = {"u-1", number};
    const struct exec_range range = {.stream = 1, .offset = offset, .length = length};
    return exec_output(domain.all, &key, &range, out, ret_reading, err);
}
