/* The exec channels: B01, B02, B03, B06, B16 as far as they are a matter of bytes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "k8s/channel.h"
#include "tests/unit/k8s_support.h"

#define SUCCESS "{\"status\":\"Success\"}"
#define EXIT_3                                                                                     \
    "{\"status\":\"Failure\",\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\"message\":\"3\"}" \
    "]}}"

/* Feeds one message cut after every CUT bytes (0: whole) and collects stdout. */
static void feed(struct channels *channels, struct buf *out, const char *data, size_t len,
                 size_t cut)
{
    size_t at = 0;

    do {
        size_t piece = cut == 0 || len - at < cut ? len - at : cut;
        struct piece one = {(const uint8_t *)data + at, piece, at == 0, at + piece == len};
        struct str got;

        if (channels_feed(channels, one, &got)) {
            ck_assert_uint_gt(got.len, 0);
            ck_assert(buf_append(out, got.ptr, got.len));
        }
        at += piece;
    } while (at < len);
}

#define FEED(text, cut) feed(&channels, &out, text, sizeof(text) - 1, cut)

/* Only the first byte of a message is the channel, however the message is cut. */
START_TEST(test_pieces)
{
    for (size_t cut = 0; cut < 6; cut++) {
        struct channels channels;
        cleanup_buf struct buf out = BUF_INIT(KIB);

        channels_init(&channels);
        FEED("\1", cut);
        FEED("", cut);
        FEED("\1\1\2\3abc", cut);
        FEED("\2to stderr", cut);
        FEED("\1", cut);
        FEED("\7unknown", cut);
        FEED("\1!", cut);
        FEED("\3" EXIT_3, cut);
        ck_assert_uint_eq(out.len, 7);
        ck_assert_mem_eq(buf_text(&out), "\1\2\3abc!", 7);
        ck_assert_str_eq(buf_text(&channels.stderr_), "to stderr");
        ck_assert_int_eq(channels.end, EXEC_END_EXITED);
        ck_assert_int_eq(channels.exit_code, 3);
        channels_done(&channels);
    }
}
END_TEST

/* Empty pieces before the channel byte. */
START_TEST(test_empty_first_piece)
{
    struct channels channels;
    struct str got;

    channels_init(&channels);
    ck_assert(!channels_feed(&channels, (struct piece){(const uint8_t *)"", 0, true, false}, &got));
    ck_assert(
        !channels_feed(&channels, (struct piece){(const uint8_t *)"\1", 1, false, false}, &got));
    ck_assert(
        channels_feed(&channels, (struct piece){(const uint8_t *)"\2x", 2, false, true}, &got));
    ck_assert_uint_eq(got.len, 2);
    ck_assert_mem_eq(got.ptr, "\2x", 2);
    channels_done(&channels);
}
END_TEST

/* B03: empty, split over messages, two of them, not JSON. */
START_TEST(test_b03_status_messages)
{
    struct channels channels;
    cleanup_buf struct buf out = BUF_INIT(KIB);

    channels_init(&channels);
    FEED("\3", 0);
    ck_assert_int_eq(channels.end, EXEC_END_UNKNOWN);
    FEED("\3{\"status\":", 0);
    ck_assert_int_eq(channels.end, EXEC_END_UNKNOWN);
    FEED("\3\"Success\"}", 3);
    ck_assert_int_eq(channels.end, EXEC_END_EXITED);
    FEED("\3" EXIT_3, 0);
    ck_assert_int_eq(channels.exit_code, 0); /* the first one counts */
    channels_done(&channels);

    channels_init(&channels);
    FEED("\3not JSON", 0);
    FEED("\3" SUCCESS, 0);
    ck_assert_int_eq(channels.end, EXEC_END_UNKNOWN);
    channels_done(&channels);
}
END_TEST

/* Bounded whatever the peer sends. */
START_TEST(test_bounds)
{
    struct channels channels;
    cleanup_buf struct buf out = BUF_INIT(KIB);
    static char large[200 * 1024];

    channels_init(&channels);
    memset(large, 'x', sizeof(large));
    large[0] = 2;
    feed(&channels, &out, large, sizeof(large), 1000);
    feed(&channels, &out, large, sizeof(large), 0);
    ck_assert_uint_eq(channels.stderr_.len, CHANNEL_STDERR_MAX);
    large[0] = 3;
    feed(&channels, &out, large, sizeof(large), 1000);
    ck_assert_uint_le(channels.status.len, CAP_SMALL);
    ck_assert_int_eq(channels.end, EXEC_END_UNKNOWN);
    channels_done(&channels);
}
END_TEST

