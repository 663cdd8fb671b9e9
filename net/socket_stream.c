/* libwebsockets only waits for the socket: reading and writing go straight to the kernel, whose
 * buffers are the only ones. */
#include "net/socket_stream.h"

#include <errno.h>
#include <libwebsockets.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "net/loop_lws.h"

#define ROOM (64 * KIB)    /* taken out of the kernel at once */
#define TURN (16 * ROOM)   /* and in one turn of the loop, for the sake of the others */
#define BUFFER (256 * KIB) /* the kernel's, in each direction */

/* Freed when its wsi is gone. */
struct socket_stream {
    struct stream base; /* `handler` NULL: closed, or told so */
    struct loop_item item;
    struct loop *loop;
    struct lws *wsi;     /* NULL: refused from the start */
    struct timer timer;  /* to tell `opened`, or the end; to ask for `writable` */
    int fd;              /* the wsi's */
    struct socket_io io; /* `free` NULL: the descriptor's own */
    struct err why;      /* ERR_NONE with `ended` false: nothing to tell yet */
    bool ended, open, paused, going, in_writable;
    bool read_again; /* IO may hold bytes that the descriptor does not tell of */
};

static struct socket_stream *of(struct stream *stream)
{
    return container_of(stream, struct socket_stream, base);
}

static void free_stream(struct socket_stream *self)
{
    if (self->io.free)
        self->io.free(self->io.arg);
    free(self);
}

static void detach(struct socket_stream *self)
{
    timer_stop(&self->timer);
    loop_release(self->loop, &self->item);
    self->base.handler = NULL;
}

static void release(struct socket_stream *self)
{
    detach(self);
    if (self->going)
        return; /* gone() frees */
    if (self->wsi)
        lws_set_timeout(self->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    else
        free_stream(self);
}

/* Tells the handler for the last time. SELF may be freed by then. */
static void finish(struct socket_stream *self)
{
    const struct stream_handler *handler = self->base.handler;
    void *arg = self->base.arg;
    struct err why = self->why;

    if (!handler)
        return;
    release(self);
    handler->closed(arg, &why);
}

/* From within a call of the handler's: the callback comes later, from the loop. */
static void finish_soon(struct socket_stream *self, int errnum, const char *what)
{
    if (self->ended)
        return;
    self->ended = true;
    (void)err_errno(&self->why, ERR_STREAM_LOST, errnum, "%s", what);
    timer_start(self->loop, &self->timer, 0);
}

/* What is asked for in the callback itself libwebsockets forgets when that returns. */
static void want_writable(struct socket_stream *self)
{
    if (self->in_writable)
        timer_start(self->loop, &self->timer, 0);
    else
        lws_callback_on_writable(self->wsi);
}

static int readable(struct socket_stream *self);

static void on_timer(struct timer *timer)
{
    struct socket_stream *self = container_of(timer, struct socket_stream, timer);

    if (self->ended) {
        finish(self);
        return;
    }
    if (!self->open) {
        self->open = true;
        if (self->read_again)
            timer_start(self->loop, &self->timer, 0);
        self->base.handler->opened(self->base.arg);
        return;
    }
    want_writable(self);
    if (self->read_again && !self->paused) {
        self->read_again = false;
        (void)readable(self);
    }
}

static void read_again(struct socket_stream *self)
{
    if (!self->io.free)
        return;
    self->read_again = true;
    if (self->open && !self->paused)
        timer_start(self->loop, &self->timer, 0);
}

static void on_loop_end(struct loop_item *item)
{
    struct socket_stream *self = container_of(item, struct socket_stream, item);

    (void)err_set(&self->why, ERR_STOPPING, "the I/O loop stops");
    finish(self);
}

/* --- the handler's calls ------------------------------------------------------------------------
 */

static ssize_t send_piece(struct socket_stream *self, const void *data, size_t len)
{
    if (self->io.free)
        return self->io.send(self->io.arg, data, len);
    return send(self->fd, data, len, MSG_NOSIGNAL);
}

static size_t write_some(struct stream *stream, const void *data, size_t len)
{
    struct socket_stream *self = of(stream);
    size_t done = 0;

    while (done < len && self->open && !self->ended) {
        ssize_t n = send_piece(self, (const char *)data + done, len - done);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == ENOBUFS)
            want_writable(self);
        else
            finish_soon(self, errno, "send");
        break;
    }
    return done;
}

static void pause_reading(struct stream *stream, int paused)
{
    struct socket_stream *self = of(stream);

    self->paused = paused != 0;
    if (self->wsi)
        lws_rx_flow_control(self->wsi, !self->paused);
    if (!self->paused)
        read_again(self);
}

static void close_stream(struct stream *stream)
{
    struct socket_stream *self = of(stream);

    if (self->wsi)
        (void)shutdown(self->fd, SHUT_RDWR); /* the peer need not wait for the loop to come by */
    release(self);
}

static const struct stream_ops ops = {
    .write = write_some,
    .pause = pause_reading,
    .close = close_stream,
};

/* --- what libwebsockets reports -----------------------------------------------------------------
 */

