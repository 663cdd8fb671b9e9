#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "sandbox/scrub.h"
#include "sandbox/scrub_forms.h"

/* Numbers that are the same in each run. */
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static size_t random_below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state >> 11) % bound;
}

static struct scrubber *scrubber_of(const char *const *values)
{
    struct text_list list = {0};
    for (size_t i = 0; values[i] != NULL; i++)
        text_list_add(&list, values[i]);
    struct scrubber *scrubber = scrubber_new(&list);
    text_list_done(&list);
    return scrubber;
}

#define SCRUBBER(...) scrubber_of((const char *const[]){__VA_ARGS__, NULL})

static void assert_masks(struct scrubber *scrubber, const char *text, const char *masked,
                         const char *replaced, size_t matches)
{
    char *copy = xstrdup(text);
    ck_assert_uint_eq(scrubber_mask(scrubber, copy, strlen(copy)), matches);
    ck_assert_str_eq(copy, masked);
    free(copy);
    cleanup_buf struct buf out = BUF_INIT(MIB);
    ck_assert(scrubber_text(scrubber, text, strlen(text), &out));
    ck_assert_str_eq(buf_text(&out), replaced);
}

static void assert_matches_nothing(struct scrubber *scrubber)
{
    ck_assert(scrubber_empty(scrubber));
    ck_assert_uint_eq(scrubber_longest(scrubber), 0);
    assert_masks(scrubber, "", "", "", 0);
    assert_masks(scrubber, "anything", "anything", "anything", 0);
    struct scrub_stream *stream = scrub_stream_new(scrubber);
    scrubber_unref(scrubber);
    cleanup_buf struct buf out = BUF_INIT(100);
    ck_assert(scrub_stream_push(stream, "any", 3, &out, false));
    ck_assert(scrub_stream_push(stream, NULL, 0, &out, true));
    ck_assert_str_eq(buf_text(&out), "any");
    ck_assert_uint_eq(scrub_stream_held(stream), 0);
    scrub_stream_free(stream);
}

START_TEST(test_no_secrets)
{
    assert_matches_nothing(scrubber_new(NULL));
    struct text_list empty = {0};
    assert_matches_nothing(scrubber_new(&empty));
    assert_matches_nothing(SCRUBBER("", ""));
    scrubber_unref(NULL);
    scrub_stream_free(NULL);
}
END_TEST

