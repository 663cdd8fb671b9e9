#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/json.h"
#include "base/log.h"

/* Stands in for stderr, so that what is logged can be read. */
static int saved_stderr = -1;
static FILE *reader;

static void redirect(int read_end, int write_end)
{
    saved_stderr = dup(STDERR_FILENO);
    dup2(write_end, STDERR_FILENO);
    close(write_end);
    reader = read_end < 0 ? NULL : fdopen(read_end, "r");
}

static void to_file(void)
{
    char path[] = "/tmp/podsandbox-log-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    int read_end = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    redirect(read_end, fd);
}

static void to_terminal(void)
{
    int primary = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char path[64];
    struct termios settings;
    ck_assert_int_ge(primary, 0);
    ck_assert_int_eq(grantpt(primary) | unlockpt(primary), 0);
    ck_assert_int_eq(ptsname_r(primary, path, sizeof(path)), 0);
    int terminal = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal, 0);
    tcgetattr(terminal, &settings);
    cfmakeraw(&settings); /* no \r before \n */
    tcsetattr(terminal, TCSANOW, &settings);
    redirect(primary, terminal);
}

static void restore(void)
{
    if (saved_stderr >= 0) {
        dup2(saved_stderr, STDERR_FILENO);
        close(saved_stderr);
        if (reader)
            fclose(reader);
    }
    saved_stderr = -1;
    reader = NULL;
}

/* One line without its newline; "" when there is none. */
static char *next_line(void)
{
    struct buf line = BUF_INIT(CAP_SMALL);
    int c;
    while ((c = getc(reader)) != EOF && c != '\n')
        (void)buf_append_char(&line, (char)c); /* checked below: Check's asserts are slow */
    ck_assert(!line.overflow);
    return buf_take(&line, NULL);
}

static struct json *next_json(void)
{
    cleanup_free char *line = next_line();
    struct json *json = NULL;
    struct err err = {.msg = ""};
    int rc = json_parse(line, strlen(line), JSON_STRICT, &json, &err);
    ck_assert_msg(rc == 0, "%s: %s", err.msg, line);
    return json;
}

START_TEST(test_json_line)
{
    to_file();
    log_setup(LOG_LEVEL_INFO);
    log_event(LOG_LEVEL_DEBUG, "too quiet", NULL);
    errno = ENOTTY;
    log_event(LOG_LEVEL_WARN, "a \"b\"\nlevel=error", "req_id", "r\x01\xFF\x7F", "none", NULL, "id",
              "s1", NULL);
    ck_assert_int_eq(errno, ENOTTY);
    log_detail(LOG_LEVEL_ERROR, "failed", "%s-%d", "x", 7);
    cleanup_json struct json *first = next_json();
    ck_assert_uint_eq(json_count(first), 6);
    ck_assert_uint_eq(strlen(json_get_text(first, "time")), strlen("2026-11-30T11:34:38.123Z"));
    ck_assert_str_eq(json_get_text(first, "level"), "warn");
    ck_assert_str_eq(json_get_text(first, "msg"), "a \"b\"\nlevel=error");
    ck_assert_str_eq(json_get_text(first, "req_id"), "r\x01\xEF\xBF\xBD\x7F");
    ck_assert_str_eq(json_get_text(first, "none"), "");
    ck_assert_str_eq(json_get_text(first, "id"), "s1");
    cleanup_json struct json *second = next_json();
    ck_assert_str_eq(json_get_text(second, "level"), "error");
    ck_assert_str_eq(json_get_text(second, "detail"), "x-7");
    cleanup_free char *rest = next_line();
    ck_assert_str_eq(rest, "");
}
END_TEST

START_TEST(test_logfmt_line)
{
    to_terminal();
    log_setup(LOG_LEVEL_DEBUG);
    log_event(LOG_LEVEL_DEBUG, "sandbox ready", "id", "s-1", "empty", "", "q", "a\"b", "eq", "a=b",
              "nl", "a\nb", "esc", "\x1B[31m\x7F\xC2\x9B", "utf", "\xC3\xA9", NULL);
    cleanup_free char *line = next_line();
    ck_assert_msg(strncmp(line, "time=20", 7) == 0, "%s", line);
    const char *behind = strstr(line, " level=");
    ck_assert_ptr_nonnull(behind);
    ck_assert_str_eq(behind, " level=debug msg=\"sandbox ready\" id=s-1 empty=\"\" q=\"a\\\"b\" "
                             "eq=\"a=b\" nl=\"a\\nb\" esc=\"\\u001b[31m???\" utf=\"\xC3\xA9\"");
}
END_TEST

START_TEST(test_long_values)
{
    cleanup_free char *text = xmalloc(100001);
    memset(text, '\x01', 100000);
    text[100000] = '\0';
    to_file();
    log_setup(LOG_LEVEL_INFO);
    log_event(LOG_LEVEL_INFO, text, "a", text, "b", text, "c", text, "last", "here", NULL);
    log_detail(LOG_LEVEL_INFO, "detail", "%s", text);
    log_event(LOG_LEVEL_INFO, "after", NULL);
    cleanup_json struct json *first = next_json();
    ck_assert_uint_eq(strlen(json_get_text(first, "a")), 4096);
    ck_assert_str_eq(json_get_text(first, "last"), "here");
    cleanup_json struct json *second = next_json();
    ck_assert_str_eq(json_get_text(second, "msg"), "detail");
    cleanup_json struct json *third = next_json();
    ck_assert_str_eq(json_get_text(third, "msg"), "after");
}
END_TEST

/* Longer than what the kernel writes to a pipe in one piece. */
static void *log_lines(void *arg)
{
    const char *text = arg;
    for (int i = 0; i < 100; i++)
        log_event(LOG_LEVEL_INFO, "line", "a", text, "b", text, "c", text, "text", text, NULL);
    return NULL;
}

START_TEST(test_lines_stay_whole)
{
    pthread_t threads[4];
    char texts[4][4000];
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    redirect(ends[0], ends[1]);
    log_setup(LOG_LEVEL_INFO);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        memset(texts[i], (int)('a' + i), sizeof(texts[i]) - 1);
        texts[i][sizeof(texts[i]) - 1] = '\0';
        pthread_create(&threads[i], NULL, log_lines, texts[i]);
    }
    size_t counts[4] = {0};
    for (size_t i = 0; i < 400; i++) {
        cleanup_json struct json *json = next_json();
        const char *text = json_get_text(json, "text");
        size_t thread = (size_t)(text[0] - 'a');
        ck_assert_str_eq(text, texts[thread]);
        counts[thread]++;
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        ck_assert_uint_eq(counts[i], 100);
}
END_TEST

START_TEST(test_without_stderr)
{
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(full, 0);
    redirect(-1, full);
    log_setup(LOG_LEVEL_INFO);
    log_event(LOG_LEVEL_ERROR, "nobody reads this", NULL);
    close(STDERR_FILENO);
    errno = 0;
    log_event(LOG_LEVEL_ERROR, "nor this", NULL);
    ck_assert_int_eq(errno, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = tcase_create("log");
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(tcase, NULL, restore);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_json_line);
    tcase_add_test(tcase, test_logfmt_line);
    tcase_add_test(tcase, test_long_values);
    tcase_add_test(tcase, test_lines_stay_whole);
    tcase_add_test(tcase, test_without_stderr);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
