#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

START_TEST(test_append_and_maximum)
{
    struct buf buf = BUF_INIT(10);
    ck_assert_ptr_null(buf.ptr);
    ck_assert_str_eq(buf_text(&buf), "");
    ck_assert(buf_append(&buf, NULL, 0));
    ck_assert_ptr_nonnull(buf.ptr);
    ck_assert(buf_append_str(&buf, "12345"));
    ck_assert(!buf_append_str(&buf, "678901"));
    ck_assert(buf.overflow);
    ck_assert_str_eq(buf_text(&buf), "12345");
    ck_assert(buf_append_str(&buf, "67890"));
    ck_assert(buf.overflow);
    ck_assert(!buf_append_char(&buf, 'x'));
    ck_assert(!buf_append(&buf, "x", SIZE_MAX));
    ck_assert_uint_eq(buf.len, 10);
    buf_reset(&buf);
    ck_assert(!buf.overflow);
    ck_assert_str_eq(buf_text(&buf), "");
    ck_assert(buf_append(&buf, "a\0b", 3));
    ck_assert_uint_eq(buf.len, 3);
    buf_done(&buf);
    ck_assert_uint_eq(buf.max, 10);
    ck_assert(buf_append_char(&buf, 'y'));
    buf_done(&buf);
}
END_TEST

/* Every length around the sizes at which memory grows, up to the maximum itself. */
START_TEST(test_growth)
{
    for (size_t max = 0; max < 300; max += 13) {
        cleanup_buf struct buf buf = BUF_INIT(max);
        for (size_t i = 0; i < max; i++)
            ck_assert(buf_append_char(&buf, (char)('a' + i % 26)));
        ck_assert(!buf_append_char(&buf, 'z'));
        ck_assert_uint_eq(strlen(buf_text(&buf)), max);
        ck_assert_uint_le(buf.cap, max + 65);
    }
}
END_TEST

START_TEST(test_printf)
{
    cleanup_buf struct buf buf = BUF_INIT(12);
    ck_assert(buf_printf(&buf, "%s-%d", "ab", 42));
    ck_assert_str_eq(buf_text(&buf), "ab-42");
    ck_assert(!buf_printf(&buf, "%08d", 1));
    ck_assert(buf.overflow);
    ck_assert_str_eq(buf_text(&buf), "ab-42");
    ck_assert(buf_printf(&buf, "%07d", 1));
    ck_assert_str_eq(buf_text(&buf), "ab-420000001");
}
END_TEST

START_TEST(test_reserve_consume_take)
{
    struct buf buf = BUF_INIT(100);
    char *room = buf_reserve(&buf, 100);
    ck_assert_ptr_nonnull(room);
    memset(room, 'r', 100);
    buf_grew(&buf, 6);
    ck_assert_str_eq(buf_text(&buf), "rrrrrr");
    ck_assert_ptr_null(buf_reserve(&buf, 95));
    buf_reset(&buf);
    buf_append_str(&buf, "hello world");
    buf_consume(&buf, 0);
    buf_consume(&buf, 6);
    ck_assert_str_eq(buf_text(&buf), "world");
    buf_consume(&buf, 99);
    ck_assert_uint_eq(buf.len, 0);
    buf_append_str(&buf, "taken");
    size_t len = 0;
    cleanup_free char *text = buf_take(&buf, &len);
    ck_assert_str_eq(text, "taken");
    ck_assert_uint_eq(len, 5);
    ck_assert_ptr_null(buf.ptr);
    cleanup_free char *nothing = buf_take(&buf, NULL);
    ck_assert_str_eq(nothing, "");
    buf_append_str(&buf, "secret");
    buf_wipe(&buf);
    ck_assert_ptr_null(buf.ptr);
    buf_wipe(&buf);
}
END_TEST

START_TEST(test_url_segments)
{
    cleanup_buf struct buf url = BUF_INIT(100);
    ck_assert(url_append_segment(&url, STR("api")));
    ck_assert_str_eq(buf_text(&url), "/api");
    buf_append_str(&url, "/v1/");
    ck_assert(url_append_segment(&url, STR("a/b c?%#\0\xC3\xA9~-._")));
    ck_assert_str_eq(buf_text(&url), "/api/v1/a%2Fb%20c%3F%25%23%00%C3%A9~-._");
    size_t before = url.len;
    ck_assert(!url_append_segment(&url, STR("")));
    ck_assert(!url_append_segment(&url, STR(".")));
    ck_assert(!url_append_segment(&url, STR("..")));
    ck_assert(!url_append_segment(&url, STR("////////////////////////////////////")));
    ck_assert_uint_eq(url.len, before);
    ck_assert_uint_eq(strlen(buf_text(&url)), before);
    ck_assert(url_append_segment(&url, STR("...")));
    ck_assert(str_ends(buf_text(&url), "/..."));
}
END_TEST

