#include "agent/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/forward.h"
#include "agent/loop.h"
#include "agent/worker.h"

#define STATE_LISTEN 0x0a
#define FAST_MS 20 /* between two looks, at first */
#define SLOW_MS 1000
#define PAUSE_PART 20 /* later: a part of the time that has passed */
#define CONNECT_MS 200

/* --- the kernel's table
 * ---------------------------------------------------------------------------- */

static bool hex(const char **text, size_t digits, uint32_t *ret_value)
{
    uint32_t value = 0;
    for (size_t i = 0; i < digits; i++, *text += 1) {
        char c = **text;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return false;
        value = value << 4 | digit;
    }
    *ret_value = value;
    return true;
}

/* "  12: LOCAL:PORT REMOTE:PORT STATE …": an address is one number, or four, in the machine's own
 * order. False when nobody listens there. */
static bool read_line(const char *line, struct port_listener *ret_listener)
{
    struct port_listener listener = {.port = 0};
    uint32_t port, state;
    const char *text = strchr(line, ':');
    if (text == NULL)
        return false;
    for (text++; *text == ' ';)
        text++;
    while (listener.count < 4 && hex(&text, 8, &listener.words[listener.count]))
        listener.count++;
    if ((listener.count != 1 && listener.count != 4) || *text++ != ':' || !hex(&text, 4, &port))
        return false;
    if ((text = strchr(text + 1, ' ')) == NULL)
        return false;
    text++;
    if (!hex(&text, 2, &state) || state != STATE_LISTEN)
        return false;
    listener.port = (uint16_t)port;
    *ret_listener = listener;
    return true;
}

bool port_each(const char *path, void (*fn)(void *arg, const struct port_listener *listener),
               void *arg)
{
    static char bytes[16384];
    size_t have = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (;;) {
        ssize_t count = read(fd, bytes + have, sizeof(bytes) - 1 - have);
        if (count <= 0)
            break;
        have += (size_t)count;
        bytes[have] = '\0';
        char *line = bytes, *end;
        while ((end = strchr(line, '\n')) != NULL) {
            struct port_listener listener;
            *end = '\0';
            if (read_line(line, &listener))
                fn(arg, &listener);
            line = end + 1;
        }
        have = (size_t)(bytes + have - line);
        memmove(bytes, line, have);
    }
    close(fd);
    return true;
}

struct look {
    uint16_t port;
    enum port_state state;
};

static enum port_state state_of(const struct port_listener *listener)
{
    if (listener->count == 1)
        return ntohl(listener->words[0]) >> 24 == 127 ? PORT_LOOPBACK4 : PORT_OPEN;
    struct in6_addr address;
    memcpy(&address, listener->words, sizeof(address));
    if (IN6_IS_ADDR_LOOPBACK(&address))
        return PORT_LOOPBACK6;
    return IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127 ? PORT_LOOPBACK4
                                                                        : PORT_OPEN;
}

static void look_at(void *arg, const struct port_listener *listener)
{
    struct look *look = arg;
    enum port_state found = listener->port == look->port ? state_of(listener) : PORT_FREE;
    look->state = found > look->state ? found : look->state;
}

/* --- without the table (gVisor): knock
 * -------------------------------------------------------------- */

static bool connects(const struct sockaddr *address, socklen_t len)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    int error = 0;
    socklen_t error_len = sizeof(error);
    if (connect(fd, address, len) < 0) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        error = errno;
        if (error == EINPROGRESS && poll(&ready, 1, CONNECT_MS) == 1 &&
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) < 0)
            error = errno;
    }
    close(fd);
    return error == 0;
}

static enum port_state knock(uint16_t port)
{
    struct sockaddr_storage address;
    socklen_t len;
    struct ifaddrs *list = NULL;
    enum port_state state = PORT_FREE;
    if (getifaddrs(&list) < 0)
        list = NULL;
    for (struct ifaddrs *entry = list; entry != NULL && state != PORT_OPEN;
         entry = entry->ifa_next) {
        if (forward_address(entry, port, &address, &len) &&
            connects((const struct sockaddr *)&address, len))
            state = PORT_OPEN;
    }
    if (list != NULL)
        freeifaddrs(list);
    if (state == PORT_FREE && (len = forward_loopback(AF_INET, port, &address)) > 0 &&
        connects((const struct sockaddr *)&address, len))
        state = PORT_LOOPBACK4;
    if (state == PORT_FREE && (len = forward_loopback(AF_INET6, port, &address)) > 0 &&
        connects((const struct sockaddr *)&address, len))
        state = PORT_LOOPBACK6;
    return state;
}

enum port_state port_look(uint16_t port)
{
    struct look look = {.port = port, .state = PORT_FREE};
    bool known4 = port_each("/proc/net/tcp", look_at, &look);
    bool known6 = port_each("/proc/net/tcp6", look_at, &look);
    return known4 || known6 ? look.state : knock(port);
}

/* --- OP_PORT_WAIT
 * ----------------------------------------------------------------------------------- */

static void answer(struct worker *worker, bool ready, bool forwards)
{
    struct reply reply;
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_READY, ready);
    if (forwards)
        field_put_u64(&reply.fields, TAG_FORWARD, 1);
    worker_reply(worker, FRAME_RESULT, &reply);
}

static void found(struct worker *worker, uint16_t port, enum port_state state)
{
    static struct forwarder forwarder;
    bool forward = message_u64(&worker->request, TAG_FORWARD, 0) != 0 && state != PORT_OPEN;
    if (forward && forward_open(&forwarder, port, state == PORT_LOOPBACK6) < 0) {
        worker_error(worker, "service_failed", "forward port %u: %m", port);
        return;
    }
    forward = forward && forwarder.listener_count > 0;
    answer(worker, true, forward);
    if (forward)
        forward_run(&forwarder, worker->fd);
}

int port_pause_ms(uint64_t passed_ms, uint64_t timeout_ms)
{
    uint64_t pause = passed_ms / PAUSE_PART;
    if (pause < FAST_MS)
        pause = FAST_MS;
    if (pause > SLOW_MS)
        pause = SLOW_MS;
    return (int)(pause < timeout_ms - passed_ms ? pause : timeout_ms - passed_ms);
}

void op_port_wait(struct worker *worker)
{
    uint16_t port = (uint16_t)message_u64(&worker->request, TAG_PORT, 0); /* PID 1 has checked it */
    uint64_t timeout_ms = message_u64(&worker->request, TAG_TIMEOUT_MS, 0);
    int64_t began = now_ms();
    for (;;) {
        enum port_state state = port_look(port);
        int64_t passed = now_ms() - began;
        if (state != PORT_FREE) {
            found(worker, port, state);
            return;
        }
        if ((uint64_t)passed >= timeout_ms) {
            answer(worker, false, false);
            return;
        }
        struct pollfd ready = {.fd = worker->fd, .events = POLLIN};
        int pause = port_pause_ms((uint64_t)passed, timeout_ms);
        if (poll(&ready, 1, pause) > 0 && worker_is_cancelled(worker))
            return;
    }
}
