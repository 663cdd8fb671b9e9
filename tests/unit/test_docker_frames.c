/* The stream of an exec (B16, B29), in whatever pieces it comes. */
#include <string.h>

#include "base/caps.h"
#include "docker/frames.h"
#include "tests/unit/suite.h"

#define FRAME(kind, len) kind "\0\0\0\0\0\0" len

struct outcome {
    bool good;
    char out[256], words[64];
    size_t out_len;
    bool in_frame;
};

/* Feeds DATA cut after every CUT bytes (0: whole). */
static struct outcome feed(const char *data, size_t len, size_t cut)
{
    struct frames frames = {.have = 0};
    struct outcome outcome = {.good = true};
    cleanup_buf struct buf words = BUF_INIT(sizeof(outcome.words) - 1);

    for (size_t at = 0; at < len && outcome.good;) {
        size_t piece = cut == 0 || len - at < cut ? len - at : cut, got = 0;

        outcome.good = frames_feed(&frames, (const uint8_t *)data + at, piece,
                                   (uint8_t *)outcome.out + outcome.out_len, &got, &words);
        ck_assert_uint_le(got, piece);
        outcome.out_len += outcome.good ? got : 0;
        at += piece;
    }
    memcpy(outcome.words, buf_text(&words), words.len);
    outcome.in_frame = frames_in_frame(&frames);
    return outcome;
}

static const struct {
    const char *name, *data;
    size_t len;
    bool good, in_frame;
    const char *out;
    size_t out_len;
    const char *words;
} cases[] = {
#define CASE(name, data, good, in_frame, out, words)                                               \
    {                                                                                              \
        name, data, sizeof(data) - 1, good, in_frame, out, sizeof(out) - 1, words                  \
    }
    CASE("one frame", FRAME("\1", "\5") "hello", true, false, "hello", ""),
    CASE("two streams in turn",
         FRAME("\1", "\2") "ab" FRAME("\2", "\1") "x" FRAME("\2", "\1") "y" FRAME("\1", "\1") "c",
         true, false, "abc", "xy"),
    CASE("a payload like a head", FRAME("\1", "\x8") "\1\0\0\0\0\0\0\5", true, false,
         "\1\0\0\0\0\0\0\5", ""),
    CASE("an empty frame", FRAME("\1", "\0") FRAME("\1", "\1") "z", true, false, "z", ""),
    CASE("standard input's and the engine's", FRAME("\0", "\1") "i" FRAME("\3", "\4") "oops", true,
         false, "i", "oops"),
    CASE("an unknown stream", FRAME("\4", "\1") "z", false, false, "", ""),
    CASE("no zeroes", "\1\1\0\0\0\0\0\1z", false, false, "", ""),
    CASE("raw text", "OCI runtime exec failed", false, false, "", ""),
    CASE("four gibibytes", "\1\0\0\0\xff\xff\xff\xff", false, false, "", ""),
    CASE("cut in the payload", FRAME("\1", "\5") "hel", true, true, "hel", ""),
    CASE("cut in the head", FRAME("\1", "\1") "a\1\0\0", true, true, "a", ""),
};

START_TEST(test_cases)
{
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t cut = 0; cut < 12; cut++) {
            struct outcome outcome = feed(cases[i].data, cases[i].len, cut);

            ck_assert_msg(outcome.good == cases[i].good, "%s", cases[i].name);
            if (!outcome.good)
                continue;
            ck_assert_msg(outcome.in_frame == cases[i].in_frame, "%s", cases[i].name);
            ck_assert_msg(outcome.out_len == cases[i].out_len &&
                              memcmp(outcome.out, cases[i].out, outcome.out_len) == 0,
                          "%s", cases[i].name);
            ck_assert_str_eq(outcome.words, cases[i].words);
        }
    }
}
END_TEST

/* What does not fit is dropped, and the stream goes on. */
START_TEST(test_words_are_bounded)
{
    char data[8 + 200 + 9] = "\2\0\0\0\0\0\0\xc8";
    struct outcome outcome;

    memset(data + 8, 'w', 200);
    memcpy(data + 208, "\1\0\0\0\0\0\0\1!", 9);
    outcome = feed(data, sizeof(data), 0);
    ck_assert(outcome.good);
    ck_assert_uint_eq(strlen(outcome.words), sizeof(outcome.words) - 1);
    ck_assert_uint_eq(outcome.out_len, 1);
    ck_assert_int_eq(outcome.out[0], '!');
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_cases, test_words_are_bounded, NULL};

    return run_suite("docker_frames", tests, NULL, NULL);
}
