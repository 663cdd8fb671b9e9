#include "base/pipe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define RING_MIN ((size_t)1024)

struct pipe {
    atomic_uint refs;
    struct event readable;
    struct event writable;
    pthread_mutex_t lock; /* all below; never held while an event fires */
    char *ring;           /* made by the first write, gone with the reader */
    size_t size;          /* of the ring, which grows up to `capacity` */
    size_t capacity;
    size_t start;
    size_t used;
    bool finished;
    bool abandoned;
    bool failed;
    struct err *why; /* set when `failed`; NULL in most pipes: it takes 2 KiB */
};

struct pipe *pipe_new(size_t capacity)
{
    struct pipe *pipe = xcalloc(1, sizeof(*pipe));
    atomic_init(&pipe->refs, 1);
    event_init(&pipe->readable);
    event_init(&pipe->writable);
    pthread_mutex_init(&pipe->lock, NULL);
    pipe->capacity = capacity;
    return pipe;
}

struct pipe *pipe_ref(struct pipe *pipe)
{
    atomic_fetch_add(&pipe->refs, 1);
    return pipe;
}

void pipe_unref(struct pipe *pipe)
{
    if (!pipe || atomic_fetch_sub(&pipe->refs, 1) > 1)
        return;
    event_done(&pipe->readable);
    event_done(&pipe->writable);
    pthread_mutex_destroy(&pipe->lock);
    free(pipe->ring);
    free(pipe->why);
    free(pipe);
}

static size_t space(const struct pipe *pipe)
{
    return pipe->finished || pipe->abandoned ? 0 : pipe->capacity - pipe->used;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Most pipes carry little, and there may be thousands. */
static void grow(struct pipe *pipe, size_t needed)
{
    size_t size = pipe->size ? pipe->size : RING_MIN;
    while (size < needed)
        size *= 2;
    size = least(size, pipe->capacity);
    char *ring = xmalloc(size);
    if (pipe->used > 0) {
        size_t head = least(pipe->used, pipe->size - pipe->start);
        memcpy(ring, pipe->ring + pipe->start, head);
        memcpy(ring + head, pipe->ring, pipe->used - head);
    }
    free(pipe->ring);
    pipe->ring = ring;
    pipe->size = size;
    pipe->start = 0;
}

/* Copies in or out in at most two pieces, as the ring wraps. */
static void copy_in(struct pipe *pipe, const char *data, size_t len)
{
    if (pipe->used + len > pipe->size)
        grow(pipe, pipe->used + len);
    size_t end = (pipe->start + pipe->used) % pipe->size;
    size_t head = least(len, pipe->size - end);
    memcpy(pipe->ring + end, data, head);
    memcpy(pipe->ring, data + head, len - head);
    pipe->used += len;
}

static void copy_out(struct pipe *pipe, char *data, size_t len)
{
    size_t head = least(len, pipe->size - pipe->start);
    memcpy(data, pipe->ring + pipe->start, head);
    memcpy(data + head, pipe->ring, len - head);
    pipe->used -= len;
    pipe->start = pipe->used ? (pipe->start + len) % pipe->size : 0;
}

size_t pipe_write(struct pipe *pipe, const void *data, size_t len)
{
    pthread_mutex_lock(&pipe->lock);
    len = least(len, space(pipe));
    if (len > 0)
        copy_in(pipe, data, len);
    pthread_mutex_unlock(&pipe->lock);
    if (len > 0)
        event_fire(&pipe->readable);
    return len;
}

size_t pipe_read(struct pipe *pipe, void *data, size_t len)
{
    pthread_mutex_lock(&pipe->lock);
    len = least(len, pipe->used);
    if (len > 0)
        copy_out(pipe, data, len);
    pthread_mutex_unlock(&pipe->lock);
    if (len > 0)
        event_fire(&pipe->writable);
    return len;
}

static void set_why(struct pipe *pipe, const struct err *why)
{
    if (!why)
        return;
    pipe->failed = true;
    if (!pipe->why)
        pipe->why = xmalloc(sizeof(*pipe->why));
    *pipe->why = *why;
}

void pipe_finish(struct pipe *pipe, const struct err *why)
{
    pthread_mutex_lock(&pipe->lock);
    bool first = !pipe->finished;
    pipe->finished = true;
    if (first && !pipe->abandoned)
        set_why(pipe, why);
    pthread_mutex_unlock(&pipe->lock);
    if (first)
        event_fire(&pipe->readable);
}

void pipe_abandon(struct pipe *pipe, const struct err *why)
{
    pthread_mutex_lock(&pipe->lock);
    bool all_read = pipe->finished && pipe->used == 0;
    bool first = !pipe->abandoned && !all_read;
    char *ring = NULL;
    if (first) {
        pipe->abandoned = true;
        pipe->failed = false; /* an error behind bytes that nobody will read */
        set_why(pipe, why);
        ring = TAKE_PTR(pipe->ring);
        pipe->size = 0;
        pipe->used = 0;
        pipe->start = 0;
    }
    pthread_mutex_unlock(&pipe->lock);
    free(ring);
    if (first)
        event_fire(&pipe->writable);
}

enum pipe_state pipe_state(struct pipe *pipe, struct err *ret_why)
{
    enum pipe_state state = PIPE_OPEN;
    pthread_mutex_lock(&pipe->lock);
    if (pipe->abandoned)
        state = PIPE_ABANDONED;
    else if (pipe->finished && pipe->used == 0)
        state = pipe->failed ? PIPE_FAILED : PIPE_ENDED;
    if (ret_why && pipe->failed && state != PIPE_OPEN)
        *ret_why = *pipe->why;
    pthread_mutex_unlock(&pipe->lock);
    return state;
}

void pipe_rest(struct pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    char *ring = pipe->used == 0 ? TAKE_PTR(pipe->ring) : NULL;
    if (ring)
        pipe->size = 0;
    pthread_mutex_unlock(&pipe->lock);
    free(ring);
}

size_t pipe_used(struct pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    size_t used = pipe->used;
    pthread_mutex_unlock(&pipe->lock);
    return used;
}

size_t pipe_space(struct pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    size_t free_bytes = space(pipe);
    pthread_mutex_unlock(&pipe->lock);
    return free_bytes;
}

struct event *pipe_readable(struct pipe *pipe)
{
    return &pipe->readable;
}

struct event *pipe_writable(struct pipe *pipe)
{
    return &pipe->writable;
}