START_TEST(test_url_query)
{
    cleanup_buf struct buf url = BUF_INIT(60);
    buf_append_str(&url, "/x");
    ck_assert(url_append_query(&url, "labelSelector", STR("a=b,c&d")));
    ck_assert(url_append_query(&url, "e", STR("")));
    ck_assert_str_eq(buf_text(&url), "/x?labelSelector=a%3Db%2Cc%26d&e=");
    size_t before = url.len;
    ck_assert(!url_append_query(&url, "long", STR("==================")));
    ck_assert_uint_eq(url.len, before);
}
END_TEST

START_TEST(test_url_decode)
{
    static const struct {
        const char *text;
        bool plus;
        const char *decoded; /* NULL: refused */
    } cases[] = {
        {"", false, ""},
        {"abc", false, "abc"},
        {"a%2Fb%2f", false, "a/b/"},
        {"a+b", false, "a+b"},
        {"a+b%2B", true, "a b+"},
        {"%41", false, "A"},
        {"%4", false, NULL},
        {"%", false, NULL},
        {"a%zz", false, NULL},
        {"%%41", false, NULL},
        {"%-1", false, NULL},
        {"% 1", false, NULL},
        {"12345678901234567", false, NULL}, /* too long for the buffer */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_buf struct buf out = BUF_INIT(16 + 4);
        buf_append_str(&out, "kept");
        bool good = url_decode(&out, str_of(cases[i].text), cases[i].plus);
        ck_assert_msg(good == (cases[i].decoded != NULL), "'%s'", cases[i].text);
        ck_assert_str_eq(buf_text(&out) + 4, good ? cases[i].decoded : "");
    }
    cleanup_buf struct buf out = BUF_INIT(10);
    ck_assert(url_decode(&out, STR("a%00b"), false));
    ck_assert_uint_eq(out.len, 3);
    ck_assert(memcmp(out.ptr, "a\0b", 3) == 0);
}
END_TEST

START_TEST(test_base64)
{
    static const struct {
        const char *plain, *encoded;
    } cases[] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xFB\xFF\xBF", "+/+/"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_buf struct buf out = BUF_INIT(100);
        ck_assert(base64_encode(&out, cases[i].plain, strlen(cases[i].plain)));
        ck_assert_str_eq(buf_text(&out), cases[i].encoded);
        buf_reset(&out);
        ck_assert(base64_decode(&out, str_of(cases[i].encoded)));
        ck_assert_str_eq(buf_text(&out), cases[i].plain);
    }
    static const char *const bad[] = {"Z",    "Zg",    "Zg=",  "Zg===",    "=",         "====",
                                      "Z===", "Zh==",  "Zm9=", "Zm9v\n",   "Zg==Zg==",  "Z=9v",
                                      "-_-_", "Zm 9v", "Zm9",  "Zm9v====", "\xC3\xA9=="};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cleanup_buf struct buf out = BUF_INIT(100);
        buf_append_str(&out, "kept");
        ck_assert_msg(!base64_decode(&out, str_of(bad[i])), "'%s'", bad[i]);
        ck_assert_str_eq(buf_text(&out), "kept");
    }
    cleanup_buf struct buf small = BUF_INIT(5);
    ck_assert(!base64_encode(&small, "foob", 4));
    ck_assert(!base64_encode(&small, "x", SIZE_MAX / 2));
    ck_assert(!base64_decode(&small, STR("Zm9vYmFy")));
    ck_assert_uint_eq(small.len, 0);
}
END_TEST

