#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "sandbox/attachment.h"
#include "server/attached.h"
#include "server/sessions.h"
#include "tests/unit/fake_clock.h"
#include "tests/unit/suite.h"

/* The WebSocket of an attachment, stepped by hand, over one end of a socket pair. The execution and
 * the thread are doubles. */

static int peer = -1;
static struct session *session;
static struct pipe *records;
static struct event room;
static size_t takes, wakes; /* how many bytes of input may be taken; wakes of the thread */
static struct buf typed;
static bool released, ended;
static int64_t look_ms;

/* --- doubles ------------------------------------------------------------------------------------
 */

int attachment_write(struct attachment *attachment, const void *data, size_t len, size_t *ret_took,
                     struct err *err)
{
    (void)attachment;
    if (ended)
        return err_set(err, ERR_CONFLICT, "it has ended");
    *ret_took = len < takes ? len : takes;
    takes -= *ret_took;
    ck_assert(buf_append(&typed, data, *ret_took));
    return 0;
}

struct event *attachment_writable(struct attachment *attachment)
{
    (void)attachment;
    return &room;
}

int attachment_end_input(struct attachment *attachment, bool *ret_done, struct err *err)
{
    (void)attachment;
    (void)err;
    *ret_done = takes > 0;
    if (takes > 0)
        ck_assert(buf_append_str(&typed, "END"));
    return 0;
}

int attachment_resize(struct attachment *attachment, unsigned columns, unsigned rows,
                      struct err *err)
{
    (void)attachment;
    (void)err;
    ck_assert(buf_printf(&typed, "%ux%u", columns, rows));
    return 0;
}

int attachment_signal(struct attachment *attachment, int number, bool tree, struct err *err)
{
    (void)attachment;
    (void)err;
    ck_assert(buf_printf(&typed, "signal %d%s", number, tree ? " tree" : ""));
    return 0;
}

int attachment_take_over(struct attachment *attachment, struct err *err)
{
    (void)attachment;
    return err_set(err, ERR_CONFLICT, "it has ended");
}

void attachment_release(struct attachment *attachment)
{
    (void)attachment;
    released = true;
}

void attachment_close(struct attachment *attachment)
{
    (void)attachment;
}

void session_wake(struct session *woken)
{
    ck_assert_ptr_eq(woken, session);
    wakes++;
}

void session_look(struct session *looked, int64_t at_ms)
{
    ck_assert_ptr_eq(looked, session);
    look_ms = at_ms;
}

/* --- the client ---------------------------------------------------------------------------------
 */

static void setup(void)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    peer = pair[0];
    records = pipe_new(64 * KIB);
    event_init(&room);
    buf_init(&typed, MIB);
    takes = MIB;
    wakes = 0;
    released = ended = false;
    look_ms = 0;
    session = attached_new(NULL, pipe_ref(records));
    session->fd = pair[1];
}

static void teardown(void)
{
    int fd = session->fd;
    session->ops->free(session);
    (void)close(fd);
    (void)close(peer);
    pipe_unref(records);
    event_done(&room);
    buf_done(&typed);
}

static bool step(void)
{
    return session->ops->step(session);
}

static void say(const void *frame, size_t len)
{
    ck_assert_int_eq(write(peer, frame, len), (ssize_t)len);
}

#define SAY(frame) say(frame, sizeof(frame) - 1)
#define M "\0\0\0\0"

/* What has come, as it is. */
static void hear(const void *bytes, size_t len)
{
    char got[4096];
    ssize_t count = recv(peer, got, sizeof(got), MSG_DONTWAIT);
    ck_assert_int_eq(count < 0 ? 0 : count, (ssize_t)len);
    ck_assert_mem_eq(got, bytes, len);
}

#define HEAR(frames) hear(frames, sizeof(frames) - 1)

static void put_record(char kind, const char *data, size_t len)
{
    const char header[] = {kind, (char)len, (char)(len >> 8), 0, 0};
    ck_assert_uint_eq(pipe_write(records, header, sizeof(header)), sizeof(header));
    ck_assert_uint_eq(pipe_write(records, data, len), len);
}

/* --- tests --------------------------------------------------------------------------------------
 */

START_TEST(test_who_is_silent_is_let_go)
{
    ck_assert(step());
    for (int i = 0; i < 2; i++) {
        fake_clock_advance(29999);
        ck_assert(step());
        HEAR("");
        fake_clock_advance(1);
        ck_assert(step());
        HEAR("\x89\x00");
        ck_assert_int_eq(look_ms, clock_now_ms() + 30000);
    }
    fake_clock_advance(29999);
    ck_assert(step());
    fake_clock_advance(1);
    ck_assert(!step());
}
END_TEST

/* Nothing but the time that it asks for wakes it. */
START_TEST(test_a_connection_without_traffic_is_looked_at)
{
    int64_t begun = clock_now_ms();
    ck_assert(step());
    ck_assert_int_eq(look_ms, begun + 30000);
    fake_clock_advance(10000);
    ck_assert(step());
    ck_assert_int_eq(look_ms, begun + 30000);
}
END_TEST

START_TEST(test_who_answers_stays)
{
    for (int i = 0; i < 10; i++) {
        fake_clock_advance(30000);
        ck_assert(step());
        HEAR("\x89\x00");
        SAY("\x8a\x80" M);
        ck_assert(step());
    }
}
END_TEST

START_TEST(test_who_is_not_listened_to_stays)
{
    takes = 0;
    SAY("\x82\x84" M "\0abc");
    ck_assert(step());
    for (int i = 0; i < 10; i++) {
        fake_clock_advance(30000);
        ck_assert(step());
    }
    ck_assert_uint_eq(wakes, 0);
    takes = 2;
    event_fire(&room);
    ck_assert_uint_eq(wakes, 1);
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "ab");
    takes = 9;
    event_fire(&room);
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "abc");
}
END_TEST

