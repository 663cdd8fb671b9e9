#pragma once

#include "sandbox/exec_data.h"

/* The beginning of a secret at the end of what there is so far is held back; a short one, which may
 * well be something else, only for so long. */
#define OUTPUT_HOLD_MS 50

/* One stream to be read, of an exec in memory or in the store only. */
struct output {
    struct journal *journal; /* NULL: there is nothing */
    bool own;                /* to be closed */
    bool open;               /* more may come */
    int64_t changed_ms;      /* of the last byte, when open */
    struct ranges lost, masks;
    uint64_t total;           /* of the stream */
    struct exec_stream *live; /* of an exec in memory, under `lock`; else NULL */
    pthread_mutex_t *lock;
    struct scrubber *scrubber;
};
int output_of_exec(struct exec *exec, int stream, struct output *ret_output,
                   struct err *err) must_check;
/* RESULT: its facts, parsed. */
int output_of_row(struct sandboxes *all, const struct exec_row *row, int stream,
                  const struct json *result, struct output *ret_output, struct err *err) must_check;
/* Of its record in the store; ERR_NOT_FOUND. */
int output_of_stored(struct sandboxes *all, const struct exec_key *key, int stream,
                     struct output *ret_output, struct err *err) must_check;
void output_done(struct output *output);
/* Adds NAME, NAME_encoding and NAME_omitted to RECORD: at most MAX bytes, the first and the last
 * ones. RET_TRUNCATED is set when some are left out. */
int output_add_text(const struct output *output, const char *name, size_t max, struct json *record,
                    bool *ret_truncated, struct err *err) must_check;
