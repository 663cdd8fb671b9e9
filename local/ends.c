/* One thread waits for the ends of all boxes. It alone closes their pidfds and frees boxes that
 * have been live, so what epoll tells about is always there. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/proto.h"
#include "base/clock.h"
#include "base/str.h"
#include "local/driver_impl.h"

#define EVENTS 64
#define PATIENCE_STEP_MS 50
#define LINGER_MS 2000 /* for bubblewrap to end after the agent has */
#define BWRAP_BIT ((uintptr_t)1)
#define STATUS_MAX 4096

/* --- why it ended -------------------------------------------------------------------------------
 */

/* bubblewrap's last word is {"exit-code": N}; -1: there is none. */
static int exit_code_of(const struct local *local, const char *id)
{
    char text[STATUS_MAX];
    uint64_t code;

    place_read(&local->place, id, PLACE_STATUS, text, sizeof(text));
    const char *at = strstr(text, "\"exit-code\":");
    if (!at)
        return -1;
    at += strlen("\"exit-code\":");
    at += strspn(at, " ");
    return str_to_u64((struct str){at, strspn(at, "0123456789")}, 255, &code) ? (int)code : -1;
}

static void last_line(const char *text, char *ret_line, size_t size)
{
    size_t len = strlen(text);

    while (len > 0 && text[len - 1] == '\n')
        len--;
    size_t from = len;
    while (from > 0 && text[from - 1] != '\n')
        from--;
    (void)snprintf(ret_line, size, "%.*s", (int)(len - from), text + from);
}

void ends_explain(struct local *local, struct box *box)
{
    const char *id = box->record.id;
    int code = exit_code_of(local, id);
    char log[STATUS_MAX], words[256];

    place_read(&local->place, id, PLACE_LOG, log, sizeof(log));
    last_line(log, words, sizeof(words));
    bool oom = (code < 0 || code == 128 + SIGKILL) && cgroup_had_oom(&box->record.cgroup);
    box->ended_well = code == 0 || code == PROTO_EXIT_DEADLINE || code == PROTO_EXIT_NO_HELLO;
    box->reason = code == PROTO_EXIT_DEADLINE     ? ERR_TTL
                  : code == PROTO_EXIT_TERMINATED ? ERR_REMOVED_EXTERNALLY
                  : oom                           ? ERR_OOM_KILLED
                                                  : ERR_CONTAINER_EXITED;
    if (box->reason == ERR_OOM_KILLED)
        (void)snprintf(box->message, sizeof(box->message),
                       "its agent ended after the kernel had killed for memory");
    else if (code < 0)
        (void)snprintf(box->message, sizeof(box->message), "its agent has ended");
    else if (code == 128 + SIGKILL)
        (void)snprintf(box->message, sizeof(box->message), "its agent was killed");
    else
        (void)snprintf(box->message, sizeof(box->message), "its agent ended with %d%s%s", code,
                       *words ? ": " : "", words);
}

/* --- events -------------------------------------------------------------------------------------
 */

static void tell(struct local *local, const struct box_info *info)
{
    local->observer.changed(local->observer.arg, info);
}

/* No process of BOX is left. */
static void ended(struct local *local, struct box *box)
{
    struct box_info info;

    ends_explain(local, box); /* only this thread touches what it sets */
    pthread_mutex_lock(&local->lock);
    if (box->phase != PHASE_MAKING)
        uids_give(&local->uids, box->record.host_uid);
    bool live = box->phase == PHASE_LIVE;
    box->kill_at_ms = 0;
    box->ended_early =
        box->phase == PHASE_MAKING; /* create() tells, and may free it from here on */
    if (live)
        box->phase = PHASE_ENDED;
    box_describe_locked(local, box, &info);
    pthread_mutex_unlock(&local->lock);
    if (live && !info.foreign)
        tell(local, &info);
}

static void drop(struct local *local, int *fd)
{
    (void)epoll_ctl(local->epoll, EPOLL_CTL_DEL, *fd, NULL);
    cleanup_fd_close(fd);
    *fd = -1;
}

static void on_end(struct local *local, uint64_t data)
{
    struct box *box = (struct box *)((uintptr_t)data & ~BWRAP_BIT);
    siginfo_t ignored;

    pthread_mutex_lock(&local->lock);
    if (((uintptr_t)data & BWRAP_BIT) != 0) {
        (void)waitid(P_PIDFD, (id_t)box->bwrap, &ignored, WEXITED | WNOHANG); /* if it is ours */
        drop(local, &box->bwrap);
    } else {
        drop(local, &box->agent);
        box->kill_at_ms = clock_now_ms() + LINGER_MS;
    }
    bool over = box->bwrap < 0 && box->agent < 0;
    pthread_mutex_unlock(&local->lock);
    if (over)
        ended(local, box);
}

