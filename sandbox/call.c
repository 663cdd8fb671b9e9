#include "sandbox/call.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/feed.h"
#include "sandbox/fields.h"
#include "sandbox/sandbox.h"

#define LINK_WAIT_MS 30000
#define STOPS "the server stops"

struct call {
    atomic_uint refs;
    enum proto_op op;
    struct buf request;
    struct sandbox *sandbox; /* once started */
    struct event changed;

    pthread_mutex_t lock; /* the next four; `started` and `result` stand once they are told */
    enum call_state state;
    struct err *err;
    struct buf started, result;

    /* loop thread */
    struct channel channel;
    struct feed feed;
    struct pipe *upload, *download;
    struct waiter space; /* of the download */
    bool space_waiting;
    bool begun, over;
    uint64_t received;
    uint64_t total;
    bool ended; /* stream 1: `total` is known */
    struct timer timer;
    struct call *next; /* in sandbox->calls */
    bool queued;
};

struct call *call_new(enum proto_op op)
{
    struct call *call = xcalloc(1, sizeof(*call));
    atomic_init(&call->refs, 1);
    call->op = op;
    buf_init(&call->request, PROTO_MESSAGE_MAX);
    buf_init(&call->started, PROTO_MESSAGE_MAX);
    buf_init(&call->result, PROTO_MESSAGE_MAX);
    event_init(&call->changed);
    pthread_mutex_init(&call->lock, NULL);
    fields_put_u64(&call->request, TAG_OP, op);
    return call;
}

struct call *call_ref(struct call *call)
{
    atomic_fetch_add(&call->refs, 1);
    return call;
}

static void drop_refs(struct call *call, unsigned count)
{
    if (atomic_fetch_sub(&call->refs, count) > count)
        return;
    buf_wipe(&call->request);
    buf_done(&call->started);
    buf_done(&call->result);
    free(call->err);
    pipe_unref(call->upload);
    pipe_unref(call->download);
    if (call->sandbox)
        sandbox_unref(call->sandbox);
    event_done(&call->changed);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

void call_unref(struct call *call)
{
    if (call)
        drop_refs(call, 1);
}

void call_put(struct call *call, uint16_t tag, const void *data, size_t len)
{
    fields_put(&call->request, tag, data, len);
}

void call_put_text(struct call *call, uint16_t tag, const char *text)
{
    fields_put_text(&call->request, tag, text);
}

void call_put_u64(struct call *call, uint16_t tag, uint64_t value)
{
    fields_put_u64(&call->request, tag, value);
}

void call_upload(struct call *call, struct pipe *pipe)
{
    call->upload = pipe_ref(pipe);
}

void call_download(struct call *call, struct pipe *pipe)
{
    size_t capacity = pipe_space(pipe) + pipe_used(pipe);
    assert(capacity >= PROTO_WINDOW);
    call->download = pipe_ref(pipe);
    call->channel.window_max = capacity < CAP_WINDOW_MAX ? (uint32_t)capacity : CAP_WINDOW_MAX;
}

/* --- the end ----------------------------------------------------------------------------- */

static void leave_queue(struct call *call)
{
    if (!call->queued)
        return;
    struct call **link = &call->sandbox->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    call->queued = false;
}

static void drop(void *owner)
{
    call_unref(owner);
}

static void hold(void *owner)
{
    call_ref(owner);
}

static struct err *scrubbed(struct sandbox *sandbox, const struct err *err)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    struct err *copy = xmalloc(sizeof(*copy));
    struct buf text = BUF_INIT(4 * sizeof(err->msg));
    if (scrubber_text(scrubber, err->msg, strlen(err->msg), &text))
        (void)err_set(copy, err->code, "%s", buf_text(&text));
    else
        (void)err_set(copy, err->code, "%s", err_code_name(err->code));
    buf_done(&text);
    scrubber_unref(scrubber);
    return copy;
}

