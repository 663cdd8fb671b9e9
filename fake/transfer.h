#pragma once

#include "base/caps.h"
#include "fake/disk.h"
#include "fake/fake_impl.h"
#include "fake/wire.h"

#define TRANSFERS_MAX 256 /* of one sandbox at once */

/* A request about files or ports that takes more than its OPEN: bytes in one direction, or time. */
struct transfer {
    struct transfer *next;
    struct fake_box *box;
    struct wire *wire;
    uint32_t channel;
    void (*sent)(struct transfer *transfer); /* all of `out` is; NULL: nothing goes out */
    struct outflow out;
    struct content *content; /* that goes out */
    char *root;              /* of a listing */
    struct upload *upload;   /* that comes in */
    struct timer timer;      /* a wait for a port */
};

/* NULL, and answered, when there are too many. */
struct transfer *transfer_new(struct wire *wire, uint32_t channel);
void transfer_end(struct transfer *transfer);

/* file_ops.c, archive.c, upload.c: answer, or begin a transfer. */
void file_open(struct wire *wire, uint32_t channel, uint64_t op, const struct message *message);
void archive_open(struct wire *wire, uint32_t channel, const struct message *message);
struct unpacked {
    uint64_t files, directories, bytes;
};
/* Makes what STREAM (agent/entries.h) has below ROOT; RET_MADE also says what was made before it
 * failed. */
int archive_unpack(struct disk *disk, const char *root, const struct content *stream,
                   struct unpacked *ret_made, struct err *err) must_check;
void upload_open(struct wire *wire, uint32_t channel, const struct message *message);
bool upload_data(struct transfer *transfer, const struct frame_data *data);
bool upload_end(struct transfer *transfer, uint64_t total);
void upload_free(struct transfer *transfer);

/* For all of them. */
struct disk *disk_of(struct fake_box *box);
bool file_path(struct wire *wire, uint32_t channel, const struct message *message, uint16_t tag,
               char ret_path[CAP_PATH]);
bool file_mode(struct wire *wire, uint32_t channel, const struct message *message, int *ret_mode);
/* NODE NULL: there is none. False: answered. */
bool file_matches(struct wire *wire, uint32_t channel, const struct message *message,
                  const struct node *node);
void file_error(struct wire *wire, uint32_t channel, const struct err *err);
void file_put_etag(struct reply *reply, const struct node *node);
struct json *file_call(const char *path);
void json_set_mode(struct json *call, unsigned mode);