START_TEST(test_raw)
{
    static const struct {
        const char *secrets[4];
        const char *text, *masked, *replaced;
        size_t matches;
    } cases[] = {
        {{"secret"}, "a secret.", "a ******.", "a ***.", 1},
        {{"secret"}, "secret", "******", "***", 1},
        {{"secret"}, "secre secretsecret", "secre ************", "secre ******", 2},
        {{"s"}, "sos", "*o*", "***o***", 2},
        {{"", "s"}, "sos", "*o*", "***o***", 2},
        /* one begins the other */
        {{"pass", "password"}, "pass word password", "**** word ********", "*** word ***", 2},
        {{"password", "pass"}, "passwor", "****wor", "***wor", 1},
        /* one ends, or lies within, the other */
        {{"word", "password"}, "password", "********", "***", 1},
        {{"ss", "password"}, "password passwor", "******** pa**wor", "*** pa***wor", 2},
        /* they overlap: nothing of either remains */
        {{"abc", "bcdef"}, "abcdef", "******", "***", 1},
        {{"aba"}, "xabababax", "x*******x", "x***x", 1},
        {{"aa"}, "aaaaa", "*****", "***", 1},
        /* a long one reaches back over several short ones */
        {{"b", "d", "abcdef"}, "abcdef abcde", "****** a*c*e", "*** a***c***e", 3},
        /* the failure of one leads into another */
        {{"abcd", "bce", "ce"}, "abce", "a***", "a***", 1},
        {{"line1\nline2\n"}, "line1\nline2\nline3", "************line3", "***line3", 1},
        {{"\xff\x80\x01"}, "x\xff\x80\x01y", "x***y", "x***y", 1},
        {{"p\xc3\xa9"}, "p\xc3\xa9!", "***!", "***!", 1},
        {{"same", "same"}, "same", "****", "***", 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct scrubber *scrubber = scrubber_of(cases[i].secrets);
        assert_masks(scrubber, cases[i].text, cases[i].masked, cases[i].replaced, cases[i].matches);
        scrubber_unref(scrubber);
    }
}
END_TEST

/* NULs in the text are bytes like others. */
START_TEST(test_binary_text)
{
    char text[] = "\0key\0k\0ey\0key";
    struct scrubber *scrubber = SCRUBBER("key");
    ck_assert_uint_eq(scrubber_mask(scrubber, text, sizeof(text) - 1), 2);
    ck_assert_mem_eq(text, "\0***\0k\0ey\0***", sizeof(text));
    scrubber_unref(scrubber);
}
END_TEST

/* As written by base64(1), xxd, Python, Go, node and curl. */
START_TEST(test_forms)
{
    static const char secret[] = "p@ss/w\u00f6rd \"x\"\n<&>+~";
    static const char *const forms[] = {
        "cEBzcy93w7ZyZCAieCIKPCY+K34=",
        "cEBzcy93w7ZyZCAieCIKPCY-K34=",
        "cEBzcy93w7ZyZCAieCIKPCY+K34",
        "cEBzcy93w7ZyZCAieCIKPCY-K34",
        "704073732f77c3b67264202278220a3c263e2b7e",
        "704073732F77C3B67264202278220A3C263E2B7E",
        "p%40ss%2Fw%C3%B6rd%20%22x%22%0A%3C%26%3E%2B~",
        "p%40ss/w%C3%B6rd%20%22x%22%0A%3C%26%3E%2B~",
        "p%40ss%2Fw%C3%B6rd+%22x%22%0A%3C%26%3E%2B~",
        "p%40ss%2fw%c3%b6rd+%22x%22%0a%3c%26%3e%2b~",
        "p%40ss%2fw%c3%b6rd%20%22x%22%0a%3c%26%3e%2b~",
        "p@ss/w%C3%B6rd%20%22x%22%0A%3C&%3E+~",
        "p@ss%2Fw%C3%B6rd%20%22x%22%0A%3C&%3E+~",
        "p@ss/w\\u00f6rd \\\"x\\\"\\n<&>+~",
        "p@ss/w\u00f6rd \\\"x\\\"\\n<&>+~",
        "p@ss\\/w\u00f6rd \\\"x\\\"\\n<&>+~",
        "p@ss\\/w\\u00f6rd \\\"x\\\"\\n<&>+~",
        "p@ss/w\u00f6rd \\\"x\\\"\\n\\u003c\\u0026\\u003e+~",
    };
    struct scrubber *scrubber = SCRUBBER(secret);
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        cleanup_free char *text = xasprintf("[%s]", forms[i]);
        cleanup_free char *masked = xstrdup(text);
        memset(masked + 1, '*', strlen(forms[i]));
        assert_masks(scrubber, text, masked, "[***]", 1);
    }
    scrubber_unref(scrubber);
}
END_TEST

