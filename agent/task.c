#include "agent/task.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/descriptors.h"
#include "agent/exec.h"
#include "agent/helper.h"

#define TASKS_MAX 256
/* What the workers have not taken yet: requests, and what their credit allows. */
#define QUEUES_MAX ((size_t)16 << 20)
#define RELEASE_WAIT_MS 200

struct packet {
    struct packet *next;
    size_t len;
    uint8_t bytes[];
};

struct task {
    struct agent *agent;
    struct task *next;
    struct conn *conn; /* NULL: nobody waits for it any more */
    uint32_t channel;
    struct source source;
    struct watch watch;
    struct packet *queue, **queue_end;
    bool has_result;
    uint16_t port; /* of a PORT_WAIT, 0 for others */
    bool forwards; /* it goes on after its RESULT */
    bool watches;  /* files, for as long as it is wanted */
};

static void answer(struct task *task, const char *code, const char *why)
{
    if (task->conn != NULL && !task->has_result)
        conn_send_error(task->conn, task->channel, code, "%s", why);
    task->has_result = true;
}

static void unfollow(struct task *task)
{
    source_remove(&task->source);
    task->conn = NULL;
}

static void task_free(struct task *task)
{
    struct agent *agent = task->agent;
    struct task **link = &agent->tasks;
    while (*link != task)
        link = &(*link)->next;
    *link = task->next;
    agent->task_count--;
    unfollow(task);
    loop_close(&agent->loop, &task->watch);
    while (task->queue != NULL) {
        struct packet *packet = task->queue;
        task->queue = packet->next;
        agent->task_queued -= packet->len;
        free(packet);
    }
    free(task);
}

/* --- towards the worker --------------------------------------------------------------------------
 */

static bool push(struct task *task, uint8_t type, const uint8_t *payload, size_t len)
{
    struct packet *packet = malloc(sizeof(*packet) + FRAME_HEADER_LEN + len);
    if (packet == NULL)
        return false;
    packet->next = NULL;
    packet->len = FRAME_HEADER_LEN + len;
    frame_header_write(packet->bytes, task->channel, type, len);
    if (len > 0)
        memcpy(packet->bytes + FRAME_HEADER_LEN, payload, len);
    *task->queue_end = packet;
    task->queue_end = &packet->next;
    task->agent->task_queued += packet->len;
    return true;
}

