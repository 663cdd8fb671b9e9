#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "net/ws.h"
#include "tests/unit/net_support.h"

/* One WebSocket and what it was told: the loop thread writes, the test waits. */
struct client {
    struct loop *loop;
    struct ws_target target;
    struct ws *ws; /* the loop thread's */
    struct err connect_err;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answered; /* ws_connect has returned */
    bool opened, closed, busy;
    int writable, status;
    char protocol[64];
    struct err why;
    struct buf text; /* the messages, each followed by '|' */
    int messages, pieces;
    size_t bytes;
    bool in_message, misordered;

    /* what to do in a callback */
    bool echo; /* send each message's piece back */
    bool close_on_open, close_on_message;
    bool pause_on_message; /* and stay so until resumed */
    bool pause_on_open;
};

void client_init(struct client *client, struct loop *loop, const char *url);
void client_done(struct client *client);

/* Connects on the loop and waits until ws_connect has returned. */
void client_connect(struct client *client);

/* For loop_post. */
void client_connect_task(void *client);
void client_close_task(void *client); /* closes it if it is not closed, and sets `closed` */

void client_lock(struct client *client);
void client_unlock(struct client *client); /* wakes those who wait */

/* False when it takes too long. */
bool client_await(struct client *client, const bool *flag);
bool client_await_count(struct client *client, const int *count, int at_least);
bool client_await_bytes(struct client *client, size_t at_least);

struct loop *start_loop(void);

/* Sends one message on the loop: "\2" and the data. */
struct sender {
    struct client *client;
    const uint8_t *data;
    size_t len;
    size_t accepted; /* for the test's own use */
};
void sender_task(void *sender);
