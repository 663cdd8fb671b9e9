#include "local/plan.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

#define SMALL_SIZE "65536" /* of a directory that only hides another */

static void add(struct text_list *list, ...) __attribute__((sentinel));

static void add(struct text_list *list, ...)
{
    va_list args;

    va_start(args, list);
    for (const char *text; (text = va_arg(args, const char *)) != NULL;)
        text_list_add(list, text);
    va_end(args);
}

static void add_number(struct text_list *list, const char *option, int64_t number)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%lld", (long long)number);
    add(list, option, text, NULL);
}

static void add_with_fd(struct text_list *list, const char *option, enum box_fd fd,
                        const char *path)
{
    add_number(list, option, fd);
    if (path)
        text_list_add(list, path);
}

/* --- the root -----------------------------------------------------------------------------------
 */

/* A part of the machine's own root: a directory, or a link into one (as /bin -> usr/bin). */
static void add_host_directory(struct text_list *list, const char *path)
{
    char target[PATH_MAX];
    struct stat status;

    if (lstat(path, &status) < 0)
        return;
    if (S_ISDIR(status.st_mode)) {
        add(list, "--ro-bind", path, path, NULL);
    } else if (S_ISLNK(status.st_mode)) {
        ssize_t len = readlink(path, target, sizeof(target) - 1);
        target[len > 0 ? len : 0] = '\0';
        add(list, "--symlink", target, path, NULL);
    }
}

/* What programs need of /etc and what tells nothing about this machine. */
static void add_host_etc(struct text_list *list)
{
    static const char *const wanted[] = {
        "/etc/alternatives", "/etc/ca-certificates", "/etc/debian_version",
        "/etc/fonts",        "/etc/ld.so.cache",     "/etc/localtime",
        "/etc/magic",        "/etc/mime.types",      "/etc/os-release",
        "/etc/pki",          "/etc/protocols",       "/etc/services",
        "/etc/ssl/certs",    "/etc/ssl/openssl.cnf",
    };

    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (access(wanted[i], F_OK) == 0)
            add(list, "--ro-bind", wanted[i], wanted[i], NULL);
    }
    add_with_fd(list, "--file", BOX_FD_PASSWD, "/etc/passwd");
    add_with_fd(list, "--file", BOX_FD_GROUP, "/etc/group");
    add_with_fd(list, "--file", BOX_FD_HOSTS, "/etc/hosts");
    add_with_fd(list, "--file", BOX_FD_RESOLV, "/etc/resolv.conf");
}

static void add_host_root(struct text_list *list)
{
    static const char *const directories[] = {"/usr",   "/bin",   "/sbin",  "/lib",
                                              "/lib32", "/lib64", "/libx32"};

    for (size_t i = 0; i < ARRAY_LEN(directories); i++)
        add_host_directory(list, directories[i]);
    /* what a bind makes by itself nobody else could read */
    add(list, "--dir", "/etc", "--dir", "/opt", "--dir", "/opt/podsandbox", NULL);
    add(list, "--dir", "/run", "--dir", "/var", "--symlink", "/run", "/var/run", "--symlink",
        "/tmp", "/var/tmp", NULL);
    add_host_etc(list);
}

/* --- /proc and /dev -----------------------------------------------------------------------------
 */

/* What container runtimes hide of /proc, as far as this kernel has it. */
static void add_proc(struct text_list *list)
{
    static const char *const hidden[] = {
        "/proc/acpi",       "/proc/asound",        "/proc/interrupts",  "/proc/kcore",
        "/proc/keys",       "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
        "/proc/timer_list", "/proc/timer_stats",
    };
    struct stat status;

    add(list, "--proc", "/proc", NULL);
    for (size_t i = 0; i < ARRAY_LEN(hidden); i++) {
        if (lstat(hidden[i], &status) < 0)
            continue;
        if (S_ISDIR(status.st_mode))
            add(list, "--perms", "0555", "--size", SMALL_SIZE, "--tmpfs", hidden[i], "--remount-ro",
                hidden[i], NULL);
        else
            add(list, "--ro-bind", "/dev/null", hidden[i], NULL);
    }
}

static void add_tmpfs(struct text_list *list, const char *path, const char *mode, const char *size)
{
    add(list, "--perms", mode, "--size", size, "--tmpfs", path, NULL);
}

static void add_dev(struct text_list *list, const char *size)
{
    add(list, "--dev", "/dev", NULL);
    add_tmpfs(list, "/dev/shm", "1777", size);
    add(list, "--remount-ro", "/dev", NULL);
}

