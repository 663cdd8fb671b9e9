#include "agent/install.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static bool copy(int from, int to)
{
    char bytes[65536];
    for (;;) {
        ssize_t count = read(from, bytes, sizeof(bytes));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count == 0;
        for (ssize_t at = 0; at < count;) {
            ssize_t written = write(to, bytes + at, (size_t)(count - at));
            if (written < 0 && errno != EINTR)
                return false;
            at += written > 0 ? written : 0;
        }
    }
}

static bool copy_to(const char *path)
{
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (from < 0)
        return false;
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    bool done = to >= 0 && copy(from, to) && fchmod(to, 0755) == 0;
    if (to >= 0 && close(to) < 0)
        done = false;
    int errnum = errno;
    close(from);
    errno = errnum;
    return done;
}

int install(const char *directory)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    int len = snprintf(path, sizeof(path), "%s/podsandbox-agent", directory);
    int temporary_len =
        snprintf(temporary, sizeof(temporary), "%s/.podsandbox-agent.%d", directory, (int)getpid());
    if (len < 0 || temporary_len < 0 || (size_t)temporary_len >= sizeof(temporary) ||
        (size_t)len >= sizeof(path)) {
        (void)fprintf(stderr, "podsandbox-agent: the name of the directory is too long\n");
        return 1;
    }
    (void)unlink(temporary); /* what an install that was killed has left behind */
    if (!copy_to(temporary) || rename(temporary, path) < 0) {
        (void)fprintf(stderr, "podsandbox-agent: %s: %m\n", path);
        (void)unlink(temporary);
        return 1;
    }
    return 0;
}
