#pragma once

#include "sandbox/exec_chunk.h"
#include "sandbox/follow.h"
#include "sandbox/pump.h"

/* The data of one who follows an execution, for follow*.c. A pump reads from it, one job at a time.
 */
struct follower {
    atomic_uint refs; /* the pump's, and the timer's */
    struct sandboxes *all;
    char uid[UID_LEN];
    int64_t number;
    struct exec *exec;             /* NULL: it is in the store only */
    struct output *stored;         /* two, then; else NULL */
    struct event never;            /* then */
    struct exec_reader reader;     /* else */
    bool paces;                    /* it is among the exec's readers */
    struct attachment *attachment; /* that it belongs to; NULL: none */
    struct follow_position position;
    struct buf ready; /* made, of which `given` bytes were given */
    size_t given;
    bool over;       /* nothing comes behind it */
    struct err *cut; /* NULL: it ends as it should */
    int64_t last_ms; /* clock_now_ms when something was made last */
    /* events */
    enum follow_format format;
    int turn; /* the stream that is looked at first */
    /* bytes */
    int stream; /* 0: events */
    /* loop thread */
    struct timer timer;
    atomic_bool gone;
    _Atomic int64_t wake_ms; /* what the timer is set to; 0: it is not */
};

#define FOLLOW_PIECE ((size_t)48 * KIB) /* of an event; base64 of it has no padding */
#define FOLLOW_BYTES ((size_t)128 * KIB)

enum follow_turn {
    FOLLOW_MADE,
    FOLLOW_WAIT,
};

/* Makes the next events or bytes into `ready`. RET_AGAIN_MS: for FOLLOW_WAIT, when to ask again at
 * the latest; 0: when something comes. */
enum follow_turn follow_next_event(struct follower *follower, int64_t *ret_again_ms);
enum follow_turn follow_next_bytes(struct follower *follower, int64_t *ret_again_ms);

/* The execution's record as it is now, without its output. */
int follower_record(struct follower *follower, struct json **ret_record,
                    struct err *err) must_check;
/* How it ended is not known: that is no exit. */
bool follow_end_unknown(const struct json *record, struct err *ret_why);

/* It is over, because of WHY. */
void follower_cut(struct follower *follower, const struct err *why);
/* What all are made from. */
int follower_output(struct follower *follower, int stream, struct output *ret_output,
                    struct err *err) must_check;
void follower_output_done(struct follower *follower, struct output *output);
/* Why it cannot go on to the end: a slow reader; the agent out of reach, or the server stops,
 * before the execution has ended. */
bool follower_broken(struct follower *follower, struct err *ret_why);

struct follow_look { /* zeroed before */
    bool made, open; /* something was put; more may come */
    int64_t again_ms;
};
/* Puts the next piece or gap of either stream, in turns, so that none waits for the other. */
int follow_look(struct follower *follower, const struct chunk_wish *wish,
                void (*put)(struct follower *follower, int stream, const struct chunk *chunk),
                struct follow_look *look, struct err *err) must_check;
