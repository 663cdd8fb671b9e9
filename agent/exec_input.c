#include "agent/exec_input.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "agent/exec.h"

#define WINDOW_MAX ((uint64_t)256 << 10)

static uint64_t received(const struct exec_input *input)
{
    return input->ring.end;
}

void input_close(struct agent *agent, struct exec_input *input)
{
    loop_close(&agent->loop, &input->watch);
    ring_reset(&input->ring, input->ring.end);
    ring_free(&input->ring);
}

void input_grant(struct exec *exec, bool at_once)
{
    struct exec_input *input = &exec->in;
    uint64_t limit = input->ring.start + input->window;
    uint8_t payload[FRAME_CREDIT_LEN];
    if (exec->conn == NULL || !exec->started_sent)
        return;
    if (limit < input->limit)
        limit = input->limit;
    if (!at_once && limit - input->limit < input->window / 2)
        return;
    input->limit = limit;
    frame_credit_write(payload, 0, received(input), limit);
    conn_send(exec->conn, exec->channel, FRAME_CREDIT, payload, sizeof(payload));
}

/* Writes what the pipe takes. A command that reads no more is not an error: the rest is swallowed.
 */
static void feed(struct exec *exec)
{
    struct exec_input *input = &exec->in;
    const uint8_t *ptr = NULL;
    size_t len;
    while (input->watch.fd >= 0 && (len = ring_peek(&input->ring, input->ring.start, &ptr)) > 0) {
        ssize_t count = write(input->watch.fd, ptr, len);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            break;
        if (count < 0) {
            input_close(exec->agent, input);
            return;
        }
        ring_drop(&input->ring, input->ring.start + (uint64_t)count);
    }
    if (input->watch.fd < 0) {
        ring_reset(&input->ring, input->ring.end);
        return;
    }
    bool empty = ring_len(&input->ring) == 0;
    if (empty && received(input) == input->total) {
        input_close(exec->agent, input);
        return;
    }
    /* The sender was about to wait, and the command had taken everything: it may have more. */
    if (empty && input->window < WINDOW_MAX && input->limit - received(input) < input->window / 2)
        input->window *= 2;
    (void)loop_watch(&exec->agent->loop, &input->watch, empty ? 0u : EPOLLOUT);
}

static void on_writable(struct watch *watch, uint32_t events)
{
    (void)events;
    struct exec_input *input =
        (struct exec_input *)(void *)((char *)watch - offsetof(struct exec_input, watch));
    struct exec *exec = (struct exec *)(void *)((char *)input - offsetof(struct exec, in));
    feed(exec);
    input_grant(exec, false);
}

void input_open(struct exec_input *input, int fd)
{
    input->watch = (struct watch){.fd = fd, .ready = on_writable};
    input->window = PROTO_WINDOW;
    input->limit = PROTO_WINDOW;
    input->total = UINT64_MAX;
}

void input_follow(struct exec_input *input)
{
    input->limit = received(input) + PROTO_WINDOW;
}

bool input_data(struct exec *exec, const struct frame_data *data)
{
    struct exec_input *input = &exec->in;
    uint64_t have = received(input), end = data->offset + data->len;
    if (data->offset > have || (end > have && (end > input->limit || end > input->total)))
        return false;
    if (end <= have)
        return true;
    size_t known = (size_t)(have - data->offset), len = data->len - known;
    if (input->watch.fd < 0) {
        ring_reset(&input->ring, end);
    } else if (ring_len(&input->ring) + len > RING_MAX ||
               !ring_append(&input->ring, data->bytes + known, len)) {
        return false;
    }
    feed(exec);
    input_grant(exec, false);
    return true;
}

bool input_end(struct exec *exec, uint64_t total)
{
    struct exec_input *input = &exec->in;
    if (total != received(input) || (input->total != UINT64_MAX && input->total != total))
        return false;
    input->total = total;
    feed(exec);
    input_grant(exec, true);
    return true;
}
