#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/exec.h"

#define READ_SIZE ((size_t)65536)
#define STORED_MAX ((size_t)4 << 20) /* of all execs, while no stream takes it */
#define SILENCE_MS 100
#define CUT_MS 1000 /* what background children write without a pause is followed for so long, */
#define CUT_BYTES ((uint64_t)1 << 20) /* and for so much */

static struct loop *loop_of(const struct exec_output *output)
{
    return &output->exec->agent->loop;
}

static size_t pending(const struct exec_output *output)
{
    int count = 0;
    if (output->watch.fd < 0 || ioctl(output->watch.fd, FIONREAD, &count) < 0 || count < 0)
        return 0;
    return (size_t)count;
}

/* How much may be read now. Followed: what the server has room for, so that nothing is ever
 * dropped. Otherwise: what may be kept here. */
static size_t room(const struct exec_output *output)
{
    size_t own = RING_MAX - ring_len(&output->ring);
    size_t stored = output->exec->agent->stored;
    if (output->exec->conn != NULL) {
        if (output->limit <= output->ring.end)
            return 0;
        uint64_t granted = output->limit - output->ring.end;
        return granted < own ? (size_t)granted : own;
    }
    if (stored >= STORED_MAX)
        return 0;
    return STORED_MAX - stored < own ? STORED_MAX - stored : own;
}

/* A detached exec without a server must not block: its oldest output goes. */
static bool may_drop(const struct exec_output *output)
{
    return output->exec->keep && output->exec->conn == NULL;
}

static void forget_below(struct exec_output *output, uint64_t offset)
{
    size_t before = ring_len(&output->ring);
    ring_drop(&output->ring, offset);
    output->exec->agent->stored -= before - ring_len(&output->ring);
}

void output_update(struct exec_output *output)
{
    bool wanted = output->ended || may_drop(output) || room(output) > 0;
    if (output->watch.fd >= 0 && output->watch.added != wanted)
        (void)loop_watch(loop_of(output), &output->watch, wanted ? EPOLLIN : 0u);
}

void output_update_all(struct agent *agent)
{
    for (struct exec *exec = agent->execs; exec != NULL; exec = exec->next) {
        output_update(&exec->out[0]);
        output_update(&exec->out[1]);
    }
}

static void close_pipe(struct exec_output *output)
{
    loop_close(loop_of(output), &output->watch);
    timer_clear(loop_of(output), &output->silence);
}

static void store(struct exec_output *output, const uint8_t *bytes, size_t len)
{
    struct exec *exec = output->exec;
    if (may_drop(output) && room(output) < len) {
        forget_below(output, output->ring.start + len);
        if (room(output) < len) { /* others hold all there is */
            ring_reset(&output->ring, output->ring.end + len);
            return;
        }
    }
    if (!ring_append(&output->ring, bytes, len)) {
        /* Out of memory: this much is lost, and told by its offsets. */
        exec->agent->stored -= ring_len(&output->ring);
        ring_reset(&output->ring, output->ring.end + len);
        if (output->sent < output->ring.start)
            output->sent = output->ring.start;
        return;
    }
    exec->agent->stored += len;
}

static void after_main(struct exec_output *output, size_t count)
{
    int64_t now = now_ms();
    size_t own = count < output->must_read ? count : output->must_read;
    output->must_read -= own;
    output->late += count - own;
    if (output->must_read == 0 && (now >= output->exec->cut_at_ms || output->late >= CUT_BYTES))
        output_end(output);
    else
        timer_set(loop_of(output), &output->silence, now + SILENCE_MS);
}

