#include "agent/tree_kill.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/dirents.h"
#include "agent/loop.h"
#include "agent/number.h"
#include "agent/process_stat.h"

#define STOP_MS 500 /* some cannot be stopped (vfork), and some run away as fast as we look */
#define STOP_PAUSE_NS 1000000

struct process {
    pid_t pid, parent, group;
    char state;
    bool below; /* the root */
    bool spared;
};

struct snapshot {
    struct process *list;
    size_t count, cap;
};

static pid_t decimal(const char *text)
{
    uint64_t value;
    return number_read(text, INT32_MAX, &value, NULL) ? (pid_t)value : -1;
}

static bool read_process(pid_t pid, struct process *ret_process)
{
    struct process_stat stat;
    if (!process_stat_read(pid, &stat))
        return false;
    *ret_process = (struct process){.pid = pid,
                                    .parent = (pid_t)stat.fields[4],
                                    .group = (pid_t)stat.fields[5],
                                    .state = stat.state};
    return true;
}

pid_t process_parent(pid_t pid)
{
    struct process process;
    return read_process(pid, &process) ? process.parent : -1;
}

static bool snapshot_add(struct snapshot *snapshot, const struct process *process)
{
    if (snapshot->count == snapshot->cap) {
        size_t cap = snapshot->cap != 0 ? snapshot->cap * 2 : 64;
        struct process *list = realloc(snapshot->list, cap * sizeof(*list));
        if (list == NULL)
            return false;
        snapshot->list = list;
        snapshot->cap = cap;
    }
    snapshot->list[snapshot->count++] = *process;
    return true;
}

static bool snapshot_take(struct snapshot *snapshot)
{
    struct dirents dirents;
    struct dirent_entry entry;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    snapshot->count = 0;
    dirents_init(&dirents, fd);
    while (dirents_next(&dirents, &entry)) {
        pid_t pid = decimal(entry.name);
        struct process process;
        if (pid > 0 && read_process(pid, &process) && !snapshot_add(snapshot, &process))
            break;
    }
    close(fd);
    return true;
}

static bool is_in(pid_t pid, const pid_t *list)
{
    for (; list != NULL && *list != 0; list++) {
        if (*list == pid)
            return true;
    }
    return false;
}

static int by_pid(const void *a, const void *b)
{
    pid_t first = ((const struct process *)a)->pid, second = ((const struct process *)b)->pid;
    return (first > second) - (first < second);
}

static const struct process *find(const struct snapshot *snapshot, pid_t pid)
{
    struct process key = {.pid = pid};
    return bsearch(&key, snapshot->list, snapshot->count, sizeof(key), by_pid);
}

/* Marks what is below ROOT; pids are not in any order, so until nothing changes. */
static void mark(struct snapshot *snapshot, pid_t root, const pid_t *spared)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < snapshot->count; i++) {
            struct process *process = &snapshot->list[i];
            if (process->below || process->spared)
                continue;
            const struct process *parent =
                process->parent == root ? NULL : find(snapshot, process->parent);
            process->spared = (process->parent == root && is_in(process->pid, spared)) ||
                              (parent != NULL && parent->spared);
            process->below =
                !process->spared && (process->parent == root || (parent != NULL && parent->below));
            changed = changed || process->below || process->spared;
        }
    }
}

/* Returns how many of them are neither stopped nor dead. A whole group is signalled at once, which
 * no fork in it escapes; one that has a member below the root has no others, for it came from a
 * session that was made there. */
static int signal_all(const struct snapshot *snapshot, int signal)
{
    int moving = 0;
    pid_t last_group = 0;
    for (size_t i = 0; i < snapshot->count; i++) {
        const struct process *process = &snapshot->list[i];
        if (!process->below)
            continue;
        bool again = signal == SIGKILL || signal == SIGSTOP; /* twice is as good as once */
        bool whole = again && process->group > 1;
        if (whole && process->group != last_group)
            (void)kill(-process->group, signal);
        last_group = process->group;
        (void)kill(process->pid, signal);
        moving += strchr("TtZX", process->state) == NULL;
    }
    return moving;
}

static int round_of(struct snapshot *snapshot, pid_t root, int signal, const pid_t *spared)
{
    if (!snapshot_take(snapshot) || snapshot->count == 0)
        return 0;
    qsort(snapshot->list, snapshot->count, sizeof(snapshot->list[0]), by_pid);
    mark(snapshot, root, spared);
    return signal_all(snapshot, signal);
}

void tree_signal(pid_t root, int signal, const pid_t *spared)
{
    const struct timespec pause = {.tv_nsec = STOP_PAUSE_NS};
    struct snapshot snapshot = {0};
    if (signal == SIGKILL) {
        /* A stopped process forks no more: once a round finds all at rest, none can escape. */
        int64_t until = now_ms() + STOP_MS;
        while (round_of(&snapshot, root, SIGSTOP, spared) > 0 && now_ms() < until)
            (void)nanosleep(&pause, NULL);
    }
    (void)round_of(&snapshot, root, signal, spared);
    free(snapshot.list);
}
