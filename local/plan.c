#include "local/plan.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/mem.h"
#include "base/str.h"
#include "local/root.h"

#define ETC_HOSTS "/etc/hosts"
#define ETC_RESOLV "/etc/resolv.conf"
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
    if (path)
        add(list, "--perms", "0444", NULL);
    add_number(list, option, fd);
    if (path)
        text_list_add(list, path);
}

/* --- the root -----------------------------------------------------------------------------------
 */

/* What programs need of /etc and what tells nothing about this machine: little, since bubblewrap
 * looks at all mounts for each that it makes. A link is as good as what it leads to below /usr. */
static void add_host_etc(struct text_list *list)
{
    static const char *const wanted[] = {
        "/etc/alternatives", "/etc/fonts",      "/etc/ld.so.cache",
        "/etc/localtime",    "/etc/mime.types", "/etc/os-release",
        "/etc/pki",          "/etc/ssl/certs",  "/etc/ssl/openssl.cnf",
    };
    char target[PATH_MAX];

    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        ssize_t len = readlink(wanted[i], target, sizeof(target) - 1);
        target[len > 0 ? len : 0] = '\0';
        if (len > 0)
            add(list, "--symlink", target, wanted[i], NULL);
        else if (access(wanted[i], F_OK) == 0)
            add(list, "--ro-bind", wanted[i], wanted[i], NULL);
    }
    add_with_fd(list, "--file", BOX_FD_PASSWD, "/etc/passwd");
    add_with_fd(list, "--file", BOX_FD_GROUP, "/etc/group");
}

/* The machine's own programs and libraries, and nothing else of it. */
static int add_host_root(struct text_list *list, const struct text_list *places, struct err *err)
{
    static const char *const wanted[] = {"usr",   "bin",   "sbin",   "lib",
                                         "lib32", "lib64", "libx32", NULL};

    if (root_add(list, "", wanted, places, err) < 0)
        return -1;
    /* what a bind makes by itself nobody else could read */
    add(list, "--dir", "/etc", "--dir", "/etc/ssl", "--dir", "/opt", "--dir", "/opt/podsandbox",
        NULL);
    add(list, "--dir", "/run", "--dir", "/var", "--symlink", "/run", "/var/run", "--symlink",
        "/tmp", "/var/tmp", NULL);
    add_host_etc(list);
    return 0;
}

static void add_network_files(struct text_list *list)
{
    add_with_fd(list, "--ro-bind-data", BOX_FD_HOSTS, ETC_HOSTS);
    add_with_fd(list, "--ro-bind-data", BOX_FD_RESOLV, ETC_RESOLV);
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
        if (lstat(hidden[i], &status) < 0 || (status.st_mode & S_IROTH) == 0)
            continue; /* not there, or root's alone */
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

static void list_writable(const struct box_spec *spec, struct text_list *ret_places)
{
    add_unless_there(ret_places, "/tmp");
    add_unless_there(ret_places, BOX_HOME);
    add_unless_there(ret_places, spec->workdir);
    for (size_t i = 0; spec->writable_mounts && i < spec->writable_mounts->count; i++)
        add_unless_there(ret_places, spec->writable_mounts->items[i]);
    if (ret_places->count > 1)
        qsort(ret_places->items, ret_places->count, sizeof(*ret_places->items), by_text);
}

/* Each is a file system of its own in memory, which ends with the box. Outer ones come first. */
static void add_writable(struct text_list *list, const struct text_list *places, const char *size)
{
    for (size_t i = 0; i < places->count; i++) {
        bool everybodys = strcmp(places->items[i], "/tmp") == 0;
        add_tmpfs(list, places->items[i], everybodys ? "1777" : "0755", size);
    }
}

static int add_root(struct text_list *list, const struct plan *plan,
                    const struct text_list *writable, struct err *err)
{
    static const char *const fixed[] = {"/proc", "/dev", "/sys", BOX_AGENT, ETC_HOSTS, ETC_RESOLV};
    struct text_list places = {0};

    text_list_copy(&places, writable);
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        text_list_add(&places, fixed[i]);
    int result = plan->root ? root_add(list, plan->root, NULL, &places, err)
                            : add_host_root(list, &places, err);
    text_list_done(&places);
    add_network_files(list);
    return result;
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
    if (plan->without_server_ms > 0)
        add_number(list, "--end-without-server", (plan->without_server_ms + 999) / 1000);
}

int plan_command(const struct plan *plan, struct text_list *ret_arguments, struct err *err)
{
    const struct box_spec *spec = plan->spec;
    struct text_list writable = {0};
    char size[24];

    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)plan->storage);
    list_writable(spec, &writable);
    add(ret_arguments, plan->bwrap, "--unshare-all", "--unshare-user", "--disable-userns",
        "--as-pid-1", "--cap-drop", "ALL", "--hostname", spec->id, NULL);
    if (strcmp(spec->network, "host") == 0)
        text_list_add(ret_arguments, "--share-net");
    add_number(ret_arguments, "--uid", spec->run_as_user);
    add_number(ret_arguments, "--gid", spec->run_as_group);
    int result = add_root(ret_arguments, plan, &writable, err);
    add_proc(ret_arguments);
    add_dev(ret_arguments, size);
    add_writable(ret_arguments, &writable, size);
    add_cgroup(ret_arguments, plan);
    add_agent(ret_arguments, plan);
    text_list_done(&writable);
    return result;
}

static void set_unless_there(struct text_list *list, const char *name, const char *value)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < list->count; i++) {
        if (strncmp(list->items[i], name, len) == 0 && list->items[i][len] == '=')
            return;
    }
    cleanup_free char *entry = xasprintf("%s=%s", name, value);
    text_list_add(list, entry);
}

void plan_environment(const struct text_list *image, struct text_list *ret_environment)
{
    for (size_t i = 0; image && i < image->count; i++)
        text_list_add(ret_environment, image->items[i]);
    set_unless_there(ret_environment, "PATH",
                     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    set_unless_there(ret_environment, "HOME", BOX_HOME);
    set_unless_there(ret_environment, "LANG", "C.UTF-8");
}

static char *file_of_host(const char *path)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    char piece[4096];
    ssize_t n;

    while (fd >= 0 && (n = read(fd, piece, sizeof(piece))) > 0)
        (void)buf_append(&text, piece, (size_t)n); /* more than that is no such file */
    return buf_take(&text, NULL);
}

char *plan_file(const struct plan *plan, enum box_fd which)
{
    const struct box_spec *spec = plan->spec;
    long long user = (long long)spec->run_as_user, group = (long long)spec->run_as_group;
    bool of_host = strcmp(spec->network, "host") == 0;

    switch (which) {
    case BOX_FD_PASSWD:
        return plan->root
                   ? NULL
                   : xasprintf("root:x:0:0:root:/root:/usr/sbin/nologin\n"
                               "sandbox:x:%lld:%lld::%s:/bin/sh\n"
                               "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                               user, group, BOX_HOME);
    case BOX_FD_GROUP:
        return plan->root ? NULL
                          : xasprintf("root:x:0:\nsandbox:x:%lld:\nnogroup:x:65534:\n", group);
    case BOX_FD_HOSTS:
        return of_host ? file_of_host(ETC_HOSTS)
                       : xasprintf("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", spec->id);
    default:
        return of_host ? file_of_host(ETC_RESOLV) : xstrdup("");
    }
}
