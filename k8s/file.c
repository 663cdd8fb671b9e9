#include "k8s/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"

int file_read(const char *path, struct buf *out, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "cannot open %s", path);
    for (;;) {
        char chunk[8192];
        ssize_t got = read(fd, chunk, sizeof(chunk));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(err, ERR_CONFIG, errno, "cannot read %s", path);
        if (got == 0)
            return 0;
        if (!buf_append(out, chunk, (size_t)got))
            return err_set(err, ERR_CONFIG, "%s is larger than %zu bytes", path, out->max);
    }
}
