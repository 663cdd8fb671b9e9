#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"
#include "k8s/status.h"

/* The receiving side of an exec WebSocket (v4 and v5 alike): the first byte of each *message* names
 * the channel, however the message is cut into pieces. A pure state machine. */
enum { CHANNEL_STDIN, CHANNEL_STDOUT, CHANNEL_STDERR, CHANNEL_STATUS };

#define CHANNEL_STDERR_MAX 1024

struct channels {
    int current;        /* of the message being received; -1 before its first byte */
    struct buf status;  /* what came on the status channel */
    struct buf stderr_; /* its beginning; the rest is dropped */
    bool has_output;    /* something came on stdout */
    enum exec_end end;  /* the first whole status decides */
    int exit_code;
    char message[512];
};

void channels_init(struct channels *channels);
void channels_done(struct channels *channels);

/* A piece of a message, as it came. */
struct piece {
    const uint8_t *data;
    size_t len;
    bool first, last; /* of its message */
};

/* True when RET_OUT is a piece of stdout (not empty). */
bool channels_feed(struct channels *channels, struct piece piece, struct str *ret_out);

/* Why the stream has ended, in words and as a code; CONTAINER_RAN: our container has been seen
 * running, so that "no such container" is an end and not a beginning. LOST says what the connection
 * itself reported (may be NULL). */
void channels_why(const struct channels *channels, bool container_ran, const struct err *lost,
                  struct err *ret_why);

/* The same of an exec that was refused in words. */
enum err_code channel_refusal(const char *message, bool container_ran);
