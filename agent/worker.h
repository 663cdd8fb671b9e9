#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/frame.h"
#include "agent/message.h"

#define SUBJECT_MAX 512 /* of a path in a message */

/* A process that serves one request about files or ports over a packet socket to PID 1, one frame a
 * packet, and ends. It waits by blocking; it holds nothing that is secret. */
struct worker {
    int fd;
    uint32_t channel;
    struct message request;
    int workdir_errno; /* 0: relative paths start at the workdir */
    bool cancelled;    /* by a CANCEL, or nobody is there any more */
    bool answered;
    char subject[SUBJECT_MAX]; /* the path that errors are about, "": none */
    bool failed;               /* the answer is `failure`; it is sent when all is cleaned up */
    uint64_t sent, limit;      /* stream 1 */
    size_t filled;             /* bytes in `data` not yet sent */
    uint8_t packet[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    uint8_t data[FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX];
    struct reply failure;
};

_Noreturn void worker_run(int fd);
/* By the zygote, when it cannot fork. */
void worker_refuse(int fd, int errnum);

/* Only the first answer counts. The text of an error begins with the subject, if there is one. */
void worker_reply(struct worker *worker, uint8_t type, const struct reply *reply);
void worker_error(struct worker *worker, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for an answer with more fields: where to put them, NULL when there is an answer already.
 */
struct reply *worker_failure(struct worker *worker);
/* The code that fits errno, and its reason as the text. */
void worker_errno(struct worker *worker);
/* What errors are about from here on; worker_path() says so of PATH. */
void worker_about(struct worker *worker, const char *path);

/* The next frame for us; false when none comes any more (then `cancelled` is set). */
bool worker_receive(struct worker *worker, struct frame *ret_frame);
/* Has a CANCEL come meanwhile? Takes credit on the way. */
bool worker_is_cancelled(struct worker *worker);

/* Stream 1. worker_room() is where up to FRAME_DATA_MAX bytes may be put for worker_send();
 * worker_write() gathers small pieces. Both wait for credit, and are false when it is cancelled. */
uint8_t *worker_room(struct worker *worker);
bool worker_send(struct worker *worker, size_t len);
bool worker_write(struct worker *worker, const void *data, size_t len);
bool worker_flush(struct worker *worker); /* what worker_write() has gathered */
bool worker_end(struct worker *worker);

/* A path of the request into a buffer of PATH_MAX; false when it is unusable, and then answered. */
bool worker_path(struct worker *worker, uint16_t tag, char *buffer);

#define ETAG_LEN 72
void etag_of(const struct stat *status, char ret_text[ETAG_LEN]);
/* TYPE, SIZE, MODE, MTIME_MS. */
void put_entry(struct field_writer *fields, const struct stat *status);
void put_etag(struct field_writer *fields, const struct stat *status);

/* The operations, one file each or a few that belong together. */
void op_read(struct worker *worker);
void op_stat(struct worker *worker);
void op_write(struct worker *worker);
void op_replace(struct worker *worker);
void op_move(struct worker *worker);
void op_mode(struct worker *worker);
void op_mkdir(struct worker *worker);
void op_remove(struct worker *worker);
void op_tree(struct worker *worker);
void op_usage(struct worker *worker);
void op_ps(struct worker *worker);
void op_pack(struct worker *worker);
void op_unpack(struct worker *worker);
void op_watch(struct worker *worker);
void op_port_wait(struct worker *worker);
