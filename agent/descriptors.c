#include "agent/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

void descriptors_close_from(int first)
{
    struct rlimit limit;
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
        return;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 65536)
        limit.rlim_cur = 65536;
    for (int fd = first; fd < (int)limit.rlim_cur; fd++)
        close(fd);
}

int descriptors_arrange(const int standard[3], int extra)
{
    int moved[4] = {-1, -1, -1, -1};
    /* First all of them above 3, so that none is overwritten before it is copied. */
    for (int i = 0; i < 3; i++)
        moved[i] = fcntl(standard[i], F_DUPFD_CLOEXEC, 4);
    moved[3] = fcntl(extra, F_DUPFD_CLOEXEC, 4);
    for (int i = 0; i < 4; i++) {
        if (moved[i] < 0)
            return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (dup2(moved[i], i) < 0)
            return -1;
    }
    if (dup3(moved[3], 3, O_CLOEXEC) < 0)
        return -1;
    descriptors_close_from(4);
    return 3;
}

ssize_t packet_receive(int fd, void *buffer, size_t size)
{
    /* A peer that went with packets of ours unread is told first, once (ECONNRESET), and what it
     * had still said comes after that. */
    for (int resets = 0;;) {
        ssize_t count = recv(fd, buffer, size, MSG_DONTWAIT);
        if (count >= 0 || (errno != EINTR && errno != ECONNRESET))
            return count;
        if (errno == ECONNRESET && ++resets > 1)
            return 0;
    }
}
