#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/str.h"

/* A growing byte buffer with a maximum. Always NUL-terminated behind `len`, so `ptr` of a buffer
 * that was appended to is a C string (which may hold NULs). An append that would pass `max` changes
 * nothing and returns false; `overflow` stays set until buf_reset(). */
struct buf {
    char *ptr; /* NULL until the first append */
    size_t len;
    size_t cap;
    size_t max; /* from base/caps.h */
    bool overflow;
};

#define BUF_INIT(maximum) ((struct buf){.max = (maximum)})
void buf_init(struct buf *buf, size_t max);
void buf_done(struct buf *buf);  /* frees; the buffer may be used again */
void buf_wipe(struct buf *buf);  /* zeroes, then frees */
void buf_reset(struct buf *buf); /* empties, keeps the memory */
#define cleanup_buf cleanup(buf_done)

bool buf_append(struct buf *buf, const void *data, size_t len);
bool buf_append_str(struct buf *buf, const char *text);
bool buf_append_char(struct buf *buf, char c);
bool buf_printf(struct buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool buf_vprintf(struct buf *buf, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Makes room for LEN more bytes and returns where they go (then call buf_grew), or NULL. */
char *buf_reserve(struct buf *buf, size_t len);
void buf_grew(struct buf *buf, size_t len);

/* Drops LEN bytes from the front. */
void buf_consume(struct buf *buf, size_t len);
/* Moves up to LEN bytes from its front to DATA; how many. */
size_t buf_take_front(struct buf *buf, void *data, size_t len);

/* The contents, "" when empty; borrowed. */
const char *buf_text(const struct buf *buf);

/* Moves the contents out as a malloc'd string ("" when empty) and empties the buffer. */
char *buf_take(struct buf *buf, size_t *ret_len);

/* URL building: percent-encodes all but unreserved characters. A segment goes behind a "/" (added
 * unless URL ends with one); one that is empty, "." or ".." is refused (false). All that return
 * false from here on leave the contents as they were. */
bool url_append_segment(struct buf *url, struct str segment);
bool url_append_query(struct buf *url, const char *name, struct str value); /* adds ? or & */

/* Strict percent-decoding; NUL allowed in the output (the caller refuses it where it must). */
bool url_decode(struct buf *out, struct str text, bool plus_is_space);

bool base64_encode(struct buf *out, const void *data, size_t len);
/* Standard alphabet with padding; false when malformed or too long for OUT. */
bool base64_decode(struct buf *out, struct str text);
bool hex_encode(struct buf *out, const void *data, size_t len);
bool hex_decode(struct buf *out, struct str text);
