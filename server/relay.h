#pragma once

#include <microhttpd.h>
#include <stddef.h>

struct sessions;
struct tunnel;

/* Connections of previews that went over to another protocol (WebSocket): bytes both ways between
 * the client's socket and a tunnel. It looks at none of them. */

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

/* Takes what ENDS holds. */
void relay_begin(struct sessions *sessions, const struct relay_ends *ends);
