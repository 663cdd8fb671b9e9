#include "agent/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/proto.h"

#define CHUNK 65536

/* One direction: what was read and not yet written. */
struct half {
    int from, to;
    size_t at, len;
    bool ended;  /* nothing more comes from `from` */
    bool closed; /* `to` was told so */
    unsigned char bytes[CHUNK];
};

static int connect_agent(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof(PROTO_SOCKET));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    memcpy(address.sun_path + 1, PROTO_SOCKET, sizeof(PROTO_SOCKET) - 1);
    if (connect(fd, (const struct sockaddr *)&address, len) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The descriptors are shared with whoever started us and stay as they are (blocking), so each call
 * moves only what poll() has promised: reads return what there is; a socket write is MSG_DONTWAIT;
 * and a pipe that is writable takes at least PIPE_BUF bytes at once. */
static bool move_in(struct half *half)
{
    ssize_t count = read(half->from, half->bytes, sizeof(half->bytes));
    if (count < 0)
        return errno == EINTR || errno == EAGAIN;
    half->at = 0;
    half->len = (size_t)count;
    half->ended = count == 0;
    return true;
}

static bool move_out(struct half *half)
{
    size_t len = half->len - half->at;
    ssize_t count = send(half->to, half->bytes + half->at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == ENOTSOCK)
        count = write(half->to, half->bytes + half->at, len < 4096 ? len : 4096);
    if (count < 0)
        return errno == EINTR || errno == EAGAIN;
    half->at += (size_t)count;
    return true;
}

static bool empty(const struct half *half)
{
    return half->at == half->len;
}

static void want(const struct half *half, struct pollfd *from, struct pollfd *to)
{
    *from = (struct pollfd){.fd = empty(half) && !half->ended ? half->from : -1, .events = POLLIN};
    *to = (struct pollfd){.fd = half->closed ? -1 : half->to,
                          .events = (short)(empty(half) ? 0 : POLLOUT)};
}

static bool turn(struct half *half, const struct pollfd *from, const struct pollfd *to)
{
    if (from->fd >= 0 && from->revents != 0 && !move_in(half))
        return false;
    if (to->fd >= 0 && (to->revents & POLLOUT) != 0 && !move_out(half))
        return false;
    /* Nobody is left to read this. */
    return to->fd < 0 || (to->revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

static void splice_all(struct half *in, struct half *out)
{
    struct pollfd fds[4];
    for (;;) {
        want(in, &fds[0], &fds[1]);
        want(out, &fds[2], &fds[3]);
        if (poll(fds, 4, -1) < 0 && errno != EINTR)
            return;
        if (!turn(out, &fds[2], &fds[3]))
            return;
        if (out->ended && empty(out))
            return; /* the agent has closed and all of it is handed on */
        if (!turn(in, &fds[0], &fds[1])) {
            /* The agent reads no more; what it has still said goes out. */
            in->ended = in->closed = true;
            in->at = in->len;
        }
        if (in->ended && empty(in) && !in->closed) {
            (void)shutdown(in->to, SHUT_WR);
            in->closed = true;
        }
    }
}

int attach(void)
{
    static struct half in, out;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN); /* the end of the sandbox comes through the socket */
    int fd = connect_agent();
    if (fd < 0) {
        (void)fprintf(stderr, "podsandbox-agent: no agent here: %m\n");
        return 1;
    }
    in = (struct half){.from = STDIN_FILENO, .to = fd};
    out = (struct half){.from = fd, .to = STDOUT_FILENO};
    splice_all(&in, &out);
    return 0;
}
