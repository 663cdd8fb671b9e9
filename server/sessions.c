#include "server/sessions.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

/* Times are looked at in steps of this. */
#define LOOK_MS 100
#define READY_AT_ONCE 64

struct sessions {
    pthread_t thread;
    int epoll_fd, wake_fd;
    struct session *all;
    int64_t look_ms;  /* none wants to be stepped before; INT64_MAX: at no time */
    int64_t until_ms; /* of a stop; 0: none */

    pthread_mutex_t lock; /* a leaf */
    struct session *first_ready, **last_ready;
    bool ending, stopping;
};

/* --- waking ------------------------------------------------------------------------------------
 */

static void wake_thread(struct sessions *sessions)
{
    const uint64_t one = 1;

    (void)!write(sessions->wake_fd, &one, sizeof(one)); /* fails only when it is awake already */
}

void session_wake(struct session *session)
{
    struct sessions *sessions = session->sessions;

    pthread_mutex_lock(&sessions->lock);
    bool first = !sessions->first_ready;
    if (!session->ready) {
        session->ready = true;
        session->next_ready = NULL;
        *sessions->last_ready = session;
        sessions->last_ready = &session->next_ready;
    }
    pthread_mutex_unlock(&sessions->lock);
    if (first)
        wake_thread(sessions);
}

void session_look(struct session *session, int64_t at_ms)
{
    session->look_ms = at_ms;
    if (at_ms < session->sessions->look_ms)
        session->sessions->look_ms = at_ms;
}

/* --- life --------------------------------------------------------------------------------------
 */

static void end(struct session *session)
{
    struct sessions *sessions = session->sessions;
    int fd = session->fd;
    struct MHD_UpgradeResponseHandle *urh = session->urh;

    pthread_mutex_lock(&sessions->lock);
    for (struct session **at = &sessions->first_ready; *at; at = &(*at)->next_ready) {
        if (*at == session) {
            *at = session->next_ready;
            if (!*at)
                sessions->last_ready = at;
            break;
        }
    }
    /* A wake that comes before `free` takes its cause away puts it into no list. */
    session->ready = true;
    pthread_mutex_unlock(&sessions->lock);
    if (session->next)
        session->next->prev = session->prev;
    if (session->prev)
        session->prev->next = session->next;
    else if (sessions->all == session)
        sessions->all = session->next;
    (void)epoll_ctl(sessions->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* or it never was there */
    session->ops->free(session);
    (void)MHD_upgrade_action(urh, MHD_UPGRADE_ACTION_CLOSE); /* closes the socket */
}

static void step(struct session *session)
{
    if (!session->ops->step(session))
        end(session);
}

/* The thread meets it for the first time. */
static bool enroll(struct sessions *sessions, struct session *session)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = session};

    session->fresh = false;
    session->next = sessions->all;
    if (session->next)
        session->next->prev = session;
    sessions->all = session;
    return epoll_ctl(sessions->epoll_fd, EPOLL_CTL_ADD, session->fd, &event) == 0;
}

static struct session *next_ready(struct sessions *sessions)
{
    pthread_mutex_lock(&sessions->lock);
    struct session *session = sessions->first_ready;
    if (session) {
        sessions->first_ready = session->next_ready;
        if (!sessions->first_ready)
            sessions->last_ready = &sessions->first_ready;
        session->ready = false;
    }
    pthread_mutex_unlock(&sessions->lock);
    return session;
}

static void run_ready(struct sessions *sessions)
{
    uint64_t count;
    struct session *session;

    (void)!read(sessions->wake_fd, &count, sizeof(count)); /* only clears it */
    /* Some wake themselves again: sockets have their turn between. */
    for (int i = 0; i < READY_AT_ONCE && (session = next_ready(sessions)); i++) {
        bool fresh = session->fresh;

        if (fresh && !enroll(sessions, session))
            end(session);
        else if (fresh && sessions->until_ms && !session->ops->stop(session))
            end(session);
        else
            step(session);
    }
    pthread_mutex_lock(&sessions->lock);
    bool more = sessions->first_ready != NULL;
    pthread_mutex_unlock(&sessions->lock);
    if (more)
        wake_thread(sessions);
}

