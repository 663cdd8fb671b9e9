#pragma once

/* A file system for SQLite, in front of the real one, that fails when it is told to and counts. For
 * one thread. */
void fault_vfs_install(void); /* as the default, until the program ends */

enum fault {
    FAULT_FULL,       /* writes find no space */
    FAULT_FULL_LATER, /* so do other calls, which SQLite knows by errno only */
    FAULT_IO          /* the disk is broken */
};

/* From now on: the AFTERth operation that changes a file fails, and all later ones; 0: none. */
void fault_set(long after, enum fault fault);
long fault_operations(void); /* that would change a file, since fault_set */
long fault_log_syncs(void);  /* of write-ahead logs, since fault_set */
