#include "tests/unit/poll_loop.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "net/timers.h"

#define STREAMS 64
#define QUEUE (256 << 10)

struct poll_stream {
    struct stream stream;
    struct loop *loop;
    int fd;
    bool opened, closed, cut, wants_room;
    struct buf queue;
};

struct task {
    void (*fn)(void *arg);
    void *arg;
    struct task *next;
};

struct loop {
    pthread_t thread;
    pthread_mutex_t lock;
    struct task *first, **last;
    bool stopping;
    int wake_fd;
    struct timers timers;
    struct poll_stream *streams[STREAMS];
};

static _Thread_local const struct loop *current;

/* --- streams ----------------------------------------------------------------------------- */

static struct poll_stream *stream_of(struct stream *stream)
{
    return (struct poll_stream *)(void *)stream;
}

static size_t stream_take(struct stream *stream, const void *data, size_t len)
{
    struct poll_stream *own = stream_of(stream);
    size_t room = QUEUE - own->queue.len;
    size_t size = len < room ? len : room;
    ck_assert(own->opened && buf_append(&own->queue, data, size));
    own->wants_room = size < len;
    return size;
}

static void stream_hold(struct stream *stream, int paused)
{
    (void)stream;
    (void)paused;
}

/* Freed by the loop: it may be in the middle of this stream. */
static void stream_end(struct stream *stream)
{
    stream_of(stream)->closed = true;
}

static const struct stream_ops stream_ops = {stream_take, stream_hold, stream_end};

struct stream *poll_stream_new(struct loop *loop, int fd, const struct stream_handler *handler,
                               void *arg)
{
    struct poll_stream *own = xcalloc(1, sizeof(*own));
    own->stream = (struct stream){.ops = &stream_ops, .handler = handler, .arg = arg};
    own->loop = loop;
    own->fd = fd;
    buf_init(&own->queue, QUEUE);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    for (size_t i = 0; i < STREAMS; i++) {
        if (!loop->streams[i]) {
            loop->streams[i] = own;
            return &own->stream;
        }
    }
    ck_abort_msg("too many streams");
}

static void stream_gone(struct poll_stream *own)
{
    struct err why = {0};
    if (!own->closed) {
        own->closed = true;
        own->stream.handler->closed(own->stream.arg, &why);
    }
}

static void stream_receive(struct poll_stream *own)
{
    uint8_t bytes[65536];
    ssize_t len = recv(own->fd, bytes, sizeof(bytes), 0);
    if (len > 0)
        own->stream.handler->received(own->stream.arg, bytes, (size_t)len);
    else if (len == 0 || (errno != EAGAIN && errno != EINTR))
        stream_gone(own);
}

static void stream_send(struct poll_stream *own)
{
    ssize_t len = send(own->fd, own->queue.ptr, own->queue.len, MSG_NOSIGNAL);
    if (len > 0)
        buf_consume(&own->queue, (size_t)len);
    if (own->wants_room && own->queue.len < QUEUE / 2) {
        own->wants_room = false;
        own->stream.handler->writable(own->stream.arg);
    }
}

static void stream_turn(struct poll_stream *own, short events)
{
    if (!own->opened && !own->closed) {
        own->opened = true;
        own->stream.handler->opened(own->stream.arg);
    }
    if (own->cut)
        stream_gone(own);
    if (!own->closed && (events & (POLLIN | POLLHUP | POLLERR)))
        stream_receive(own);
    if (!own->closed && own->queue.len > 0)
        stream_send(own);
}

static void sweep(struct loop *loop)
{
    for (size_t i = 0; i < STREAMS; i++) {
        struct poll_stream *own = loop->streams[i];
        if (own && own->closed) {
            loop->streams[i] = NULL;
            close(own->fd);
            buf_done(&own->queue);
            free(own);
        }
    }
}

/* --- the loop ---------------------------------------------------------------------------- */

static void wake(struct loop *loop)
{
    uint64_t one = 1;
    ck_assert_int_eq(write(loop->wake_fd, &one, sizeof(one)), sizeof(one));
}

void loop_post(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct task *task = xcalloc(1, sizeof(*task));
    task->fn = fn;
    task->arg = arg;
    pthread_mutex_lock(&loop->lock);
    *loop->last = task;
    loop->last = &task->next;
    pthread_mutex_unlock(&loop->lock);
    wake(loop);
}

bool loop_is_current(const struct loop *loop)
{
    return current == loop;
}

