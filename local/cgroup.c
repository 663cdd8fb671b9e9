#include "local/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"

#define PERIOD_US 100000
#define QUOTA_MIN_US 1000
#define TEXT_MAX 4096

/* Where controllers of version 1 are mounted: by name, or together with their sibling. */
static const char *const names[CGROUP_COUNT][2] = {
    [CGROUP_MEMORY] = {"memory", NULL},
    [CGROUP_CPU] = {"cpu", "cpu,cpuacct"},
    [CGROUP_CPUACCT] = {"cpuacct", "cpu,cpuacct"},
    [CGROUP_PIDS] = {"pids", NULL},
};

static char *joined(const char *directory, const char *name)
{
    return xasprintf("%s/%s", directory, name);
}

static bool exists(const char *directory, const char *name)
{
    cleanup_free char *path = joined(directory, name);

    return access(path, F_OK) == 0;
}

static bool read_text(const char *directory, const char *name, char ret_text[TEXT_MAX])
{
    cleanup_free char *path = joined(directory, name);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, ret_text, TEXT_MAX - 1) : -1;

    ret_text[n > 0 ? n : 0] = '\0';
    return n >= 0;
}

static int write_text(const char *directory, const char *name, const char *text)
{
    cleanup_free char *path = joined(directory, name);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

static int write_number(const char *directory, const char *name, uint64_t number)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    return write_text(directory, name, text);
}

/* --- the parents --------------------------------------------------------------------------------
 */

/* Whether WORD is in a line of words. */
static bool lists(const char *text, const char *word)
{
    size_t len = strcspn(text, "\n");

    for (size_t at = 0; at < len;) {
        size_t part = strcspn(text + at, " \n");
        if (str_is((struct str){text + at, part}, word))
            return true;
        at += part + 1;
    }
    return false;
}

/* Our own group of version 2: the line 0::PATH. */
static bool own_path(const char *own, char ret_path[CGROUP_PATH_LEN])
{
    const char *line = own;

    while (!str_starts(line, "0::/")) {
        line += strcspn(line, "\n");
        if (*line++ == '\0')
            return false;
    }
    size_t len = strcspn(line + 3, "\n");
    (void)snprintf(ret_path, CGROUP_PATH_LEN, "%.*s", (int)len, line + 3);
    return len < CGROUP_PATH_LEN;
}

/* "DIRECTORY/podsandbox-INSTANCE", made if it has to be; with room behind it for a box's name. */
static bool make_parent(const char *directory, const char *instance, char ret_path[CGROUP_PATH_LEN])
{
    cleanup_free char *path = xasprintf("%s/podsandbox-%s", directory, instance);

    if (strlen(path) + 48 > CGROUP_PATH_LEN || (mkdir(path, 0755) < 0 && errno != EEXIST))
        return false;
    (void)snprintf(ret_path, CGROUP_PATH_LEN, "%s", path);
    return true;
}

/* At the top, as container engines do: where our own group is says nothing inside a container. */
static void open_version_1(struct cgroups *cgroups, const char *mount, const char *instance)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        const char *name = names[which][0];
        const char *at = exists(mount, name) ? name : names[which][1];
        cleanup_free char *directory = joined(mount, at ? at : name);
        if (!make_parent(directory, instance, cgroups->parents[which]))
            (void)snprintf(cgroups->why, sizeof(cgroups->why),
                           "no control group can be made in %s: %m", directory);
    }
}

/* A group with processes of its own, as ours, cannot limit its children: so one further up. */
static bool go_up(char *path)
{
    char *slash = strrchr(path, '/');

    if (!slash || path[1] == '\0')
        return false;
    slash[slash == path] = '\0';
    return true;
}

static bool enable(const char *directory, const char *controller)
{
    char text[TEXT_MAX];
    cleanup_free char *request = xasprintf("+%s", controller);

    if (!read_text(directory, "cgroup.subtree_control", text))
        return false;
    return lists(text, controller) || write_text(directory, "cgroup.subtree_control", request) == 0;
}

static void open_version_2(struct cgroups *cgroups, const char *mount, const char *own,
                           const char *instance)
{
    static const char *const needed[CGROUP_COUNT] = {
        [CGROUP_MEMORY] = "memory", [CGROUP_CPU] = "cpu", [CGROUP_PIDS] = "pids"};
    char path[CGROUP_PATH_LEN], parent[CGROUP_PATH_LEN] = "";

    cgroups->version_2 = true;
    (void)snprintf(cgroups->why, sizeof(cgroups->why),
                   "no control group above this server's own can be written to: run it as root, or "
                   "as a service of the user's own systemd");
    if (!own_path(own, path))
        return;
    while (parent[0] == '\0' && go_up(path)) {
        cleanup_free char *directory = xasprintf("%s%s", mount, path[1] == '\0' ? "" : path);
        if (make_parent(directory, instance, parent)) {
            for (int which = 0; which < CGROUP_COUNT; which++) {
                if (needed[which] && enable(directory, needed[which]) &&
                    enable(parent, needed[which]))
                    (void)snprintf(cgroups->parents[which], CGROUP_PATH_LEN, "%s", parent);
            }
        }
    }
    bool all = cgroups->parents[CGROUP_MEMORY][0] != '\0' &&
               cgroups->parents[CGROUP_CPU][0] != '\0' && cgroups->parents[CGROUP_PIDS][0] != '\0';
    if (all)
        cgroups->why[0] = '\0';
    else if (parent[0] != '\0')
        (void)snprintf(cgroups->why, sizeof(cgroups->why),
                       "not every controller (memory, cpu, pids) is given to %s", parent);
}

