#include "agent/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/dirents.h"

#define NAMES_MAX ((size_t)64 << 20) /* bytes of names of the directories on the way down */
#define LEVELS_MAX (PATH_MAX / 2)

/* The names of one directory, sorted, each behind one byte for its type. */
struct listing {
    struct listing *above;
    int fd;
    char *bytes;
    size_t len, cap;
    char **names;
    size_t count, at;
    size_t path_len; /* of the directory itself */
};

struct walk {
    const struct walk_plan *plan;
    size_t level;
    size_t names_len;
    struct listing *top;
    char path[PATH_MAX];
    size_t path_len;
};

/* --- one directory
 * -------------------------------------------------------------------------------- */

static void listing_free(struct walk *walk)
{
    struct listing *listing = walk->top;
    walk->top = listing->above;
    walk->level--;
    walk->names_len -= listing->len;
    if (listing->fd >= 0)
        close(listing->fd);
    free(listing->bytes);
    free(listing->names);
    free(listing);
}

static bool add_name(struct walk *walk, struct listing *listing, const struct dirent_entry *entry)
{
    size_t size = strlen(entry->name) + 2;
    unsigned char type = entry->type;
    struct stat status;
    if (type == DT_UNKNOWN_TYPE &&
        fstatat(listing->fd, entry->name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(status.st_mode))
        type = DT_DIR_TYPE;
    if (walk->names_len + size > NAMES_MAX) {
        errno = E2BIG;
        return false;
    }
    if (listing->len + size > listing->cap) {
        size_t cap = listing->cap != 0 ? listing->cap * 2 : 4096;
        char *bytes = realloc(listing->bytes, cap);
        if (bytes == NULL)
            return false;
        listing->bytes = bytes;
        listing->cap = cap;
    }
    listing->bytes[listing->len] = type == DT_DIR_TYPE ? 'd' : '-';
    memcpy(listing->bytes + listing->len + 1, entry->name, size - 1);
    listing->len += size;
    listing->count++;
    walk->names_len += size;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* As if each directory ended in a slash: then the paths of all files come out sorted. */
static int by_path(const void *a, const void *b)
{
    const char *first = *(char *const *)a, *second = *(char *const *)b;
    size_t i = 0;
    while (first[i] == second[i] && first[i] != '\0')
        i++;
    unsigned char one = (unsigned char)first[i], two = (unsigned char)second[i];
    if (one == '\0' && first[-1] == 'd')
        one = '/';
    if (two == '\0' && second[-1] == 'd')
        two = '/';
    return (one > two) - (one < two);
}

static bool sort(struct walk *walk, struct listing *listing)
{
    listing->names = malloc((listing->count + 1) * sizeof(*listing->names));
    if (listing->names == NULL)
        return false;
    char *ptr = listing->bytes;
    for (size_t i = 0; i < listing->count; i++) {
        listing->names[i] = ptr + 1;
        ptr += strlen(ptr) + 1;
    }
    if (listing->count > 1)
        qsort(listing->names, listing->count, sizeof(*listing->names),
              walk->plan->by_path ? by_path : by_name);
    return true;
}

/* Takes over FD, a directory whose path stands in the walk. */
static bool enter(struct walk *walk, int fd)
{
    struct dirents dirents;
    struct dirent_entry entry;
    struct listing *listing = calloc(1, sizeof(*listing));
    if (listing == NULL) {
        close(fd);
        return false;
    }
    listing->fd = fd;
    listing->path_len = walk->path_len;
    listing->above = walk->top;
    walk->top = listing;
    walk->level++;
    dirents_init(&dirents, fd);
    while (dirents_next(&dirents, &entry)) {
        if (walk->plan->without_git && strcmp(entry.name, ".git") == 0)
            continue;
        if (!add_name(walk, listing, &entry))
            return false;
    }
    /* A directory that can be opened and not read counts as empty; the root was asked for. */
    return sort(walk, listing);
}

/* --- all of them
 * ----------------------------------------------------------------------------------- */

/* The path of NAME in the directory on top; false when it would be too long to be asked for. */
static bool set_path(struct walk *walk, const char *name)
{
    size_t at = walk->top->path_len, len = strlen(name);
    if (at + 1 + len >= sizeof(walk->path))
        return false;
    if (at > 0)
        walk->path[at++] = '/';
    memcpy(walk->path + at, name, len + 1);
    walk->path_len = at + len;
    return true;
}

/* The next entry of the directory on top. False ends the walk. */
static bool visit(struct walk *walk, const char *name)
{
    const struct walk_plan *plan = walk->plan;
    struct listing *listing = walk->top;
    struct stat status;
    struct walk_entry entry = {.path = name,
                               .path_len = strlen(name),
                               .directory = listing->fd,
                               .name = name,
                               .status = &status};
    if (!set_path(walk, name))
        return plan->failed == NULL || plan->failed(plan->arg, &entry, ENAMETOOLONG);
    entry.path = walk->path;
    entry.path_len = walk->path_len;
    if (fstatat(listing->fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return true; /* gone meanwhile */
    enum walk_turn turn = plan->visit(plan->arg, &entry);
    if (turn != WALK_ON || !S_ISDIR(status.st_mode) ||
        (plan->depth != 0 && walk->level >= plan->depth))
        return turn != WALK_STOP;
    errno = ENAMETOOLONG;
    int fd = walk->level >= LEVELS_MAX
                 ? -1
                 : openat(listing->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat opened;
    /* gVisor follows a link with O_DIRECTORY, whatever O_NOFOLLOW says: it may be one since. */
    if (fd >= 0 && (fstat(fd, &opened) < 0 || opened.st_ino != status.st_ino ||
                    opened.st_dev != status.st_dev)) {
        close(fd);
        return true;
    }
    if (fd >= 0)
        return enter(walk, fd);
    if (errno == EMFILE || errno == ENFILE)
        return false;
    return plan->failed == NULL || plan->failed(plan->arg, &entry, errno);
}

/* What is left at an end that is no good end is freed. */
static bool walk_all(struct walk *walk, bool good)
{
    while (good && walk->top != NULL) {
        struct listing *listing = walk->top;
        if (listing->at == listing->count)
            listing_free(walk);
        else
            good = visit(walk, listing->names[listing->at++]);
    }
    int errnum = errno;
    while (walk->top != NULL)
        listing_free(walk);
    errno = errnum;
    return good;
}

bool walk(const char *root, const struct walk_plan *plan)
{
    static struct walk state;
    state.plan = plan;
    state.path_len = 0;
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return walk_all(&state, fd >= 0 && enter(&state, fd));
}
