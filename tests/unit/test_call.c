#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/call.h"
#include "sandbox/fields.h"
#include "tests/unit/fake_domain.h"

/* Requests other than executions, against a scripted agent. */

static struct fake_domain domain;

static void setup(void)
{
    fake_domain_init(&domain, NULL);
}

static void teardown(void)
{
    fake_domain_done(&domain);
}

static void start(struct call *call)
{
    struct err err;
    ck_assert_msg(call_start(domain.sandbox, call, &err) == 0, "%s", err.msg);
    fake_domain_run(&domain);
}

static uint32_t take_open(enum proto_op op)
{
    struct frame frame;
    ck_assert(fake_agent_take(&domain.agent, &frame));
    ck_assert_int_eq(frame.type, FRAME_OPEN);
    ck_assert_uint_eq(frame_u64(&frame, TAG_OP, 0), op);
    return frame.channel;
}

static void check_failed(struct call *call, enum err_code code)
{
    struct err err = {0};
    ck_assert_int_eq(call_state(call, &err), CALL_FAILED);
    ck_assert_str_eq(err_code_name(err.code), err_code_name(code));
}

static void say_size(uint32_t channel, enum frame_type type, uint64_t size)
{
    struct buf fields = BUF_INIT(100);
    fields_put_u64(&fields, TAG_SIZE, size);
    fields_put_text(&fields, TAG_ETAG, "e-1");
    fake_agent_tell(&domain.agent, channel, type, &fields);
}

START_TEST(test_stat)
{
    struct call *call = call_new(OP_STAT);
    uint64_t size = 0;
    call_put_text(call, TAG_PATH, "/a b");
    call_put_u64(call, TAG_MODE, 7);
    start(call);
    struct frame frame = fake_agent_expect(&domain.agent, 1, FRAME_OPEN);
    cleanup_free char *path = frame_text(&frame, TAG_PATH);
    ck_assert_str_eq(path, "/a b");
    ck_assert_uint_eq(frame_u64(&frame, TAG_MODE, 0), 7);
    ck_assert_int_eq(call_state(call, NULL), CALL_WAITING);
    uint64_t count = event_count(call_changed(call));
    say_size(1, FRAME_RESULT, 12);
    ck_assert_int_eq(call_state(call, NULL), CALL_DONE);
    ck_assert_uint_gt(event_count(call_changed(call)), count);
    ck_assert(call_result_u64(call, TAG_SIZE, &size));
    ck_assert_uint_eq(size, 12);
    cleanup_free char *etag = call_result_text(call, TAG_ETAG);
    ck_assert_str_eq(etag, "e-1");
    ck_assert_ptr_null(call_result_text(call, TAG_MESSAGE));
    call_unref(call);
}
END_TEST

START_TEST(test_error)
{
    static const char *const secrets[] = {"hidden", NULL};
    struct err err;
    fake_domain_set_secrets(&domain, secrets);
    struct call *call = call_new(OP_STAT);
    start(call);
    fake_agent_error(&domain.agent, take_open(OP_STAT), FRAME_RESULT, "file_not_found",
                     "no '/hidden/x'");
    ck_assert_int_eq(call_state(call, &err), CALL_FAILED);
    ck_assert_int_eq(err.code, ERR_FILE_NOT_FOUND);
    ck_assert_str_eq(err.msg, "no '/***/x'");
    call_unref(call);
}
END_TEST

START_TEST(test_upload)
{
    struct pipe *pipe = pipe_new(1 << 16);
    struct call *call = call_new(OP_WRITE);
    struct frame frame;
    static char data[300000];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 31 % 253);
    call_upload(call, pipe);
    start(call);
    uint32_t channel = take_open(OP_WRITE);
    size_t written = 0, got = 0;
    while (got < sizeof(data)) {
        written += pipe_write(pipe, data + written, sizeof(data) - written);
        if (written == sizeof(data))
            pipe_finish(pipe, NULL);
        fake_domain_run(&domain);
        while (got < sizeof(data) && fake_agent_take(&domain.agent, &frame)) {
            ck_assert_int_eq(frame.type, FRAME_DATA);
            ck_assert_uint_eq(wire_u64(frame.payload + 1), got);
            ck_assert_mem_eq(frame.payload + 9, data + got, frame.len - 9);
            got += frame.len - 9;
        }
        ck_assert_uint_le(written - got, 400000);
        fake_agent_credit(&domain.agent, channel, got, got + 65536);
    }
    frame = fake_agent_expect(&domain.agent, channel, FRAME_END);
    ck_assert_uint_eq(wire_u64(frame.payload + 1), sizeof(data));
    say_size(channel, FRAME_RESULT, sizeof(data));
    ck_assert_int_eq(call_state(call, NULL), CALL_DONE);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