static void on_readable(struct watch *watch, uint32_t events)
{
    (void)events;
    struct exec_output *output =
        (struct exec_output *)(void *)((char *)watch - offsetof(struct exec_output, watch));
    struct exec *exec = output->exec;
    uint8_t bytes[READ_SIZE];
    size_t want = output->ended || may_drop(output) ? sizeof(bytes) : room(output);
    ssize_t count = 0;
    if (want > 0)
        count = read(watch->fd, bytes, want < sizeof(bytes) ? want : sizeof(bytes));
    if (want > 0 && count < 0 && errno != EAGAIN && errno != EINTR)
        count = 0;
    if (want > 0 && count == 0) {
        close_pipe(output);
        output_end(output);
        exec_release(exec);
        return;
    }
    if (count > 0 && !output->ended) {
        store(output, bytes, (size_t)count);
        if (exec->exited)
            after_main(output, (size_t)count);
        exec_wake(exec);
    }
    output_update(output);
}

/* Nothing came for a while after the main process had ended. */
static void on_silence(struct timer *timer)
{
    struct exec_output *output =
        (struct exec_output *)(void *)((char *)timer - offsetof(struct exec_output, silence));
    if (pending(output) == 0)
        output_end(output);
    else if (output->watch.added)
        timer_set(loop_of(output), timer, now_ms() + SILENCE_MS);
    /* else the server has no room: when it has, reading goes on and sets the timer again */
}

void output_open(struct exec_output *output, int fd)
{
    output->watch = (struct watch){.fd = fd, .ready = on_readable};
    output->silence.fire = on_silence;
    output_update(output);
}

void output_main_ended(struct exec_output *output)
{
    if (output->watch.fd < 0) {
        output_end(output);
        return;
    }
    output->must_read = pending(output);
    output->exec->cut_at_ms = now_ms() + CUT_MS;
    timer_set(loop_of(output), &output->silence, now_ms() + SILENCE_MS);
}

void output_end(struct exec_output *output)
{
    struct exec *exec = output->exec;
    if (!exec->exited || output->ended)
        return;
    output->ended = true;
    timer_clear(loop_of(output), &output->silence);
    output_update(output);
    exec_wake(exec);
}

void output_credit(struct exec_output *output, uint64_t done, uint64_t limit)
{
    if (done > output->sent)
        done = output->sent; /* what it has not been sent it cannot have */
    forget_below(output, done);
    if (limit > output->limit)
        output->limit = limit;
    if (output->limit > output->ring.start + RING_MAX)
        output->limit = output->ring.start + RING_MAX;
    output_update(output);
}

void output_follow(struct exec_output *output, uint64_t offset)
{
    forget_below(output, offset);
    output->sent = output->ring.start;
    output->limit = output->sent + PROTO_WINDOW;
    output->end_sent = false;
    output_update(output);
}

bool output_send(struct exec_output *output)
{
    struct exec *exec = output->exec;
    const uint8_t *ptr = NULL;
    size_t len = ring_peek(&output->ring, output->sent, &ptr);
    if (output->limit < output->sent + len)
        len = output->limit > output->sent ? (size_t)(output->limit - output->sent) : 0;
    if (len > FRAME_DATA_MAX)
        len = FRAME_DATA_MAX;
    if (len == 0 && (!output->ended || output->sent < output->ring.end || output->end_sent))
        return false;
    uint8_t *frame = conn_reserve(exec->conn, FRAME_HEADER_LEN + FRAME_DATA_HEADER + len);
    if (frame == NULL)
        return false;
    frame_header_write(frame, exec->channel, len > 0 ? FRAME_DATA : FRAME_END,
                       FRAME_DATA_HEADER + len);
    frame_data_header_write(frame + FRAME_HEADER_LEN, output->id, output->sent);
    if (len > 0)
        memcpy(frame + FRAME_HEADER_LEN + FRAME_DATA_HEADER, ptr, len);
    conn_commit(exec->conn, FRAME_HEADER_LEN + FRAME_DATA_HEADER + len);
    output->sent += len;
    output->end_sent = len == 0;
    return true;
}

void output_free(struct exec_output *output)
{
    output->exec->agent->stored -= ring_len(&output->ring);
    ring_free(&output->ring);
}