/* WHY NULL: all went well. The caller's reference is the loop thread's; it is given up here. */
static void finish(struct call *call, const struct err *why)
{
    if (call->over)
        return;
    call->over = true;
    timer_stop(&call->timer);
    leave_queue(call);
    channel_close(&call->channel);
    if (call->upload)
        feed_stop(&call->feed, why);
    unsigned refs = 1;
    if (call->space_waiting && event_cancel(pipe_writable(call->download), &call->space)) {
        call->space_waiting = false;
        refs++;
    }
    struct err *err = why ? scrubbed(call->sandbox, why) : NULL;
    if (call->download)
        pipe_finish(call->download, err);
    pthread_mutex_lock(&call->lock);
    call->state = err ? CALL_FAILED : CALL_DONE;
    call->err = err;
    pthread_mutex_unlock(&call->lock);
    if (call->upload)
        feed_done(&call->feed);
    event_fire(&call->changed);
    drop_refs(call, refs);
}

/* Not wanted any more: the agent hears of it, its answer is not waited for. */
static void cancel_with(struct call *call, const struct err *why)
{
    channel_cancel(&call->channel);
    finish(call, why);
}

/* --- the upload -------------------------------------------------------------------------- */

static void pump(struct call *call)
{
    struct err err;
    if (call->upload && !call->over && channel_is_open(&call->channel) &&
        feed_pump(&call->feed, &call->channel, &err))
        cancel_with(call, &err);
}

static void upload_ready(void *owner)
{
    pump(owner);
}

static const struct feed_owner_ops upload_ops = {hold, drop, upload_ready};

/* --- the download ------------------------------------------------------------------------ */

static void drain(struct call *call);

static void on_space(void *arg)
{
    struct call *call = arg;
    call->space_waiting = false;
    drain(call);
    call_unref(call);
}

static void wake_space(struct waiter *waiter)
{
    struct call *call = container_of(waiter, struct call, space);
    loop_post(call->sandbox->all->loop, on_space, call);
}

/* For it to take more, or to go. False: it has done so since SEEN. */
static bool wait_for_reader(struct call *call, uint64_t seen)
{
    if (call->space_waiting)
        return true;
    call->space.wake = wake_space;
    call->space_waiting = true;
    call_ref(call);
    if (event_wait(pipe_writable(call->download), seen, &call->space))
        return true;
    call->space_waiting = false;
    atomic_fetch_sub(&call->refs, 1); /* not the last one: the loop thread has another */
    return false;
}

/* Credits what the reader has taken. */
static void drain(struct call *call)
{
    struct err why = {0};
    while (!call->over) {
        uint64_t seen = event_count(pipe_writable(call->download));
        if (pipe_state(call->download, &why) == PIPE_ABANDONED) {
            if (why.code == ERR_NONE)
                (void)err_set(&why, ERR_CANCELLED, "nobody reads any more");
            cancel_with(call, &why);
            return;
        }
        size_t used = pipe_used(call->download);
        channel_credit(&call->channel, 1, call->received - used);
        /* Who dials says when it wants no more: it need not be asked after every few bytes. */
        if (call->op == OP_DIAL && used < PROTO_WINDOW / 4)
            return;
        if (wait_for_reader(call, seen))
            return;
    }
}

/* Also while the agent sends nothing, the reader may go. */
static void watch_reader(struct call *call)
{
    uint64_t seen = event_count(pipe_writable(call->download));
    if (pipe_state(call->download, NULL) == PIPE_ABANDONED || !wait_for_reader(call, seen))
        drain(call);
}

/* --- the channel's callbacks ------------------------------------------------------------- */

static struct call *call_of(struct channel *channel)
{
    return container_of(channel, struct call, channel);
}

static void on_started(struct channel *channel, const void *fields, size_t len)
{
    struct call *call = call_of(channel);
    pthread_mutex_lock(&call->lock);
    if (call->state == CALL_WAITING && buf_append(&call->started, fields, len))
        call->state = CALL_STARTED;
    pthread_mutex_unlock(&call->lock);
    event_fire(&call->changed);
}