/* B22: half a body must not replace the file. */
START_TEST(test_upload_that_breaks_off)
{
    struct pipe *pipe = pipe_new(1 << 16);
    struct call *call = call_new(OP_WRITE);
    struct err why = {.code = ERR_INVALID_REQUEST, .msg = "the body was cut short"};
    call_upload(call, pipe);
    start(call);
    uint32_t channel = take_open(OP_WRITE);
    ck_assert_uint_eq(pipe_write(pipe, "half", 4), 4);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, channel, FRAME_DATA);
    pipe_finish(pipe, &why);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, channel, FRAME_CANCEL);
    check_failed(call, ERR_INVALID_REQUEST);
    fake_agent_error(&domain.agent, channel, FRAME_RESULT, "cancelled", "");
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

START_TEST(test_upload_refused)
{
    struct pipe *pipe = pipe_new(1 << 16);
    struct call *call = call_new(OP_WRITE);
    call_upload(call, pipe);
    start(call);
    fake_agent_error(&domain.agent, take_open(OP_WRITE), FRAME_RESULT, "no_space", "full");
    check_failed(call, ERR_NO_SPACE);
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_ABANDONED);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

static struct call *start_download(struct pipe *pipe)
{
    struct call *call = call_new(OP_READ);
    call_download(call, pipe);
    start(call);
    ck_assert_uint_eq(take_open(OP_READ), 1);
    say_size(1, FRAME_STARTED, 100);
    ck_assert_int_eq(call_state(call, NULL), CALL_STARTED);
    struct field_reader reader = call_started(call);
    struct field field;
    ck_assert(field_next(&reader, &field));
    ck_assert_uint_eq(field.tag, TAG_SIZE);
    return call;
}

START_TEST(test_download)
{
    enum { TOTAL = 1000000 };
    struct pipe *pipe = pipe_new(100000);
    struct call *call = start_download(pipe);
    static char data[FRAME_DATA_MAX], got[FRAME_DATA_MAX];
    struct frame frame;
    uint64_t sent = 0, limit = PROTO_WINDOW, read = 0;
    while (read < TOTAL) {
        while (sent < limit && sent < TOTAL) {
            size_t size = limit - sent < sizeof(data) ? (size_t)(limit - sent) : sizeof(data);
            if (size > TOTAL - sent)
                size = (size_t)(TOTAL - sent);
            fake_agent_data(&domain.agent, 1, 1, sent, data, size);
            sent += size;
        }
        ck_assert_uint_le(sent - read, 100000); /* never more than the pipe holds */
        size_t len = pipe_read(pipe, got, 10000);
        ck_assert_uint_gt(len, 0);
        read += len;
        fake_domain_run(&domain);
        while (fake_agent_take(&domain.agent, &frame)) {
            ck_assert_int_eq(frame.type, FRAME_CREDIT);
            limit = wire_u64(frame.payload + 9);
        }
    }
    fake_agent_end(&domain.agent, 1, 1, TOTAL);
    say_size(1, FRAME_RESULT, TOTAL);
    ck_assert_int_eq(call_state(call, NULL), CALL_DONE);
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_ENDED);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

/* B01: an answer that lacks its end is an error, never a shorter file. */
START_TEST(test_incomplete_download)
{
    struct pipe *pipe = pipe_new(100000);
    struct call *call = start_download(pipe);
    fake_agent_data(&domain.agent, 1, 1, 0, "abc", 3);
    if (_i == 0) { /* no END */
        say_size(1, FRAME_RESULT, 3);
        check_failed(call, ERR_SIZE_MISMATCH);
    } else if (_i == 1) { /* another total */
        fake_agent_end(&domain.agent, 1, 1, 4);
        say_size(1, FRAME_RESULT, 4);
        check_failed(call, ERR_SIZE_MISMATCH);
    } else if (_i == 2) { /* a hole */
        fake_agent_data(&domain.agent, 1, 1, 5, "abc", 3);
        check_failed(call, ERR_AGENT_FAILED);
    } else { /* the stream breaks */
        fake_agent_cut(&domain.agent, ERR_NONE);
        check_failed(call, ERR_STREAM_LOST);
    }
    char bytes[10];
    ck_assert_uint_eq(pipe_read(pipe, bytes, sizeof(bytes)), 3);
    ck_assert_int_eq(pipe_state(pipe, NULL), PIPE_FAILED);
    fake_domain_run(&domain);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

START_TEST(test_reader_leaves)
{
    struct pipe *pipe = pipe_new(100000);
    struct call *call = start_download(pipe);
    fake_agent_data(&domain.agent, 1, 1, 0, "abc", 3);
    pipe_abandon(pipe, NULL);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, 1, FRAME_CANCEL);
    check_failed(call, ERR_CANCELLED);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

/* The agent says nothing, or nothing more. */
START_TEST(test_reader_leaves_an_empty_pipe)
{
    struct pipe *pipe = pipe_new(100000);
    struct call *call = start_download(pipe);
    char bytes[10];
    if (_i > 0) {
        fake_agent_data(&domain.agent, 1, 1, 0, "abc", 3);
        ck_assert_uint_eq(pipe_read(pipe, bytes, sizeof(bytes)), 3);
        fake_domain_run(&domain);
    }
    pipe_abandon(pipe, NULL);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, 1, FRAME_CANCEL);
    check_failed(call, ERR_CANCELLED);
    pipe_unref(pipe);
    call_unref(call);
}
END_TEST

