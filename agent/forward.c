#include "agent/forward.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256
#define CHUNK 16384

/* One direction; `from` and `to` are sides of the connection. */
struct half {
    size_t at, len;
    bool ended; /* no more to read */
    bool shut;  /* and the other side was told so */
    uint8_t bytes[CHUNK];
};

struct side {
    struct watch watch;
    struct connection *connection;
};

struct connection {
    struct forwarder *forwarder;
    bool connected;
    struct side sides[2];  /* the client's, the program's */
    struct half halves[2]; /* from the side of that number to the other */
};

/* --- addresses
 * ------------------------------------------------------------------------------------- */

socklen_t forward_loopback(int family, uint16_t port, struct sockaddr_storage *ret_address)
{
    memset(ret_address, 0, sizeof(*ret_address));
    if (family == AF_INET) {
        struct sockaddr_in *address = (struct sockaddr_in *)ret_address;
        address->sin_family = AF_INET;
        address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address->sin_port = htons(port);
        return sizeof(*address);
    }
    struct sockaddr_in6 *address = (struct sockaddr_in6 *)ret_address;
    address->sin6_family = AF_INET6;
    address->sin6_addr.s6_addr[15] = 1;
    address->sin6_port = htons(port);
    return sizeof(*address);
}

bool forward_address(const struct ifaddrs *entry, uint16_t port,
                     struct sockaddr_storage *ret_address, socklen_t *ret_len)
{
    if (entry->ifa_addr == NULL || (entry->ifa_flags & IFF_LOOPBACK) != 0 ||
        (entry->ifa_flags & IFF_UP) == 0)
        return false;
    if (entry->ifa_addr->sa_family == AF_INET) {
        memcpy(ret_address, entry->ifa_addr, sizeof(struct sockaddr_in));
        ((struct sockaddr_in *)ret_address)->sin_port = htons(port);
        *ret_len = sizeof(struct sockaddr_in);
        return true;
    }
    if (entry->ifa_addr->sa_family != AF_INET6)
        return false;
    memcpy(ret_address, entry->ifa_addr, sizeof(struct sockaddr_in6));
    ((struct sockaddr_in6 *)ret_address)->sin6_port = htons(port);
    *ret_len = sizeof(struct sockaddr_in6);
    return !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)ret_address)->sin6_addr);
}

/* --- connections
 * ----------------------------------------------------------------------------------- */

static void watch_listeners(struct forwarder *forwarder)
{
    uint32_t events = forwarder->connections < CONNECTIONS_MAX ? EPOLLIN : 0u;
    for (size_t i = 0; i < forwarder->listener_count; i++)
        (void)loop_watch(&forwarder->loop, &forwarder->listeners[i].watch, events);
}

static void connection_close(struct connection *connection)
{
    struct forwarder *forwarder = connection->forwarder;
    loop_close(&forwarder->loop, &connection->sides[0].watch);
    loop_close(&forwarder->loop, &connection->sides[1].watch);
    free(connection);
    forwarder->connections--;
    watch_listeners(forwarder);
}

static bool fill(struct half *half, int fd)
{
    ssize_t count = recv(fd, half->bytes, sizeof(half->bytes), 0);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR;
    half->at = 0;
    half->len = (size_t)count;
    half->ended = count == 0;
    return true;
}

static bool drain(struct half *half, int fd)
{
    if (half->at < half->len) {
        ssize_t count = send(fd, half->bytes + half->at, half->len - half->at, MSG_NOSIGNAL);
        if (count < 0)
            return errno == EAGAIN || errno == EINTR;
        half->at += (size_t)count;
    }
    if (half->ended && half->at == half->len && !half->shut) {
        half->shut = true;
        return shutdown(fd, SHUT_WR) == 0;
    }
    return true;
}

/* What each side waits for; a side that waits for nothing is taken off, for a hang-up would be told
 * again and again. */
static bool update(struct connection *connection)
{
    for (int i = 0; i < 2; i++) {
        const struct half *in = &connection->halves[i], *out = &connection->halves[!i];
        bool idle = i == 1 && !connection->connected;
        uint32_t events = 0;
        if (!idle && in->at == in->len && !in->ended)
            events |= EPOLLIN;
        if (idle || out->at < out->len)
            events |= EPOLLOUT;
        if (loop_watch(&connection->forwarder->loop, &connection->sides[i].watch, events) < 0)
            return false;
    }
    return !(connection->halves[0].shut && connection->halves[1].shut);
}

