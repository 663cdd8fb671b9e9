#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/json.h"

/* The one mutable global of the program. `lock` keeps lines whole: write() to a pipe may stop after
 * a part of one. */
static struct {
    pthread_mutex_t lock;
    enum log_level minimum;
    bool terminal;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .minimum = LOG_LEVEL_INFO};

void log_setup(enum log_level minimum)
{
    sink.minimum = minimum;
    sink.terminal = isatty(STDERR_FILENO);
}

bool log_shows(enum log_level level)
{
    return level >= sink.minimum;
}

static const char *level_name(enum log_level level)
{
    static const char *const names[] = {
        [LOG_LEVEL_DEBUG] = "debug",
        [LOG_LEVEL_INFO] = "info",
        [LOG_LEVEL_WARN] = "warn",
        [LOG_LEVEL_ERROR] = "error",
    };
    return names[level];
}

/* A logfmt value needs no quotes when nothing in it can be mistaken. */
static bool is_bare(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte <= ' ' || byte >= 0x7F || byte == '"' || byte == '=' || byte == '\\')
            return false;
    }
    return len > 0;
}

#define VALUE_MAX ((size_t)4096)

/* JSON's quoting leaves DEL and the C1 controls as they are; a terminal must not get them. */
static bool append_quoted(struct buf *line, const char *text, size_t len)
{
    size_t start = line->len;
    if (!json_print_text(text, len, line))
        return false;
    for (size_t i = start; sink.terminal && i < line->len; i++) {
        unsigned char byte = (unsigned char)line->ptr[i];
        unsigned char before = i > start ? (unsigned char)line->ptr[i - 1] : 0;
        if (byte == 0x7F)
            line->ptr[i] = '?';
        else if (before == 0xC2 && byte < 0xA0)
            memcpy(line->ptr + i - 1, "??", 2);
    }
    return true;
}

/* Appends one pair, or nothing when the line is full. */
static void append_pair(struct buf *line, const char *key, const char *value)
{
    size_t before = line->len;
    value = value ? value : "";
    size_t len = strnlen(value, VALUE_MAX);
    bool fits;
    if (!sink.terminal)
        fits = buf_append_char(line, before ? ',' : '{') &&
               json_print_text(key, strlen(key), line) && buf_append_char(line, ':') &&
               json_print_text(value, len, line);
    else
        fits =
            (!before || buf_append_char(line, ' ')) && buf_append_str(line, key) &&
            buf_append_char(line, '=') &&
            (is_bare(value, len) ? buf_append(line, value, len) : append_quoted(line, value, len));
    if (!fits)
        line->len = before;
}

static void begin_line(struct buf *line, enum log_level level, const char *message)
{
    char time[TIME_TEXT_LEN];
    time_format(clock_wall_ms(), time);
    buf_init(line, CAP_SMALL - 2); /* the end of the line always fits */
    append_pair(line, "time", time);
    append_pair(line, "level", level_name(level));
    append_pair(line, "msg", message);
}

static void end_line(struct buf *line)
{
    line->max += 2;
    (void)buf_append_str(line, sink.terminal ? "\n" : "}\n"); /* there is room, see begin_line */
    pthread_mutex_lock(&sink.lock);
    for (size_t done = 0; done < line->len;) {
        ssize_t n = write(STDERR_FILENO, line->ptr + done, line->len - done);
        if (n < 0 && errno != EINTR)
            break; /* nowhere to report it */
        done += n > 0 ? (size_t)n : 0;
    }
    pthread_mutex_unlock(&sink.lock);
    buf_done(line);
}

void log_event(enum log_level level, const char *message, ...)
{
    if (level < sink.minimum)
        return;
    int saved = errno;
    struct buf line;
    begin_line(&line, level, message);
    va_list args;
    va_start(args, message);
    const char *key;
    while ((key = va_arg(args, const char *)))
        append_pair(&line, key, va_arg(args, const char *));
    va_end(args);
    end_line(&line);
    errno = saved;
}

void log_detail(enum log_level level, const char *message, const char *fmt, ...)
{
    if (level < sink.minimum)
        return;
    int saved = errno;
    struct buf line;
    struct buf detail = BUF_INIT(CAP_SMALL);
    begin_line(&line, level, message);
    va_list args;
    va_start(args, fmt);
    bool fits = buf_vprintf(&detail, fmt, args);
    va_end(args);
    append_pair(&line, "detail", fits ? buf_text(&detail) : fmt);
    end_line(&line);
    buf_done(&detail);
    errno = saved;
}
