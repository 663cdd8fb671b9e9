#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/dirents.h"
#include "agent/path.h"
#include "agent/worker.h"

/* A directory on the way down. Only the deepest is open: the way back is "..", compared with what
 * it was, so that depth costs memory of the heap only, and no link is followed. */
struct level {
    struct level *above;
    dev_t device;
    ino_t inode;
    char name[NAME_MAX + 1]; /* in the directory above */
};

static int enter(int *directory, const char *name, int flags, struct stat *ret_status)
{
    int fd = openat(*directory, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (fd < 0)
        return -1;
    if (fstat(fd, ret_status) < 0) {
        close(fd);
        return -1;
    }
    close(*directory);
    *directory = fd;
    return 0;
}

static int push(struct level **levels, int *directory, const char *name)
{
    struct stat status;
    struct level *level = malloc(sizeof(*level));
    if (level == NULL)
        return -1;
    memcpy(level->name, name, strlen(name) + 1);
    if (fstat(*directory, &status) < 0) {
        free(level);
        return -1;
    }
    level->device = status.st_dev;
    level->inode = status.st_ino;
    level->above = *levels;
    *levels = level;
    return enter(directory, level->name, O_NOFOLLOW, &status);
}

static int pop(struct level **levels, int *directory)
{
    struct stat status;
    struct level *level = *levels;
    /* At the top nothing has to be listed, which might not be allowed. */
    int result = enter(directory, "..", level->above == NULL ? O_PATH : 0, &status);
    if (result == 0 && (status.st_dev != level->device || status.st_ino != level->inode)) {
        errno = EBUSY; /* moved away under our hands */
        result = -1;
    }
    if (result == 0)
        result = unlinkat(*directory, level->name, AT_REMOVEDIR);
    *levels = level->above;
    int errnum = errno;
    free(level);
    errno = errnum;
    return result;
}

/* Removes what is in the directory until it is empty (0), a directory is met (1, its name) or it
 * fails. */
static int empty(struct worker *worker, int directory, char name[NAME_MAX + 1])
{
    struct dirents dirents;
    struct dirent_entry entry;
    (void)lseek(directory, 0, SEEK_SET);
    dirents_init(&dirents, directory);
    while (dirents_next(&dirents, &entry)) {
        if (worker_is_cancelled(worker))
            return -1;
        if (entry.type != DT_DIR_TYPE && unlinkat(directory, entry.name, 0) == 0)
            continue;
        if (entry.type == DT_DIR_TYPE || errno == EISDIR || errno == EPERM) {
            struct stat status;
            int errnum = entry.type == DT_DIR_TYPE ? ENOENT : errno;
            if (fstatat(directory, entry.name, &status, AT_SYMLINK_NOFOLLOW) < 0)
                return -1;
            if (S_ISDIR(status.st_mode)) {
                memcpy(name, entry.name, strlen(entry.name) + 1);
                return 1;
            }
            errno = errnum;
        }
        if (errno != ENOENT)
            return -1;
    }
    return dirents.failed ? -1 : 0;
}

static int remove_below(struct worker *worker, int parent, const char *name)
{
    struct level *levels = NULL;
    char next[NAME_MAX + 1];
    int directory = dup(parent), more = 1;
    memcpy(next, name, strlen(name) + 1);
    while (directory >= 0 && more >= 0) {
        if (more == 1)
            more = push(&levels, &directory, next) < 0 ? -1 : 2;
        if (more == 2)
            more = empty(worker, directory, next);
        if (more == 0) {
            more = pop(&levels, &directory) < 0 ? -1 : 2;
            if (levels == NULL)
                break;
        }
    }
    int errnum = errno;
    while (levels != NULL) {
        struct level *level = levels;
        levels = level->above;
        free(level);
    }
    if (directory >= 0)
        close(directory);
    errno = errnum;
    return directory < 0 || more < 0 ? -1 : 0;
}

/* The directory of PATH and the last name, which is not followed if it is a link. */
static int open_parent(const char *path, const char **ret_name)
{
    static char directory[PATH_MAX];
    size_t len = strlen(path);
    memcpy(directory, path, len + 1);
    while (len > 1 && directory[len - 1] == '/')
        directory[--len] = '\0';
    char *slash = strrchr(directory, '/');
    *ret_name = slash != NULL ? slash + 1 : directory;
    if (**ret_name == '\0' || strcmp(*ret_name, ".") == 0 || strcmp(*ret_name, "..") == 0) {
        errno = EBUSY;
        return -1;
    }
    if (slash == NULL)
        return open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    *slash = '\0';
    return open(slash == directory ? "/" : directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

void op_remove(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    struct reply reply;
    const char *name = NULL;
    bool recursive = message_u64(&worker->request, TAG_RECURSIVE, 0) != 0;
    if (!worker_path(worker, TAG_PATH, path))
        return;
    int parent = open_parent(path, &name);
    int result = -1;
    if (parent >= 0 && fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISDIR(status.st_mode))
            result = unlinkat(parent, name, 0);
        else if (recursive)
            result = remove_below(worker, parent, name);
        else
            result = unlinkat(parent, name, AT_REMOVEDIR);
    }
    if (result < 0 && !worker->cancelled)
        worker_errno(worker);
    if (parent >= 0)
        close(parent);
    if (result < 0)
        return;
    reply_init(&reply);
    worker_reply(worker, FRAME_RESULT, &reply);
}
