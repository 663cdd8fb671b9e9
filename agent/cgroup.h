#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The sandbox's own cgroup as seen inside (version 2, else 1). Each value may be unknown: then the
 * calls return false. */
struct cgroup {
    int oom_fd; /* the file with `oom_kill N`, kept open because it is read around each exec; or -1
                 */
};

void cgroup_open(struct cgroup *cgroup);
bool cgroup_oom_kills(const struct cgroup *cgroup, uint64_t *ret_count);

bool cgroup_memory_limit(uint64_t *ret_bytes);
bool cgroup_pids_limit(uint64_t *ret_count);
bool cgroup_cpu_limit(uint64_t *ret_milli);
bool cgroup_memory_used(uint64_t *ret_bytes);
bool cgroup_pids_used(uint64_t *ret_count);
bool cgroup_cpu_used(uint64_t *ret_us);