static bool run_tasks(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct task *task = loop->first;
    loop->first = NULL;
    loop->last = &loop->first;
    bool stopping = loop->stopping;
    pthread_mutex_unlock(&loop->lock);
    bool any = task != NULL;
    while (task) {
        struct task *next = task->next;
        task->fn(task->arg);
        free(task);
        task = next;
    }
    return any || !stopping;
}

static int until_timer(const struct loop *loop)
{
    const struct timer *first = timers_first(&loop->timers);
    if (!first)
        return 1000;
    int64_t left = first->due_ms - clock_now_ms();
    return left < 0 ? 0 : left > 1000 ? 1000 : (int)left;
}

static void run_timers(struct loop *loop)
{
    struct timer *timer;
    int64_t now = clock_now_ms();
    while ((timer = timers_take_due(&loop->timers, now)) != NULL)
        timer->fire(timer);
}

static void turn(struct loop *loop)
{
    struct pollfd fds[STREAMS + 1] = {{.fd = loop->wake_fd, .events = POLLIN}};
    struct poll_stream *streams[STREAMS + 1] = {NULL};
    nfds_t count = 1;
    bool fresh = false;
    for (size_t i = 0; i < STREAMS; i++) {
        struct poll_stream *own = loop->streams[i];
        if (!own)
            continue;
        fresh = fresh || !own->opened || own->cut;
        streams[count] = own;
        fds[count++] =
            (struct pollfd){own->fd, (short)(POLLIN | (own->queue.len ? POLLOUT : 0)), 0};
    }
    uint64_t unused;
    (void)poll(fds, count, fresh ? 0 : until_timer(loop));
    if (fds[0].revents)
        ck_assert_int_eq(read(loop->wake_fd, &unused, sizeof(unused)), sizeof(unused));
    for (nfds_t i = 1; i < count; i++)
        stream_turn(streams[i], fds[i].revents);
    sweep(loop);
}

static void *run(void *arg)
{
    struct loop *loop = arg;
    current = loop;
    while (run_tasks(loop)) {
        run_timers(loop);
        turn(loop);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        if (loop->streams[i])
            stream_gone(loop->streams[i]);
    }
    sweep(loop);
    return NULL;
}

struct loop *loop_new(struct err *err)
{
    struct loop *loop = xcalloc(1, sizeof(*loop));
    (void)err;
    pthread_mutex_init(&loop->lock, NULL);
    loop->last = &loop->first;
    loop->wake_fd = eventfd(0, EFD_CLOEXEC);
    ck_assert_int_ge(loop->wake_fd, 0);
    ck_assert_int_eq(pthread_create(&loop->thread, NULL, run, loop), 0);
    return loop;
}

void loop_stop(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    pthread_mutex_unlock(&loop->lock);
    wake(loop);
    pthread_join(loop->thread, NULL);
    close(loop->wake_fd);
    timers_done(&loop->timers);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

void timer_start(struct loop *loop, struct timer *timer, int64_t after_ms)
{
    timer_stop(timer);
    timer->loop = loop;
    timers_add(&loop->timers, timer, clock_now_ms() + after_ms);
}

void timer_stop(struct timer *timer)
{
    if (timer_is_running(timer))
        timers_remove(&timer->loop->timers, timer);
}

/* --- for tests --------------------------------------------------------------------------- */

static void cut_all(void *arg)
{
    struct loop *loop = arg;
    for (size_t i = 0; i < STREAMS; i++) {
        if (loop->streams[i])
            loop->streams[i]->cut = true;
    }
}

void poll_streams_cut(struct loop *loop)
{
    loop_post(loop, cut_all, loop);
}

struct ask {
    void (*fn)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void run_ask(void *arg)
{
    struct ask *ask = arg;
    ask->fn(ask->arg);
    pthread_mutex_lock(&ask->lock);
    ask->done = true;
    pthread_cond_signal(&ask->cond);
    pthread_mutex_unlock(&ask->lock);
}

void poll_loop_call(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct ask ask = {.fn = fn, .arg = arg};
    pthread_mutex_init(&ask.lock, NULL);
    pthread_cond_init(&ask.cond, NULL);
    loop_post(loop, run_ask, &ask);
    pthread_mutex_lock(&ask.lock);
    while (!ask.done)
        pthread_cond_wait(&ask.cond, &ask.lock);
    pthread_mutex_unlock(&ask.lock);
    pthread_cond_destroy(&ask.cond);
    pthread_mutex_destroy(&ask.lock);
}
