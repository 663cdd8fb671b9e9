#pragma once

#include <stddef.h>
#include <sys/types.h>

/* All below a process, not that itself. */
struct tree {
    pid_t root;
    const pid_t *spared; /* these and all below them are not in it; ended by 0; may be NULL */
    pid_t head;          /* this one is not in it, what is below it is; 0: none */
};
/* Sends SIGNAL to every process of the tree. For SIGKILL all are stopped first, so that none can
 * fork away. Returns how many of them had not ended. */
size_t tree_signal(const struct tree *tree, int signal);
/* The pids of the tree, malloc'd and ended by 0; NULL when memory is out. */
pid_t *tree_list(const struct tree *tree);

/* The parent of PID as this PID namespace sees it (0: outside), or -1 when there is no such
 * process. */
pid_t process_parent(pid_t pid);
