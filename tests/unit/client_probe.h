#pragma once

#include "agent/frame.h"
#include "base/buf.h"
#include "sandbox/client.h"

/* The agent client alone, with a test as the agent and the owner of its channels. */
struct log {
    unsigned hellos, refusals, byes, configured, outputs;
    enum client_bye bye;
    struct err why;
    uint64_t seq;
    struct link_hello hello;
    char agent[32];
    char blob[64];
    uint64_t exec_ids[4];
};

extern struct log seen;
extern struct client *client;
extern struct link_shared shared;

/* A channel that remembers. */
struct probe {
    struct channel channel;
    unsigned started, results, losts, writables, ends;
    uint64_t received, gap, total, done, limit;
    struct buf bytes, result;
    bool close_in_data, credit_at_once;
};

void probe_init(struct probe *probe);
void probe_done(struct probe *probe);
int give(uint32_t channel, int type, const void *payload, size_t len);
int give_offset(uint32_t channel, int type, int stream, uint64_t offset, const void *data,
                size_t len);
int give_credit(uint32_t channel, uint8_t stream, uint64_t done, uint64_t limit);
bool take(struct frame *ret_frame);
struct frame expect(uint32_t channel, int type);
void expect_nothing(void);
void drain(void);
void greet(void);
void client_probe_setup(void);
void client_probe_teardown(void);
void open_probe(struct probe *probe);
