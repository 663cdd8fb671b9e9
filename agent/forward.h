#pragma once

#include <ifaddrs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "agent/loop.h"

/* Makes a port that listens on loopback only reachable at the sandbox's other addresses. */
#define FORWARD_LISTENERS 16

struct forward_listener {
    struct watch watch;
    struct forwarder *forwarder;
};

struct forwarder {
    struct loop loop;
    struct watch control;
    struct forward_listener listeners[FORWARD_LISTENERS];
    size_t listener_count, connections;
    struct sockaddr_storage target;
    socklen_t target_len;
};

/* Listens on PORT of every address that is not loopback. -1 with errno when none of them can be
 * had. */
int forward_open(struct forwarder *forwarder, uint16_t port, bool target_ipv6);
/* Forwards until CONTROL is closed at the other side. */
_Noreturn void forward_run(struct forwarder *forwarder, int control);

/* PORT at the address of an interface; false for one that is not meant (down, loopback,
 * link-local). */
bool forward_address(const struct ifaddrs *entry, uint16_t port,
                     struct sockaddr_storage *ret_address, socklen_t *ret_len);
socklen_t forward_loopback(int family, uint16_t port, struct sockaddr_storage *ret_address);
