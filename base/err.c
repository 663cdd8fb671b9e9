#include "base/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

static const char *const names[] = {
#define X(id, name) [ERR_##id] = (name),
#include "base/err_codes.h"
#undef X
};

const char *err_code_name(enum err_code code)
{
    return code < ERR_COUNT ? names[code] : "internal";
}

enum err_code err_code_from_name(const char *name)
{
    for (unsigned code = 0; name && code < ERR_COUNT; code++) {
        if (strcmp(names[code], name) == 0)
            return (enum err_code)code;
    }
    return ERR_NONE;
}

/* What the header promises of `msg`: UTF-8, whole characters, no trailing newline. TEXT was
 * formatted into a buffer of the size of `msg`, so it may have been cut within a character. */
static void store(struct err *err, const char *text)
{
    size_t len = strlen(text);
    if (len == sizeof(err->msg) - 1)
        len -= utf8_partial_tail(text, len);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    for (size_t i = 0; i < len;) {
        size_t width = utf8_width(text + i, len - i);
        if (width == 0)
            err->msg[i++] = '?';
        for (; width > 0; width--, i++)
            err->msg[i] = text[i];
    }
    err->msg[len] = '\0';
}

/* Everything is formatted beside `msg` first: an argument may be this very message. */
int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    if (!err)
        return -1;
    char text[sizeof(err->msg)];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, args); /* NOLINT(clang-analyzer-valist.*) */
    va_end(args);
    err->code = code;
    store(err, len < 0 ? fmt : text);
    return -1;
}

/* Appends as much as fits of ": " and TAIL to TEXT. */
static void append_tail(char *text, size_t size, const char *tail)
{
    const char *parts[] = {": ", tail};
    size_t len = strlen(text);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        size_t add = strnlen(parts[i], size - 1 - len);
        memcpy(text + len, parts[i], add);
        len += add;
    }
    text[len] = '\0';
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    if (!err)
        return -1;
    char text[sizeof(err->msg)];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, args); /* NOLINT(clang-analyzer-valist.*) */
    va_end(args);
    if (len < 0)
        return -1;
    append_tail(text, sizeof(text), err->msg);
    store(err, text);
    return -1;
}

int err_errno(struct err *err, enum err_code code, int errnum, const char *fmt, ...)
{
    if (!err)
        return -1;
    char text[sizeof(err->msg)];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, args); /* NOLINT(clang-analyzer-valist.*) */
    va_end(args);
    const char *reason = strerrordesc_np(errnum);
    char number[32];
    snprintf(number, sizeof(number), "error %d", errnum);
    if (len >= 0)
        append_tail(text, sizeof(text), reason ? reason : number);
    err->code = code;
    store(err, len < 0 ? fmt : text);
    return -1;
}
