#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* /proc/PID/stat. gVisor has fewer fields than Linux, or zeros. */
#define PROCESS_STAT_FIELDS 24 /* up to rss */

struct process_stat {
    char name[64]; /* cut */
    char state;
    uint64_t fields[PROCESS_STAT_FIELDS + 1]; /* numbered as in proc(5), from 4 on */
    int last;                                 /* the last one that was there: 5 at least */
};
/* False when there is no such process. */
bool process_stat_read(pid_t pid, struct process_stat *ret_stat);
/* Up to SIZE bytes of /proc/PID/NAME; -1 when there is none. */
ssize_t process_file_read(pid_t pid, const char *name, char *data, size_t size);
