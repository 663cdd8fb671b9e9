#pragma once

#include "sandbox/link.h"

/* The server's side of one agent stream as a pure state machine: bytes in; events and bytes out. No
 * I/O, no clock, no lock. Treats what comes in as hostile: everything the agent sizes is bounded.
 * sandbox/link owns one for as long as a stream lives, and channel_send() and the like
 * (sandbox/link.h) work on it. */
struct client;

enum client_bye {
    BYE_CUT,        /* only this stream ends */
    BYE_SUPERSEDED, /* another server has attached */
    BYE_ENDED,      /* the agent exits */
};

struct client_handler {
    void (*hello)(void *arg, const struct link_hello *hello);
    void (*refused)(void *arg, const struct err *why); /* HELLO_NO */
    void (*bye)(void *arg, const struct err *why, enum client_bye kind);
    void (*configured)(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why);
    void (*output)(void *arg); /* client_output was empty and is no more */
};

/* STREAM_ID tells streams apart, for channel_commit. SHARED may be NULL. */
struct client *client_new(uint64_t stream_id, struct link_shared *shared,
                          const struct client_handler *handler, void *arg);
/* Tells every open channel `lost`; nothing is called back after that. May be called from a
 * callback; client_free may not. */
void client_close(struct client *client, const struct err *why);
void client_free(struct client *client); /* NULL is allowed; must have been closed */

void client_say_hello(struct client *client, const uint8_t token[PROTO_TOKEN_LEN], const char *uid);
void client_configure(struct client *client, const struct link_configuration *configuration);
void client_ping(struct client *client);

/* -1: the agent broke the protocol (or the send queue overflowed): the stream must be closed. */
int client_receive(struct client *client, const uint8_t *data, size_t len,
                   struct err *err) must_check;

/* What is to be sent; borrowed until the next call. */
const uint8_t *client_output(const struct client *client, size_t *ret_len);
void client_sent(struct client *client, size_t len);
/* The agent does not read: control frames piled up beyond the maximum. */
bool client_overflowed(const struct client *client);

/* The two that link.c gives a link for. */
bool client_open(struct client *client, struct channel *channel, const void *fields, size_t len,
                 const uint64_t out_offset[2]);
bool client_commit(struct client *client, const struct channel *channel);