static void on_data(struct channel *channel, int stream, uint64_t offset, const void *data,
                    size_t len)
{
    struct call *call = call_of(channel);
    struct err err;
    if (stream != 1 || !call->download || offset != call->received) {
        (void)err_set(&err, ERR_AGENT_FAILED, "the agent sent bytes that were not asked for");
        cancel_with(call, &err);
        return;
    }
    /* The window is never larger than the pipe, so less is only taken when the reader has gone. */
    call->received += pipe_write(call->download, data, len);
    drain(call);
}

static void on_end(struct channel *channel, int stream, uint64_t total)
{
    struct call *call = call_of(channel);
    if (stream == 1) {
        call->ended = true;
        call->total = total;
        /* A half close, the RESULT may come much later; of anything else it says whether it is
         * whole. */
        if (call->op == OP_DIAL && call->download && total == call->received)
            pipe_finish(call->download, NULL);
    }
}

static void on_credit(struct channel *channel, uint64_t done, uint64_t limit)
{
    struct call *call = call_of(channel);
    (void)limit;
    if (call->upload)
        feed_stored(&call->feed, done);
    pump(call);
}

static void on_result(struct channel *channel, const void *fields, size_t len)
{
    struct call *call = call_of(channel);
    struct err err;
    if (fields_error(fields, len, ERR_AGENT_FAILED, &err)) {
        (void)buf_append(&call->result, fields, len); /* what else it says may be left out */
        finish(call, &err);
        return;
    }
    if (call->download && (!call->ended || call->total != call->received)) {
        (void)err_set(&err, ERR_SIZE_MISMATCH, "the agent's answer is not complete");
        finish(call, &err);
        return;
    }
    pthread_mutex_lock(&call->lock);
    bool fits = buf_append(&call->result, fields, len);
    pthread_mutex_unlock(&call->lock);
    if (!fits)
        (void)err_set(&err, ERR_AGENT_FAILED, "the agent's answer is too long");
    finish(call, fits ? NULL : &err);
}

static void on_lost(struct channel *channel, const struct err *why)
{
    struct call *call = call_of(channel);
    struct err err;
    if (sandbox_check_running(call->sandbox, &err) == 0 || err.code != ERR_GONE)
        (void)err_set(&err, ERR_STREAM_LOST, "%s", why->msg);
    finish(call, &err);
}

static void begin(struct call *call);

static void on_writable(struct channel *channel)
{
    struct call *call = call_of(channel);
    if (channel_is_open(channel))
        pump(call);
    else
        begin(call);
}

static const struct channel_handler handler = {
    .started = on_started,
    .data = on_data,
    .end = on_end,
    .credit = on_credit,
    .result = on_result,
    .lost = on_lost,
    .writable = on_writable,
};

/* --- the beginning ----------------------------------------------------------------------- */

static void begin(struct call *call)
{
    struct link *link = call->sandbox->link;
    if (call->over || !link || channel_is_open(&call->channel))
        return;
    if (!channel_open(link, &call->channel, call->request.ptr, call->request.len, NULL))
        return;
    timer_stop(&call->timer);
    if (call->op != OP_WATCH) /* which is ended when the server stops */
        leave_queue(call);
    buf_wipe(&call->request);
    call_ref(call); /* either may end it */
    pump(call);
    if (!call->over && call->download && call->op != OP_DIAL)
        watch_reader(call);
    call_unref(call);
}

static void on_timer(struct timer *timer)
{
    struct call *call = container_of(timer, struct call, timer);
    struct err err;
    (void)err_set(&err, ERR_NOT_READY, "the agent has not been reachable for %d s",
                  LINK_WAIT_MS / 1000);
    finish(call, &err);
}

