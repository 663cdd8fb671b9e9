#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP ((size_t)64)

void buf_init(struct buf *buf, size_t max)
{
    *buf = BUF_INIT(max);
}

void buf_done(struct buf *buf)
{
    free(buf->ptr);
    *buf = BUF_INIT(buf->max);
}

void buf_wipe(struct buf *buf)
{
    free_secret(buf->ptr, buf->cap);
    *buf = BUF_INIT(buf->max);
}

void buf_reset(struct buf *buf)
{
    buf->len = 0;
    buf->overflow = false;
    if (buf->ptr)
        buf->ptr[0] = '\0';
}

char *buf_reserve(struct buf *buf, size_t len)
{
    if (len > buf->max || buf->len > buf->max - len) {
        buf->overflow = true;
        return NULL;
    }
    size_t need = buf->len + len + 1;
    if (need > buf->cap) {
        size_t cap = buf->cap ? buf->cap : FIRST_CAP;
        while (cap < need)
            cap = cap > buf->max / 2 ? buf->max + 1 : cap * 2;
        char *grown = realloc(buf->ptr, cap);
        if (!grown) {
            buf->overflow = true;
            return NULL;
        }
        buf->ptr = grown;
        buf->cap = cap;
    }
    buf->ptr[buf->len] = '\0';
    return buf->ptr + buf->len;
}

void buf_grew(struct buf *buf, size_t len)
{
    buf->len += len;
    buf->ptr[buf->len] = '\0';
}

bool buf_append(struct buf *buf, const void *data, size_t len)
{
    char *room = buf_reserve(buf, len);
    if (!room)
        return false;
    if (len > 0)
        memcpy(room, data, len);
    buf_grew(buf, len);
    return true;
}

bool buf_append_str(struct buf *buf, const char *text)
{
    return buf_append(buf, text, strlen(text));
}

bool buf_append_char(struct buf *buf, char c)
{
    return buf_append(buf, &c, 1);
}

bool buf_vprintf(struct buf *buf, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, again); /* NOLINT(clang-analyzer-valist.*) */
    va_end(again);
    char *room = len < 0 ? NULL : buf_reserve(buf, (size_t)len);
    if (!room) {
        buf->overflow = true;
        return false;
    }
    vsnprintf(room, (size_t)len + 1, fmt, args);
    buf_grew(buf, (size_t)len);
    return true;
}

bool buf_printf(struct buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    bool done = buf_vprintf(buf, fmt, args);
    va_end(args);
    return done;
}

void buf_consume(struct buf *buf, size_t len)
{
    if (len == 0)
        return;
    len = len < buf->len ? len : buf->len;
    buf->len -= len;
    memmove(buf->ptr, buf->ptr + len, buf->len);
    buf->ptr[buf->len] = '\0';
}

size_t buf_take_front(struct buf *buf, void *data, size_t len)
{
    size_t take = buf->len < len ? buf->len : len;

    if (take > 0)
        memcpy(data, buf->ptr, take);
    buf_consume(buf, take);
    return take;
}

const char *buf_text(const struct buf *buf)
{
    return buf->ptr ? buf->ptr : "";
}

char *buf_take(struct buf *buf, size_t *ret_len)
{
    char *text = buf->ptr ? buf->ptr : xstrdup("");
    if (ret_len)
        *ret_len = buf->len;
    buf->ptr = NULL;
    buf->len = 0;
    buf->cap = 0;
    return text;
}

/* Back to how it was before a conversion that failed half-way. */
static bool undo(struct buf *buf, size_t len)
{
    buf->len = len;
    if (buf->ptr)
        buf->ptr[len] = '\0';
    return false;
}

static const char hex_digits[] = "0123456789abcdef";

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static bool append_encoded(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.ptr[i];
        bool done = is_unreserved(text.ptr[i]) ? buf_append_char(out, text.ptr[i])
                                               : buf_printf(out, "%%%02X", byte);
        if (!done)
            return false;
    }
    return true;
}

bool url_append_segment(struct buf *url, struct str segment)
{
    if (segment.len == 0 || str_is(segment, ".") || str_is(segment, ".."))
        return false;
    size_t before = url->len;
    bool slash = before > 0 && url->ptr[before - 1] == '/';
    if ((!slash && !buf_append_char(url, '/')) || !append_encoded(url, segment))
        return undo(url, before);
    return true;
}

