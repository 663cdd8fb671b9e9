#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who listens on a TCP port of this network namespace. */
enum port_state { PORT_FREE, PORT_LOOPBACK4, PORT_LOOPBACK6, PORT_OPEN };

enum port_state port_look(uint16_t port);

/* From one look to the next, when one has waited for PASSED_MS of TIMEOUT_MS: a look takes longer
 * the more connections there are, so one that waits for long looks less often. */
int port_pause_ms(uint64_t passed_ms, uint64_t timeout_ms);

struct port_listener {
    uint16_t port;
    size_t count;      /* of words: 1 or 4 */
    uint32_t words[4]; /* the address, in the order of memory */
};
/* Calls FN for each listener of /proc/net/tcp or tcp6; false when there is no such table. */
bool port_each(const char *path, void (*fn)(void *arg, const struct port_listener *listener),
               void *arg);
