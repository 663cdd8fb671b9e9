#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which directory an inotify watch is on, by its path from the root of all. Bounded. */
struct watch_map {
    int fd; /* of inotify */
    uint32_t mask;
    struct watched *buckets[1024];
    size_t count;
};

struct watched {
    struct watched *next;
    int number;
    char path[]; /* "": the root */
};

#define WATCHES_MAX 8192

/* Watches the directory; one that is watched has that path from
 * now on. False with errno: ENOSPC when there are too many. */
bool watch_add(struct watch_map *map, const char *path);
/* The watch NUMBER is on PATH. False: no memory. */
bool watch_know(struct watch_map *map, int number, const char *path);
const struct watched *watch_find(const struct watch_map *map, int number);
void watch_forget(struct watch_map *map, int number);
/* The directory FROM, and what is below it, is TO now; NULL: is not watched any more. False: it was
 * not watched. */
bool watch_moved(struct watch_map *map, const char *from, const char *to);
