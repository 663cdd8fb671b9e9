#include "agent/watch_map.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

#define BUCKETS (sizeof(((struct watch_map *)NULL)->buckets) / sizeof(struct watched *))

static struct watched **bucket_of(struct watch_map *map, int number)
{
    return &map->buckets[(unsigned)number % BUCKETS];
}

const struct watched *watch_find(const struct watch_map *map, int number)
{
    const struct watched *watched = map->buckets[(unsigned)number % BUCKETS];
    while (watched != NULL && watched->number != number)
        watched = watched->next;
    return watched;
}

void watch_forget(struct watch_map *map, int number)
{
    struct watched **link = bucket_of(map, number);
    while (*link != NULL && (*link)->number != number)
        link = &(*link)->next;
    struct watched *watched = *link;
    if (watched == NULL)
        return;
    *link = watched->next;
    map->count--;
    free(watched);
}

/* One that is there already has another path now. */
bool watch_know(struct watch_map *map, int number, const char *path)
{
    size_t size = strlen(path) + 1;
    struct watched *watched = malloc(sizeof(*watched) + size);
    watch_forget(map, number);
    if (watched == NULL)
        return false;
    watched->number = number;
    memcpy(watched->path, path, size);
    struct watched **bucket = bucket_of(map, number);
    watched->next = *bucket;
    *bucket = watched;
    map->count++;
    return true;
}

bool watch_add(struct watch_map *map, const char *path)
{
    uint32_t mask = map->mask | IN_ONLYDIR | IN_DONT_FOLLOW;
    if (map->count >= WATCHES_MAX) {
        errno = ENOSPC;
        return false;
    }
    int number = inotify_add_watch(map->fd, path[0] != '\0' ? path : ".", mask);
    if (number < 0)
        return false;
    if (watch_know(map, number, path))
        return true;
    (void)inotify_rm_watch(map->fd, number);
    errno = ENOSPC;
    return false;
}

/* What of PATH lies behind the directory FROM ("" for itself), or NULL. */
static const char *below(const char *path, const char *from)
{
    size_t len = strlen(from);
    if (strncmp(path, from, len) != 0 || (path[len] != '/' && path[len] != '\0'))
        return NULL;
    return path + len;
}

static void move_one(struct watch_map *map, int number, const char *rest, const char *to)
{
    char path[PATH_MAX];
    if (to != NULL && (size_t)snprintf(path, sizeof(path), "%s%s", to, rest) < sizeof(path) &&
        watch_know(map, number, path))
        return;
    (void)inotify_rm_watch(map->fd, number);
    watch_forget(map, number);
}

bool watch_moved(struct watch_map *map, const char *from, const char *to)
{
    bool known = false;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct watched *next;
        for (struct watched *watched = map->buckets[i]; watched != NULL; watched = next) {
            const char *rest = below(watched->path, from);
            next = watched->next;
            if (rest != NULL) {
                char kept[PATH_MAX];
                known = known || rest[0] == '\0';
                (void)snprintf(kept, sizeof(kept), "%s", rest);
                move_one(map, watched->number, kept, to);
            }
        }
    }
    return known;
}
