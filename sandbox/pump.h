#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/pipe.h"
#include "sandbox/scrub.h"

/* Moves bytes from a source into a pipe, masked, on the domain's workers: no thread waits, and a
 * slow reader slows only its own source. */
struct sandboxes;

#define PUMP_WAIT (-2)
#define PUMP_AGAIN (-3)

struct pump_source {
    /* Up to LEN bytes: how many, 0 at the end, -1 with ERR set, or PUMP_WAIT: not now. What takes
     * in more than a piece without anything to give says PUMP_AGAIN: an agent may send for ever,
     * and others need the worker. */
    ssize_t (*read)(void *arg, void *data, size_t len, struct err *err);
    /* Fires when a read that said PUMP_WAIT may be tried again. */
    struct event *(*readable)(void *arg);
    void (*free)(void *arg);
};

struct pump_range {
    uint64_t lead;  /* bytes at the start that are looked at but not given */
    int64_t length; /* bytes given after them; -1: all */
};

/* Takes ARG. SCRUBBER (may be NULL) is referenced. OUT gets its own reference, and its end. */
void pump_start(struct sandboxes *all, const struct pump_source *source, void *arg,
                const struct scrubber *scrubber, const struct pump_range *range, struct pipe *out);

/* A source that reads PIPE (takes a reference of its own). */
extern const struct pump_source pump_pipe_source;
