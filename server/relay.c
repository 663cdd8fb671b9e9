#include "server/relay.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/pipe.h"
#include "sandbox/tunnel.h"

#define BLOCK (16 * KIB)
/* For the client to close, when the program has and all was sent. */
#define LINGER_MS 5000
#define LOOK_MS 500

struct session {
    struct relay *relay;
    int fd;
    struct MHD_UpgradeResponseHandle *urh;
    struct tunnel *tunnel;
    struct session *next, *prev; /* of all; the thread's */
    struct session *next_ready;  /* under relay->lock */
    bool ready, fresh;
    struct waiter on_in, on_out;
    char *held; /* for the client, not sent yet */
    size_t held_at, held_len;
    bool client_ended, program_ended;
    int64_t linger_until_ms;
};

struct relay {
    pthread_t thread;
    int epoll_fd, wake_fd;
    struct session *sessions;
    size_t lingering;

    pthread_mutex_t lock; /* a leaf */
    struct session *first_ready;
    bool ending, stopping;
};

/* --- waking ------------------------------------------------------------------------------------
 */

static void wake_thread(struct relay *relay)
{
    const uint64_t one = 1;

    (void)!write(relay->wake_fd, &one, sizeof(one)); /* fails only when it is awake already */
}

static void make_ready(struct session *session)
{
    struct relay *relay = session->relay;

    pthread_mutex_lock(&relay->lock);
    bool first = !relay->first_ready;
    if (!session->ready) {
        session->ready = true;
        session->next_ready = relay->first_ready;
        relay->first_ready = session;
    }
    pthread_mutex_unlock(&relay->lock);
    if (first)
        wake_thread(relay);
}

static void in_moved(struct waiter *waiter)
{
    make_ready(container_of(waiter, struct session, on_in));
}

static void out_moved(struct waiter *waiter)
{
    make_ready(container_of(waiter, struct session, on_out));
}

static void wait_no_more(struct session *session)
{
    (void)event_cancel(pipe_readable(tunnel_in(session->tunnel)), &session->on_in);
    (void)event_cancel(pipe_writable(tunnel_out(session->tunnel)), &session->on_out);
}

/* --- bytes -------------------------------------------------------------------------------------
 */

/* From the client. False: it has gone. */
static bool pull(struct session *session)
{
    struct pipe *out = tunnel_out(session->tunnel);
    char block[BLOCK];

    while (!session->client_ended) {
        uint64_t seen = event_count(pipe_writable(out));
        size_t space = pipe_space(out);

        if (!space) {
            if (pipe_state(out, NULL) != PIPE_OPEN ||
                event_wait(pipe_writable(out), seen, &session->on_out))
                return true; /* where it is over, the other pipe says why */
            continue;
        }
        ssize_t len = recv(session->fd, block, space < BLOCK ? space : BLOCK, MSG_DONTWAIT);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return errno == EAGAIN;
        if (len == 0) {
            session->client_ended = true;
            pipe_finish(out, NULL);
        }
        (void)pipe_write(out, block, (size_t)len); /* it has the space, this is its only writer */
    }
    return true;
}

/* True when all that was held is sent; else there is no room now, or the client has gone. */
static bool send_held(struct session *session, bool *ret_gone)
{
    while (session->held_at < session->held_len) {
        ssize_t len = send(session->fd, session->held + session->held_at,
                           session->held_len - session->held_at, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0) {
            *ret_gone = errno != EAGAIN;
            return false;
        }
        session->held_at += (size_t)len;
    }
    free(session->held);
    session->held = NULL;
    session->held_at = session->held_len = 0;
    return true;
}

static void program_is_through(struct session *session)
{
    session->program_ended = true;
    session->linger_until_ms = clock_now_ms() + LINGER_MS;
    session->relay->lingering++;
    (void)shutdown(session->fd, SHUT_WR); /* fails only when the client has gone: seen next */
}

/* To the client. False: it has gone, or the tunnel broke. */
static bool push(struct session *session)
{
    struct pipe *in = tunnel_in(session->tunnel);
    bool gone = false;

    while (!session->program_ended) {
        if (!send_held(session, &gone))
            return !gone;
        uint64_t seen = event_count(pipe_readable(in));
        char *block = xmalloc(BLOCK);
        size_t len = pipe_read(in, block, BLOCK);
        if (len) {
            session->held = block;
            session->held_len = len;
            continue;
        }
        free(block);
        enum pipe_state state = pipe_state(in, NULL);
        if (state == PIPE_ENDED)
            program_is_through(session);
        else if (state != PIPE_OPEN)
            return false;
        else if (event_wait(pipe_readable(in), seen, &session->on_in))
            return true;
    }
    return true;
}

/* --- life --------------------------------------------------------------------------------------
 */