static void start_on_loop(struct sandbox *sandbox, void *arg)
{
    struct call *call = arg;
    struct err err;
    if (call->over)
        return;
    if (call->op == OP_WATCH && atomic_load(&sandbox->all->follows_stopped)) {
        (void)err_set(&err, ERR_STOPPING, STOPS);
        finish(call, &err);
        return;
    }
    if (sandbox_check_running(sandbox, &err)) {
        finish(call, &err);
        return;
    }
    call->begun = true;
    call->channel.handler = &handler;
    call->queued = true;
    call->next = sandbox->calls;
    sandbox->calls = call;
    call->timer.fire = on_timer;
    timer_start(sandbox->all->loop, &call->timer, LINK_WAIT_MS);
    begin(call);
}

int call_start(struct sandbox *sandbox, struct call *call, struct err *err)
{
    assert(!call->sandbox);
    if (call->request.overflow)
        return err_set(err, ERR_ARGUMENT_TOO_LONG, "the request to the agent is too long");
    if (sandbox_check_running(sandbox, err))
        return -1;
    call->sandbox = sandbox_ref(sandbox);
    if (call->upload)
        feed_init(&call->feed, &upload_ops, call, sandbox->all->loop, false);
    if (call->upload)
        feed_pipe(&call->feed, pipe_ref(call->upload));
    sandbox_on_loop(sandbox, start_on_loop, call_ref(call));
    return 0;
}

static void cancel_on_loop(struct sandbox *sandbox, void *arg)
{
    struct call *call = arg;
    struct err err;
    (void)sandbox;
    (void)err_set(&err, ERR_CANCELLED, "cancelled");
    cancel_with(call, &err);
    call_unref(call);
}

void call_cancel(struct call *call)
{
    if (call->sandbox)
        sandbox_on_loop(call->sandbox, cancel_on_loop, call_ref(call));
}

void calls_link_up(struct sandbox *sandbox)
{
    struct call *next;
    for (struct call *call = sandbox->calls; call; call = next) {
        next = call->next;
        begin(call);
    }
}

void calls_sandbox_ended(struct sandbox *sandbox, const struct err *why)
{
    struct err err;
    if (why->code == ERR_STOPPING)
        err = *why;
    else
        (void)err_set(&err, ERR_GONE, "the sandbox has ended: %s", why->msg);
    while (sandbox->calls) {
        struct call *call = sandbox->calls;
        sandbox->calls = call->next;
        call->queued = false;
        finish(call, &err);
    }
}

static void stop_watches_on_loop(struct sandbox *sandbox, void *arg)
{
    struct call *next;
    struct err err;
    (void)arg;
    (void)err_set(&err, ERR_STOPPING, STOPS);
    for (struct call *call = sandbox->calls; call; call = next) {
        next = call->next;
        if (call->op == OP_WATCH)
            cancel_with(call, &err);
    }
}

void calls_stop_watches(struct sandbox *sandbox)
{
    sandbox_on_loop(sandbox, stop_watches_on_loop, NULL);
}

/* --- looking at it ----------------------------------------------------------------------- */

struct event *call_changed(struct call *call)
{
    return &call->changed;
}

enum call_state call_state(struct call *call, struct err *ret_err)
{
    pthread_mutex_lock(&call->lock);
    enum call_state state = call->state;
    if (state == CALL_FAILED && ret_err)
        *ret_err = *call->err;
    pthread_mutex_unlock(&call->lock);
    return state;
}

struct field_reader call_started(struct call *call)
{
    struct field_reader reader;
    field_reader_init(&reader, buf_text(&call->started), call->started.len);
    return reader;
}

struct field_reader call_result(struct call *call)
{
    struct field_reader reader;
    field_reader_init(&reader, buf_text(&call->result), call->result.len);
    return reader;
}

bool call_result_u64(struct call *call, uint16_t tag, uint64_t *ret_value)
{
    return fields_u64(buf_text(&call->result), call->result.len, tag, ret_value);
}

char *call_result_text(struct call *call, uint16_t tag)
{
    return fields_text(buf_text(&call->result), call->result.len, tag);
}
