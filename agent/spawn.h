#pragma once

#include "agent/supervisor.h"

struct agent;

struct spawn_error {
    enum spawn_stage stage; /* 0: it runs */
    int errnum;
    bool interpreter;
};

/* Starts the command with the caller's descriptors 0, 1 and 2 (all others are close-on-exec) and
 * returns once it runs or has failed: RET_ERROR, which is zeroed before, says which. The pid is to
 * be waited for in either case; -1 when there is none. ENVIRONMENT is the complete one. */
pid_t spawn_command(const struct agent *agent, const struct exec_spec *spec,
                    char *const *environment, struct spawn_error *ret_error);
