#include "local/filter.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define NUMBERS_MAX 1024 /* more than any architecture has of system calls */
#define FAMILIES_MAX 64  /* of sockets */
#define LOW_32 0xffffffffU

/* Calls that need a privilege which no sandbox has, or that have let programs out of one. */
static const char *const refused[] = {
    /* mounts and roots */
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "chroot",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "listmount",
    "statmount",
    "quotactl",
    "quotactl_fd",
    "fanotify_init",
    /* namespaces, and files by handle from outside of them */
    "unshare",
    "setns",
    "open_by_handle_at",
    "name_to_handle_at",
    /* the kernel's own machinery */
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "add_key",
    "request_key",
    "keyctl",
    "kcmp",
    "lookup_dcookie",
    "syslog",
    "sysfs",
    "_sysctl",
    "ustat",
    "uselib",
    "nfsservctl",
    "vhangup",
    "lsm_get_self_attr",
    "lsm_set_self_attr",
    "lsm_list_modules",
    /* the machine */
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "query_module",
    "get_kernel_syms",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "settimeofday",
    "stime",
    "clock_settime",
    "clock_settime64",
    "clock_adjtime",
    "clock_adjtime64",
    "ioperm",
    "iopl",
    "vm86",
    "vm86old",
    "modify_ldt",
    /* where memory lies */
    "mbind",
    "migrate_pages",
    "move_pages",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "get_mempolicy",
};

/* Execution domains: Linux, that with 32-bit addresses for uname, and asking for the current one.
 */
static const uint64_t personalities[] = {0x0, 0x8, 0x20000, 0x20008, LOW_32};

static const uint64_t namespace_flags[] = {
    CLONE_NEWNS,  CLONE_NEWUTS, CLONE_NEWIPC,    CLONE_NEWUSER,
    CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP,
};

/* The second architecture whose programs run here: 0, none. */
static uint32_t other_architecture(void)
{
    switch (seccomp_arch_native()) {
    case SCMP_ARCH_X86_64:
        return SCMP_ARCH_X86;
    case SCMP_ARCH_AARCH64:
        return SCMP_ARCH_ARM;
    default:
        return 0;
    }
}

/* --- what is known ------------------------------------------------------------------------------
 */

static int allow_known_of(scmp_filter_ctx filter, uint32_t architecture)
{
    int code = 0;

    for (int number = 0; number < NUMBERS_MAX && code == 0; number++) {
        char *name = seccomp_syscall_resolve_num_arch(architecture, number);
        int call = name ? seccomp_syscall_resolve_name(name) : __NR_SCMP_ERROR;
        free(name);
        if (call == __NR_SCMP_ERROR || call == SCMP_SYS(personality))
            continue;
        code = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
        if (code == -EEXIST)
            code = 0;
    }
    return code;
}

static int fill_known(scmp_filter_ctx filter)
{
    int code = allow_known_of(filter, seccomp_arch_native());

    if (code == 0 && other_architecture() != 0)
        code = allow_known_of(filter, other_architecture());
    for (size_t i = 0; i < ARRAY_LEN(personalities) && code == 0; i++) {
        code = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1,
                                SCMP_A0(SCMP_CMP_MASKED_EQ, LOW_32, personalities[i]));
    }
    return code;
}

/* --- what is refused ----------------------------------------------------------------------------
 */

/* Arguments of 32 bits are compared as such: the kernel does not look at the others. */
static int refuse_value(scmp_filter_ctx filter, int call, unsigned argument, uint64_t value)
{
    return seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 1,
                            SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, LOW_32, value));
}

static int refuse_families(scmp_filter_ctx filter)
{
    int code = 0;

    for (int family = 0; family < FAMILIES_MAX && code == 0; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
            continue;
        code = refuse_value(filter, SCMP_SYS(socket), 0, (uint64_t)family);
        if (code == 0)
            code = refuse_value(filter, SCMP_SYS(socketpair), 0, (uint64_t)family);
    }
    /* Its arguments lie in memory, where no filter can look. */
    return code != 0 ? code
                     : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(socketcall), 0);
}

static int refuse_namespaces(scmp_filter_ctx filter)
{
    int code = 0;

    for (size_t i = 0; i < ARRAY_LEN(namespace_flags) && code == 0; i++) {
        code =
            seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, namespace_flags[i], namespace_flags[i]));
    }
    /* Its flags lie in memory; without it libraries fall back to clone. */
    return code != 0 ? code : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
}

static int fill_refused(scmp_filter_ctx filter)
{
    int code = 0;

    for (size_t i = 0; i < ARRAY_LEN(refused) && code == 0; i++) {
        int call = seccomp_syscall_resolve_name(refused[i]);
        if (call != __NR_SCMP_ERROR) /* else it is not known, thus does not exist */
            code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), call, 0);
    }
    if (code == 0)
        code = refuse_value(filter, SCMP_SYS(ioctl), 1, TIOCSTI);
    if (code == 0)
        code = refuse_value(filter, SCMP_SYS(ioctl), 1, TIOCLINUX);
    if (code == 0) /* the agent's limits: it has the same user as what it runs */
        code = refuse_value(filter, SCMP_SYS(prlimit64), 0, 1);
    if (code == 0)
        code = refuse_families(filter);
    return code != 0 ? code : refuse_namespaces(filter);
}

/* ------------------------------------------------------------------------------------------------
 */

static int export_to(scmp_filter_ctx filter, int *ret_fd)
{
    cleanup_fd int fd = memfd_create("filter", MFD_CLOEXEC);
    int code = fd < 0 ? -errno : seccomp_export_bpf(filter, fd);

    if (code == 0)
        *ret_fd = TAKE_FD(fd);
    return code;
}

static int make(uint32_t otherwise, int (*fill)(scmp_filter_ctx filter), int *ret_fd)
{
    scmp_filter_ctx filter = seccomp_init(otherwise);
    int code = filter ? 0 : -ENOMEM;

    if (code == 0 && other_architecture() != 0)
        code = seccomp_arch_add(filter, other_architecture());
    if (code == 0) /* a search tree: hundreds of calls are compared */
        code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (code == 0) /* of programs for a third architecture */
        code = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    if (code == 0)
        code = fill(filter);
    if (code == 0)
        code = export_to(filter, ret_fd);
    if (filter)
        seccomp_release(filter);
    return code;
}

int filters_make(struct filters *ret_filters, struct err *err)
{
    struct filters filters = {.known = -1, .refused = -1};
    int code = make(SCMP_ACT_ERRNO(ENOSYS), fill_known, &filters.known);

    if (code == 0)
        code = make(SCMP_ACT_ALLOW, fill_refused, &filters.refused);
    if (code != 0) {
        filters_done(&filters);
        return err_errno(err, ERR_INTERNAL, -code, "make the seccomp filters");
    }
    *ret_filters = filters;
    return 0;
}

void filters_done(struct filters *filters)
{
    cleanup_fd_close(&filters->known);
    cleanup_fd_close(&filters->refused);
    *filters = (struct filters){.known = -1, .refused = -1};
}
