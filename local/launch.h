#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "local/plan.h"
#include "local/process.h"

/* Starts bubblewrap as a process of its own session, in two steps: first it exists and waits, then,
 * when its number is on record, it is let go. When the server dies in between it ends by itself. */
struct launch {
    const struct text_list *arguments;
    const struct text_list *environment;
    const struct text_list *doors; /* of its control groups: cgroup_doors() */
    int fds[BOX_FD_END];           /* [n] becomes descriptor n, from 3 on, -1: none; borrowed */
    int log;                       /* standard output and error; borrowed */
    uint64_t pids;                 /* of that user; 0: no limit */
    uid_t uid; /* when we are root: what to become, with the group of that number */

    /* set by launch_begin */
    struct process_id bwrap;
    int gate;
};

int launch_begin(struct launch *launch, struct err *err) must_check;
int launch_go(struct launch *launch, struct err *err) must_check;
/* Without launch_go the process ends. */
void launch_done(struct launch *launch);