START_TEST(test_the_end_comes_behind_what_is_typed)
{
    takes = 1;
    SAY("\x82\x84" M "\0abc\x81\x96" M "{\"type\":\"close_stdin\"}");
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "a");
    takes = 2;
    event_fire(&room);
    ck_assert(step());
    takes = 1;
    event_fire(&room);
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "abcEND");
    SAY("\x82\x85" M "\4\0\x50\0\x18");
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "abcEND80x24");
}
END_TEST

START_TEST(test_records_become_messages)
{
    put_record(ATTACHMENT_TEXT, "{}", 2);
    put_record(ATTACHMENT_BYTES, "\1out", 4);
    ck_assert(step());
    HEAR("\x81\x02{}\x82\x04\1out");
    (void)pipe_write(records, "\1\2\0", 3); /* the rest of it comes later */
    ck_assert(step());
    (void)pipe_write(records, "\0\0[", 3);
    ck_assert(step());
    HEAR("");
    size_t before = wakes;
    (void)pipe_write(records, "]", 1);
    ck_assert_uint_eq(wakes, before + 1);
    pipe_finish(records, NULL);
    ck_assert(step());
    HEAR("\x81\x02[]\x88\x02\x03\xe8");
    ck_assert(released);
    SAY("\x88\x82" M "\x03\xe8");
    ck_assert(!step());
}
END_TEST

static void check_failure(enum err_code code, unsigned close)
{
    struct err why = {code, "words"};
    char got[512];
    setup();
    pipe_finish(records, &why);
    ck_assert(step());
    ssize_t len = recv(peer, got, sizeof(got), MSG_DONTWAIT);
    ck_assert_int_gt(len, 4);
    ck_assert_ptr_nonnull(
        memmem(got, (size_t)len, err_code_name(code), strlen(err_code_name(code))));
    ck_assert_mem_eq(got + len - 4, "\x88\x02", 2);
    ck_assert_uint_eq((unsigned)(unsigned char)got[len - 2] << 8 | (unsigned char)got[len - 1],
                      close);
    fake_clock_advance(4999);
    ck_assert(step());
    fake_clock_advance(1);
    ck_assert(!step()); /* he does not answer */
    teardown();
}

START_TEST(test_why_it_cannot_go_on)
{
    teardown();
    check_failure(ERR_STOPPING, 1001);
    check_failure(ERR_SLOW_READER, 1008);
    check_failure(ERR_SANDBOX_GONE, 1011);
    check_failure(ERR_STREAM_LOST, 1011);
    setup();
}
END_TEST

START_TEST(test_the_server_stops)
{
    ck_assert(session->ops->stop(session));
    HEAR("\x88\x02\x03\xe9");
    SAY("\x88\x82" M "\x03\xe9");
    ck_assert(!step());
}
END_TEST

/* He asks for more answers than he reads: no more is kept than a few. */
START_TEST(test_answers_that_are_not_read)
{
    static const char ping[] = "\x89\x80" M;
    size_t sent = 0;
    for (int idle = 0; idle < 3;) {
        ssize_t len = send(peer, ping, sizeof(ping) - 1, MSG_DONTWAIT);
        sent += len > 0;
        idle = len > 0 ? 0 : idle + 1;
        if (len < 0)
            ck_assert(step());
    }
    ck_assert_uint_gt(sent, 1000); /* the buffers of the socket */
    char got[4096];
    size_t answers = 0;
    for (int idle = 0; idle < 3;) {
        ssize_t len = recv(peer, got, sizeof(got), MSG_DONTWAIT);
        answers += len > 0 ? (size_t)len / 2 : 0;
        idle = len > 0 ? 0 : idle + 1;
        ck_assert(step());
    }
    ck_assert_uint_eq(answers, sent);
}
END_TEST

START_TEST(test_early_bytes_come_first)
{
    session->ops->early(session, "\x82\x82" M "\0a", 8);
    SAY("\x82\x82" M "\0b");
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "ab");
}
END_TEST

START_TEST(test_orders)
{
    char got[512];
    SAY("\x81\xac" M "{\"type\":\"signal\",\"signal\":\"INT\",\"tree\":true}");
    SAY("\x81\x92" M "{\"type\":\"release\"}");
    ck_assert(step());
    ck_assert_str_eq(buf_text(&typed), "signal 2 tree");
    ck_assert(released);
    HEAR("");
    SAY("\x81\x93" M "{\"type\":\"takeover\"}");
    ck_assert(step());
    ssize_t len = recv(peer, got, sizeof(got), MSG_DONTWAIT);
    ck_assert(len > 0 && memmem(got, (size_t)len, "\"conflict\"", 10));
    ended = true;
    SAY("\x82\x82" M "\0x");
    ck_assert(step());
    len = recv(peer, got, sizeof(got), MSG_DONTWAIT);
    ck_assert(len > 0 && memmem(got, (size_t)len, "it has ended", 12));
    (void)shutdown(peer, SHUT_WR);
    ck_assert(!step());
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_who_is_silent_is_let_go,
                                  test_a_connection_without_traffic_is_looked_at,
                                  test_who_answers_stays,
                                  test_who_is_not_listened_to_stays,
                                  test_the_end_comes_behind_what_is_typed,
                                  test_records_become_messages,
                                  test_why_it_cannot_go_on,
                                  test_the_server_stops,
                                  test_answers_that_are_not_read,
                                  test_early_bytes_come_first,
                                  test_orders,
                                  NULL};
    return run_suite("attached", tests, setup, teardown);
}
