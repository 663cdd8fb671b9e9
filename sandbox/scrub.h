#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/text.h"

/* Finds registered secrets in bytes that leave. Each value is known in its raw form and, from 8
 * bytes on, in base64 (both alphabets, also as a part of a longer base64 text), hex, URL and JSON
 * form. Matches that overlap are masked as one. Memory is about 200 times the values' bytes at
 * most, so the caller bounds them (CAP_SECRETS, CAP_STATE_BLOB).
 *
 * A scrubber never changes, is reference-counted, and may be used by any thread. */
struct scrubber;

/* NULL, an empty list, or only empty values: a scrubber that matches nothing. */
struct scrubber *scrubber_new(const struct text_list *values);
/* DECOY (NULL: none), one of VALUES, is told from the others where it is found. */
struct scrubber *scrubber_new_with_decoy(const struct text_list *values, const char *decoy);
struct scrubber *scrubber_ref(const struct scrubber *scrubber);
void scrubber_unref(
    struct scrubber *scrubber); /* NULL is allowed; the last one wipes the patterns */
bool scrubber_empty(const struct scrubber *scrubber);
/* Bytes of the longest pattern; 0 when there is none. A range read scans one byte less beyond its
 * ends. */
size_t scrubber_longest(const struct scrubber *scrubber);

/* Writes '*' over every match, in place; returns how many matches there were. */
size_t scrubber_mask(const struct scrubber *scrubber, char *data, size_t len);

/* Appends DATA to OUT with `***` for each match; false when OUT is full. */
bool scrubber_text(const struct scrubber *scrubber, const char *data, size_t len, struct buf *out);

/* The masking of scrubber_mask for bytes that come in pieces. What could still become a match is
 * held back: at most scrubber_longest() - 1 bytes, none when the last bytes begin no pattern. One
 * thread. */
struct scrub_stream;

struct scrub_stream *
scrub_stream_new(const struct scrubber *scrubber); /* takes a reference of its own */
void scrub_stream_free(struct scrub_stream *stream);

/* Appends what is decided to OUT; all of it when LAST, after which the stream begins anew. False
 * when OUT has no room for it: then nothing was taken and OUT is as before. */
bool scrub_stream_push(struct scrub_stream *stream, const char *data, size_t len, struct buf *out,
                       bool last);
/* From now on NOTE is called by push and peek for what they mask, with its place in the stream;
 * again when it was masked in parts, or has grown. */
void scrub_stream_watch(struct scrub_stream *stream,
                        void (*note)(void *arg, uint64_t from, uint64_t to), void *arg);
size_t scrub_stream_held(const struct scrub_stream *stream);
/* Of that, what is so much of a pattern (more than four bytes, and than a quarter of it) that it is
 * not to be shown before it is decided; the rest may be after a moment. */
size_t scrub_stream_held_firmly(const struct scrub_stream *stream);
/* Appends what is held to OUT, with what is known to be a secret already masked; it stays held.
 * RET_MASKED: bytes. False when OUT is full. */
bool scrub_stream_peek(const struct scrub_stream *stream, struct buf *out, size_t *ret_masked);
/* The decoy was in it, in any form. */
bool scrub_stream_saw_decoy(const struct scrub_stream *stream);
/* Totals of what was appended so far. */
size_t scrub_stream_matches(const struct scrub_stream *stream);
uint64_t scrub_stream_masked(const struct scrub_stream *stream); /* bytes */
