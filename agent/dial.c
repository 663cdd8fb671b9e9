#include "agent/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/forward.h"
#include "agent/ring.h"

#define DIALS_MAX 1024
#define ADDRESSES_MAX 8
#define WINDOW_MAX ((uint64_t)256 << 10)
/* Of all connections, beyond the first window of each. */
#define WINDOWS_MAX ((uint64_t)16 << 20)
#define TIMEOUT_MS 5000 /* when the request names none */

struct address {
    struct sockaddr_storage room;
    socklen_t len;
};

struct dial {
    struct agent *agent;
    struct dial *next; /* in its bucket */
    struct conn *conn;
    uint32_t channel;
    uint16_t port;
    struct source source;
    struct watch watch;
    struct timer timer; /* of connecting */
    struct address addresses[ADDRESSES_MAX];
    size_t address_count, address_next;
    bool connected;

    /* stream 0, towards the program */
    struct ring ring;
    uint64_t received, limit, window;
    uint64_t total; /* UINT64_MAX: its END has not come */
    bool shut;      /* the program has been told of the end */
    bool deaf;      /* it takes no more: the rest is swallowed, its answer may still come */

    /* stream 1, from it */
    uint64_t sent, granted;
    bool readable; /* there may be more: edge-triggered */
    bool ended;
};

/* --- life ----------------------------------------------------------------------------------------
 */

static struct dial **bucket_of(struct agent *agent, uint32_t channel)
{
    return &agent->dials[channel % DIAL_BUCKETS];
}

static struct dial *find(const struct conn *conn, uint32_t channel)
{
    struct dial *dial = *bucket_of(conn->agent, channel);
    while (dial != NULL && (dial->conn != conn || dial->channel != channel))
        dial = dial->next;
    return dial;
}

static void dial_free(struct dial *dial)
{
    struct agent *agent = dial->agent;
    struct dial **link = bucket_of(agent, dial->channel);
    while (*link != dial)
        link = &(*link)->next;
    *link = dial->next;
    agent->dial_count--;
    agent->dial_windows -= dial->window - PROTO_WINDOW;
    source_remove(&dial->source);
    timer_clear(&agent->loop, &dial->timer);
    loop_close(&agent->loop, &dial->watch);
    ring_free(&dial->ring);
    free(dial);
}

static void fail(struct dial *dial, const char *code, const char *what, int errnum)
{
    errno = errnum;
    conn_send_error(dial->conn, dial->channel, code, "port %u: %s%s%m", dial->port, what,
                    *what != '\0' ? ": " : "");
    dial_free(dial);
}

/* Both ways are through. */
static bool finish(struct dial *dial)
{
    if (!dial->ended || dial->total == UINT64_MAX || !(dial->shut || dial->deaf))
        return false;
    conn_send(dial->conn, dial->channel, FRAME_RESULT, NULL, 0);
    dial_free(dial);
    return true;
}

/* --- from the program ----------------------------------------------------------------------------
 */

static void want_bytes(struct dial *dial)
{
    if (dial->connected && dial->readable && !dial->ended && dial->sent < dial->granted)
        source_wake(dial->conn, &dial->source);
}

static void send_end(struct dial *dial)
{
    uint8_t payload[FRAME_DATA_HEADER];
    dial->ended = true;
    frame_data_header_write(payload, 1, dial->sent);
    conn_send(dial->conn, dial->channel, FRAME_END, payload, sizeof(payload));
}

/* Straight from the socket into the frame. */
static void pump(struct source *source)
{
    struct dial *dial = (struct dial *)(void *)((char *)source - offsetof(struct dial, source));
    struct conn *conn = dial->conn;
    uint64_t room = dial->granted - dial->sent;
    size_t max = room < FRAME_DATA_MAX ? (size_t)room : FRAME_DATA_MAX;
    if (max == 0) {
        source_remove(source);
        return;
    }
    uint8_t *frame = conn_reserve(conn, FRAME_HEADER_LEN + FRAME_DATA_HEADER + max);
    if (frame == NULL)
        return; /* the stream is lost, and this with it */
    ssize_t count =
        recv(dial->watch.fd, frame + FRAME_HEADER_LEN + FRAME_DATA_HEADER, max, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR)
        return;
    if (count < 0 && errno == EAGAIN) {
        dial->readable = false;
        source_remove(source);
        return;
    }
    if (count < 0) {
        fail(dial, "service_failed", "the connection broke", errno);
        return;
    }
    if (count == 0) {
        source_remove(source);
        send_end(dial);
        (void)finish(dial);
        return;
    }
    frame_header_write(frame, dial->channel, FRAME_DATA, FRAME_DATA_HEADER + (size_t)count);
    frame_data_header_write(frame + FRAME_HEADER_LEN, 1, dial->sent);
    conn_commit(conn, FRAME_HEADER_LEN + FRAME_DATA_HEADER + (size_t)count);
    dial->sent += (uint64_t)count;
}

