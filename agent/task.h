#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/conn.h"

/* PID 1's side of a request about files or ports: it hands the frames of one channel to and from
 * the worker that serves it, one packet each, and knows nothing of their meaning but the RESULT. */
void task_open(struct conn *conn, uint32_t channel, const struct message *message);
bool task_frame(struct conn *conn, const struct frame *frame, bool *ret_broken);
void task_cancel(struct conn *conn, uint32_t channel, uint8_t type);
void task_stream_lost(struct conn *conn);
