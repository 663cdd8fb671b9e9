#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/frame.h"
#include "agent/loop.h"
#include "agent/ring.h"

struct agent;
struct exec;

struct exec_input { /* stream 0 */
    struct watch watch;
    struct ring ring; /* start: written to the command; end: received */
    uint64_t limit;   /* granted */
    uint64_t window;
    uint64_t total; /* UINT64_MAX: not known yet */
};

void input_open(struct exec_input *input, int fd);
bool input_data(struct exec *exec, const struct frame_data *data);
bool input_end(struct exec *exec, uint64_t total);
/* Tells the sender what is stored and how far it may go, when that is news worth a frame. */
void input_grant(struct exec *exec, bool at_once);
void input_follow(struct exec_input *input);
void input_close(struct agent *agent, struct exec_input *input);