/* --- towards the program -------------------------------------------------------------------------
 */

static void grant(struct dial *dial)
{
    struct agent *agent = dial->agent;
    uint64_t stored = dial->received - ring_len(&dial->ring);
    uint8_t payload[FRAME_CREDIT_LEN];
    /* The sender was about to wait, and the program had taken everything: it may have more. */
    if (stored == dial->received && dial->window < WINDOW_MAX &&
        dial->limit - dial->received < dial->window / 2 &&
        agent->dial_windows + dial->window <= WINDOWS_MAX) {
        agent->dial_windows += dial->window;
        dial->window *= 2;
    }
    if (stored + dial->window < dial->limit + dial->window / 2)
        return;
    dial->limit = stored + dial->window;
    frame_credit_write(payload, 0, stored, dial->limit);
    conn_send(dial->conn, dial->channel, FRAME_CREDIT, payload, sizeof(payload));
}

/* How much of it the program has taken, or would never take. */
static size_t write_some(struct dial *dial, const uint8_t *data, size_t len)
{
    size_t done = 0;
    while (!dial->deaf && done < len) {
        ssize_t count = send(dial->watch.fd, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return done;
        dial->deaf = count < 0;
        done += count > 0 ? (size_t)count : 0;
    }
    return len;
}

/* False when that was the end of it all. */
static bool push(struct dial *dial)
{
    const uint8_t *ptr = NULL;
    size_t len;
    while (dial->connected && (len = ring_peek(&dial->ring, dial->ring.start, &ptr)) > 0) {
        size_t done = write_some(dial, ptr, len);
        ring_drop(&dial->ring, dial->ring.start + done);
        if (done < len)
            break;
    }
    if (dial->connected && ring_len(&dial->ring) == 0 && dial->total == dial->received &&
        !dial->shut) {
        dial->shut = true;
        (void)shutdown(dial->watch.fd, SHUT_WR); /* fails only when it is closed already */
        return !finish(dial);
    }
    return true;
}

static bool take_data(struct dial *dial, const struct frame_data *data)
{
    size_t done = 0;
    if (data->offset != dial->received || data->len > dial->limit - dial->received ||
        dial->total != UINT64_MAX)
        return false;
    if (dial->connected && ring_len(&dial->ring) == 0) {
        done = write_some(dial, data->bytes, data->len);
        ring_reset(&dial->ring, dial->received + done);
    }
    if (done < data->len && !ring_append(&dial->ring, data->bytes + done, data->len - done))
        return false;
    dial->received += data->len;
    grant(dial);
    return true;
}

static bool take_end(struct dial *dial, uint64_t total)
{
    if (total != dial->received || dial->total != UINT64_MAX)
        return false;
    dial->total = total;
    (void)push(dial);
    return true;
}

/* --- connecting ----------------------------------------------------------------------------------
 */

/* The kernel may give a port that nobody listens on as its own other end. */
static bool is_itself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_len = sizeof(here), there_len = sizeof(there);
    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

static void connected(struct dial *dial)
{
    const int on = 1;
    dial->connected = true;
    timer_clear(&dial->agent->loop, &dial->timer);
    (void)setsockopt(dial->watch.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    conn_send(dial->conn, dial->channel, FRAME_STARTED, NULL, 0);
    if (!push(dial))
        return;
    grant(dial);
    dial->readable = true;
    want_bytes(dial);
}

static void on_ready(struct watch *watch, uint32_t events);

/* Begins with the next address; 0: there, EINPROGRESS: it goes on, else why not. */
static int begin_next(struct dial *dial)
{
    const struct address *address = &dial->addresses[dial->address_next++];
    struct loop *loop = &dial->agent->loop;
    loop_close(loop, &dial->watch);
    int fd = socket(address->room.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int errnum = errno;
    dial->watch = (struct watch){.fd = fd, .ready = on_ready};
    if (fd < 0)
        return errnum;
    if (agent_is_crowded(dial->agent, fd))
        return EMFILE;
    if (connect(fd, (const struct sockaddr *)&address->room, address->len) < 0 &&
        errno != EINPROGRESS)
        return errno;
    errnum = errno == EINPROGRESS ? EINPROGRESS : 0;
    if (loop_watch(loop, &dial->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) < 0)
        return errno;
    return errnum;
}

/* Tries what is left, in order, after ERRNUM from the last. The first refusal is the one to tell:
 * it is loopback's. */
static void try_on(struct dial *dial, int errnum)
{
    while (errnum != 0 && dial->address_next < dial->address_count) {
        int next = begin_next(dial);
        if (next == EINPROGRESS)
            return;
        errnum = next == 0 || next == EMFILE ? next : errnum;
    }
    if (errnum == 0 && !is_itself(dial->watch.fd)) {
        connected(dial);
        return;
    }
    errnum = errnum == 0 || errnum == EINPROGRESS ? ECONNREFUSED : errnum;
    fail(dial, errnum == EMFILE ? "busy" : "port_closed", "nothing answers in the sandbox", errnum);
}

static void check_connected(struct dial *dial)
{
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (getsockopt(dial->watch.fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0)
        errnum = errno;
    if (errnum == 0 && is_itself(dial->watch.fd))
        errnum = ECONNREFUSED;
    try_on(dial, errnum);
}

static void on_ready(struct watch *watch, uint32_t events)
{
    struct dial *dial = (struct dial *)(void *)((char *)watch - offsetof(struct dial, watch));
    if (!dial->connected) {
        check_connected(dial);
        return;
    }
    if ((events & EPOLLOUT) != 0) {
        if (!push(dial))
            return;
        grant(dial);
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0) {
        dial->readable = true;
        want_bytes(dial);
    }
}

static void on_timer(struct timer *timer)
{
    struct dial *dial = (struct dial *)(void *)((char *)timer - offsetof(struct dial, timer));
    fail(dial, "timeout", "not connected in time", ETIMEDOUT);
}

/* 127.0.0.1, ::1, then what other addresses the sandbox has. */
static void list_addresses(struct dial *dial)
{
    struct ifaddrs *list = NULL;
    static const int families[] = {AF_INET, AF_INET6};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        struct address *address = &dial->addresses[dial->address_count++];
        address->len = forward_loopback(families[i], dial->port, &address->room);
    }
    if (getifaddrs(&list) < 0)
        return;
    for (struct ifaddrs *entry = list; entry != NULL && dial->address_count < ADDRESSES_MAX;
         entry = entry->ifa_next) {
        struct address *address = &dial->addresses[dial->address_count];
        dial->address_count += forward_address(entry, dial->port, &address->room, &address->len);
    }
    freeifaddrs(list);
}

void dial_open(struct conn *conn, uint32_t channel, const struct message *message)
{
    struct agent *agent = conn->agent;
    uint64_t port = message_u64(message, TAG_PORT, 0);
    uint64_t timeout_ms = message_u64(message, TAG_TIMEOUT_MS, TIMEOUT_MS);
    if (port == 0 || port > UINT16_MAX || timeout_ms > INT32_MAX) {
        conn_send_error(conn, channel, "invalid_field", "PORT or TIMEOUT_MS is out of range");
        return;
    }
    struct dial *dial = agent->dial_count < DIALS_MAX ? calloc(1, sizeof(*dial)) : NULL;
    if (dial == NULL) {
        conn_send_error(conn, channel, "busy", "too many connections at once");
        return;
    }
    dial->agent = agent;
    dial->conn = conn;
    dial->channel = channel;
    dial->port = (uint16_t)port;
    dial->source.pump = pump;
    dial->watch.fd = -1;
    dial->timer.fire = on_timer;
    dial->total = UINT64_MAX;
    dial->limit = dial->window = dial->granted = PROTO_WINDOW;
    struct dial **bucket = bucket_of(agent, channel);
    dial->next = *bucket;
    *bucket = dial;
    agent->dial_count++;
    timer_set(&agent->loop, &dial->timer, now_ms() + (int64_t)timeout_ms);
    list_addresses(dial);
    try_on(dial, EINPROGRESS);
}

/* --- frames --------------------------------------------------------------------------------------
 */

bool dial_frame(struct conn *conn, const struct frame *frame, bool *ret_broken)
{
    struct dial *dial = find(conn, frame->channel);
    struct frame_data data;
    struct frame_credit credit;
    if (dial == NULL)
        return false;
    if (frame->type == FRAME_CREDIT) {
        *ret_broken = !frame_credit_read(frame, &credit) || credit.stream != 1;
        if (!*ret_broken && credit.limit > dial->granted) {
            dial->granted = credit.limit;
            want_bytes(dial);
        }
        return true;
    }
    *ret_broken =
        !frame_data_read(frame, &data) || data.stream != 0 ||
        !(frame->type == FRAME_END ? take_end(dial, data.offset) : take_data(dial, &data));
    return true;
}

bool dial_message(struct conn *conn, uint32_t channel, uint8_t type)
{
    struct dial *dial = find(conn, channel);
    if (dial == NULL)
        return false;
    if (type == FRAME_CANCEL)
        fail(dial, "cancelled", "", ECANCELED);
    return true;
}

void dial_stream_lost(struct conn *conn)
{
    for (size_t i = 0; i < DIAL_BUCKETS; i++) {
        for (struct dial *dial = conn->agent->dials[i], *next; dial != NULL; dial = next) {
            next = dial->next;
            if (dial->conn == conn)
                dial_free(dial);
        }
    }
}
