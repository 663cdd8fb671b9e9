#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/message.h"

/* A pseudo-terminal, whose command end becomes 0, 1 and 2 of the command, and its controlling
 * terminal. */
struct terminal {
    uint16_t columns, rows; /* 0: none is wanted */
    /* The command's end, until the main process has ended: what it closes may be opened again. */
    int fd;
};

/* The size that a message asks for, at least 1 × 1. False when it has none. */
bool terminal_wanted(const struct message *message, struct terminal *ret_terminal);
/* -1 with errno. Both ends are close-on-exec, ours does not block. */
int terminal_open(struct terminal *terminal, int *ret_ours);
/* As MESSAGE says, if there is one: its foreground processes get WINCH. OURS is our end, or -1. */
void terminal_resize(struct terminal *terminal, int ours, const struct message *message);
