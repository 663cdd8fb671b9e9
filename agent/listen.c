#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "agent/tree_kill.h"

#define PENDING_MAX 8
#define LISTEN_AGAIN_MS 100

/* On the abstract socket every process of the sandbox can connect. Let in is only one that was put
 * into the PID namespace from outside: its parent is not in it. A peer that seems to be ourselves,
 * or nobody, means that the kernel reports nothing usable (or another PID namespace). */
static bool from_outside(pid_t peer)
{
    return peer > 0 && peer != getpid() && process_parent(peer) == 0;
}

static void on_connection(struct watch *watch, uint32_t events)
{
    (void)events;
    struct agent *agent =
        (struct agent *)(void *)((char *)watch - offsetof(struct agent, listener));
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Out of descriptors, perhaps: the listener would be ready again and again. */
        (void)loop_watch(&agent->loop, &agent->listener, 0);
        timer_set(&agent->loop, &agent->listen_again, now_ms() + LISTEN_AGAIN_MS);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        peer.pid = 0;
    bool abstract = agent->options.listen_fd < 0;
    if ((abstract && !from_outside(peer.pid)) || agent->pending_count >= PENDING_MAX) {
        close(fd);
        return;
    }
    (void)conn_new(agent, fd, abstract ? peer.pid : 0);
}

static void on_listen_again(struct timer *timer)
{
    struct agent *agent =
        (struct agent *)(void *)((char *)timer - offsetof(struct agent, listen_again));
    (void)loop_watch(&agent->loop, &agent->listener, EPOLLIN);
}

static int open_abstract(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof(PROTO_SOCKET));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    memcpy(address.sun_path + 1, PROTO_SOCKET, sizeof(PROTO_SOCKET) - 1);
    if (bind(fd, (const struct sockaddr *)&address, len) < 0 || listen(fd, 16) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int listener_open(struct agent *agent)
{
    int fd = agent->options.listen_fd;
    if (fd < 0)
        fd = open_abstract();
    else if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        return -1;
    if (fd < 0)
        return -1;
    agent->listen_again.fire = on_listen_again;
    agent->listener = (struct watch){.fd = fd, .ready = on_connection};
    return loop_watch(&agent->loop, &agent->listener, EPOLLIN);
}
