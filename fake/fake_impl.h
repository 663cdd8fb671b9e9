#pragma once

#include <pthread.h>

#include "agent/message.h"
#include "agent/proto.h"
#include "fake/callback.h"
#include "fake/calls.h"
#include "fake/disk.h"
#include "fake/failing.h"
#include "fake/fake.h"
#include "fake/preset.h"
#include "fake/script.h"
#include "net/loop.h"

#define FAKE_BUCKETS 4096

struct wire;
struct fake_exec;

/* A sandbox. What names it is constant; `failed` and `serving` belong to the driver's lock; the
 * rest is the agent in it, on the loop thread. */
struct fake_box {
    struct fake *fake;
    struct fake_box *next;
    char id[ID_LEN], uid[UID_LEN], box_uid[UID_LEN];
    char *owner, *digest, *image;
    int64_t created_ms;
    size_t secrets;
    enum err_code failed;     /* ERR_NONE: it runs */
    struct text_list serving; /* the command of a preview that is about to begin */

    bool ended; /* the agent is gone */
    char *workdir;
    struct wire *wires; /* every stream to it */
    struct wire *wire;  /* the one whose hello was the last */
    uint8_t token[PROTO_TOKEN_LEN];
    bool has_token, configured;
    uint8_t *blob;
    size_t blob_len;
    uint64_t blob_version;
    int64_t started_ms;
    int64_t deadline_ms; /* clock_now_ms; 0: none */
    struct timer due_timer;
    struct fake_exec *execs;
    size_t exec_count;
    bool service_ended; /* the last command that was to serve a port */
    struct disk disk;   /* empty until it is looked at */
    struct transfer *transfers;
    size_t transfer_count;
};

struct fake {
    struct loop *loop;
    struct box_observer observer;
    pthread_mutex_t telling; /* held while the observer is called */
    struct calls *calls;
    struct disk_space space;
    struct presets *presets;
    struct failing *failing;
    struct script *script;
    struct callbacks *callbacks; /* until stop */
    pthread_mutex_t lock;        /* the table, and what boxes say of themselves */
    struct fake_box *boxes[FAKE_BUCKETS];
    size_t box_count;
};

/* --- driver.c ----------------------------------------------------------------------------------
 */
/* Loop thread. The box stays, as one that has ended for REASON, until it is destroyed. */
void fake_box_fail(struct fake_box *box, enum err_code reason);

/* Whether ARGV is the command of a preview; says so once. */
bool fake_box_serves(struct fake_box *box, char *const *argv);

/* --- agent.c; loop thread ----------------------------------------------------------------------
 */
/* A whole message of the peer. False breaks the stream. */
bool fake_agent_message(struct wire *wire, uint32_t channel, uint8_t type,
                        const struct message *message);
/* DATA, END or CREDIT. False breaks the stream. */
bool fake_agent_frame(struct wire *wire, const struct frame *frame);
/* Sends what there is, as far as WIRE has room. */
void fake_agent_pump(struct wire *wire);
void fake_agent_wire_lost(struct fake_box *box, const struct wire *wire);
/* The environment in MESSAGE as an object. */
struct json *fake_env(const struct message *message);
/* Everything in the box ends; CODE and WHY are told to the server. */
void fake_agent_end(struct fake_box *box, const char *code, const char *why);

/* --- transfer.c; loop thread -------------------------------------------------------------------
 */
void fake_transfer_cancel(struct wire *wire, uint32_t channel);
/* False when the channel is no transfer's; RET_BROKEN: the frame breaks the stream. */
bool fake_transfer_frame(struct wire *wire, const struct frame *frame, bool *ret_broken);
void fake_transfers_pump(struct wire *wire);
void fake_transfers_lost(struct fake_box *box, const struct wire *wire); /* NULL: of any */

/* --- exec.c; loop thread -----------------------------------------------------------------------
 */
void fake_exec_open(struct wire *wire, uint32_t channel, const struct message *message);
void fake_exec_kill(struct wire *wire, uint32_t channel, const struct message *message);
bool fake_exec_message(struct wire *wire, uint32_t channel, uint8_t type,
                       const struct message *message);
/* False when the channel is no exec's; RET_BROKEN: the frame breaks the stream. */
bool fake_exec_frame(struct wire *wire, const struct frame *frame, bool *ret_broken);
void fake_exec_pump(struct wire *wire);
void fake_exec_wire_lost(struct fake_box *box, const struct wire *wire);
void fake_exec_list(const struct fake_box *box, struct field_writer *fields);
void fake_exec_free_all(struct fake_box *box);