static void end(struct session *session)
{
    struct relay *relay = session->relay;

    wait_no_more(session);
    pthread_mutex_lock(&relay->lock);
    for (struct session **at = &relay->first_ready; *at; at = &(*at)->next_ready) {
        if (*at == session) {
            *at = session->next_ready;
            break;
        }
    }
    pthread_mutex_unlock(&relay->lock);
    if (session->next)
        session->next->prev = session->prev;
    if (session->prev)
        session->prev->next = session->next;
    else
        relay->sessions = session->next;
    relay->lingering -= session->program_ended;
    (void)epoll_ctl(relay->epoll_fd, EPOLL_CTL_DEL, session->fd, NULL); /* or it never was there */
    tunnel_close(session->tunnel);
    (void)MHD_upgrade_action(session->urh, MHD_UPGRADE_ACTION_CLOSE); /* closes the socket */
    free(session->held);
    free(session);
}

static void step(struct session *session)
{
    wait_no_more(session);
    if (!pull(session) || !push(session) || (session->client_ended && session->program_ended))
        end(session);
}

/* The thread meets it for the first time. */
static bool enroll(struct relay *relay, struct session *session)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = session};

    session->fresh = false;
    session->next = relay->sessions;
    if (session->next)
        session->next->prev = session;
    relay->sessions = session;
    return epoll_ctl(relay->epoll_fd, EPOLL_CTL_ADD, session->fd, &event) == 0;
}

static struct session *next_ready(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    struct session *session = relay->first_ready;
    if (session) {
        relay->first_ready = session->next_ready;
        session->ready = false;
    }
    pthread_mutex_unlock(&relay->lock);
    return session;
}

static void run_ready(struct relay *relay)
{
    uint64_t count;
    struct session *session;

    (void)!read(relay->wake_fd, &count, sizeof(count)); /* only clears it */
    while ((session = next_ready(relay))) {
        if (session->fresh && !enroll(relay, session))
            end(session);
        else
            step(session);
    }
}

static void end_some(struct relay *relay, bool all)
{
    int64_t now = clock_now_ms();

    for (struct session *session = relay->sessions, *next; session; session = next) {
        next = session->next;
        if (all || (session->program_ended && session->linger_until_ms <= now))
            end(session);
    }
}

static void *relay_loop(void *arg)
{
    struct relay *relay = arg;
    bool ending = false, stopping = false;

    while (!stopping || relay->sessions) {
        /* One at a time: a session of a later event may have ended in an earlier one. */
        struct epoll_event event;
        int count = epoll_wait(relay->epoll_fd, &event, 1, relay->lingering ? LOOK_MS : -1);

        if (count == 1 && event.data.ptr)
            step(event.data.ptr);
        else if (count == 1)
            run_ready(relay);
        pthread_mutex_lock(&relay->lock);
        ending = relay->ending;
        stopping = relay->stopping;
        pthread_mutex_unlock(&relay->lock);
        if (ending || relay->lingering)
            end_some(relay, ending);
    }
    return NULL;
}

static void relay_free(struct relay *relay)
{
    if (relay->epoll_fd >= 0)
        (void)close(relay->epoll_fd);
    if (relay->wake_fd >= 0)
        (void)close(relay->wake_fd);
    (void)pthread_mutex_destroy(&relay->lock);
    free(relay);
}

int relay_start(struct relay **ret_relay, struct err *err)
{
    struct relay *relay = xcalloc(1, sizeof(*relay));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    (void)pthread_mutex_init(&relay->lock, NULL);
    relay->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    relay->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (relay->epoll_fd < 0 || relay->wake_fd < 0 ||
        epoll_ctl(relay->epoll_fd, EPOLL_CTL_ADD, relay->wake_fd, &event) < 0) {
        int errnum = errno;

        relay_free(relay);
        return err_errno(err, ERR_INTERNAL, errnum, "set up epoll");
    }
    int errnum = pthread_create(&relay->thread, NULL, relay_loop, relay);
    if (errnum) {
        relay_free(relay);
        return err_errno(err, ERR_INTERNAL, errnum, "start a thread");
    }
    *ret_relay = relay;
    return 0;
}

void relay_begin(struct relay *relay, const struct relay_ends *ends)
{
    struct session *session = xcalloc(1, sizeof(*session));

    *session = (struct session){
        .relay = relay,
        .fd = ends->fd,
        .urh = ends->urh,
        .tunnel = ends->tunnel,
        .fresh = true,
        .on_in.wake = in_moved,
        .on_out.wake = out_moved,
        .held = ends->to_client,
        .held_len = ends->to_client_len,
    };
    /* At most what libmicrohttpd has room for; only the request's head went before it. */
    (void)pipe_write(tunnel_out(ends->tunnel), ends->to_program, ends->to_program_len);
    make_ready(session);
}

void relay_end_all(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    relay->ending = true;
    pthread_mutex_unlock(&relay->lock);
    wake_thread(relay);
}

void relay_stop(struct relay *relay)
{
    if (!relay)
        return;
    pthread_mutex_lock(&relay->lock);
    relay->stopping = true;
    pthread_mutex_unlock(&relay->lock);
    wake_thread(relay);
    (void)pthread_join(relay->thread, NULL);
    relay_free(relay);
}