static bool check_connected(struct connection *connection)
{
    int error = 0;
    socklen_t len = sizeof(error);
    int fd = connection->sides[1].watch.fd;
    connection->connected = true;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0;
}

static void on_side(struct watch *watch, uint32_t events)
{
    struct side *side = (struct side *)(void *)((char *)watch - offsetof(struct side, watch));
    struct connection *connection = side->connection;
    int from = side == &connection->sides[1];
    struct half *in = &connection->halves[from], *out = &connection->halves[!from];
    bool good = true;
    if (from == 1 && !connection->connected)
        good = check_connected(connection);
    if (good && (events & ~(uint32_t)EPOLLOUT) != 0 && in->at == in->len && !in->ended)
        good = fill(in, watch->fd);
    if (good)
        good = drain(out, watch->fd);
    if (good && (from == 1 || connection->connected))
        good = drain(in, connection->sides[!from].watch.fd);
    if (!good || !update(connection))
        connection_close(connection);
}

static void on_listener(struct watch *watch, uint32_t events)
{
    (void)events;
    struct forward_listener *listener =
        (struct forward_listener *)(void *)((char *)watch -
                                            offsetof(struct forward_listener, watch));
    struct forwarder *forwarder = listener->forwarder;
    int client = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0)
        return;
    int program =
        socket(forwarder->target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct connection *connection = calloc(1, sizeof(*connection));
    bool good = program >= 0 && connection != NULL;
    if (good &&
        connect(program, (const struct sockaddr *)&forwarder->target, forwarder->target_len) < 0)
        good = errno == EINPROGRESS;
    if (!good) {
        close(client);
        if (program >= 0)
            close(program);
        free(connection);
        return;
    }
    connection->forwarder = forwarder;
    for (int i = 0; i < 2; i++) {
        connection->sides[i].connection = connection;
        connection->sides[i].watch.fd = i == 0 ? client : program;
        connection->sides[i].watch.ready = on_side;
    }
    forwarder->connections++;
    watch_listeners(forwarder);
    if (!update(connection))
        connection_close(connection);
}

/* --- life
 * ------------------------------------------------------------------------------------------ */

static int listen_at(const struct sockaddr *address, socklen_t len)
{
    int one = 1;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, address, len) < 0 || listen(fd, 128) < 0) {
        int errnum = errno;
        close(fd);
        errno = errnum;
        return -1;
    }
    return fd;
}

int forward_open(struct forwarder *forwarder, uint16_t port, bool target_ipv6)
{
    struct ifaddrs *list = NULL;
    int errnum = 0;
    *forwarder = (struct forwarder){.control.fd = -1};
    forwarder->target_len =
        forward_loopback(target_ipv6 ? AF_INET6 : AF_INET, port, &forwarder->target);
    if (getifaddrs(&list) < 0)
        return -1;
    for (struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        struct sockaddr_storage address;
        socklen_t len;
        if (forwarder->listener_count == FORWARD_LISTENERS ||
            !forward_address(entry, port, &address, &len))
            continue;
        int fd = listen_at((const struct sockaddr *)&address, len);
        if (fd < 0) {
            errnum = errno;
            continue;
        }
        struct forward_listener *listener = &forwarder->listeners[forwarder->listener_count++];
        listener->watch = (struct watch){.fd = fd, .ready = on_listener};
        listener->forwarder = forwarder;
    }
    freeifaddrs(list);
    errno = errnum;
    return forwarder->listener_count == 0 && errnum != 0 ? -1 : 0;
}

static void on_control(struct watch *watch, uint32_t events)
{
    struct forwarder *forwarder =
        (struct forwarder *)(void *)((char *)watch - offsetof(struct forwarder, control));
    uint8_t byte;
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0 && recv(watch->fd, &byte, 1, 0) != 0)
        return; /* credit that came late */
    /* The port first: PID 1 waits for the socket to close, and then it has to be free. */
    for (size_t i = 0; i < forwarder->listener_count; i++)
        loop_close(&forwarder->loop, &forwarder->listeners[i].watch);
    _exit(0);
}

_Noreturn void forward_run(struct forwarder *forwarder, int control)
{
    if (loop_init(&forwarder->loop) < 0)
        _exit(1);
    forwarder->control = (struct watch){.fd = control, .ready = on_control};
    (void)loop_watch(&forwarder->loop, &forwarder->control, EPOLLIN | EPOLLRDHUP);
    watch_listeners(forwarder);
    for (;;)
        loop_turn(&forwarder->loop);
}