static void push_out(struct task *task)
{
    while (task->queue != NULL && task->watch.fd >= 0) {
        struct packet *packet = task->queue;
        ssize_t count =
            send(task->watch.fd, packet->bytes, packet->len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return; /* the edge of EPOLLOUT comes */
        /* A worker that has gone takes nothing more; its RESULT or its end is being read. */
        task->queue = packet->next;
        if (task->queue == NULL)
            task->queue_end = &task->queue;
        task->agent->task_queued -= packet->len;
        free(packet);
    }
}

/* Straight into the socket where nothing waits. */
static bool hand_in(struct task *task, uint8_t type, const uint8_t *payload, size_t len)
{
    uint8_t header[FRAME_HEADER_LEN];
    struct iovec pieces[2] = {{.iov_base = header, .iov_len = sizeof(header)},
                              {.iov_base = (void *)(uintptr_t)payload, .iov_len = len}};
    struct msghdr packet = {.msg_iov = pieces, .msg_iovlen = len > 0 ? 2 : 1};
    if (task->queue == NULL) {
        frame_header_write(header, task->channel, type, len);
        if (sendmsg(task->watch.fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EPIPE ||
            errno == ECONNRESET)
            return true;
    }
    if (task->agent->task_queued + len > QUEUES_MAX)
        return false;
    return push(task, type, payload, len);
}

static bool hand_in_parts(struct task *task, const uint8_t *ptr, size_t len)
{
    for (; len > 0; ptr += FRAME_PAYLOAD_MAX, len -= FRAME_PAYLOAD_MAX) {
        size_t piece = len < FRAME_PAYLOAD_MAX ? len : FRAME_PAYLOAD_MAX;
        if (!hand_in(task, FRAME_PART, ptr, piece))
            return false;
        if (piece == len)
            break;
    }
    return true;
}

/* For OP_PS: which processes are the agent's own, and whose supervisors. */
static bool hand_in_supervisors(struct task *task)
{
    const struct agent *agent = task->agent;
    size_t cap = (agent->exec_count + agent->lingering_count + 1) * (PROTO_EXEC_ID_MAX + 32);
    struct field_writer fields = {.ptr = malloc(cap), .cap = cap};
    if (fields.ptr == NULL)
        return false;
    exec_list_supervisors(agent, &fields);
    field_put_u64(&fields, TAG_PID, (uint64_t)agent->helper.pid);
    field_put_u64(&fields, TAG_PID, (uint64_t)task->conn->peer);
    bool given = hand_in_parts(task, fields.ptr, fields.len);
    free(fields.ptr);
    return given;
}

/* The request, with the workdir that relative paths start from. */
static bool hand_in_request(struct task *task, const struct message *message)
{
    const uint8_t *ptr = message->data;
    size_t len = message->len;
    const char *workdir = task->agent->workdir;
    if (workdir != NULL) {
        uint8_t *room = malloc(6 + strlen(workdir));
        if (room == NULL)
            return false;
        struct field_writer fields = {.ptr = room, .cap = 6 + strlen(workdir)};
        field_put_text(&fields, TAG_WORKDIR, workdir);
        bool done = hand_in(task, FRAME_PART, fields.ptr, fields.len);
        free(room);
        if (!done)
            return false;
    }
    if (message_u64(message, TAG_OP, 0) == OP_PS && !hand_in_supervisors(task))
        return false;
    for (; len > FRAME_PAYLOAD_MAX; ptr += FRAME_PAYLOAD_MAX, len -= FRAME_PAYLOAD_MAX) {
        if (!hand_in(task, FRAME_PART, ptr, FRAME_PAYLOAD_MAX))
            return false;
    }
    return hand_in(task, FRAME_OPEN, ptr, len);
}

/* --- from the worker -----------------------------------------------------------------------------
 */

static void on_result(struct task *task, const uint8_t *frame, size_t len)
{
    struct message result = {.data = (uint8_t *)(uintptr_t)frame + FRAME_HEADER_LEN,
                             .len = len - FRAME_HEADER_LEN};
    task->has_result = true;
    task->forwards = task->port != 0 && message_u64(&result, TAG_FORWARD, 0) != 0;
    if (task->forwards)
        unfollow(task);
    else
        task_free(task);
}

static void pump(struct source *source)
{
    struct task *task = (struct task *)(void *)((char *)source - offsetof(struct task, source));
    struct conn *conn = task->conn;
    uint8_t *frame = conn_reserve(conn, FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX);
    if (frame == NULL)
        return; /* the stream is lost, and with it this task */
    ssize_t count = packet_receive(task->watch.fd, frame, FRAME_HEADER_LEN + FRAME_PAYLOAD_MAX);
    if (count < 0 && errno == EAGAIN) {
        source_remove(source);
        return;
    }
    if (count < FRAME_HEADER_LEN) {
        answer(task, "file_io", "the process that served this request has ended early");
        task_free(task);
        return;
    }
    wire_put_u32(frame + 4, task->channel);
    conn_commit(conn, (size_t)count);
    if (frame[8] == FRAME_RESULT)
        on_result(task, frame, (size_t)count);
}

/* Edge-triggered: pump() reads until there is nothing, push_out() writes until there is no room. */
static void on_ready(struct watch *watch, uint32_t events)
{
    struct task *task = (struct task *)(void *)((char *)watch - offsetof(struct task, watch));
    uint8_t byte;
    if ((events & EPOLLOUT) != 0)
        push_out(task);
    if ((events & ~(uint32_t)EPOLLOUT) == 0)
        return;
    if (task->conn != NULL)
        source_wake(task->conn, &task->source);
    else if (packet_receive(watch->fd, &byte, 1) == 0)
        task_free(task); /* a forwarder that was killed */
}

/* --- ports ---------------------------------------------------------------------------------------
 */

/* Ends what forwards PORT and waits until it has let go of it: its listener must not be taken for
 * the program's, nor be in its way. A moment, unless someone has stopped that process. */
static void release_port(struct agent *agent, uint16_t port)
{
    for (struct task *task = agent->tasks, *next; task != NULL; task = next) {
        next = task->next;
        if (task->port != port)
            continue;
        struct pollfd end = {.fd = task->watch.fd, .events = POLLRDHUP};
        answer(task, "cancelled", "another request for the port has come");
        (void)shutdown(task->watch.fd, SHUT_WR);
        (void)poll(&end, 1, RELEASE_WAIT_MS);
        task_free(task);
    }
}

static bool wants_port(const struct message *message, uint16_t *ret_port)
{
    uint64_t port = message_u64(message, TAG_PORT, 0);
    *ret_port = (uint16_t)port;
    return port > 0 && port <= UINT16_MAX;
}

/* --- frames of a channel
 * -------------------------------------------------------------------------- */

static struct task *find(const struct conn *conn, uint32_t channel)
{
    struct task *task = conn->agent->tasks;
    while (task != NULL && (task->conn != conn || task->channel != channel))
        task = task->next;
    return task;
}

static bool start(struct task *task, const struct message *message)
{
    struct agent *agent = task->agent;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    task->watch = (struct watch){.fd = pair[0], .ready = on_ready};
    bool done = !agent_is_crowded(agent, pair[1]) && fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0 &&
                hand_in_request(task, message) && helper_give(agent, pair[1]) &&
                loop_watch(&agent->loop, &task->watch, EPOLLIN | EPOLLOUT | EPOLLET) == 0;
    close(pair[1]);
    return done;
}

static bool may_watch(const struct agent *agent)
{
    size_t count = 0;
    for (const struct task *task = agent->tasks; task != NULL; task = task->next)
        count += task->watches && task->conn != NULL;
    return count < PROTO_WATCHES;
}

void task_open(struct conn *conn, uint32_t channel, const struct message *message)
{
    struct agent *agent = conn->agent;
    uint64_t op = message_u64(message, TAG_OP, 0);
    uint16_t port = 0;
    if ((op == OP_PORT_WAIT || op == OP_PORT_CLOSE) && !wants_port(message, &port)) {
        conn_send_error(conn, channel, "invalid_field", "PORT is missing or out of range");
        return;
    }
    if (port != 0)
        release_port(agent, port);
    if (op == OP_PORT_CLOSE) {
        conn_send(conn, channel, FRAME_RESULT, NULL, 0);
        return;
    }
    if (op == OP_WATCH && !may_watch(agent)) {
        conn_send_error(conn, channel, "too_many", "%d watches are at work already", PROTO_WATCHES);
        return;
    }
    struct task *task = agent->task_count < TASKS_MAX ? calloc(1, sizeof(*task)) : NULL;
    if (task == NULL) {
        conn_send_error(conn, channel, "busy", "too many requests about files at once");
        return;
    }
    task->agent = agent;
    task->conn = conn;
    task->channel = channel;
    task->port = port;
    task->watches = op == OP_WATCH;
    task->source.pump = pump;
    task->watch.fd = -1;
    task->queue_end = &task->queue;
    task->next = agent->tasks;
    agent->tasks = task;
    agent->task_count++;
    if (!start(task, message)) {
        answer(task, "busy", "no process to serve the request");
        task_free(task);
    }
}

bool task_frame(struct conn *conn, const struct frame *frame, bool *ret_broken)
{
    struct task *task = find(conn, frame->channel);
    if (task == NULL)
        return false;
    *ret_broken = !hand_in(task, frame->type, frame->payload, frame->len);
    return true;
}

void task_cancel(struct conn *conn, uint32_t channel, uint8_t type)
{
    struct task *task = find(conn, channel);
    if (task != NULL && type == FRAME_CANCEL)
        (void)hand_in(task, FRAME_CANCEL, NULL, 0);
}

void task_stream_lost(struct conn *conn)
{
    for (struct task *task = conn->agent->tasks, *next; task != NULL; task = next) {
        next = task->next;
        if (task->conn == conn)
            task_free(task);
    }
}
