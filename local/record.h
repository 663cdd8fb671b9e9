#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mem.h"
#include "driver/box.h"
#include "local/cgroup.h"
#include "local/process.h"

/* What is written down of a box so that a later server finds it, and whatever a crash has left of
 * it: a small JSON file in its directory, replaced atomically. */
struct box_record {
    char instance[64];
    char id[ID_LEN];
    char uid[UID_LEN];
    char owner[OWNER_LEN];
    char digest[72];
    char image[512];
    char image_digest[72]; /* "": not in the cache */
    char workdir[256];
    char cpu_limit[24], memory_limit[24];
    char boot[40]; /* of the machine: processes do not outlive it */
    int64_t created_ms;
    uint64_t storage; /* bytes, of each writable place */
    uint64_t pids;    /* 0: not limited */
    struct cgroup_paths cgroup;
    uid_t host_uid;          /* that it runs as outside */
    struct process_id bwrap; /* waits for the end of the box; pid 0: not started yet */
    struct process_id agent; /* PID 1 inside; pid 0: not known yet */
};

/* DIR: the directory of the box. ERR_BACKEND_NOT_FOUND when there is none or it cannot be used. */
int record_read(int dir, struct box_record *ret_record, struct err *err) must_check;
int record_write(int dir, const struct box_record *record, struct err *err) must_check;
