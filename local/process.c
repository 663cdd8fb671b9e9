#include "local/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

#define STAT_MAX 1024
#define STOP_TRIES 2000 /* of a millisecond */
#define FIELD_STATE 0   /* behind the command's name */
#define FIELD_PARENT 1
#define FIELD_SESSION 3
#define FIELD_STARTED 19

/* The fields of /proc/PID/stat behind the name, which may hold anything but is in parentheses. */
static bool read_stat(pid_t pid, char text[STAT_MAX], const char **ret_fields)
{
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, STAT_MAX - 1) : -1;
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || end[1] != ' ')
        return false;
    *ret_fields = end + 2;
    return true;
}

static struct str field(const char *fields, int index)
{
    while (index-- > 0) {
        fields += strcspn(fields, " ");
        fields += *fields == ' ';
    }
    return (struct str){fields, strcspn(fields, " \n")};
}

/* NUMBER: what the field WHICH says. */
static bool parse(pid_t pid, int which, uint64_t *ret_number, uint64_t *ret_started)
{
    char text[STAT_MAX];
    const char *fields;

    if (pid <= 0 || !read_stat(pid, text, &fields))
        return false;
    return fields[FIELD_STATE] != 'Z' && fields[FIELD_STATE] != 'X' &&
           str_to_u64(field(fields, which), INT32_MAX, ret_number) &&
           str_to_u64(field(fields, FIELD_STARTED), UINT64_MAX, ret_started);
}

bool process_identify(pid_t pid, struct process_id *ret_id)
{
    uint64_t parent, started;

    if (!parse(pid, FIELD_PARENT, &parent, &started))
        return false;
    *ret_id = (struct process_id){.pid = pid, .started = started};
    return true;
}

int process_open(const struct process_id *id)
{
    struct process_id now;
    cleanup_fd int fd = -1;

    if (id->pid <= 0)
        return -1;
    fd = (int)syscall(SYS_pidfd_open, id->pid, 0);
    /* Looked at after it is held: from here on it cannot become another's. */
    if (fd < 0 || !process_identify(id->pid, &now) || now.started != id->started)
        return -1;
    return TAKE_FD(fd);
}

bool process_wait(int pidfd, int timeout_ms)
{
    struct pollfd poller = {.fd = pidfd, .events = POLLIN};
    int64_t until = clock_now_ms() + timeout_ms;

    if (pidfd < 0)
        return true;
    for (;;) {
        int64_t left = until - clock_now_ms();
        int n = poll(&poller, 1, left > 0 ? (int)left : 0);
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

bool process_has_ended(int pidfd)
{
    return process_wait(pidfd, 0);
}

void process_signal(int pidfd, int signal_number)
{
    if (pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0); /* it may be gone */
}

/* No event tells of it: it is not our child. */
void process_stop(const struct process_id *id, int pidfd)
{
    char text[STAT_MAX];
    const char *fields;

    process_signal(pidfd, SIGSTOP);
    for (int tries = 0; tries < STOP_TRIES && !process_has_ended(pidfd); tries++) {
        if (!read_stat(id->pid, text, &fields) || strchr("TtZX", fields[FIELD_STATE]))
            return;
        (void)poll(NULL, 0, 1);
    }
}

static bool find(int which, pid_t wanted, struct process_id *ret_id)
{
    DIR *proc = opendir("/proc");
    bool found = false;
    const struct dirent *entry;

    while (proc && !found && (entry = readdir(proc)) != NULL) { /* NOLINT: a directory of our own */
        uint64_t pid, number, started;
        if (!str_to_u64(str_of(entry->d_name), INT32_MAX, &pid) ||
            !parse((pid_t)pid, which, &number, &started) || number != (uint64_t)wanted)
            continue;
        *ret_id = (struct process_id){.pid = (pid_t)pid, .started = started};
        found = true;
    }
    if (proc)
        (void)closedir(proc);
    return found;
}

bool process_child(pid_t parent, struct process_id *ret_child)
{
    return find(FIELD_PARENT, parent, ret_child);
}

bool process_in_session(const struct process_id *leader, struct process_id *ret_id)
{
    return leader->pid > 0 && find(FIELD_SESSION, leader->pid, ret_id) &&
           ret_id->started >= leader->started;
}
