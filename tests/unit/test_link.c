#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/fields.h"
#include "sandbox/link.h"
#include "tests/unit/fake_loop.h"
#include "tests/unit/fake_stream.h"

static struct loop *loop;
static struct fake_agent agent;
static struct link_shared shared;
static struct link *link;
static struct {
    unsigned ups, downs, ends, configured;
    struct err why, configured_why;
    uint64_t seq;
    bool stop_in_up, stop_in_down;
} seen;

static void stop(void)
{
    struct link *old = link;
    link = NULL;
    link_stop(old);
}

static void on_up(void *arg, const struct link_hello *hello)
{
    (void)arg;
    (void)hello;
    seen.ups++;
    if (seen.stop_in_up)
        stop();
}

static void on_down(void *arg, const struct err *why)
{
    (void)arg;
    seen.downs++;
    seen.why = *why;
    if (seen.stop_in_down)
        stop();
}

static void on_ended(void *arg, const struct err *why)
{
    (void)arg;
    seen.ends++;
    seen.why = *why;
}

static void on_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    (void)arg;
    (void)deadline_ms;
    seen.configured++;
    seen.seq = seq;
    seen.configured_why = why ? *why : (struct err){0};
}

static const struct link_handler handler = {on_up, on_down, on_ended, on_configured};

static struct link *make_link(struct fake_agent *to)
{
    struct link_target target = {.driver = &to->driver,
                                 .loop = loop,
                                 .id = "box",
                                 .uid = "u-1",
                                 .box_uid = "b-1",
                                 .shared = &shared};
    return link_new(&target, &handler, NULL);
}

static void setup(void)
{
    memset(&seen, 0, sizeof(seen));
    shared = (struct link_shared){0};
    loop = fake_loop_new();
    fake_agent_init(&agent, loop);
    link = make_link(&agent);
}

static void teardown(void)
{
    stop();
    fake_loop_free(loop);
    fake_agent_done(&agent);
    ck_assert_uint_eq(shared.handshakes, 0);
    ck_assert_ptr_null(shared.first_waiting);
}

static void bring_up(void)
{
    link_start(link);
    fake_loop_run(loop);
    fake_agent_greet(&agent, NULL);
    ck_assert(link_is_up(link));
    ck_assert_int_eq(link_down_since(link), 0);
}

START_TEST(test_up)
{
    ck_assert(!link_is_up(link));
    bring_up();
    ck_assert_uint_eq(seen.ups, 1);
    ck_assert_uint_eq(seen.downs, 0);
    ck_assert_uint_eq(shared.handshakes, 0);
}
END_TEST

START_TEST(test_not_ready_is_tried_soon_and_then_less_often)
{
    static const int64_t pauses[] = {20, 30, 45, 67, 100, 150};
    agent.refusal = (struct err){.code = ERR_NOT_READY, .msg = "no agent yet"};
    agent.refuse_at_once = _i;
    link_start(link);
    fake_loop_run(loop);
    for (size_t i = 0; i < ARRAY_LEN(pauses); i++) {
        ck_assert_uint_eq(agent.opens, i + 1);
        ck_assert_uint_eq(seen.downs, i + 1);
        ck_assert_int_eq(fake_loop_next(loop), pauses[i]);
        fake_loop_advance(loop, pauses[i]);
    }
    for (int i = 0; i < 30; i++)
        fake_loop_advance(loop, fake_loop_next(loop));
    ck_assert_int_eq(fake_loop_next(loop), 1000);
    ck_assert_int_gt(link_down_since(link), 0);
    agent.refusal.code = ERR_NONE;
    fake_loop_advance(loop, 1000);
    fake_agent_greet(&agent, NULL);
    ck_assert_uint_eq(seen.ups, 1);
}
END_TEST

START_TEST(test_the_box_is_gone)
{
    agent.refusal = (struct err){.code = ERR_SANDBOX_GONE, .msg = "no pod"};
    agent.refuse_at_once = _i;
    link_start(link);
    fake_loop_run(loop);
    ck_assert_uint_eq(seen.ends, 1);
    ck_assert_int_eq(seen.why.code, ERR_SANDBOX_GONE);
    ck_assert_int_eq(fake_loop_next(loop), -1);
}
END_TEST

START_TEST(test_a_cut_stream_is_opened_again_at_once)
{
    bring_up();
    fake_agent_cut(&agent, ERR_NONE);
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_int_eq(seen.why.code, ERR_STREAM_LOST);
    ck_assert(!link_is_up(link));
    ck_assert_int_eq(fake_loop_next(loop), 0);
    fake_loop_run(loop);
    fake_agent_greet(&agent, NULL);
    ck_assert_uint_eq(seen.ups, 2);
    /* When it breaks again and again, no faster than the agent can bear. */
    fake_agent_cut(&agent, ERR_NONE);
    ck_assert_int_eq(fake_loop_next(loop), 20);
}
END_TEST