START_TEST(test_codings_round_trip)
{
    unsigned char data[257];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t len = 0; len <= sizeof(data); len++) {
        cleanup_buf struct buf base64 = BUF_INIT(400);
        cleanup_buf struct buf hex = BUF_INIT(600);
        cleanup_buf struct buf back = BUF_INIT(300);
        ck_assert(base64_encode(&base64, data, len));
        ck_assert(base64_decode(&back, (struct str){buf_text(&base64), base64.len}));
        ck_assert_uint_eq(back.len, len);
        ck_assert(memcmp(buf_text(&back), data, len) == 0);
        buf_reset(&back);
        ck_assert(hex_encode(&hex, data, len));
        ck_assert_uint_eq(hex.len, 2 * len);
        ck_assert(hex_decode(&back, (struct str){buf_text(&hex), hex.len}));
        ck_assert_uint_eq(back.len, len);
        ck_assert(memcmp(buf_text(&back), data, len) == 0);
    }
}
END_TEST

START_TEST(test_hex_refuses)
{
    cleanup_buf struct buf out = BUF_INIT(4);
    ck_assert(hex_decode(&out, STR("aAfF")));
    ck_assert(memcmp(out.ptr, "\xAA\xFF", 2) == 0);
    ck_assert(!hex_decode(&out, STR("abc")));
    ck_assert(!hex_decode(&out, STR("0g")));
    ck_assert(!hex_decode(&out, STR("aabbcc")));
    ck_assert(!hex_encode(&out, "abc", 3));
    ck_assert(!hex_encode(&out, "abc", SIZE_MAX / 2 + 1));
    ck_assert_uint_eq(out.len, 2);
}
END_TEST

START_TEST(test_mem)
{
    cleanup_free void *nothing = xmalloc(0);
    ck_assert_ptr_nonnull(nothing);
    cleanup_free char *zeroes = xcalloc(0, 8);
    ck_assert_ptr_nonnull(zeroes);
    zeroes = xrealloc(zeroes, 0);
    ck_assert_ptr_nonnull(zeroes);
    cleanup_free char *part = xstrndup("abc", 2);
    ck_assert_str_eq(part, "ab");
    cleanup_free char *all = xstrndup("abc", 100);
    ck_assert_str_eq(all, "abc");
    cleanup_free char *printed = xasprintf("%d%s", 4, "2");
    ck_assert_str_eq(printed, "42");
    free_secret(NULL, 10);
    free_secret(xstrdup("key"), 3);
    char *given = xstrdup("given");
    cleanup_free char *got = TAKE_PTR(given);
    ck_assert_ptr_null(given);
    ck_assert_str_eq(got, "given");
}
END_TEST

START_TEST(test_fd_cleanup_keeps_errno)
{
    int number;
    {
        cleanup_fd int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        number = fd;
        cleanup_fd int none = -1;
        cleanup_fd int closed = dup(fd);
        int moved = TAKE_FD(closed);
        ck_assert_int_eq(closed, -1);
        ck_assert_int_eq(none, -1);
        close(moved);
        errno = ENOTTY;
    }
    ck_assert_int_eq(errno, ENOTTY);
    ck_assert_int_eq(fcntl(number, F_GETFD), -1);
}
END_TEST

START_TEST(test_take_front)
{
    char data[8] = "";
    cleanup_buf struct buf buf = BUF_INIT(64);
    ck_assert_uint_eq(buf_take_front(&buf, data, sizeof(data)), 0);
    ck_assert(buf_append_str(&buf, "one two"));
    ck_assert_uint_eq(buf_take_front(&buf, data, 0), 0);
    ck_assert_uint_eq(buf_take_front(&buf, data, 4), 4);
    ck_assert_mem_eq(data, "one ", 4);
    ck_assert_str_eq(buf_text(&buf), "two");
    ck_assert_uint_eq(buf_take_front(&buf, data, sizeof(data)), 3);
    ck_assert_mem_eq(data, "two", 3);
    ck_assert_uint_eq(buf.len, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("buf");
    TCase *tcase = tcase_create("buf");
    suite_add_tcase(suite, tcase);
    tcase_add_test(tcase, test_append_and_maximum);
    tcase_add_test(tcase, test_growth);
    tcase_add_test(tcase, test_printf);
    tcase_add_test(tcase, test_reserve_consume_take);
    tcase_add_test(tcase, test_take_front);
    tcase_add_test(tcase, test_url_segments);
    tcase_add_test(tcase, test_url_query);
    tcase_add_test(tcase, test_url_decode);
    tcase_add_test(tcase, test_base64);
    tcase_add_test(tcase, test_codings_round_trip);
    tcase_add_test(tcase, test_hex_refuses);
    tcase_add_test(tcase, test_mem);
    tcase_add_test(tcase, test_fd_cleanup_keeps_errno);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
