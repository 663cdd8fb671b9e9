#pragma once

#include <stdbool.h>

struct agent;

/* The zygote: a process forked before the first hello, so that it holds no token, no blob and no
 * stream. Each request about files or ports is served by a process forked from it (worker.h). */
int helper_start(struct agent *agent); /* -1 with errno */
/* After it has died. */
void helper_restart(struct agent *agent);
/* Has a worker serve the packet socket FD, which stays the caller's. */
bool helper_give(struct agent *agent, int fd);
