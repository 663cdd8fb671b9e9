/* The agent in memory, spoken to in frames: what a link never says, and when. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "agent/message.h"
#include "base/buf.h"
#include "base/crypto.h"
#include "fake/fake.h"
#include "net/loop.h"
#include "tests/unit/fake_loop.h"
#include "tests/unit/suite.h"

static struct loop *loop;
static struct driver driver;
static struct box_info box;
static struct err err;
static struct {
    unsigned lists, gone, failed;
    enum err_code reason;
} observed;

struct peer { /* the server's side of one stream */
    struct stream *stream;
    struct buf in;
    bool opened, writable, closed;
    enum err_code why;
    size_t close_after; /* bytes; it closes the stream while it receives */
};

/* --- a peer ------------------------------------------------------------------------------------
 */

static void on_opened(void *arg)
{
    ((struct peer *)arg)->opened = true;
}

static void on_received(void *arg, const uint8_t *data, size_t len)
{
    struct peer *peer = arg;

    ck_assert(!peer->closed);
    ck_assert(buf_append(&peer->in, data, len));
    if (peer->close_after != 0 && peer->in.len >= peer->close_after)
        stream_close(TAKE_PTR(peer->stream));
}

static void on_writable(void *arg)
{
    ((struct peer *)arg)->writable = true;
}

static void on_closed(void *arg, const struct err *why)
{
    struct peer *peer = arg;

    peer->closed = true;
    peer->why = why->code;
    peer->stream = NULL;
}

static const struct stream_handler handler = {on_opened, on_received, on_writable, on_closed};

static void peer_open(struct peer *peer)
{
    *peer = (struct peer){.in = BUF_INIT(64u << 20)};
    peer->stream = driver.ops->open(driver.self, box.id, box.box_uid, &handler, peer);
    ck_assert(!peer->opened && !peer->closed); /* not from within */
    fake_loop_run(loop);
}

static void peer_done(struct peer *peer)
{
    if (peer->stream != NULL)
        stream_close(peer->stream);
    buf_done(&peer->in);
    fake_loop_run(loop);
}

static void say(struct peer *peer, uint32_t channel, uint8_t type, const void *payload, size_t len)
{
    uint8_t bytes[FRAME_HEADER_LEN + 4096];

    frame_header_write(bytes, channel, type, len);
    if (len > 0)
        memcpy(bytes + FRAME_HEADER_LEN, payload, len);
    ck_assert_uint_eq(stream_write(peer->stream, bytes, FRAME_HEADER_LEN + len),
                      FRAME_HEADER_LEN + len);
}

static void say_fields(struct peer *peer, uint32_t channel, uint8_t type, const struct reply *reply)
{
    say(peer, channel, type, reply->fields.ptr, reply->fields.len);
    fake_loop_run(loop);
}

static void hello(struct peer *peer, const char *uid, char token)
{
    uint8_t bytes[PROTO_TOKEN_LEN];
    struct reply reply;

    memset(bytes, token, sizeof(bytes));
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_VERSION, PROTO_VERSION);
    field_put(&reply.fields, TAG_TOKEN, bytes, sizeof(bytes));
    field_put_text(&reply.fields, TAG_UID, uid);
    say_fields(peer, 0, FRAME_HELLO, &reply);
}

static void open_exec(struct peer *peer, uint32_t channel, const char *id, uint64_t timeout_ms)
{
    struct reply reply;

    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_OP, OP_EXEC);
    field_put_text(&reply.fields, TAG_EXEC_ID, id);
    field_put_text(&reply.fields, TAG_ARG, "cmd");
    field_put_u64(&reply.fields, TAG_TIMEOUT_MS, timeout_ms);
    say_fields(peer, channel, FRAME_OPEN, &reply);
}

/* The next frame that came; its type, 0: none. */
static uint8_t next(struct peer *peer, struct frame *ret_frame)
{
    static uint8_t bytes[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];

    if (peer->in.len < FRAME_HEADER_LEN)
        return 0;
    size_t len = wire_u32((const uint8_t *)peer->in.ptr);
    ck_assert_uint_ge(peer->in.len, FRAME_HEADER_LEN + len);
    memcpy(bytes, peer->in.ptr, FRAME_HEADER_LEN + len);
    buf_consume(&peer->in, FRAME_HEADER_LEN + len);
    *ret_frame = (struct frame){
        .channel = wire_u32(bytes + 4), .type = bytes[8], .payload = bytes + 9, .len = len};
    return ret_frame->type;
}

static void expect_error(struct peer *peer, uint8_t type, const char *code)
{
    struct frame frame = {0};
    char text[64];

    ck_assert_uint_eq(next(peer, &frame), type);
    const struct message message = {(uint8_t *)(uintptr_t)frame.payload, frame.len};
    ck_assert_int_eq(message_text(&message, TAG_ERROR, text, sizeof(text)), 1);
    ck_assert_str_eq(text, code);
}

static void reply_with(const char *rules)
{
    cleanup_json struct json *body = NULL;

    ck_assert_int_eq(json_parse(rules, strlen(rules), JSON_STRICT, &body, &err), 0);
    ck_assert_int_eq(fake_put_replies(fake_of(&driver), body, &err), 0);
}

