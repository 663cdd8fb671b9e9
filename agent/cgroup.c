#include "agent/cgroup.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "agent/number.h"

#define V1 "/sys/fs/cgroup/"

static bool read_fd(int fd, char *buffer, size_t size)
{
    ssize_t count = pread(fd, buffer, size - 1, 0);
    buffer[count > 0 ? count : 0] = '\0';
    return count > 0;
}

static bool read_file(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = read_fd(fd, buffer, size);
    close(fd);
    return done;
}

/* The first of these files that has a number. */
static bool read_number(const char *const paths[], uint64_t *ret_value)
{
    char text[64];
    for (size_t i = 0; paths[i] != NULL; i++) {
        if (read_file(paths[i], text, sizeof(text)))
            return number_read(text, UINT64_MAX, ret_value, NULL);
    }
    return false;
}

/* The number behind "NAME " at the start of a line. */
static bool keyed_number(const char *text, const char *name, uint64_t *ret_value)
{
    size_t len = strlen(name);
    while (*text != '\0') {
        if (strncmp(text, name, len) == 0 && text[len] == ' ')
            return number_read(text + len + 1, UINT64_MAX, ret_value, NULL);
        const char *next = strchr(text, '\n');
        if (next == NULL)
            return false;
        text = next + 1;
    }
    return false;
}

void cgroup_open(struct cgroup *cgroup)
{
    cgroup->oom_fd = open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC);
    if (cgroup->oom_fd < 0)
        cgroup->oom_fd = open(V1 "memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
}

bool cgroup_oom_kills(const struct cgroup *cgroup, uint64_t *ret_count)
{
    char text[512];
    return cgroup->oom_fd >= 0 && read_fd(cgroup->oom_fd, text, sizeof(text)) &&
           keyed_number(text, "oom_kill", ret_count);
}

bool cgroup_memory_limit(uint64_t *ret_bytes)
{
    static const char *const paths[] = {"/sys/fs/cgroup/memory.max",
                                        V1 "memory/memory.limit_in_bytes", NULL};
    /* Version 1 says "none" with a number near 2^63. */
    return read_number(paths, ret_bytes) && *ret_bytes < UINT64_C(1) << 62;
}

bool cgroup_pids_limit(uint64_t *ret_count)
{
    static const char *const paths[] = {"/sys/fs/cgroup/pids.max", V1 "pids/pids.max", NULL};
    return read_number(paths, ret_count);
}

bool cgroup_cpu_limit(uint64_t *ret_milli)
{
    static const char *const quotas[] = {"/sys/fs/cgroup/cpu.max", V1 "cpu/cpu.cfs_quota_us",
                                         V1 "cpu,cpuacct/cpu.cfs_quota_us", NULL};
    static const char *const periods[] = {V1 "cpu/cpu.cfs_period_us",
                                          V1 "cpu,cpuacct/cpu.cfs_period_us", NULL};
    char text[64];
    uint64_t quota, period;
    if (!read_number(quotas, &quota))
        return false;
    if (read_file(quotas[0], text, sizeof(text))) {
        const char *second = strchr(text, ' ');
        if (second == NULL || !number_read(second + 1, UINT64_MAX, &period, NULL))
            return false;
    } else if (!read_number(periods, &period)) {
        return false;
    }
    if (period == 0 || quota > UINT64_MAX / 1000)
        return false;
    *ret_milli = quota * 1000 / period;
    return true;
}

bool cgroup_memory_used(uint64_t *ret_bytes)
{
    static const char *const paths[] = {"/sys/fs/cgroup/memory.current",
                                        V1 "memory/memory.usage_in_bytes", NULL};
    return read_number(paths, ret_bytes);
}

bool cgroup_pids_used(uint64_t *ret_count)
{
    static const char *const paths[] = {"/sys/fs/cgroup/pids.current", V1 "pids/pids.current",
                                        NULL};
    return read_number(paths, ret_count);
}

bool cgroup_cpu_used(uint64_t *ret_us)
{
    static const char *const paths[] = {V1 "cpuacct/cpuacct.usage", V1 "cpu,cpuacct/cpuacct.usage",
                                        NULL};
    char text[1024];
    if (read_file("/sys/fs/cgroup/cpu.stat", text, sizeof(text)) &&
        keyed_number(text, "usage_usec", ret_us))
        return true;
    uint64_t nanoseconds;
    if (!read_number(paths, &nanoseconds))
        return false;
    *ret_us = nanoseconds / 1000;
    return true;
}