/* One piece; false when there is no more for now, or ever (`ended`). */
static bool receive(struct socket_stream *self)
{
    uint8_t room[ROOM];
    ssize_t n = self->io.free ? self->io.recv(self->io.arg, room, sizeof(room))
                              : recv(self->fd, room, sizeof(room), MSG_DONTWAIT);

    if (n > 0) {
        self->base.handler->received(self->base.arg, room, (size_t)n);
        return self->base.handler != NULL;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (!self->ended && n < 0)
        (void)err_errno(&self->why, ERR_STREAM_LOST, errno, "recv");
    self->ended = true;
    return false;
}

static int readable(struct socket_stream *self)
{
    size_t taken = 0;

    while (self->base.handler && !self->paused && taken < TURN && receive(self))
        taken += ROOM;
    if (self->base.handler && !self->ended) {
        if (self->paused || taken >= TURN)
            read_again(self);
        return 0;
    }
    finish(self);
    return -1;
}

static int writable(struct socket_stream *self)
{
    self->in_writable = true;
    if (self->base.handler)
        self->base.handler->writable(self->base.arg);
    self->in_writable = false;
    return self->base.handler ? 0 : -1;
}

/* A hang-up is told before all that came has been read, and while paused, too. What is left is no
 * more than the kernel's buffer. */
static void gone(struct socket_stream *self)
{
    self->going = true;
    while (self->base.handler && receive(self))
        continue;
    const struct stream_handler *handler = self->base.handler;
    void *arg = self->base.arg;
    struct err why = self->why;
    detach(self);
    free_stream(self);
    if (handler)
        handler->closed(arg, &why);
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                    size_t len)
{
    struct socket_stream *self = lws_get_opaque_user_data(wsi);

    (void)user;
    (void)in;
    (void)len;
    switch (reason) {
    case LWS_CALLBACK_RAW_RX_FILE:
        return self ? readable(self) : -1;
    case LWS_CALLBACK_RAW_WRITEABLE_FILE:
        return self ? writable(self) : -1;
    case LWS_CALLBACK_RAW_CLOSE_FILE:
        if (self) {
            lws_set_opaque_user_data(wsi, NULL);
            gone(self);
        }
        return 0;
    default:
        return 0;
    }
}

static struct lws_vhost *vhost_of(struct loop *loop)
{
    static const struct lws_protocols protocols[] = {
        {.name = "podsandbox-socket", .callback = on_event},
        {.name = NULL},
    };
    struct lws_vhost **vhost = loop_socket_vhost(loop);
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = protocols,
        .vhost_name = "sockets",
    };

    if (!*vhost)
        *vhost = lws_create_vhost(loop_lws(loop), &info);
    return *vhost;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static struct socket_stream *new_stream(struct loop *loop, const struct stream_handler *handler,
                                        void *arg)
{
    struct socket_stream *self = xcalloc(1, sizeof(*self));

    self->base = (struct stream){.ops = &ops, .handler = handler, .arg = arg};
    self->loop = loop;
    self->fd = -1;
    self->item.end = on_loop_end;
    self->timer.fire = on_timer;
    loop_hold(loop, &self->item);
    timer_start(loop, &self->timer, 0);
    return self;
}

struct stream *socket_stream_refused(struct loop *loop, const struct err *why,
                                     const struct stream_handler *handler, void *arg)
{
    struct socket_stream *self = new_stream(loop, handler, arg);

    self->why = *why;
    self->ended = true;
    return &self->base;
}

static void io_free(const struct socket_io *io)
{
    if (io)
        io->free(io->arg);
}

struct stream *socket_stream_new_over(struct loop *loop, int fd, const struct socket_io *io,
                                      const struct stream_handler *handler, void *arg)
{
    cleanup_fd int taken = fd;
    struct lws_vhost *vhost = vhost_of(loop);
    const int size = BUFFER;
    struct err why;

    if (!vhost || loop_is_ending(loop)) {
        (void)err_set(&why, ERR_STOPPING, "the I/O loop stops");
        io_free(io);
        return socket_stream_refused(loop, &why, handler, arg);
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)); /* as far as allowed */
    struct lws *wsi = lws_adopt_descriptor_vhost(vhost, LWS_ADOPT_RAW_FILE_DESC,
                                                 (lws_sock_file_fd_type){.filefd = TAKE_FD(taken)},
                                                 "podsandbox-socket", NULL);
    if (!wsi) {
        (void)err_set(&why, ERR_BUSY, "no room for one more stream");
        io_free(io);
        return socket_stream_refused(loop, &why, handler, arg);
    }
    struct socket_stream *self = new_stream(loop, handler, arg);
    self->fd = fd;
    self->wsi = wsi;
    if (io)
        self->io = *io;
    self->read_again = io != NULL;
    lws_set_opaque_user_data(wsi, self);
    return &self->base;
}

struct stream *socket_stream_new(struct loop *loop, int fd, const struct stream_handler *handler,
                                 void *arg)
{
    return socket_stream_new_over(loop, fd, NULL, handler, arg);
}