START_TEST(test_more_forms)
{
    static const struct {
        const char *secret, *form;
    } cases[] = {
        {"\xff\xfe\xfb\xef\xbe\x3f\x7e\x7f", "//77774/fn8="},
        {"\xff\xfe\xfb\xef\xbe\x3f\x7e\x7f", "__77774_fn8="},
        {"\xff\xfe\xfb\xef\xbe\x3f\x7e\x7f", "fffefbefbe3f7e7f"},
        {"\xff\xfe\xfb\xef\xbe\x3f\x7e\x7f", "%FF%FE%FB%EF%BE%3F~%7F"},
        {"key \U0001f511 end", "key \\ud83d\\udd11 end"},
        {"tab\tbell\b\f\r\x01", "tab\\tbell\\b\\f\\r\\u0001"},
        /* bytes that are no UTF-8 stay as they are */
        {"12345\xc3\"8", "12345\xc3\\\"8"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct scrubber *scrubber = SCRUBBER(cases[i].secret);
        cleanup_free char *masked = xstrdup(cases[i].form);
        memset(masked, '*', strlen(masked));
        assert_masks(scrubber, cases[i].form, masked, "***", 1);
        scrubber_unref(scrubber);
    }
}
END_TEST

START_TEST(test_short_values_have_no_forms)
{
    struct scrubber *scrubber = SCRUBBER("1234567");
    assert_masks(scrubber, "MTIzNDU2Nw== 31323334353637", "MTIzNDU2Nw== 31323334353637",
                 "MTIzNDU2Nw== 31323334353637", 0);
    scrubber_unref(scrubber);
    scrubber = SCRUBBER("12345678");
    assert_masks(scrubber, "MTIzNDU2Nzg= 3132333435363738", "************ ****************",
                 "*** ***", 2);
    scrubber_unref(scrubber);
}
END_TEST

static bool contains(const char *data, size_t len, const char *part, size_t part_len)
{
    return memmem(data, len, part, part_len) != NULL;
}

/* Masks the base64 of BEFORE, the secret and BEHIND; decoded again, all that the secret alone
 * decides must be gone, and what does not touch it must still be there. */
static void check_inside_base64(struct scrubber *scrubber, const char *secret, size_t before,
                                size_t behind)
{
    cleanup_buf struct buf plain = BUF_INIT(KIB), coded = BUF_INIT(KIB), decoded = BUF_INIT(KIB);
    for (size_t i = 0; i < before; i++)
        buf_append_char(&plain, (char)(random_below(255) + 1));
    buf_append_str(&plain, secret);
    for (size_t i = 0; i < behind; i++)
        buf_append_char(&plain, (char)(random_below(255) + 1));
    ck_assert(base64_encode(&coded, plain.ptr, plain.len));
    ck_assert_uint_eq(scrubber_mask(scrubber, coded.ptr, coded.len), 1);
    for (size_t i = 0; i < coded.len; i++) {
        if (coded.ptr[i] == '*')
            coded.ptr[i] = 'A';
    }
    while (coded.len % 4 != 0)
        buf_append_char(&coded, 'A'); /* masked padding */
    ck_assert(base64_decode(&decoded, (struct str){coded.ptr, coded.len}));
    ck_assert_mem_eq(decoded.ptr, plain.ptr, before);
    size_t len = strlen(secret);
    for (size_t i = 1; i + 1 < len; i++)
        ck_assert_int_eq(decoded.ptr[before + i], 0);
    if (behind > 0)
        ck_assert_mem_eq(decoded.ptr + before + len, plain.ptr + before + len, behind);
}

START_TEST(test_inside_base64)
{
    static const char secret[] = "sixteen-byte-key!";
    for (size_t len = 8; len < sizeof(secret); len++) {
        cleanup_free char *part = xstrndup(secret, len);
        struct scrubber *scrubber = SCRUBBER(part);
        for (size_t before = 0; before < 6; before++) {
            for (size_t behind = 0; behind < 6; behind++)
                check_inside_base64(scrubber, part, before, behind);
        }
        scrubber_unref(scrubber);
    }
}
END_TEST

/* base64(1) breaks its lines after 76 characters. */
START_TEST(test_lines_of_base64)
{
    char secret[201] = "";
    for (size_t i = 0; i < 200; i++)
        secret[i] = (char)('a' + random_below(26));
    struct scrubber *scrubber = SCRUBBER(secret);
    static const size_t columns[] = {76, 64};
    for (size_t c = 0; c < ARRAY_LEN(columns); c++) {
        cleanup_buf struct buf coded = BUF_INIT(KIB), lines = BUF_INIT(KIB);
        ck_assert(base64_encode(&coded, secret, 200));
        for (size_t at = 0; at < coded.len; at += columns[c]) {
            size_t rest = coded.len - at;
            buf_append(&lines, coded.ptr + at, rest < columns[c] ? rest : columns[c]);
            buf_append_char(&lines, '\n');
        }
        ck_assert_uint_eq(scrubber_mask(scrubber, lines.ptr, lines.len), 1);
        for (size_t i = 0; i + 4 < lines.len; i++)
            ck_assert_int_eq(lines.ptr[i], '*');
    }
    scrubber_unref(scrubber);
}
END_TEST

/* The plain way to do it, to compare with. */
struct patterns {
    char **items;
    size_t *lens;
    size_t count;
};

static void collect(void *arg, const char *data, size_t len)
{
    struct patterns *patterns = arg;
    size_t count = patterns->count++;
    patterns->items = xrealloc(patterns->items, (count + 1) * sizeof(*patterns->items));
    patterns->lens = xrealloc(patterns->lens, (count + 1) * sizeof(*patterns->lens));
    patterns->items[count] = xmalloc(len);
    memcpy(patterns->items[count], data, len);
    patterns->lens[count] = len;
}

static void patterns_done(struct patterns *patterns)
{
    for (size_t i = 0; i < patterns->count; i++)
        free(patterns->items[i]);
    free(patterns->items);
    free(patterns->lens);
}

static void mask_plainly(const struct patterns *patterns, const char *text, size_t len, char *out)
{
    memcpy(out, text, len);
    for (size_t at = 0; at < len; at++) {
        for (size_t i = 0; i < patterns->count; i++) {
            if (patterns->lens[i] <= len - at &&
                memcmp(text + at, patterns->items[i], patterns->lens[i]) == 0)
                memset(out + at, '*', patterns->lens[i]);
        }
    }
}

/* A text that is made of parts of the patterns and of noise. */
static void make_text(const struct patterns *patterns, char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        size_t i = random_below(patterns->count);
        size_t from = random_below(3) == 0 ? random_below(patterns->lens[i]) : 0;
        size_t part = patterns->lens[i] - from;
        if (random_below(3) == 0)
            part = random_below(part + 1);
        if (part > len - at)
            part = len - at;
        memcpy(text + at, patterns->items[i] + from, part);
        at += part;
        if (at < len && random_below(2) == 0)
            text[at++] = (char)('a' + random_below(3));
    }
}