START_TEST(test_cancel)
{
    struct call *call = call_new(OP_PORT_WAIT);
    start(call);
    uint32_t channel = take_open(OP_PORT_WAIT);
    call_cancel(call);
    call_cancel(call);
    fake_domain_run(&domain);
    (void)fake_agent_expect(&domain.agent, channel, FRAME_CANCEL);
    check_failed(call, ERR_CANCELLED);
    call_unref(call);
}
END_TEST

START_TEST(test_waits_for_the_link)
{
    domain.agent.refusal = (struct err){.code = ERR_NOT_READY, .msg = "unreachable"};
    fake_agent_cut(&domain.agent, ERR_NONE);
    struct call *one = call_new(OP_STAT), *two = call_new(OP_STAT), *three = call_new(OP_STAT);
    start(one);
    start(two);
    start(three);
    call_cancel(two);
    fake_loop_advance(domain.loop, 29000);
    ck_assert_int_eq(call_state(one, NULL), CALL_WAITING);
    check_failed(two, ERR_CANCELLED);
    if (_i == 0) {
        domain.agent.refusal.code = ERR_NONE;
        fake_loop_advance(domain.loop, 1000 - 1);
        fake_agent_greet(&domain.agent, NULL);
        (void)take_open(OP_STAT);
        (void)take_open(OP_STAT);
        say_size(1, FRAME_RESULT, 1);
        say_size(2, FRAME_RESULT, 1);
        ck_assert_int_eq(call_state(one, NULL), CALL_DONE);
        ck_assert_int_eq(call_state(three, NULL), CALL_DONE);
    } else if (_i == 1) {
        fake_loop_advance(domain.loop, 1000);
        check_failed(one, ERR_NOT_READY);
        check_failed(three, ERR_NOT_READY);
    } else {
        fake_domain_end(&domain, "deleted");
        check_failed(one, ERR_GONE);
    }
    call_unref(one);
    call_unref(two);
    call_unref(three);
}
END_TEST

START_TEST(test_sandbox_ends)
{
    struct call *call = call_new(OP_STAT);
    start(call);
    (void)take_open(OP_STAT);
    fake_domain_end(&domain, "deleted");
    check_failed(call, ERR_GONE);
    call_unref(call);
    struct err err;
    call = call_new(OP_STAT);
    ck_assert_int_eq(call_start(domain.sandbox, call, &err), -1);
    ck_assert_int_eq(err.code, ERR_GONE);
    call_unref(call);
}
END_TEST

START_TEST(test_too_long)
{
    struct err err;
    struct call *call = call_new(OP_REPLACE);
    char *text = xcalloc(1, PROTO_MESSAGE_MAX);
    call_put(call, TAG_OLD, text, PROTO_MESSAGE_MAX);
    ck_assert_int_eq(call_start(domain.sandbox, call, &err), -1);
    ck_assert_int_eq(err.code, ERR_ARGUMENT_TOO_LONG);
    call_unref(call);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("call");
    TCase *tcase = tcase_create("call");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_stat);
    tcase_add_test(tcase, test_error);
    tcase_add_test(tcase, test_upload);
    tcase_add_test(tcase, test_upload_that_breaks_off);
    tcase_add_test(tcase, test_upload_refused);
    tcase_add_test(tcase, test_download);
    tcase_add_loop_test(tcase, test_incomplete_download, 0, 4);
    tcase_add_test(tcase, test_reader_leaves);
    tcase_add_loop_test(tcase, test_reader_leaves_an_empty_pipe, 0, 2);
    tcase_add_test(tcase, test_cancel);
    tcase_add_loop_test(tcase, test_waits_for_the_link, 0, 3);
    tcase_add_test(tcase, test_sandbox_ends);
    tcase_add_test(tcase, test_too_long);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