/* --- the world ---------------------------------------------------------------------------------
 */

static void on_changed(void *arg, const struct box_info *info)
{
    (void)arg;
    observed.gone += info->state == BOX_GONE;
    observed.failed += info->state == BOX_FAILED;
    observed.reason = info->reason;
}

static void on_listed(void *arg, const struct box_info *infos, size_t count)
{
    (void)arg, (void)infos;
    ck_assert_uint_eq(count, 0);
    observed.lists++;
}

static void setup(void)
{
    static const struct box_observer observer = {.changed = on_changed, .listed = on_listed};
    const struct box_spec spec = {.id = "box",
                                  .uid = "uid-1",
                                  .owner = "me",
                                  .digest = "d",
                                  .image = "i",
                                  .workdir = "/workspace"};

    memset(&observed, 0, sizeof(observed));
    ck_assert_int_eq(crypto_start(&err), 0);
    loop = fake_loop_new();
    ck_assert_int_eq(fake_driver_new(loop, &driver, &err), 0);
    ck_assert_int_eq(driver.ops->start(driver.self, &observer, &err), 0);
    ck_assert_int_eq(driver.ops->create(driver.self, &spec, &box, &err), 0);
    fake_loop_run(loop);
    ck_assert_uint_eq(observed.lists, 1);
}

static void teardown(void)
{
    driver.ops->stop(driver.self);
    fake_loop_run(loop);
    driver.ops->free(driver.self);
    fake_loop_free(loop);
}

START_TEST(a_hello_opens_the_box_to_its_token_only)
{
    struct peer first, other, wrong, stranger;
    struct frame frame;

    peer_open(&first);
    ck_assert(first.opened);
    hello(&first, "uid-1", 'a');
    ck_assert_uint_eq(next(&first, &frame), FRAME_HELLO_OK);
    peer_open(&wrong);
    hello(&wrong, "uid-1", 'b');
    expect_error(&wrong, FRAME_HELLO_NO, "forbidden");
    ck_assert(wrong.closed);
    peer_open(&stranger);
    hello(&stranger, "uid-2", 'a');
    expect_error(&stranger, FRAME_HELLO_NO, "not_ready");
    ck_assert(!first.closed);
    peer_open(&other);
    hello(&other, "uid-1", 'a');
    ck_assert_uint_eq(next(&other, &frame), FRAME_HELLO_OK);
    expect_error(&first, FRAME_BYE, "superseded");
    ck_assert(first.closed);
    peer_done(&first), peer_done(&other), peer_done(&wrong), peer_done(&stranger);
}
END_TEST

START_TEST(a_box_that_is_not_there_refuses)
{
    struct peer peer;

    ck_assert_int_eq(driver.ops->destroy(driver.self, "box", "another", &err), 0);
    ck_assert_int_eq(driver.ops->inspect(driver.self, "box", &box, &err), 0);
    ck_assert_int_eq(driver.ops->destroy(driver.self, "box", box.box_uid, &err), 0);
    ck_assert_int_eq(driver.ops->inspect(driver.self, "box", &box, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_NOT_FOUND);
    fake_loop_run(loop);
    ck_assert_uint_eq(observed.gone, 1);
    peer_open(&peer);
    ck_assert(peer.closed && !peer.opened);
    ck_assert_int_eq(peer.why, ERR_SANDBOX_GONE);
    peer_done(&peer);
}
END_TEST

START_TEST(nothing_counts_before_the_hello)
{
    struct peer peer;

    peer_open(&peer);
    open_exec(&peer, 1, "1", 0);
    ck_assert(peer.closed);
    ck_assert_uint_eq(peer.in.len, 0);
    peer_done(&peer);
}
END_TEST

START_TEST(garbage_breaks_the_stream_and_not_the_box)
{
    srand(11);
    for (int i = 0; i < 3000; i++) {
        struct peer peer;
        uint8_t bytes[96];

        peer_open(&peer);
        if (i % 4 != 0)
            hello(&peer, "uid-1", 'a');
        for (int frames = rand() % 8; frames > 0 && peer.stream != NULL; frames--) {
            size_t len = (size_t)rand() % sizeof(bytes);

            for (size_t k = 0; k < len; k++)
                bytes[k] = (uint8_t)(rand() % 3 == 0 ? rand() : rand() % 48);
            if (rand() % 3 == 0)
                (void)stream_write(peer.stream, bytes, len);
            else
                say(&peer, (uint32_t)(rand() % 4), (uint8_t)(rand() % 28), bytes, len);
            if (rand() % 2 == 0)
                fake_loop_run(loop);
        }
        peer_done(&peer);
    }
    struct peer last;
    struct frame frame;
    peer_open(&last);
    hello(&last, "uid-1", 'a');
    ck_assert_uint_eq(next(&last, &frame), FRAME_HELLO_OK);
    peer_done(&last);
}
END_TEST

START_TEST(output_goes_no_further_than_its_credit)
{
    cleanup_free char *text = xmalloc(200001);
    struct peer peer;
    struct frame frame;
    size_t bytes = 0;
    uint8_t credit[FRAME_CREDIT_LEN];

    memset(text, 'x', 200000);
    text[200000] = '\0';
    cleanup_free char *rules = xasprintf("{\"rules\":[{\"replies\":[{\"stdout\":\"%s\"}]}]}", text);
    reply_with(rules);
    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    open_exec(&peer, 5, "1", 1000);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_STARTED);
    for (uint8_t type; (type = next(&peer, &frame)) != 0;)
        bytes += type == FRAME_DATA ? frame.len - FRAME_DATA_HEADER : 0;
    ck_assert_uint_eq(bytes, PROTO_WINDOW);
    frame_credit_write(credit, 1, bytes, bytes + 100);
    say(&peer, 5, FRAME_CREDIT, credit, sizeof(credit));
    fake_loop_run(loop);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_DATA);
    ck_assert_uint_eq(frame.len - FRAME_DATA_HEADER, 100);
    ck_assert_uint_eq(next(&peer, &frame), 0);
    peer_done(&peer);
}
END_TEST

