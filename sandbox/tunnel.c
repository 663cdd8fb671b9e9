#include "sandbox/tunnel.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/call.h"
#include "sandbox/sandbox.h"

#define IN_CAPACITY (256 * KIB)
#define OUT_CAPACITY (64 * KIB)
#define DIAL_MS 5000
#define IDLE_MS 15000
#define IDLE_PER_PORT 32
#define IDLE_MAX 512

struct tunnel {
    struct sandbox *sandbox;
    int64_t port;
    struct call *call;
    struct pipe *in, *out;
    /* while it is kept, under all->tunnels->lock */
    struct tunnel *next;
    int64_t idle_since_ms;
    struct waiter ended; /* the program closes it, or says what nobody asked for */
};

int tunnel_open(struct sandbox *sandbox, int64_t port, struct pipe *out, struct tunnel **ret_tunnel,
                struct err *err)
{
    struct tunnel *tunnel = xcalloc(1, sizeof(*tunnel));
    tunnel->sandbox = sandbox_ref(sandbox);
    tunnel->port = port;
    tunnel->in = pipe_new(IN_CAPACITY);
    tunnel->out = out ? pipe_ref(out) : pipe_new(OUT_CAPACITY);
    tunnel->call = call_new(OP_DIAL);
    call_put_u64(tunnel->call, TAG_PORT, (uint64_t)port);
    call_put_u64(tunnel->call, TAG_TIMEOUT_MS, DIAL_MS);
    call_upload(tunnel->call, tunnel->out);
    call_download(tunnel->call, tunnel->in);
    if (call_start(sandbox, tunnel->call, err) < 0) {
        tunnel_close(tunnel);
        return -1;
    }
    *ret_tunnel = tunnel;
    return 0;
}

struct pipe *tunnel_in(const struct tunnel *tunnel)
{
    return tunnel->in;
}

struct pipe *tunnel_out(const struct tunnel *tunnel)
{
    return tunnel->out;
}

void tunnel_close(struct tunnel *tunnel)
{
    if (!tunnel)
        return;
    call_cancel(tunnel->call); /* does nothing when it has ended, or was not begun */
    call_unref(tunnel->call);
    pipe_unref(tunnel->in);
    pipe_unref(tunnel->out);
    sandbox_unref(tunnel->sandbox);
    free(tunnel);
}

/* The kept ones; the lock is a leaf but for the events of pipes. */
struct tunnels {
    pthread_mutex_t lock;
    struct tunnel *idle;
    size_t count;
};

/* --- kept ones ------------------------------------------------------------------------------- */

void tunnels_init(struct sandboxes *all)
{
    all->tunnels = xcalloc(1, sizeof(*all->tunnels));
    pthread_mutex_init(&all->tunnels->lock, NULL);
}

static bool is_idle(struct tunnel *tunnel)
{
    return pipe_state(tunnel->in, NULL) == PIPE_OPEN && pipe_used(tunnel->in) == 0;
}

static void close_all(struct tunnel *list)
{
    while (list) {
        struct tunnel *tunnel = list;
        list = tunnel->next;
        tunnel_close(tunnel);
    }
}

/* Takes them off that are past use; BEFORE: and those that have been idle since then. */
static struct tunnel *take_stale_locked(struct sandboxes *all, int64_t before)
{
    struct tunnel *stale = NULL;
    for (struct tunnel **link = &all->tunnels->idle; *link;) {
        struct tunnel *tunnel = *link;
        if (tunnel->idle_since_ms > before && is_idle(tunnel)) {
            link = &tunnel->next;
            continue;
        }
        (void)event_cancel(pipe_readable(tunnel->in), &tunnel->ended);
        *link = tunnel->next;
        all->tunnels->count--;
        tunnel->next = stale;
        stale = tunnel;
    }
    return stale;
}

static void sweep(struct sandboxes *all, int64_t before)
{
    pthread_mutex_lock(&all->tunnels->lock);
    struct tunnel *stale = take_stale_locked(all, before);
    pthread_mutex_unlock(&all->tunnels->lock);
    close_all(stale);
}

void tunnels_sweep(struct sandboxes *all)
{
    sweep(all, clock_now_ms() - IDLE_MS);
}

void tunnels_close(struct sandboxes *all)
{
    sweep(all, INT64_MAX);
}

void tunnels_done(struct sandboxes *all)
{
    pthread_mutex_destroy(&all->tunnels->lock);
    free(all->tunnels);
    all->tunnels = NULL;
}

static void sweep_on_loop(struct sandbox *sandbox, void *arg)
{
    (void)arg;
    tunnels_sweep(sandbox->all);
}

/* The tunnel itself may be in use again by the time anybody looks. */
static void wake(struct waiter *waiter)
{
    struct tunnel *tunnel = container_of(waiter, struct tunnel, ended);
    sandbox_on_loop(tunnel->sandbox, sweep_on_loop, NULL);
}

static size_t kept_locked(const struct sandboxes *all, const struct tunnel *like)
{
    size_t count = 0;
    for (const struct tunnel *at = all->tunnels->idle; at; at = at->next)
        count += at->sandbox == like->sandbox && at->port == like->port;
    return count;
}

void tunnel_keep(struct tunnel *tunnel)
{
    struct sandboxes *all = tunnel->sandbox->all;
    bool kept = false;
    pthread_mutex_lock(&all->tunnels->lock);
    uint64_t seen = event_count(pipe_readable(tunnel->in));
    if (is_idle(tunnel) && all->tunnels->count < IDLE_MAX &&
        kept_locked(all, tunnel) < IDLE_PER_PORT) {
        tunnel->ended.wake = wake;
        tunnel->idle_since_ms = clock_now_ms();
        kept = event_wait(pipe_readable(tunnel->in), seen, &tunnel->ended);
    }
    if (kept) {
        tunnel->next = all->tunnels->idle;
        all->tunnels->idle = tunnel;
        all->tunnels->count++;
    }
    pthread_mutex_unlock(&all->tunnels->lock);
    if (!kept)
        tunnel_close(tunnel);
}

struct tunnel *tunnel_reuse(struct sandbox *sandbox, int64_t port)
{
    struct sandboxes *all = sandbox->all;
    struct tunnel *found = NULL;
    pthread_mutex_lock(&all->tunnels->lock);
    for (struct tunnel **link = &all->tunnels->idle; *link && !found; link = &(*link)->next) {
        struct tunnel *tunnel = *link;
        if (tunnel->sandbox != sandbox || tunnel->port != port || !is_idle(tunnel))
            continue;
        (void)event_cancel(pipe_readable(tunnel->in), &tunnel->ended);
        *link = tunnel->next;
        all->tunnels->count--;
        found = tunnel;
        break;
    }
    pthread_mutex_unlock(&all->tunnels->lock);
    return found;
}
