#include "agent/helper.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/descriptors.h"
#include "agent/worker.h"

union control_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* The next request's socket; -1 when PID 1 has ended or let go of us. */
static int receive_socket(int control)
{
    for (;;) {
        union control_room room;
        char byte;
        struct iovec piece = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &piece,
                                 .msg_iovlen = 1,
                                 .msg_control = room.bytes,
                                 .msg_controllen = sizeof(room.bytes)};
        ssize_t count = recvmsg(control, &message, MSG_CMSG_CLOEXEC);
        if (count < 0 && errno == EINTR)
            continue;
        struct cmsghdr *header = count > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (count <= 0)
            return -1;
        if (header == NULL || header->cmsg_type != SCM_RIGHTS)
            continue;
        int fd;
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        return fd;
    }
}

static _Noreturn void run(struct agent *agent, int control)
{
    const int standard[3] = {0, 1, 2};
    sigset_t mask;
    agent_wipe_secrets(agent);
    control = descriptors_arrange(standard, control);
    if (control < 0)
        _exit(1);
    /* Nothing but KILL ends it; the workers are not waited for. */
    sigfillset(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    (void)signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = receive_socket(control);
        if (fd < 0)
            _exit(0);
        pid_t pid = fork();
        if (pid == 0) {
            close(control);
            worker_run(fd);
        }
        if (pid < 0)
            worker_refuse(fd, errno);
        close(fd);
    }
}

int helper_start(struct agent *agent)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        run(agent, pair[1]);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return -1;
    }
    agent->helper.pid = pid;
    agent->helper.watch.fd = pair[0];
    return 0;
}

void helper_restart(struct agent *agent)
{
    loop_close(&agent->loop, &agent->helper.watch);
    agent->helper.pid = 0;
    /* Without one, requests about files are answered with `busy`; the next of them tries again. */
    if (helper_start(agent) < 0)
        (void)fprintf(stderr, "podsandbox-agent: helper: %m\n");
}

bool helper_give(struct agent *agent, int fd)
{
    union control_room room;
    char byte = 0;
    struct iovec piece = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof(room.bytes)};
    if (agent->helper.watch.fd < 0 && helper_start(agent) < 0)
        return false;
    memset(&room, 0, sizeof(room));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    return sendmsg(agent->helper.watch.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}