START_TEST(a_paused_stream_gives_nothing)
{
    struct peer peer;
    struct frame frame;

    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    stream_pause(peer.stream, 1);
    open_exec(&peer, 5, "1", 1000);
    ck_assert_uint_eq(peer.in.len, 0);
    stream_pause(peer.stream, 0);
    fake_loop_run(loop);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_STARTED);
    peer_done(&peer);
}
END_TEST

START_TEST(the_server_may_close_while_it_receives)
{
    struct peer peer;

    peer_open(&peer);
    peer.close_after = 1;
    hello(&peer, "uid-1", 'a');
    ck_assert_ptr_null(peer.stream);
    ck_assert(!peer.closed); /* no callback follows a close */
    peer_done(&peer);
}
END_TEST

START_TEST(more_than_fits_is_taken_later)
{
    struct peer peer;
    cleanup_free uint8_t *bytes = xcalloc(1, 1u << 20);
    struct frame frame;

    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    size_t taken = stream_write(peer.stream, bytes, 1u << 20); /* frames that are skipped */
    ck_assert_uint_lt(taken, 1u << 20);
    ck_assert(!peer.writable);
    fake_loop_run(loop);
    ck_assert(peer.writable && !peer.closed);
    peer_done(&peer);
}
END_TEST

START_TEST(a_running_exec_is_joined_after_a_cut)
{
    struct peer peer;
    struct frame frame;

    reply_with("{\"rules\":[{\"replies\":[{\"delay\":5,\"exit_code\":7}]}]}");
    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    open_exec(&peer, 1, "77", 60000);
    peer_done(&peer);
    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    const struct message said = {(uint8_t *)(uintptr_t)frame.payload, frame.len};
    ck_assert_uint_eq(message_count(&said, TAG_EXEC_ID), 1);
    open_exec(&peer, 9, "77", 60000);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_STARTED);
    ck_assert_uint_eq(next(&peer, &frame), 0);
    fake_loop_advance(loop, 5000);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_END);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_END);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_RESULT);
    const struct message result = {(uint8_t *)(uintptr_t)frame.payload, frame.len};
    ck_assert_uint_eq(message_u64(&result, TAG_EXIT_CODE, 99), 7);
    say(&peer, 9, FRAME_COMMIT, NULL, 0);
    fake_loop_run(loop);
    peer_done(&peer);
    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    const struct message last = {(uint8_t *)(uintptr_t)frame.payload, frame.len};
    ck_assert_uint_eq(message_count(&last, TAG_EXEC_ID), 0);
    peer_done(&peer);
}
END_TEST

START_TEST(a_deadline_ends_the_box)
{
    struct peer peer;
    struct frame frame;
    struct reply reply;

    peer_open(&peer);
    hello(&peer, "uid-1", 'a');
    ck_assert_uint_eq(next(&peer, &frame), FRAME_HELLO_OK);
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_SEQ, 1);
    field_put_u64(&reply.fields, TAG_DEADLINE_MS, 3000);
    say_fields(&peer, 0, FRAME_CONFIGURE, &reply);
    ck_assert_uint_eq(next(&peer, &frame), FRAME_CONFIGURED);
    fake_loop_advance(loop, 2900);
    ck_assert(!peer.closed);
    fake_loop_advance(loop, 200);
    expect_error(&peer, FRAME_BYE, "deadline");
    ck_assert(peer.closed);
    ck_assert_uint_eq(observed.failed, 1);
    ck_assert_int_eq(observed.reason, ERR_TTL);
    peer_done(&peer);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_hello_opens_the_box_to_its_token_only,
        a_box_that_is_not_there_refuses,
        nothing_counts_before_the_hello,
        garbage_breaks_the_stream_and_not_the_box,
        output_goes_no_further_than_its_credit,
        a_paused_stream_gives_nothing,
        the_server_may_close_while_it_receives,
        more_than_fits_is_taken_later,
        a_running_exec_is_joined_after_a_cut,
        a_deadline_ends_the_box,
        NULL,
    };
    return run_suite("fake_stream_agent", tests, setup, teardown);
}