/* Why it ended: never a plain end without a status that says so (B02). */
START_TEST(test_b02_why)
{
    static const struct {
        const char *stdout_, *stderr_, *status;
        bool ran;
        enum err_code code;
        const char *words;
    } rows[] = {
        {"\1data", "\2", "\3" SUCCESS, true, ERR_NONE, ""},
        {"\1", "\2podsandbox-agent: no agent here\n", "\3" EXIT_3, false, ERR_NOT_READY,
         "exit code 3: podsandbox-agent: no agent here"},
        {"\1", "\2", "\3" SUCCESS, true, ERR_NOT_READY, "exit code 0"},
        {"\1data", "\2", "\3" EXIT_3, true, ERR_STREAM_LOST, "exit code 3"},
        {"\1data", "\2", "\3", true, ERR_STREAM_LOST, "reset by peer"},
        {"\1", "\2", "\3", true, ERR_STREAM_LOST, "reset by peer"},
        {"\1", "\2", "\3", false, ERR_NOT_READY, "reset by peer"},
        {"\1data", "\2", "\3[", true, ERR_STREAM_LOST, "reset by peer"},
        {"\1", "\2",
         "\3{\"status\":\"Failure\",\"message\":\"container not found (\\\"sandbox\\\")\"}", false,
         ERR_NOT_READY, "container not found"},
        {"\1", "\2",
         "\3{\"status\":\"Failure\",\"message\":\"container not found (\\\"sandbox\\\")\"}", true,
         ERR_SANDBOX_GONE, "container not found"},
        {"\1", "\2", "\3{\"status\":\"Failure\",\"message\":\"error dialing backend: EOF\"}", true,
         ERR_BACKEND_UNAVAILABLE, "dialing"},
        {"\1", "\2",
         "\3{\"status\":\"Failure\",\"message\":\"executable file not found in $PATH\"}", true,
         ERR_AGENT_FAILED, "executable"},
        {"\1", "\2", "\3{\"status\":\"Failure\",\"message\":\"something new\"}", true,
         ERR_NOT_READY, "something new"},
        {"\1x", "\2", "\3{\"status\":\"Failure\",\"message\":\"something new\"}", true,
         ERR_STREAM_LOST, "something new"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct channels channels;
        cleanup_buf struct buf out = BUF_INIT(KIB);
        struct err lost, why;

        channels_init(&channels);
        feed(&channels, &out, rows[i].stdout_, strlen(rows[i].stdout_), 0);
        feed(&channels, &out, rows[i].stderr_, strlen(rows[i].stderr_), 0);
        feed(&channels, &out, rows[i].status, strlen(rows[i].status), 0);
        err_set(&lost, ERR_BACKEND_UNAVAILABLE, "reset by peer");
        channels_why(&channels, rows[i].ran, &lost, &why);
        ck_assert_msg(why.code == rows[i].code, "row %zu: %s: %s", i, err_code_name(why.code),
                      why.msg);
        ck_assert_msg(why.code == ERR_NONE || strstr(why.msg, rows[i].words) != NULL, "row %zu: %s",
                      i, why.msg);
        channels_done(&channels);
    }
}
END_TEST

/* What attach wrote cannot put control bytes into an error. */
START_TEST(test_stderr_is_text)
{
    struct channels channels;
    cleanup_buf struct buf out = BUF_INIT(KIB);
    struct err why;

    channels_init(&channels);
    FEED("\2a\nb\x1b[1m\xff\n\n", 0);
    FEED("\3" EXIT_3, 0);
    channels_why(&channels, true, NULL, &why);
    ck_assert_ptr_nonnull(strstr(why.msg, "a?b?[1m?"));
    channels_done(&channels);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_pieces, test_empty_first_piece, test_b03_status_messages,
                                test_bounds, test_b02_why,           test_stderr_is_text,
                                NULL};

    return run_tests("k8s_channel", all);
}