bool url_append_query(struct buf *url, const char *name, struct str value)
{
    size_t before = url->len;
    char mark = before > 0 && memchr(url->ptr, '?', before) ? '&' : '?';
    if (!buf_append_char(url, mark) || !append_encoded(url, str_of(name)) ||
        !buf_append_char(url, '=') || !append_encoded(url, value))
        return undo(url, before);
    return true;
}

bool url_decode(struct buf *out, struct str text, bool plus_is_space)
{
    size_t before = out->len;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '%') {
            int high = i + 2 < text.len ? hex_value(text.ptr[i + 1]) : -1;
            int low = i + 2 < text.len ? hex_value(text.ptr[i + 2]) : -1;
            if (high < 0 || low < 0)
                return undo(out, before);
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (!buf_append_char(out, c))
            return undo(out, before);
    }
    return buf_append(out, "", 0);
}

bool base64_encode(struct buf *out, const void *data, size_t len)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = data;
    if (len > out->max) { /* also keeps the size below from wrapping */
        out->overflow = true;
        return false;
    }
    size_t size = (len + 2) / 3 * 4;
    char *to = buf_reserve(out, size);
    if (!to)
        return false;
    for (size_t i = 0; i < len; i += 3, to += 4) {
        size_t left = len - i;
        unsigned bits = (unsigned)in[i] << 16;
        bits |= left > 1 ? (unsigned)in[i + 1] << 8 : 0;
        bits |= left > 2 ? (unsigned)in[i + 2] : 0;
        to[0] = alphabet[bits >> 18];
        to[1] = alphabet[bits >> 12 & 63];
        to[2] = alphabet[bits >> 6 & 63];
        to[3] = alphabet[bits & 63];
    }
    memset(to - (3 - len % 3) % 3, '=', (3 - len % 3) % 3);
    buf_grew(out, size);
    return true;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Four characters of which PAD are "=" into three bytes; false when one is not of the alphabet, or
 * when bits that the padding throws away are set. */
static bool base64_group(const char *four, size_t pad, char ret_three[3])
{
    unsigned bits = 0;
    for (size_t i = 0; i < 4; i++) {
        int value = i < 4 - pad ? base64_value(four[i]) : 0;
        if (value < 0)
            return false;
        bits = bits << 6 | (unsigned)value;
    }
    if ((pad == 1 && (bits & 0xFF)) || (pad == 2 && (bits & 0xFFFF)))
        return false;
    ret_three[0] = (char)(bits >> 16);
    ret_three[1] = (char)(bits >> 8 & 0xFF);
    ret_three[2] = (char)(bits & 0xFF);
    return true;
}

bool base64_decode(struct buf *out, struct str text)
{
    if (text.len % 4 != 0)
        return false;
    size_t pad = 0;
    if (text.len > 0 && text.ptr[text.len - 1] == '=')
        pad = text.ptr[text.len - 2] == '=' ? 2 : 1;
    size_t size = text.len / 4 * 3 - pad;
    char *to = buf_reserve(out, size);
    if (!to)
        return false;
    size_t before = out->len;
    for (size_t i = 0; i < text.len; i += 4) {
        char three[3];
        bool last = i + 4 == text.len;
        size_t group_pad = last ? pad : 0;
        if (!base64_group(text.ptr + i, group_pad, three))
            return undo(out, before);
        memcpy(to, three, 3 - group_pad);
        to += 3 - group_pad;
    }
    buf_grew(out, size);
    return true;
}

bool hex_encode(struct buf *out, const void *data, size_t len)
{
    const unsigned char *in = data;
    if (len > out->max) {
        out->overflow = true;
        return false;
    }
    char *to = buf_reserve(out, len * 2);
    if (!to)
        return false;
    for (size_t i = 0; i < len; i++) {
        to[2 * i] = hex_digits[in[i] >> 4];
        to[2 * i + 1] = hex_digits[in[i] & 15];
    }
    buf_grew(out, len * 2);
    return true;
}

bool hex_decode(struct buf *out, struct str text)
{
    if (text.len % 2 != 0)
        return false;
    char *to = buf_reserve(out, text.len / 2);
    if (!to)
        return false;
    size_t before = out->len;
    for (size_t i = 0; i < text.len; i += 2) {
        int high = hex_value(text.ptr[i]);
        int low = hex_value(text.ptr[i + 1]);
        if (high < 0 || low < 0)
            return undo(out, before);
        to[i / 2] = (char)(high * 16 + low);
    }
    buf_grew(out, text.len / 2);
    return true;
}
