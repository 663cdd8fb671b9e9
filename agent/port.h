#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Who listens on a TCP port of this network namespace. */
enum port_state { PORT_FREE, PORT_LOOPBACK4, PORT_LOOPBACK6, PORT_OPEN };

enum port_state port_look(uint16_t port);