/* --- what is due --------------------------------------------------------------------------------
 */

static void kill_impatiently(struct box *box, int64_t now)
{
    if (box->kill_at_ms == 0 || now < box->kill_at_ms)
        return;
    if (box->agent >= 0)
        process_signal(box->agent, SIGKILL);
    else
        process_signal(box->bwrap, SIGKILL);
    box->kill_at_ms = now + LINGER_MS;
}

/* A box to be removed of which no process is left; WAITING: whether there may be one soon. */
static struct box *next_to_remove(struct local *local, bool *ret_waiting)
{
    int64_t now = clock_now_ms();
    struct box *found = NULL;

    pthread_mutex_lock(&local->lock);
    for (struct box *box = local->boxes; box && !found; box = box->next) {
        if (box->phase == PHASE_MAKING)
            continue;
        bool over = box->phase == PHASE_GOING && box->bwrap < 0 && box->agent < 0;
        if (over && now >= box->kill_at_ms)
            found = box;
        if (!over)
            kill_impatiently(box, now);
        *ret_waiting = *ret_waiting || box->kill_at_ms != 0;
    }
    pthread_mutex_unlock(&local->lock);
    return found;
}

static bool sweep(struct local *local)
{
    bool waiting = false;
    struct box *box;

    while ((box = next_to_remove(local, &waiting)) != NULL) {
        struct box_info info;
        bool cleared = box_clear(local, &box->record);
        pthread_mutex_lock(&local->lock);
        if (!cleared) {
            box->kill_at_ms = clock_now_ms() + PATIENCE_STEP_MS;
            pthread_mutex_unlock(&local->lock);
            continue;
        }
        box_describe_locked(local, box, &info);
        boxes_remove_locked(local, box);
        pthread_mutex_unlock(&local->lock);
        box_free(local, box);
        info.state = BOX_GONE;
        if (!info.foreign)
            tell(local, &info);
    }
    return waiting;
}

static void tell_all(struct local *local)
{
    size_t count = 0;
    struct box_info *infos = boxes_describe(local, false, &count);

    local->observer.health(local->observer.arg, NULL);
    local->observer.listed(local->observer.arg, infos, count);
    free(infos);
}

static bool is_stopping(struct local *local)
{
    pthread_mutex_lock(&local->lock);
    bool stopping = local->stopping;
    pthread_mutex_unlock(&local->lock);
    return stopping;
}

static void *run(void *arg)
{
    struct local *local = arg;
    struct epoll_event events[EVENTS];

    pthread_setname_np(pthread_self(), "local-watch");
    tell_all(local);
    while (!is_stopping(local)) {
        int timeout = sweep(local) ? PATIENCE_STEP_MS : -1;
        int count = epoll_wait(local->epoll, events, EVENTS, timeout);
        for (int i = 0; i < count; i++) {
            uint64_t number;
            if (events[i].data.u64 != 0)
                on_end(local, events[i].data.u64);
            else
                (void)!read(local->wakeup, &number, sizeof(number));
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------
 */

void ends_wake(struct local *local)
{
    const uint64_t one = 1;

    (void)!write(local->wakeup, &one, sizeof(one)); /* full: it is awake */
}

static int watch_process(struct local *local, int pidfd, uint64_t data)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};

    return pidfd < 0 ? 0 : epoll_ctl(local->epoll, EPOLL_CTL_ADD, pidfd, &event);
}

int ends_add(struct local *local, struct box *box, struct err *err)
{
    uintptr_t data = (uintptr_t)box;

    if (watch_process(local, box->agent, data) < 0 ||
        watch_process(local, box->bwrap, data | BWRAP_BIT) < 0)
        return err_errno(err, ERR_BUSY, errno, "watch a sandbox");
    return 0;
}

/* Signals belong to main's sigwait. */
static int start_thread(struct local *local)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&local->watcher, NULL, run, local);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

int ends_start(struct local *local, struct err *err)
{
    int code = start_thread(local);

    if (code != 0)
        return err_errno(err, ERR_INTERNAL, code, "the thread that watches sandboxes");
    local->watching = true;
    return 0;
}

void ends_stop(struct local *local)
{
    pthread_mutex_lock(&local->lock);
    local->stopping = true;
    pthread_mutex_unlock(&local->lock);
    if (!local->watching)
        return;
    ends_wake(local);
    pthread_join(local->watcher, NULL);
    local->watching = false;
}
