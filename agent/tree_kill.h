#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Sends SIGNAL to every process below ROOT (not to ROOT), those of the children in SPARED (ended by
 * 0; may be NULL) and all below them excepted. For SIGKILL all are stopped first, so that none can
 * fork away. */
void tree_signal(pid_t root, int signal, const pid_t *spared);

/* The parent of PID as this PID namespace sees it (0: outside), or -1 when there is no such
 * process. */
pid_t process_parent(pid_t pid);
