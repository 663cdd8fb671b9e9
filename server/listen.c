#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str.h"

#define BACKLOG 1024

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool parse_v6(const char *host, uint16_t port, union address *ret_address)
{
    *ret_address = (union address){.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    return inet_pton(AF_INET6, host, &ret_address->v6.sin6_addr) == 1;
}

static bool parse_v4(const char *host, uint16_t port, union address *ret_address)
{
    *ret_address = (union address){.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    return inet_pton(AF_INET, host, &ret_address->v4.sin_addr) == 1;
}

static bool parse(const char *text, union address *ret_address)
{
    const char *colon = strrchr(text, ':');
    uint64_t port;
    char host[64];

    if (!colon || !str_to_u64(str_of(colon + 1), UINT16_MAX, &port))
        return false;
    size_t len = (size_t)(colon - text);
    if (len >= sizeof(host))
        return false;
    if (len == 0)
        return parse_v6("::", (uint16_t)port, ret_address);
    if (text[0] == '[' && text[len - 1] == ']') {
        memcpy(host, text + 1, len - 2);
        host[len - 2] = '\0';
        return parse_v6(host, (uint16_t)port, ret_address);
    }
    memcpy(host, text, len);
    host[len] = '\0';
    return parse_v4(host, (uint16_t)port, ret_address);
}

static bool is_loopback(const union address *address)
{
    if (address->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
    return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
}

int listen_open(const char *address, bool local_only, int *ret_fd, int *ret_port, struct err *err)
{
    union address bound;
    const int on = 1;

    if (!parse(address, &bound))
        return err_set(err, ERR_CONFIG, "--listen '%s' is not ADDRESS:PORT, like 127.0.0.1:8080",
                       address);
    if (local_only && !is_loopback(&bound))
        return err_set(err, ERR_CONFIG,
                       "--listen %s is open to other machines, and without --api-keys-file anyone "
                       "could run commands: name a keys file, or listen on 127.0.0.1",
                       address);
    socklen_t size = bound.any.sa_family == AF_INET6 ? sizeof(bound.v6) : sizeof(bound.v4);
    cleanup_fd int fd = socket(bound.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
        bind(fd, &bound.any, size) || listen(fd, BACKLOG) || getsockname(fd, &bound.any, &size))
        return err_errno(err, ERR_CONFIG, errno, "listen on %s", address);
    *ret_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    *ret_fd = TAKE_FD(fd);
    return 0;
}
