#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/proto.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "driver/driver.h"
#include "net/loop.h"
#include "sandbox/channel.h"

/* The connection of one sandbox to its agent: opens a stream through the driver, says hello, keeps
 * it alive with pings, opens it again with a growing pause when it breaks, and carries channels.
 * All on the loop thread, but link_new and the reference count. */
struct link;

/* What the agent said in its hello. Borrowed in the call. */
struct link_hello {
    const char *agent_version;
    bool fresh;          /* this hello set the token: no server has spoken to this agent before */
    bool configured;     /* it has had a CONFIGURE */
    int64_t deadline_ms; /* left; 0: none */
    const void *blob;
    size_t blob_len;
    uint64_t blob_version;
    int64_t uptime_ms;
    uint64_t memory_limit, pids_limit, cpu_milli; /* 0: unknown */
    const uint64_t *exec_ids;
    size_t exec_count;
};

struct link_handler {
    void (*up)(void *arg, const struct link_hello *hello); /* each time it is established */
    /* The stream broke or could not be opened (yet): it is tried again. Each failed try tells. */
    void (*down)(void *arg, const struct err *why);
    /* No more tries: the agent said goodbye (ERR_TTL when its deadline passed), refused the token,
     * or the box is gone. */
    void (*ended)(void *arg, const struct err *why);
    void (*configured)(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why);
};

/* What all links of a server share: bounds. Zero-initialised; loop thread only; outlives the links.
 */
struct link_shared {
    size_t window_bytes; /* granted beyond the first windows, at most CAP_WINDOWS */
    unsigned handshakes; /* under way, at most CAP_HANDSHAKES */
    struct link *first_waiting, *last_waiting;
};

struct link_target {
    const struct driver *driver; /* outlives the link */
    struct loop *loop;
    const char *id, *uid, *box_uid; /* copied */
    uint8_t token[PROTO_TOKEN_LEN];
    struct link_shared *shared; /* NULL: this link is bounded by itself only */
};

struct link *link_new(const struct link_target *target, const struct link_handler *handler,
                      void *arg);
void link_start(struct link *link); /* begins to attach */
/* No callback to the handler follows; open channels are told `lost`. Frees. NULL is allowed, and so
 * is a call from within a callback of this link. */
void link_stop(struct link *link);
bool link_is_up(const struct link *link);
int64_t link_down_since(const struct link *link); /* clock_now_ms; 0 while up */

/* One CONFIGURE; answered by `configured` with SEQ (also, with an error, when the stream breaks).
 */
struct link_configuration {
    uint64_t seq;
    const struct text_map *env; /* NULL: leave */
    const char *workdir;        /* NULL: leave */
    int64_t deadline_ms;        /* from now; -1: leave */
    const char *info;           /* for the sandbox's programs to read; NULL: leave */
    const void *blob;           /* NULL: leave */
    size_t blob_len;
    uint64_t blob_version;
};
void link_configure(struct link *link, const struct link_configuration *configuration);
