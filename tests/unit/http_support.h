#pragma once

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/event.h"
#include "base/pipe.h"
#include "server/http.h"
#include "server/metrics.h"

/* The HTTP core with routes of the tests' own (http_routes.c), and a client of raw bytes. */

struct route_table;
extern const struct route_table *const http_test_routes[];

extern struct app app;
extern struct http *http;
extern struct event gate;      /* /wait waits for it */
extern struct event arrived;   /* fires when a handler begins, and after gone_seen is raised */
extern atomic_int evil_served; /* what a smuggled request would reach */
extern atomic_int gone_seen, states_freed;
extern struct pipe *kept_pipe; /* of /upload-held */

/* KEYS NULL: none. */
void start_with(size_t workers, size_t queue, const char *keys);
void start(void);
void stop(void);
void join_feeders(void); /* the writers of /download; `stop` does it, too */

int dial(void);
int try_dial(void); /* -1: refused */
void leave(int fd, bool reset);
void send_bytes(int fd, const void *data, size_t len);
void send_text(int fd, const char *text);
/* SIZE bytes as a body; returns the sum that /upload answers with. */
uint32_t send_pattern(int fd, size_t size, bool chunked);
char pattern_at(uint64_t offset); /* what /download sends */

char *read_all(int fd);   /* until the server closes */
char *read_reply(int fd); /* one reply with a Content-Length, of a connection that stays */
char *talk(const char *text);
const char *body_of(const char *reply);
void assert_reply(const char *request, const char *status, const char *part);

#define HOST "Host: localhost\r\n"
#define LAST HOST "Connection: close\r\n"

void wait_arrived(uint64_t seen);
void wait_count(atomic_int *counter, int wanted);

int run_tests(Suite *suite); /* the exit status */