static void check_stream(struct scrubber *scrubber, const char *text, size_t len,
                         const char *masked, size_t matches)
{
    struct scrub_stream *stream = scrub_stream_new(scrubber);
    cleanup_buf struct buf out = BUF_INIT(MIB);
    for (size_t at = 0; at < len;) {
        size_t part = random_below(4) == 0 ? random_below(40) : random_below(3);
        if (part > len - at)
            part = len - at;
        ck_assert(scrub_stream_push(stream, text + at, part, &out, false));
        at += part;
        ck_assert_uint_eq(out.len + scrub_stream_held(stream), at);
        ck_assert_uint_lt(scrub_stream_held(stream), scrubber_longest(scrubber));
    }
    ck_assert(scrub_stream_push(stream, NULL, 0, &out, true));
    ck_assert_uint_eq(out.len, len);
    ck_assert_mem_eq(out.ptr, masked, len);
    ck_assert_uint_eq(scrub_stream_matches(stream), matches);
    size_t stars = 0;
    for (size_t i = 0; i < len; i++)
        stars += masked[i] == '*';
    ck_assert_uint_eq(scrub_stream_masked(stream), stars);
    scrub_stream_free(stream);
}

/* Never the mask itself. */
static char random_byte(size_t alphabet)
{
    if (alphabet <= 26)
        return (char)('a' + random_below(alphabet));
    char byte = (char)(1 + random_below(255));
    return byte == '*' ? '+' : byte;
}

static void check_random(size_t secrets, size_t shortest, size_t longest, size_t alphabet)
{
    struct text_list list = {0};
    struct patterns patterns = {0};
    for (size_t i = 0; i < secrets; i++) {
        char value[64] = "";
        size_t len = shortest + random_below(longest - shortest + 1);
        for (size_t at = 0; at < len; at++)
            value[at] = random_byte(alphabet);
        text_list_add(&list, value);
        scrub_forms(value, collect, &patterns);
    }
    struct scrubber *scrubber = scrubber_new(&list);
    char text[400], masked[400], expected[400];
    size_t len = random_below(sizeof(text));
    make_text(&patterns, text, len);
    mask_plainly(&patterns, text, len, expected);
    memcpy(masked, text, len);
    size_t matches = scrubber_mask(scrubber, masked, len);
    ck_assert_mem_eq(masked, expected, len);
    for (size_t i = 0; i < list.count; i++)
        ck_assert(!contains(masked, len, list.items[i], strlen(list.items[i])));
    check_stream(scrubber, text, len, masked, matches);
    scrubber_unref(scrubber);
    patterns_done(&patterns);
    text_list_done(&list);
}

START_TEST(test_random)
{
    for (size_t round = 0; round < 200; round++) {
        check_random(1 + random_below(6), 1, 6, 2); /* they overlap in every way */
        check_random(1 + random_below(6), 1, 6, 3);
        check_random(1 + random_below(3), 1, 40, 2); /* with all their forms */
        check_random(1 + random_below(3), 1, 40, 255);
        check_random(1 + random_below(20), 4 + random_below(20), 40, 255);
    }
}
END_TEST

