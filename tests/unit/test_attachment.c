#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/attachment.h"
#include "sandbox/fields.h"
#include "tests/unit/exec_script.h"
#include "tests/unit/suite.h"

/* Somebody who is attached to an execution, against a scripted agent. */

static struct exec *exec;
static struct pipe *records;
static struct attachment *attachment;

static void setup(void)
{
    const struct attachment_wish wish = {.number = 1, .write = true};
    struct err err;
    exec_script_setup();
    exec = start_command("x");
    say_started(take_open("1", false, NULL), 0);
    fake_domain_run(&domain);
    records = pipe_new(64 * KIB);
    ck_assert_int_eq(attachment_open(domain.sandbox, &wish, records, &attachment, &err), 0);
}

static void teardown(void)
{
    pipe_abandon(records, NULL);
    attachment_close(attachment);
    pipe_unref(records);
    exec_unref(exec);
    fake_domain_run(&domain);
    exec_script_teardown();
}

/* The channel of the next one that the agent is sent; 0: there is none. */
static uint32_t take_signal(void)
{
    struct frame frame;
    fake_domain_run(&domain);
    while (fake_agent_take(&domain.agent, &frame)) {
        if (frame.type == FRAME_OPEN && frame_u64(&frame, TAG_OP, 0) == OP_KILL)
            return frame.channel;
    }
    return 0;
}

static void answer(uint32_t channel)
{
    struct buf fields = BUF_INIT(100);
    fields_put_u64(&fields, TAG_SIZE, 0);
    fake_agent_tell(&domain.agent, channel, FRAME_RESULT, &fields);
    fake_domain_run(&domain);
}

/* He sends them, and the agent takes none. */
START_TEST(test_signals_are_bounded)
{
    struct err err;
    for (int i = 0; i < CAP_SIGNALS; i++)
        ck_assert_int_eq(attachment_signal(attachment, 2, false, &err), 0);
    ck_assert_int_eq(attachment_signal(attachment, 2, false, &err), -1);
    ck_assert_int_eq(err.code, ERR_BUSY);
    uint32_t first = take_signal();
    ck_assert_uint_ne(first, 0);
    answer(first);
    ck_assert_int_eq(attachment_signal(attachment, 2, true, &err), 0);
    ck_assert_int_eq(attachment_signal(attachment, 2, true, &err), -1);
    size_t sent = 1;
    for (uint32_t channel = take_signal(); channel; channel = take_signal(), sent++)
        answer(channel);
    ck_assert_uint_eq(sent, CAP_SIGNALS + 1);
    ck_assert_int_eq(attachment_signal(attachment, 15, false, &err), 0);
}
END_TEST

/* What is under way when he goes is no concern of his. */
START_TEST(test_leaves_while_a_signal_is_under_way)
{
    struct err err;
    ck_assert_int_eq(attachment_signal(attachment, 2, false, &err), 0);
    attachment_close(attachment);
    attachment = NULL;
    uint32_t channel = take_signal();
    ck_assert_uint_ne(channel, 0);
    answer(channel);
}
END_TEST

START_TEST(test_only_the_writer_signals)
{
    struct err err;
    attachment_release(attachment);
    ck_assert_int_eq(attachment_signal(attachment, 2, false, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_WRITER);
    ck_assert_uint_eq(take_signal(), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_signals_are_bounded, test_leaves_while_a_signal_is_under_way,
                                  test_only_the_writer_signals, NULL};
    return run_suite("attachment", tests, setup, teardown);
}
