#include "agent/path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LINKS_MAX 40

int path_make_directories(int base, const char *path)
{
    char prefix[PATH_MAX];
    size_t len = strlen(path);
    if (len >= sizeof(prefix)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(prefix, path, i);
        prefix[i] = '\0';
        if (mkdirat(base, prefix, 0755) < 0 && errno != EEXIST && errno != EISDIR) {
            struct stat status;
            /* "no permission" or "read-only" for what is there already */
            int errnum = errno;
            if (fstatat(base, prefix, &status, 0) < 0) {
                errno = errnum;
                return -1;
            }
        }
    }
    return 0;
}

/* Cuts PATH into its directory ("" for none) and its last name; false when that is no name for a
 * file. */
static bool split(char *path, const char **ret_directory, char name[NAME_MAX + 1])
{
    char *slash = strrchr(path, '/');
    const char *last = slash != NULL ? slash + 1 : path;
    size_t len = strlen(last);
    if (len == 0 || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
        errno = EISDIR;
        return false;
    }
    if (len > NAME_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(name, last, len + 1);
    if (slash == NULL) {
        *ret_directory = ".";
    } else if (slash == path) {
        *ret_directory = "/";
    } else {
        *slash = '\0';
        *ret_directory = path;
    }
    return true;
}

static int open_directory(int base, const char *path, bool make)
{
    int fd = openat(base, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    if (path_make_directories(base, path) < 0)
        return -1;
    return openat(base, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

void target_close(struct target *target)
{
    if (target->directory >= 0)
        close(target->directory);
    target->directory = -1;
}

/* One step: opens the directory of PATH below BASE and looks at the name. 1: a symlink, PATH is now
 * what it says; 0: the target; -1: errno. */
static int step(int base, char path[PATH_MAX], bool make, struct target *target)
{
    const char *directory;
    if (!split(path, &directory, target->name))
        return -1;
    target->directory = open_directory(base, directory, make);
    if (target->directory < 0)
        return -1;
    target->exists =
        fstatat(target->directory, target->name, &target->status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!target->exists)
        return errno == ENOENT ? 0 : -1;
    if (!S_ISLNK(target->status.st_mode))
        return 0;
    ssize_t len = readlinkat(target->directory, target->name, path, PATH_MAX - 1);
    if (len < 0)
        return -1;
    path[len] = '\0';
    return 1;
}

int target_open(const char *path, bool make, struct target *ret_target)
{
    char current[PATH_MAX];
    int base = AT_FDCWD;
    memcpy(current, path, strlen(path) + 1);
    for (int links = 0; links < LINKS_MAX; links++) {
        struct target target = {.directory = -1};
        int more = step(base, current, make, &target);
        int errnum = errno;
        if (base != AT_FDCWD)
            close(base);
        if (more == 0) {
            *ret_target = target;
            return 0;
        }
        if (more < 0) {
            target_close(&target);
            errno = errnum;
            return -1;
        }
        base = target.directory;
    }
    if (base != AT_FDCWD)
        close(base);
    errno = ELOOP;
    return -1;
}