/* At each place of a text that has nothing to do with it, up to its ends. */
START_TEST(test_every_place)
{
    for (size_t len = 1; len <= 24; len++) {
        char value[32] = "";
        for (size_t i = 0; i < len; i++)
            value[i] = (char)('a' + i);
        struct scrubber *scrubber = SCRUBBER(value, "zzzzzzzzzzzzzzzzzzzzzzzzzzzz");
        for (size_t at = 0; at <= 64; at++) {
            char text[96], expected[96];
            size_t end = at + len + random_below(96 - at - len);
            for (size_t i = 0; i < end; i++)
                text[i] = (char)('0' + random_below(10));
            memcpy(expected, text, end);
            memcpy(text + at, value, len);
            memset(expected + at, '*', len);
            ck_assert_uint_eq(scrubber_mask(scrubber, text, end), 1);
            ck_assert_mem_eq(text, expected, end);
        }
        scrubber_unref(scrubber);
    }
}
END_TEST

/* Every split of a text in two, and in three. */
START_TEST(test_every_split)
{
    static const char text[] = "x tok-en-12345 dG9rLWVuLTEyMzQ1 ab tok-en tok-en-12345tok-en-1";
    size_t len = sizeof(text) - 1;
    struct scrubber *scrubber = SCRUBBER("tok-en-12345", "ab", "n");
    char masked[sizeof(text)];
    memcpy(masked, text, sizeof(text));
    size_t matches = scrubber_mask(scrubber, masked, len);
    for (size_t a = 0; a <= len; a++) {
        for (size_t b = a; b <= len; b++) {
            struct scrub_stream *stream = scrub_stream_new(scrubber);
            cleanup_buf struct buf out = BUF_INIT(KIB);
            ck_assert(scrub_stream_push(stream, text, a, &out, false));
            ck_assert(scrub_stream_push(stream, text + a, b - a, &out, false));
            ck_assert(scrub_stream_push(stream, text + b, len - b, &out, true));
            ck_assert_str_eq(buf_text(&out), masked);
            ck_assert_uint_eq(scrub_stream_matches(stream), matches);
            scrub_stream_free(stream);
        }
    }
    scrubber_unref(scrubber);
}
END_TEST

START_TEST(test_stream_holds_only_what_may_match)
{
    struct scrubber *scrubber = SCRUBBER("secret");
    struct scrub_stream *stream = scrub_stream_new(scrubber);
    scrubber_unref(scrubber); /* the stream has its own */
    cleanup_buf struct buf out = BUF_INIT(100);
    ck_assert(scrub_stream_push(stream, "prompt> ", 8, &out, false));
    ck_assert_str_eq(buf_text(&out), "prompt> ");
    ck_assert(scrub_stream_push(stream, "sec", 3, &out, false));
    ck_assert_str_eq(buf_text(&out), "prompt> ");
    ck_assert_uint_eq(scrub_stream_held(stream), 3);
    ck_assert(scrub_stream_push(stream, "ond se", 6, &out, false));
    ck_assert_str_eq(buf_text(&out), "prompt> second ");
    ck_assert(scrub_stream_push(stream, "", 0, &out, true));
    ck_assert_str_eq(buf_text(&out), "prompt> second se");
    /* begins anew: the end before does not count */
    ck_assert(scrub_stream_push(stream, "cret", 4, &out, false));
    ck_assert_str_eq(buf_text(&out), "prompt> second secret");
    scrub_stream_free(stream);
}
END_TEST

START_TEST(test_peek)
{
    struct scrubber *scrubber = SCRUBBER("user:pass", "pass@host");
    struct scrub_stream *stream = scrub_stream_new(scrubber);
    cleanup_buf struct buf out = BUF_INIT(100), peek = BUF_INIT(100), small = BUF_INIT(3);
    size_t masked = 1;
    ck_assert(scrub_stream_peek(stream, &peek, &masked));
    ck_assert_uint_eq(masked, 0);
    ck_assert(scrub_stream_push(stream, "a user:pass", 11, &out, false));
    ck_assert_str_eq(buf_text(&out), "a *****");
    ck_assert(scrub_stream_peek(stream, &peek, &masked));
    ck_assert_str_eq(buf_text(&peek), "****");
    ck_assert_uint_eq(masked, 4);
    ck_assert(!scrub_stream_peek(stream, &small, &masked));
    ck_assert(scrub_stream_push(stream, "@host pa", 8, &out, false));
    ck_assert_str_eq(buf_text(&out), "a ************** ");
    ck_assert_uint_eq(scrub_stream_matches(stream), 1);
    ck_assert_uint_eq(scrub_stream_masked(stream), 14);
    buf_reset(&peek);
    ck_assert(scrub_stream_peek(stream, &peek, &masked));
    ck_assert_str_eq(buf_text(&peek), "pa");
    ck_assert_uint_eq(masked, 0);
    scrub_stream_free(stream);
    scrubber_unref(scrubber);
}
END_TEST

