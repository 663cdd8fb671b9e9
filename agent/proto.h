#pragma once

#include "agent/proto_op.h"
#include "agent/proto_tag.h"

/* What the frames of agent/frame.h say. Both sides skip fields and frame types they do not know,
 * and a missing field means its default: 0, empty, or "leave as it is". Tags and types are never
 * reused.
 *
 * A message too long for one frame is sent as FRAME_PART frames (its beginning) on the same channel
 * and then the frame of the real type (its end); together at most PROTO_MESSAGE_MAX.
 *
 * Streams of a channel: 0 towards the sandbox (stdin, a file being written), 1 and 2 out of it
 * (stdout or a file being read; stderr). Each is a sequence of bytes with absolute offsets from 0:
 *   DATA    u8 stream, u64 offset, bytes     END  u8 stream, u64 total
 *   CREDIT  u8 stream, u64 done, u64 limit   from the receiver: everything below `done` is stored,
 * the sender may forget it; it may send up to `limit`. The first window is PROTO_WINDOW (limit =
 *           start offset + PROTO_WINDOW) without any CREDIT.
 * Bytes below what the receiver has already are skipped by it, so a sender may repeat. A receiver
 * of stdout or stderr may find that DATA begins beyond what it has: those bytes are gone (only for
 * a KEEP exec whose output passed the limits while no stream was there). Offsets of a file being
 * read count from the first byte asked for. Whoever sends beyond a limit, or leaves a hole in
 * stream 0, breaks the stream. Frames on a channel that is not in use are skipped. */
#define PROTO_VERSION 1
#define PROTO_MESSAGE_MAX (4u << 20)
#define PROTO_WINDOW (32u << 10)
#define PROTO_TOKEN_LEN 32
#define PROTO_SOCKET "podsandbox-agent" /* abstract Unix socket inside the sandbox */
#define PROTO_EXEC_ID_MAX 64
#define PROTO_WATCHES 16 /* of a sandbox at once */
#define PROTO_EXECS 512  /* that the agent knows at once; more: busy */

/* Exit codes of `podsandbox-agent serve`, which are the container's. */
/* As by the signal TERM: 0 would be a success, of which the kubelet does not tell the reason. */
#define PROTO_EXIT_TERMINATED 143
#define PROTO_EXIT_FAILED 1
#define PROTO_EXIT_DEADLINE 3
#define PROTO_EXIT_NO_HELLO 4

/* s→a from the server, a→s from the agent. */
enum frame_type {
    /* --- channel 0 */

    /* s→a, first: VERSION, TOKEN, UID, SERVER. The first HELLO of an agent sets the token. */
    FRAME_HELLO = 1,
    /* a→s: VERSION, AGENT, FRESH, CONFIGURED, DEADLINE_MS, BLOB, BLOB_VERSION, UPTIME_MS,
     * MEMORY_LIMIT, PIDS_LIMIT, CPU_MILLI, EXEC_ID (each known one) */
    FRAME_HELLO_OK = 2,
    /* a→s, then it closes: ERROR (forbidden: a wrong token; not_ready: the UID of another sandbox,
     * try again), MESSAGE */
    FRAME_HELLO_NO = 3,
    /* s→a: SEQ, ENV*, ENV_SET (1: ENV* replaces the environment; else each ENV sets one variable
     * more), WORKDIR, DEADLINE_MS (0: none), INFO (programs find it at $PODSANDBOX_INFO), BLOB with
     * BLOB_VERSION (above 0; the same again is accepted) */
    FRAME_CONFIGURE = 4,
    /* a→s: SEQ, DEADLINE_MS; or ERROR and nothing is changed (an older BLOB_VERSION: conflict) */
    FRAME_CONFIGURED = 5,
    /* either way; answered by PONG with the same payload */
    FRAME_PING = 6,
    FRAME_PONG = 7,
    /* a→s, then it closes: ERROR (superseded, deadline, terminated, invalid_request), MESSAGE */
    FRAME_BYE = 8,

    /* --- any other channel */

    FRAME_PART = 16,
    /* s→a: OP and its fields */
    FRAME_OPEN = 17,
    /* a→s: see each op */
    FRAME_STARTED = 18,
    FRAME_DATA = 19,
    FRAME_END = 20,
    FRAME_CREDIT = 21,
    /* a→s, the last: ERROR and MESSAGE when it failed, else the op's fields */
    FRAME_RESULT = 22,
    /* s→a: not wanted any more; answered by RESULT cancelled, or by the true one if it was faster.
     * A write leaves the old file; an exec lives on, unfollowed */
    FRAME_CANCEL = 23,
    /* s→a on an exec: SIGNAL, to the process group of the main process; or GRACE_MS: TERM, then
     * KILL, to the whole tree, and its RESULT when nothing of it is left */
    FRAME_SIGNAL = 24,
    /* s→a on an exec after its RESULT: stored, the agent may forget it */
    FRAME_COMMIT = 25,
    /* s→a on an exec with a terminal: COLUMNS, ROWS, its size from now on */
    FRAME_RESIZE = 26,
};
