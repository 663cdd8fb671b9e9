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

/* Marks what is in the tree; pids are not in any order, so until nothing changes. */
static void mark(struct snapshot *snapshot, const struct tree *tree)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < snapshot->count; i++) {
            struct process *process = &snapshot->list[i];
            if (process->below || process->spared)
                continue;
            const struct process *parent =
                process->parent == tree->root ? NULL : find(snapshot, process->parent);
            bool under = process->parent == tree->root || (parent != NULL && parent->below);
            process->spared =
                (under && is_in(process->pid, tree->spared)) || (parent != NULL && parent->spared);
            process->below = under && !process->spared;
            changed = changed || process->below || process->spared;
        }
    }
}

static bool is_meant(const struct process *process, const struct tree *tree)
{
    return process->below && process->pid != tree->head;
}

/* Returns how many of them are neither stopped nor dead. A whole group is signalled at once, which
 * no fork in it escapes; one that has a member below the root has no others, for it came from a
 * session that was made there. The group of the head has.
 *
 * The youngest first: who reads a pipe is younger than who writes it, and would end well at the end
 * of its input, so that a shell would see no interrupt and go on. */
static int signal_all(const struct snapshot *snapshot, const struct tree *tree, int signal)
{
    int moving = 0;
    pid_t last_group = 0;
    for (size_t i = snapshot->count; i-- > 0;) {
        const struct process *process = &snapshot->list[i];
        if (!is_meant(process, tree))
            continue;
        bool again = signal == SIGKILL || signal == SIGSTOP; /* twice is as good as once */
        bool whole = again && process->group > 1 && process->group != tree->head;
        if (whole && process->group != last_group)
            (void)kill(-process->group, signal);
        last_group = process->group;
        (void)kill(process->pid, signal);
        moving += strchr("TtZX", process->state) == NULL;
    }
    return moving;
}

static bool look(struct snapshot *snapshot, const struct tree *tree)
{
    if (!snapshot_take(snapshot) || snapshot->count == 0)
        return false;
    qsort(snapshot->list, snapshot->count, sizeof(snapshot->list[0]), by_pid);
    mark(snapshot, tree);
    return true;
}

static int round_of(struct snapshot *snapshot, const struct tree *tree, int signal)
{
    return look(snapshot, tree) ? signal_all(snapshot, tree, signal) : 0;
}

size_t tree_signal(const struct tree *tree, int signal)
{
    const struct timespec pause = {.tv_nsec = STOP_PAUSE_NS};
    struct snapshot snapshot = {0};
    size_t living = 0;
    if (signal == SIGKILL) {
        /* A stopped process forks no more: once a round finds all at rest, none can escape. */
        int64_t until = now_ms() + STOP_MS;
        while (round_of(&snapshot, tree, SIGSTOP) > 0 && now_ms() < until)
            (void)nanosleep(&pause, NULL);
    }
    (void)round_of(&snapshot, tree, signal);
    for (size_t i = 0; i < snapshot.count; i++) {
        const struct process *process = &snapshot.list[i];
        living += is_meant(process, tree) && strchr("ZX", process->state) == NULL;
    }
    free(snapshot.list);
    return living;
}

pid_t *tree_list(const struct tree *tree)
{
    struct snapshot snapshot = {0};
    size_t count = 0;
    (void)look(&snapshot, tree);
    pid_t *pids = calloc(snapshot.count + 1, sizeof(*pids));
    for (size_t i = 0; pids != NULL && i < snapshot.count; i++) {
        if (is_meant(&snapshot.list[i], tree))
            pids[count++] = snapshot.list[i].pid;
    }
    free(snapshot.list);
    return pids;
}
