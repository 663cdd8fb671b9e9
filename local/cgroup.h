#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

/* Control groups of boxes, as far as this machine lets us: version 1 where its controllers are
 * mounted and ours to write to, else version 2 where a part of the tree is (root, or a service of
 * the user's own systemd). A box gets one group in each hierarchy, named in its record. */

#define CGROUP_PATH_LEN 256

enum cgroup_controller {
    CGROUP_MEMORY,
    CGROUP_CPU,
    CGROUP_CPUACCT, /* counts only; version 1 */
    CGROUP_PIDS,
    CGROUP_COUNT,
};

struct cgroups {
    bool version_2;
    char parents[CGROUP_COUNT][CGROUP_PATH_LEN]; /* of boxes; "": that one cannot be used */
    char why[256];                               /* one of them cannot be used, or "" */
};

/* The directories of one box; "": that is not limited. */
struct cgroup_paths {
    char paths[CGROUP_COUNT][CGROUP_PATH_LEN];
};

struct cgroup_limits {
    uint64_t memory; /* bytes */
    uint64_t cpu_milli, cpu_share_milli;
    uint64_t pids;
};

/* MOUNT: /sys/fs/cgroup, OWN: the text of /proc/self/cgroup. Makes the parents. */
void cgroups_open(struct cgroups *ret_cgroups, const char *mount, const char *own,
                  const char *instance);
void cgroups_close(const struct cgroups *cgroups); /* removes the parents if no box is left */

void cgroup_name(const struct cgroups *cgroups, const char *id, struct cgroup_paths *ret_paths);
int cgroup_make(const struct cgroups *cgroups, const struct cgroup_paths *paths,
                const struct cgroup_limits *limits, struct err *err) must_check;
/* Files to which a process of one thread writes "0" to join. Moving another process costs the
 * kernel a grace period of milliseconds, with all that start or end a process waiting; moving
 * oneself does not (version 1). */
void cgroup_doors(const struct cgroups *cgroups, const struct cgroup_paths *paths,
                  struct text_list *ret_files);
void cgroup_kill(const struct cgroup_paths *paths); /* whatever is left in it */
/* False when it is still in use: a process that has ended can count for a moment longer. */
bool cgroup_remove(const struct cgroup_paths *paths);
bool cgroup_had_oom(const struct cgroup_paths *paths); /* the kernel has killed for memory in it */