START_TEST(test_superseded_does_not_fight)
{
    bring_up();
    fake_agent_error(&agent, 0, FRAME_BYE, "superseded", "another server");
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_uint_eq(seen.ends, 0);
    ck_assert_int_ge(fake_loop_next(loop), 5000);
}
END_TEST

START_TEST(test_bye)
{
    bring_up();
    fake_agent_error(&agent, 0, FRAME_BYE, "deadline", "");
    ck_assert_uint_eq(seen.ends, 1);
    ck_assert_int_eq(seen.why.code, ERR_TTL);
    ck_assert_int_eq(fake_loop_next(loop), -1);
}
END_TEST

START_TEST(test_refused_token)
{
    link_start(link);
    fake_loop_run(loop);
    (void)fake_agent_expect(&agent, 0, FRAME_HELLO);
    fake_agent_error(&agent, 0, FRAME_HELLO_NO, "forbidden", "not this token");
    ck_assert_uint_eq(seen.ends, 1);
    ck_assert_int_eq(seen.why.code, ERR_UNAUTHENTICATED);
}
END_TEST

START_TEST(test_hello_refused_for_now)
{
    link_start(link);
    fake_loop_run(loop);
    (void)fake_agent_expect(&agent, 0, FRAME_HELLO);
    fake_agent_error(&agent, 0, FRAME_HELLO_NO, "busy", "");
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_int_ge(fake_loop_next(loop), 20);
}
END_TEST

/* The exec has reached the container before, which has the same name and is about to go. */
START_TEST(test_agent_of_another_sandbox)
{
    link_start(link);
    fake_loop_run(loop);
    for (unsigned i = 0; i < 20; i++) {
        struct frame hello = fake_agent_expect(&agent, 0, FRAME_HELLO);
        cleanup_free char *uid = frame_text(&hello, TAG_UID);
        ck_assert_str_eq(uid, "u-1");
        fake_agent_error(&agent, 0, FRAME_HELLO_NO, "not_ready", "of another sandbox");
        ck_assert_uint_eq(seen.downs, i + 1);
        ck_assert_int_eq(seen.why.code, ERR_NOT_READY);
        ck_assert_int_ge(fake_loop_next(loop), 20);
        ck_assert_int_le(fake_loop_next(loop), 1000);
        fake_loop_advance(loop, fake_loop_next(loop));
    }
    fake_agent_greet(&agent, NULL);
    ck_assert_uint_eq(seen.ups, 1);
    ck_assert_uint_eq(seen.ends, 0);
}
END_TEST

START_TEST(test_no_hello)
{
    link_start(link);
    fake_loop_run(loop);
    fake_loop_advance(loop, 9999);
    ck_assert_uint_eq(seen.downs, 0);
    fake_loop_advance(loop, 1);
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_int_eq(seen.why.code, ERR_NOT_READY);
}
END_TEST

START_TEST(test_pings)
{
    bring_up();
    for (int i = 0; i < 5; i++) {
        fake_loop_advance(loop, 30000);
        struct frame frame = fake_agent_expect(&agent, 0, FRAME_PING);
        ck_assert_uint_eq(frame.len, 8);
        fake_agent_say(&agent, 0, FRAME_PONG, "podsandb", 8);
    }
    /* Silent for two: cut. */
    fake_loop_advance(loop, 30000);
    fake_loop_advance(loop, 30000);
    ck_assert(link_is_up(link));
    fake_loop_advance(loop, 30000);
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_int_eq(seen.why.code, ERR_STREAM_LOST);
}
END_TEST

START_TEST(test_broken_protocol_is_cut)
{
    static const uint8_t bytes[FRAME_HEADER_LEN] = {0xff, 0xff, 0xff, 0xff};
    bring_up();
    fake_agent_bytes(&agent, bytes, sizeof(bytes));
    ck_assert_uint_eq(seen.downs, 1);
    ck_assert_int_eq(seen.why.code, ERR_AGENT_FAILED);
    ck_assert_ptr_null(agent.stream);
}
END_TEST

START_TEST(test_configure)
{
    struct link_configuration configuration = {.seq = 4, .deadline_ms = 1000};
    struct buf fields = BUF_INIT(100);
    link_configure(link, &configuration); /* down */
    ck_assert_uint_eq(seen.configured, 1);
    ck_assert_int_eq(seen.configured_why.code, ERR_NOT_READY);
    bring_up();
    link_configure(link, &configuration);
    configuration.seq = 5;
    link_configure(link, &configuration);
    (void)fake_agent_expect(&agent, 0, FRAME_CONFIGURE);
    (void)fake_agent_expect(&agent, 0, FRAME_CONFIGURE);
    fields_put_u64(&fields, TAG_SEQ, 4);
    fake_agent_tell(&agent, 0, FRAME_CONFIGURED, &fields);
    ck_assert_uint_eq(seen.seq, 4);
    ck_assert_int_eq(seen.configured_why.code, ERR_NONE);
    fake_agent_cut(&agent, ERR_NONE); /* the other one has no answer */
    ck_assert_uint_eq(seen.configured, 3);
    ck_assert_uint_eq(seen.seq, 5);
    ck_assert_int_eq(seen.configured_why.code, ERR_STREAM_LOST);
}
END_TEST