void cgroups_open(struct cgroups *ret_cgroups, const char *mount, const char *own,
                  const char *instance)
{
    *ret_cgroups = (struct cgroups){.version_2 = exists(mount, "cgroup.controllers")};
    if (ret_cgroups->version_2)
        open_version_2(ret_cgroups, mount, own, instance);
    else
        open_version_1(ret_cgroups, mount, instance);
}

void cgroups_close(const struct cgroups *cgroups)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        if (cgroups->parents[which][0] != '\0')
            (void)rmdir(cgroups->parents[which]); /* boxes live on in it, else */
    }
}

/* --- one box ------------------------------------------------------------------------------------
 */

void cgroup_name(const struct cgroups *cgroups, const char *id, struct cgroup_paths *ret_paths)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        ret_paths->paths[which][0] = '\0';
        if (cgroups->parents[which][0] != '\0')
            (void)snprintf(ret_paths->paths[which], CGROUP_PATH_LEN, "%s/%s",
                           cgroups->parents[which], id);
    }
}

/* The kernel gives no less than a millisecond of each period: 10 thousandths of a CPU. */
static uint64_t quota_us(const struct cgroup_limits *limits)
{
    uint64_t quota = limits->cpu_milli * PERIOD_US / 1000;
    return quota < QUOTA_MIN_US ? QUOTA_MIN_US : quota;
}

static int limit_version_1(const struct cgroup_paths *paths, const struct cgroup_limits *limits)
{
    const char *memory = paths->paths[CGROUP_MEMORY], *cpu = paths->paths[CGROUP_CPU];
    const char *pids = paths->paths[CGROUP_PIDS];

    if (memory[0] != '\0') {
        if (write_number(memory, "memory.limit_in_bytes", limits->memory) < 0)
            return -1;
        /* there only when the kernel counts swap */
        (void)write_number(memory, "memory.memsw.limit_in_bytes", limits->memory);
    }
    if (cpu[0] != '\0' &&
        (write_number(cpu, "cpu.cfs_period_us", PERIOD_US) < 0 ||
         write_number(cpu, "cpu.cfs_quota_us", quota_us(limits)) < 0 ||
         write_number(cpu, "cpu.shares", limits->cpu_share_milli * 1024 / 1000 + 2) < 0))
        return -1;
    return pids[0] == '\0' ? 0 : write_number(pids, "pids.max", limits->pids);
}

static int limit_version_2(const struct cgroup_paths *paths, const struct cgroup_limits *limits)
{
    const char *memory = paths->paths[CGROUP_MEMORY], *cpu = paths->paths[CGROUP_CPU];
    const char *pids = paths->paths[CGROUP_PIDS];
    cleanup_free char *quota =
        xasprintf("%llu %d", (unsigned long long)quota_us(limits), PERIOD_US);
    uint64_t weight = limits->cpu_share_milli / 10 + 1;

    if (memory[0] != '\0') {
        if (write_number(memory, "memory.max", limits->memory) < 0)
            return -1;
        (void)write_number(memory, "memory.swap.max", 0); /* as above */
    }
    if (cpu[0] != '\0' && (write_text(cpu, "cpu.max", quota) < 0 ||
                           write_number(cpu, "cpu.weight", weight < 10000 ? weight : 10000) < 0))
        return -1;
    return pids[0] == '\0' ? 0 : write_number(pids, "pids.max", limits->pids);
}

int cgroup_make(const struct cgroups *cgroups, const struct cgroup_paths *paths,
                const struct cgroup_limits *limits, struct err *err)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        const char *path = paths->paths[which];
        if (path[0] != '\0' && mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_errno(err, ERR_BACKEND, errno, "make the control group %s", path);
    }
    int code = cgroups->version_2 ? limit_version_2(paths, limits) : limit_version_1(paths, limits);
    return code == 0 ? 0 : err_errno(err, ERR_BACKEND, errno, "limit a control group");
}

void cgroup_doors(const struct cgroups *cgroups, const struct cgroup_paths *paths,
                  struct text_list *ret_files)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        const char *path = paths->paths[which];
        if (path[0] == '\0')
            continue;
        cleanup_free char *file = joined(path, cgroups->version_2 ? "cgroup.procs" : "tasks");
        if (!text_list_has(ret_files, file))
            text_list_add(ret_files, file);
    }
}

void cgroup_kill(const struct cgroup_paths *paths)
{
    for (int which = 0; which < CGROUP_COUNT; which++) {
        char text[TEXT_MAX];
        uint64_t pid;
        if (paths->paths[which][0] == '\0' || !read_text(paths->paths[which], "cgroup.procs", text))
            continue;
        for (const char *at = text; *at != '\0'; at += at[0] == '\n') {
            size_t len = strcspn(at, "\n");
            if (str_to_u64((struct str){at, len}, INT32_MAX, &pid) && pid > 1)
                (void)kill((pid_t)pid, SIGKILL);
            at += len;
        }
        return; /* the same ones are in all */
    }
}

bool cgroup_remove(const struct cgroup_paths *paths)
{
    bool done = true;

    for (int which = 0; which < CGROUP_COUNT; which++) {
        if (paths->paths[which][0] != '\0' && rmdir(paths->paths[which]) < 0 && errno == EBUSY)
            done = false;
    }
    return done;
}

bool cgroup_had_oom(const struct cgroup_paths *paths)
{
    static const char *const files[] = {"memory.events", "memory.oom_control"};
    char text[TEXT_MAX];

    for (size_t i = 0; i < ARRAY_LEN(files) && paths->paths[CGROUP_MEMORY][0] != '\0'; i++) {
        if (!read_text(paths->paths[CGROUP_MEMORY], files[i], text))
            continue;
        const char *at = strstr(text, "oom_kill ");
        return at && at[strlen("oom_kill ")] != '0';
    }
    return false;
}
