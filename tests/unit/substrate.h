#pragma once

#include <pthread.h>

#include "agent/frame.h"
#include "agent/proto.h"
#include "base/buf.h"
#include "base/caps.h"
#include "driver/driver.h"
#include "net/loop.h"

/* A substrate in memory, with an agent in every box that answers by itself. What stands in `world`
 * is shared with processes that a test forks, so that it outlives a server that is killed. */

#define BOXES 24
#define OBJECTS 32
#define BOX_EXECS 8

struct scripted_exec {
    uint64_t id; /* 0: none */
    bool ended;
    int exit_code;
    uint32_t channel; /* of the stream that is open */
};

struct scripted_box {
    bool there;
    bool leaving; /* asked to go, and still there */
    struct box_info info;
    /* the agent */
    bool token_set, configured;
    uint8_t token[PROTO_TOKEN_LEN];
    int64_t started_ms, deadline_ms;
    uint64_t blob_version;
    size_t blob_len;
    uint8_t blob[CAP_STATE_BLOB];
    unsigned envs, configurations;
    struct scripted_exec execs[BOX_EXECS];
};

struct scripted_world {
    struct scripted_box boxes[BOXES];
    struct side_object objects[OBJECTS];
    size_t object_count;
    unsigned last_uid;
    unsigned created, destroyed; /* boxes, ever */
};

struct agent_stream;

struct substrate {
    struct scripted_world *world;
    struct driver driver;
    struct loop *loop;
    pthread_mutex_t lock;
    struct box_observer observer;
    bool watching, stopped;
    struct agent_stream *streams[BOXES];
    unsigned opens;
    /* what the test wants; codes other than ERR_NONE fail the call */
    enum err_code fail_create, fail_destroy, fail_inspect, fail_list, fail_publish, fail_objects;
    enum err_code fail_unpublish, fail_remove, refuse_stream;
    enum err_code fail_beside; /* a destroy takes the box away, and not what stands beside it */
    bool lose_answer;          /* a create that fails has been done all the same */
    bool hold_list;            /* no first list */
    bool hold_start;           /* new boxes stay STARTING */
    bool linger;               /* destroyed boxes stay for a while */
    bool dumb;                 /* agents say nothing */
    bool hold_ack;             /* agents do not acknowledge */
    bool refuse_config;        /* they refuse */
    bool port_ready;           /* something listens */
};

void substrate_init(struct substrate *substrate, struct loop *loop);
void substrate_done(struct substrate *substrate);
/* For another server on what is there: no stream, no watch, nothing wanted. */
void substrate_reset(struct substrate *substrate);

struct scripted_box *substrate_box(struct substrate *substrate, const char *id); /* or NULL */
size_t substrate_count(struct substrate *substrate);
size_t substrate_objects(struct substrate *substrate, const char *id);
/* A box that no server of this test made. */
struct scripted_box *substrate_add(struct substrate *substrate, const char *id, const char *uid,
                                   bool foreign);
void substrate_add_object(struct substrate *substrate, const char *kind, const char *name,
                          const char *id, int64_t port);

/* Events of the watch; told by the loop. */
void substrate_tell(struct substrate *substrate, const char *id);
void substrate_list(struct substrate *substrate);
void substrate_health(struct substrate *substrate, enum err_code code);
/* The box fails, or ends by itself. */
void substrate_fail(struct substrate *substrate, const char *id, enum err_code reason,
                    bool ended_well, const char *message);
/* Somebody else removes it. */
void substrate_remove(struct substrate *substrate, const char *id, bool told);

/* The stream of the box breaks. */
void substrate_cut(struct substrate *substrate, const char *id, enum err_code code);
/* Agents whose deadline has passed end; call it after the clock was moved. */
void substrate_tick(struct substrate *substrate);
/* How long until then, at least 1; INT64_MAX: no agent has a deadline. */
int64_t substrate_next_deadline(struct substrate *substrate);
void substrate_end_exec(struct substrate *substrate, const char *id, uint64_t number,
                        int exit_code);
bool substrate_has_exec(struct substrate *substrate, const char *id, uint64_t number);
