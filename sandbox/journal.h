#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "sandbox/scrub.h"

/* The output of one stream of one exec on disk: the first HEAD_MAX and the last TAIL_MAX bytes, at
 * their absolute offsets. How many bytes were received is kept in the file, so that a server that
 * was killed goes on at the right offset. No descriptor is held between calls. Every call is
 * thread-safe. A full disk is ERR_STORE_FULL. */
struct journal;

struct journal_masking {
    const struct scrubber *scrubber;
    /* Told the offsets of what is masked; again when it grows. It must not use the journal. */
    void (*note)(void *arg, uint64_t from, uint64_t to);
    void *arg;
};

/* Continues the file at PATH with the limits it was made with; the file is made (0600) by the first
 * byte. A file that is not a journal is ERR_STORE. */
int journal_open(const char *path, uint64_t head_max, uint64_t tail_max,
                 struct journal **ret_journal, struct err *err) must_check;
void journal_close(struct journal *journal); /* NULL is allowed */
/* No such file is no error. */
int journal_remove(const char *path, struct err *err) must_check;

/* Bytes below journal_received() are skipped; OFFSET above it is ERR_INTERNAL. After an error, what
 * was received stands, and the same call may be made again. */
int journal_append(struct journal *journal, uint64_t offset, const void *data, size_t len,
                   struct err *err) must_check;
/* The same, masked before it is written. What may yet become a secret is written as it is, and
 * masked when it has become one. Secrets that overlap or come in pieces are seen as in one text. */
int journal_append_masked(struct journal *journal, uint64_t offset, const void *data, size_t len,
                          const struct journal_masking *masking, struct err *err) must_check;
uint64_t journal_received(struct journal *journal);

/* How much may be received in all before a byte from AT on is dropped. */
uint64_t journal_keeps(struct journal *journal, uint64_t at);

/* What was dropped between head and tail: RET_FROM up to but without RET_TO. */
bool journal_has_gap(struct journal *journal, uint64_t *ret_from, uint64_t *ret_to);

/* Up to LEN bytes from OFFSET; fewer at the gap, and at the end (0 there and beyond). An OFFSET
 * inside the gap is ERR_RANGE_NOT_SATISFIABLE. */
int journal_read(struct journal *journal, uint64_t offset, void *data, size_t len, size_t *ret_len,
                 struct err *err) must_check;

/* Masks what is on disk in place, from scrubber_longest() - 1 bytes before FROM to the end, all
 * that has not been masked on its way in. What is dropped from the middle is not looked at any
 * more. */
int journal_mask(struct journal *journal, const struct journal_masking *masking, uint64_t from,
                 struct err *err) must_check;
/* All from FROM up to TO was looked at with just this SCRUBBER, so that it need not be again. */
bool journal_is_masked(struct journal *journal, const struct scrubber *scrubber, uint64_t from,
                       uint64_t to);
/* The decoy was in what its scrubber has looked at. */
bool journal_saw_decoy(struct journal *journal);
/* How many bytes before END may yet become a secret, and how many of them firmly, as
 * scrub_stream_held_firmly says it. False: it is not known, as END is not where SCRUBBER stands. */
bool journal_held(struct journal *journal, const struct scrubber *scrubber, uint64_t end,
                  size_t *ret_held, size_t *ret_firmly);
