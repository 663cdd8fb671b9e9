#include "agent/info.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_new(const char *path, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return false;
    bool done = write(fd, data, len) == (ssize_t)len && fchmod(fd, 0444) == 0;
    close(fd);
    return done;
}

const char *info_write(const void *data, size_t len)
{
    static const struct {
        const char *path, *unfinished;
    } places[] = {{"/run/sandbox.json", "/run/.sandbox.json.new"},
                  {"/tmp/sandbox.json", "/tmp/.sandbox.json.new"}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void)unlink(places[i].unfinished);
        if (write_new(places[i].unfinished, data, len) &&
            rename(places[i].unfinished, places[i].path) == 0)
            return places[i].path;
        (void)unlink(places[i].unfinished);
    }
    return NULL;
}
