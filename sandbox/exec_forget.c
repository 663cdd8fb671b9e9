/* The journals of a sandbox go with its tombstone. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "sandbox/sandbox.h"

void execs_forget(struct sandboxes *all, const char *uid)
{
    cleanup_free char *path = xasprintf("%s/%s", all->config.data_dir, uid);
    DIR *dir = opendir(path);
    if (!dir) {
        return; /* it never had one */
    }
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe): our own stream */
        if (entry->d_name[0] != '.' && unlinkat(dirfd(dir), entry->d_name, 0) < 0) {
            log_event(LOG_LEVEL_WARN, "journal not removed", "uid", uid, "error",
                      strerrordesc_np(errno), NULL);
        }
    }
    (void)closedir(dir); /* it was only read */
    if (rmdir(path) < 0) {
        log_event(LOG_LEVEL_WARN, "journals not removed", "uid", uid, "error",
                  strerrordesc_np(errno), NULL);
    }
}
