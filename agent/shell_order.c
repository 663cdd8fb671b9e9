/* Orders to run a text, with the descriptors that belong to it. */
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "agent/shell.h"

#define FDS_LEN (RUN_FDS * sizeof(int))
#define ANCILLARY_LEN CMSG_SPACE(FDS_LEN)

union ancillary {
    struct cmsghdr header;
    char room[ANCILLARY_LEN];
};

int shell_order_send(int control, const struct supervisor_order *order, const int fds[RUN_FDS])
{
    union ancillary ancillary = {.room = {0}};
    struct iovec piece = {.iov_base = (void *)(uintptr_t)order, .iov_len = sizeof(*order)};
    struct msghdr packet = {.msg_iov = &piece,
                            .msg_iovlen = 1,
                            .msg_control = &ancillary,
                            .msg_controllen = sizeof(ancillary)};
    ancillary.header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(FDS_LEN)};
    memcpy(CMSG_DATA(&ancillary.header), fds, FDS_LEN);
    return sendmsg(control, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

ssize_t shell_order_receive(int control, struct supervisor_order *ret_order, int ret_fds[RUN_FDS],
                            bool *ret_text)
{
    union ancillary ancillary;
    struct iovec piece = {.iov_base = ret_order, .iov_len = sizeof(*ret_order)};
    struct msghdr packet = {.msg_iov = &piece,
                            .msg_iovlen = 1,
                            .msg_control = &ancillary,
                            .msg_controllen = sizeof(ancillary)};
    ssize_t count = recvmsg(control, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = count < 0 ? NULL : CMSG_FIRSTHDR(&packet);
    *ret_text = header != NULL && header->cmsg_len == CMSG_LEN(FDS_LEN);
    if (*ret_text)
        memcpy(ret_fds, CMSG_DATA(header), FDS_LEN);
    return count;
}
