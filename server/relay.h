#pragma once

#include <microhttpd.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

/* Connections that went over to another protocol (WebSocket): bytes both ways between the client's
 * socket and a tunnel. One thread of its own with an epoll, however many there are; it never
 * blocks, and looks at none of the bytes. */
struct relay;
struct tunnel;

/* What has been read already from either side, malloc'd. */
struct relay_ends {
    int fd; /* libmicrohttpd's, until URH is closed */
    struct MHD_UpgradeResponseHandle *urh;
    struct tunnel *tunnel;
    char *to_client;
    size_t to_client_len;
    const char *to_program; /* borrowed */
    size_t to_program_len;
};

int relay_start(struct relay **ret_relay, struct err *err) must_check;
/* Takes what ENDS holds. Ends it at once after relay_end_all. */
void relay_begin(struct relay *relay, const struct relay_ends *ends);
/* Closes them all, soon, and all that begin later. */
void relay_end_all(struct relay *relay);
void relay_stop(struct relay *relay); /* after relay_end_all; NULL is allowed */
