#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/conn.h"

/* OP_DIAL: TCP connections to ports inside the sandbox, one a channel. PID 1 carries their bytes
 * itself, as it does for the pipes of commands: a forked process each would cost a third of a
 * millisecond, a process of the sandbox's limit, and two more copies. It looks at none of them. */
void dial_open(struct conn *conn, uint32_t channel, const struct message *message);
bool dial_frame(struct conn *conn, const struct frame *frame, bool *ret_broken);
/* False when the channel is none of ours. */
bool dial_message(struct conn *conn, uint32_t channel, uint8_t type);
void dial_stream_lost(struct conn *conn);