START_TEST(test_slow_stream)
{
    bring_up();
    agent.room = 3;
    struct link_configuration configuration = {.seq = 4, .deadline_ms = 1000};
    link_configure(link, &configuration);
    fake_agent_expect_nothing(&agent);
    fake_agent_make_room(&agent, 5);
    fake_agent_expect_nothing(&agent);
    fake_agent_make_room(&agent, SIZE_MAX);
    (void)fake_agent_expect(&agent, 0, FRAME_CONFIGURE);
}
END_TEST

START_TEST(test_stopped_in_its_own_callback)
{
    seen.stop_in_up = _i == 0;
    seen.stop_in_down = _i == 1;
    link_start(link);
    fake_loop_run(loop);
    fake_agent_greet(&agent, NULL);
    ck_assert_uint_eq(seen.ups, 1);
    if (_i == 1) {
        static const uint8_t bytes[FRAME_HEADER_LEN] = {0xff, 0xff, 0xff, 0xff};
        fake_agent_bytes(&agent, bytes, sizeof(bytes));
        ck_assert_uint_eq(seen.downs, 1);
    }
    ck_assert_ptr_null(link);
    fake_loop_run(loop);
    ck_assert_int_eq(fake_loop_next(loop), -1);
}
END_TEST

START_TEST(test_stopped_at_any_time)
{
    agent.refusal.code = _i == 2 ? ERR_NOT_READY : ERR_NONE;
    if (_i > 0)
        link_start(link); /* 1: opening */
    if (_i == 2)
        fake_loop_run(loop); /* pausing */
    stop();
    fake_loop_advance(loop, 60000);
    ck_assert_uint_eq(seen.ups + seen.ends, 0);
    ck_assert_ptr_null(agent.stream);
}
END_TEST

START_TEST(test_handshakes_are_bounded)
{
    enum { COUNT = 3 * CAP_HANDSHAKES };
    struct fake_agent *agents = xcalloc(COUNT, sizeof(*agents));
    struct link **links = xcalloc(COUNT, sizeof(struct link *));
    for (size_t i = 0; i < COUNT; i++) {
        fake_agent_init(&agents[i], loop);
        links[i] = make_link(&agents[i]);
        link_start(links[i]);
    }
    fake_loop_run(loop);
    ck_assert_uint_eq(shared.handshakes, CAP_HANDSHAKES);
    link_stop(links[COUNT - 1]); /* in the queue */
    fake_agent_greet(&agents[0], NULL);
    fake_loop_run(loop);
    ck_assert_ptr_nonnull(agents[CAP_HANDSHAKES].stream);
    ck_assert_ptr_null(agents[CAP_HANDSHAKES + 1].stream);
    link_stop(links[1]); /* in its handshake */
    fake_loop_run(loop);
    ck_assert_ptr_nonnull(agents[CAP_HANDSHAKES + 1].stream);
    for (size_t i = 2; i < COUNT - 1; i++) {
        fake_agent_greet(&agents[i], NULL);
        fake_loop_run(loop);
    }
    ck_assert_uint_eq(seen.ups, COUNT - 2);
    for (size_t i = 0; i < COUNT; i++) {
        if (i != 1 && i != COUNT - 1)
            link_stop(links[i]);
        fake_agent_done(&agents[i]);
    }
    free(agents);
    free(links);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("link");
    TCase *tcase = tcase_create("link");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_up);
    tcase_add_loop_test(tcase, test_not_ready_is_tried_soon_and_then_less_often, 0, 2);
    tcase_add_loop_test(tcase, test_the_box_is_gone, 0, 2);
    tcase_add_test(tcase, test_a_cut_stream_is_opened_again_at_once);
    tcase_add_test(tcase, test_superseded_does_not_fight);
    tcase_add_test(tcase, test_bye);
    tcase_add_test(tcase, test_refused_token);
    tcase_add_test(tcase, test_hello_refused_for_now);
    tcase_add_test(tcase, test_agent_of_another_sandbox);
    tcase_add_test(tcase, test_no_hello);
    tcase_add_test(tcase, test_pings);
    tcase_add_test(tcase, test_broken_protocol_is_cut);
    tcase_add_test(tcase, test_configure);
    tcase_add_test(tcase, test_slow_stream);
    tcase_add_loop_test(tcase, test_stopped_in_its_own_callback, 0, 2);
    tcase_add_loop_test(tcase, test_stopped_at_any_time, 0, 3);
    tcase_add_test(tcase, test_handshakes_are_bounded);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
