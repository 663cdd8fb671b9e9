#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/conn.h"

/* OP_KILL: signals to an exec by its id, followed or not, and the end of all that is left of it. */
void exec_kill_open(struct conn *conn, uint32_t channel, const struct message *message);
/* True when the channel was one of ours. */
bool exec_kill_message(struct conn *conn, uint32_t channel, uint8_t type);
void exec_kill_stream_lost(const struct conn *conn);
/* A supervisor has ended, and with it its tree. */
void exec_kill_done(struct agent *agent, pid_t supervisor);