static void run_due(struct sessions *sessions)
{
    int64_t now = clock_now_ms();

    if (now < sessions->look_ms)
        return;
    sessions->look_ms = INT64_MAX;
    for (struct session *session = sessions->all, *next; session; session = next) {
        next = session->next;
        if (session->look_ms > now && session->look_ms < sessions->look_ms)
            sessions->look_ms = session->look_ms;
        if (session->look_ms && session->look_ms <= now) {
            session->look_ms = 0;
            step(session);
        }
    }
}

static void end_all(struct sessions *sessions, bool ending)
{
    if (!ending || (sessions->until_ms && clock_now_ms() < sessions->until_ms))
        return;
    bool first = sessions->until_ms == 0;
    sessions->until_ms = clock_now_ms() + SESSION_STOP_MS;
    for (struct session *session = sessions->all, *next; session; session = next) {
        next = session->next;
        if (!first || !session->ops->stop(session))
            end(session);
    }
}

static int patience(const struct sessions *sessions)
{
    int64_t now = clock_now_ms();
    int64_t at = sessions->until_ms && sessions->until_ms < sessions->look_ms ? sessions->until_ms
                                                                              : sessions->look_ms;

    if (at == INT64_MAX || !sessions->all)
        return -1;
    return at - now < LOOK_MS ? LOOK_MS : (int)(at - now < 60000 ? at - now : 60000);
}

static void *sessions_loop(void *arg)
{
    struct sessions *sessions = arg;
    bool ending = false, stopping = false;

    while (!stopping || sessions->all) {
        /* One at a time: a session of a later event may have ended in an earlier one. */
        struct epoll_event event;
        int count = epoll_wait(sessions->epoll_fd, &event, 1, patience(sessions));

        if (count == 1 && event.data.ptr)
            step(event.data.ptr);
        else if (count == 1)
            run_ready(sessions);
        run_due(sessions);
        pthread_mutex_lock(&sessions->lock);
        ending = sessions->ending;
        stopping = sessions->stopping;
        pthread_mutex_unlock(&sessions->lock);
        end_all(sessions, ending);
    }
    return NULL;
}

static void sessions_free(struct sessions *sessions)
{
    if (sessions->epoll_fd >= 0)
        (void)close(sessions->epoll_fd);
    if (sessions->wake_fd >= 0)
        (void)close(sessions->wake_fd);
    (void)pthread_mutex_destroy(&sessions->lock);
    free(sessions);
}

int sessions_start(struct sessions **ret_sessions, struct err *err)
{
    struct sessions *sessions = xcalloc(1, sizeof(*sessions));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    sessions->look_ms = INT64_MAX;
    sessions->last_ready = &sessions->first_ready;
    (void)pthread_mutex_init(&sessions->lock, NULL);
    sessions->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sessions->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sessions->epoll_fd < 0 || sessions->wake_fd < 0 ||
        epoll_ctl(sessions->epoll_fd, EPOLL_CTL_ADD, sessions->wake_fd, &event) < 0) {
        int errnum = errno;

        sessions_free(sessions);
        return err_errno(err, ERR_INTERNAL, errnum, "set up epoll");
    }
    int errnum = pthread_create(&sessions->thread, NULL, sessions_loop, sessions);
    if (errnum) {
        sessions_free(sessions);
        return err_errno(err, ERR_INTERNAL, errnum, "start a thread");
    }
    *ret_sessions = sessions;
    return 0;
}

void sessions_begin(struct sessions *sessions, struct session *session)
{
    session->sessions = sessions;
    session->next = session->prev = session->next_ready = NULL;
    session->ready = false;
    session->fresh = true;
    session->look_ms = 0;
    session_wake(session);
}

void sessions_end_all(struct sessions *sessions)
{
    pthread_mutex_lock(&sessions->lock);
    sessions->ending = true;
    pthread_mutex_unlock(&sessions->lock);
    wake_thread(sessions);
}

void sessions_stop(struct sessions *sessions)
{
    if (!sessions)
        return;
    pthread_mutex_lock(&sessions->lock);
    sessions->stopping = true;
    pthread_mutex_unlock(&sessions->lock);
    wake_thread(sessions);
    (void)pthread_join(sessions->thread, NULL);
    sessions_free(sessions);
}
