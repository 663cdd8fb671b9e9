#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* Connections that went over to another protocol: one thread of its own with an epoll steps them
 * all, however many there are, and never blocks. */
struct sessions;
struct session;

/* On that thread. */
struct session_ops {
    /* Before the first step, on the thread that begins it: what the client had sent already. NULL
     * where sessions_begin is told all. */
    void (*early)(struct session *session, const void *data, size_t len);
    /* Something has moved: the socket, what was woken for, or the time to look again. Does what can
     * be done now. False: it is over. */
    bool (*step)(struct session *session);
    /* The server stops. False: it is over at once; else within SESSION_STOP_MS. */
    bool (*stop)(struct session *session);
    /* No wake may follow; the socket is closed after it. Also of one that never began. */
    void (*free)(struct session *session);
};
#define SESSION_STOP_MS 1000

/* Embedded in its owner, who sets `ops`; the next two are set before sessions_begin. */
struct session {
    const struct session_ops *ops;
    int fd; /* libmicrohttpd's, until URH is closed */
    struct MHD_UpgradeResponseHandle *urh;
    /* sessions.c */
    struct sessions *sessions;
    struct session *next, *prev;
    struct session *next_ready; /* under the lock */
    bool ready, fresh;
    int64_t look_ms; /* clock_now_ms; 0: no time is set */
};

int sessions_start(struct sessions **ret_sessions, struct err *err) must_check;
/* Takes SESSION. Ends it at once after sessions_end_all. */
void sessions_begin(struct sessions *sessions, struct session *session);
/* Steps it soon; any thread, only hands over. */
void session_wake(struct session *session);
/* Steps it at AT_MS (clock_now_ms) at the latest, and not by a time that was set before; on the
 * thread. */
void session_look(struct session *session, int64_t at_ms);
/* Ends them all, soon, and all that begin later. */
void sessions_end_all(struct sessions *sessions);
void sessions_stop(struct sessions *sessions); /* after sessions_end_all; NULL is allowed */
