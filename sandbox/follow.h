#pragma once

#include "sandbox/exec.h"

/* The output of an execution as it comes, and how it ends, into a pipe; from any offset, running or
 * not. No thread waits; a slow reader slows only itself, and the command when the journal has no
 * room for what the reader has not had yet. */

#define FOLLOW_HEARTBEAT_MS 10000 /* of silence */

enum follow_format {
    FOLLOW_NDJSON,
    FOLLOW_SSE,
};

/* "sequence:stdout-offset:stderr-offset", as each event's `id` says it. */
struct follow_position {
    uint64_t sequence; /* of the last event; 0: none yet */
    uint64_t offset[2];
};
bool follow_position_parse(const char *text, struct follow_position *ret_position);

/* Events `started` (unless it goes on somewhere), `stdout`, `stderr`, `gap`, `heartbeat`, and as
 * the last one `exit` or `error`. Takes a reference of PIPE. ERR_NOT_FOUND. */
int follow_events(struct sandboxes *all, const struct exec_key *key, enum follow_format format,
                  const struct follow_position *from, struct pipe *pipe,
                  struct err *err) must_check;
/* The bytes of one stream, masked. What cannot be given whole fails the pipe: bytes that were
 * dropped, an agent out of reach, a reader that stood still. */
int follow_bytes(struct sandboxes *all, const struct exec_key *key, int stream, uint64_t offset,
                 struct pipe *pipe, struct err *err) must_check;
/* The server stops: those of running executions say so and end, and so will those that come. So do
 * watches of files. */
void follows_stop(struct sandboxes *all);