/* --- writable places ----------------------------------------------------------------------------
 */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_unless_there(struct text_list *list, const char *path)
{
    if (!text_list_has(list, path))
        text_list_add(list, path);
}

/* Each is a file system of its own in memory, which ends with the box. Outer ones come first. */
static void add_writable(struct text_list *list, const struct box_spec *spec, const char *size)
{
    struct text_list places = {0};

    add_unless_there(&places, "/tmp");
    add_unless_there(&places, BOX_HOME);
    add_unless_there(&places, spec->workdir);
    for (size_t i = 0; spec->writable_mounts && i < spec->writable_mounts->count; i++)
        add_unless_there(&places, spec->writable_mounts->items[i]);
    qsort(places.items, places.count, sizeof(*places.items), by_text);
    for (size_t i = 0; i < places.count; i++) {
        bool everybodys = strcmp(places.items[i], "/tmp") == 0;
        add_tmpfs(list, places.items[i], everybodys ? "1777" : "0755", size);
    }
    text_list_done(&places);
}

/* ------------------------------------------------------------------------------------------------
 */

/* Its own numbers, where the agent looks for them. */
static void add_cgroup(struct text_list *list, const struct plan *plan)
{
    static const char *const places[CGROUP_COUNT] = {
        [CGROUP_MEMORY] = "/sys/fs/cgroup/memory",
        [CGROUP_CPU] = "/sys/fs/cgroup/cpu",
        [CGROUP_CPUACCT] = "/sys/fs/cgroup/cpuacct",
        [CGROUP_PIDS] = "/sys/fs/cgroup/pids",
    };

    add(list, "--dir", "/sys", "--dir", "/sys/fs", "--dir", "/sys/fs/cgroup", NULL);
    if (plan->version_2 && plan->cgroup->paths[CGROUP_MEMORY][0] != '\0') {
        add(list, "--ro-bind", plan->cgroup->paths[CGROUP_MEMORY], "/sys/fs/cgroup", NULL);
        return;
    }
    for (int which = 0; which < CGROUP_COUNT && !plan->version_2; which++) {
        if (plan->cgroup->paths[which][0] != '\0')
            add(list, "--ro-bind", plan->cgroup->paths[which], places[which], NULL);
    }
}

static void add_agent(struct text_list *list, const struct plan *plan)
{
    add(list, "--ro-bind", plan->agent, BOX_AGENT, NULL);
    add(list, "--remount-ro", "/", "--chdir", "/", NULL);
    add_with_fd(list, "--info-fd", BOX_FD_INFO, NULL);
    add_with_fd(list, "--json-status-fd", BOX_FD_STATUS, NULL);
    add_with_fd(list, "--add-seccomp-fd", BOX_FD_KNOWN, NULL);
    add_with_fd(list, "--add-seccomp-fd", BOX_FD_REFUSED, NULL);
    add(list, "--", BOX_AGENT, "serve", NULL);
    add_number(list, "--listen-fd", BOX_FD_LISTEN);
    add(list, "--uid", plan->spec->uid, NULL);
}

void plan_command(const struct plan *plan, struct text_list *ret_arguments)
{
    const struct box_spec *spec = plan->spec;
    uint64_t bytes = 0;
    char size[24];

    (void)str_to_bytes(spec->storage_limit, &bytes); /* checked by the domain */
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
    add(ret_arguments, plan->bwrap, "--unshare-all", "--unshare-user", "--disable-userns",
        "--as-pid-1", "--cap-drop", "ALL", "--hostname", spec->id, NULL);
    add_number(ret_arguments, "--uid", spec->run_as_user);
    add_number(ret_arguments, "--gid", spec->run_as_group);
    add_host_root(ret_arguments);
    add_proc(ret_arguments);
    add_dev(ret_arguments, size);
    add_writable(ret_arguments, spec, size);
    add_cgroup(ret_arguments, plan);
    add_agent(ret_arguments, plan);
}

char *plan_file(const struct box_spec *spec, enum box_fd which)
{
    long long user = (long long)spec->run_as_user, group = (long long)spec->run_as_group;

    switch (which) {
    case BOX_FD_PASSWD:
        return xasprintf("root:x:0:0:root:/root:/usr/sbin/nologin\n"
                         "sandbox:x:%lld:%lld::%s:/bin/sh\n"
                         "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                         user, group, BOX_HOME);
    case BOX_FD_GROUP:
        return xasprintf("root:x:0:\nsandbox:x:%lld:\nnogroup:x:65534:\n", group);
    case BOX_FD_HOSTS:
        return xasprintf("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", spec->id);
    default:
        return xstrdup("");
    }
}