START_TEST(test_full)
{
    struct scrubber *scrubber = SCRUBBER("secret");
    cleanup_buf struct buf text = BUF_INIT(5);
    ck_assert(!scrubber_text(scrubber, "abc secret", 10, &text));
    struct scrub_stream *stream = scrub_stream_new(scrubber);
    cleanup_buf struct buf out = BUF_INIT(8);
    ck_assert(scrub_stream_push(stream, "a sec", 5, &out, false));
    ck_assert(!scrub_stream_push(stream, "ret!", 4, &out, false));
    ck_assert_str_eq(buf_text(&out), "a ");
    ck_assert_uint_eq(scrub_stream_held(stream), 3);
    buf_reset(&out);
    ck_assert(scrub_stream_push(stream, "ret!", 4, &out, false));
    ck_assert_str_eq(buf_text(&out), "******!");
    scrub_stream_free(stream);
    scrubber_unref(scrubber);
}
END_TEST

/* Almost a match at each place: comparing there would be 10^10 steps and more. */
START_TEST(test_linear_time)
{
    size_t len = CAP_SECRET;
    cleanup_free char *value = xcalloc(1, len + 1);
    memset(value, 'a', len);
    value[len - 1] = 'w';
    struct scrubber *scrubber = SCRUBBER(value);
    size_t text_len = 1 * MIB;
    cleanup_free char *text = xmalloc(text_len);
    memset(text, 'a', text_len);
    ck_assert_uint_eq(scrubber_mask(scrubber, text, text_len), 0);
    memcpy(text + 1000, value, len);
    ck_assert_uint_eq(scrubber_mask(scrubber, text, text_len), 1);
    ck_assert_int_eq(text[999], 'a');
    ck_assert_int_eq(text[1000], '*');
    ck_assert_int_eq(text[1000 + len - 1], '*');
    ck_assert_int_eq(text[1000 + len], 'a');
    scrubber_unref(scrubber);

    /* A match at each place, each as long as it can be. */
    value[len - 1] = 0;
    scrubber = SCRUBBER(value, "a", "aa");
    memset(text, 'a', text_len);
    ck_assert_uint_eq(scrubber_mask(scrubber, text, text_len), 1);
    ck_assert_int_eq(text[0], '*');
    ck_assert_int_eq(text[text_len - 1], '*');
    scrubber_unref(scrubber);
}
END_TEST

static void *use_scrubber(void *arg)
{
    struct scrubber *scrubber = arg;
    for (size_t i = 0; i < 2000; i++) {
        struct scrubber *mine = scrubber_ref(scrubber);
        char text[] = "the token is tok-en-12345.";
        ck_assert_uint_eq(scrubber_mask(mine, text, sizeof(text) - 1), 1);
        ck_assert_str_eq(text, "the token is ************.");
        scrubber_unref(mine);
    }
    scrubber_unref(scrubber);
    return NULL;
}

START_TEST(test_threads)
{
    struct scrubber *scrubber = SCRUBBER("tok-en-12345");
    pthread_t threads[3];
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_scrubber, scrubber_ref(scrubber)),
                         0);
    scrubber_unref(scrubber);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scrub");
    TCase *tcase = tcase_create("scrub");
    tcase_set_timeout(tcase, 100);
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_no_secrets);
    tcase_add_test(tcase, test_raw);
    tcase_add_test(tcase, test_binary_text);
    tcase_add_test(tcase, test_forms);
    tcase_add_test(tcase, test_more_forms);
    tcase_add_test(tcase, test_short_values_have_no_forms);
    tcase_add_test(tcase, test_inside_base64);
    tcase_add_test(tcase, test_lines_of_base64);
    tcase_add_test(tcase, test_random);
    tcase_add_test(tcase, test_every_place);
    tcase_add_test(tcase, test_every_split);
    tcase_add_test(tcase, test_stream_holds_only_what_may_match);
    tcase_add_test(tcase, test_peek);
    tcase_add_test(tcase, test_full);
    tcase_add_test(tcase, test_linear_time);
    tcase_add_test(tcase, test_threads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
