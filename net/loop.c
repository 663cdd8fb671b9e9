#include "net/loop.h"

#include <libwebsockets.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/loop_lws.h"
#include "net/resolve.h"
#include "net/timers.h"
#include "net/ws_vhost.h"

/* The highest file number that a stream may have. In a container the limit is often a million, for
 * which libwebsockets would take 16 MiB before the first connection; this costs 1 MiB at most. */
#define LOOP_FILES_MAX 65536

/* The request of a WebSocket handshake is built in this buffer, Authorization header and all. */
#define LOOP_SERVICE_BUFFER (32 * 1024)

/* Header lines of one handshake, request and reply together. */
#define LOOP_HANDSHAKE_HEADERS (16 * 1024)

struct task {
    void (*fn)(void *arg);
    void *arg;
};

struct loop {
    struct lws_context *lws;
    pthread_t thread;
    bool plain;

    pthread_mutex_t lock; /* the five below */
    struct task *tasks;
    size_t task_count, task_cap;
    bool stopping;
    bool deaf; /* the context is going or gone */

    /* the loop thread's own */
    struct timers timers;
    lws_sorted_usec_list_t alarm;
    struct loop_item *items;
    struct ws_vhost *vhosts;
    struct lws_vhost *socket_vhost; /* the context's */
    struct resolver *resolver;
    bool ending;
};

static _Thread_local const struct loop *current;

bool loop_is_current(const struct loop *loop)
{
    return current == loop;
}

struct lws_context *loop_lws(const struct loop *loop)
{
    return loop->lws;
}

struct ws_vhost **loop_vhosts(struct loop *loop)
{
    return &loop->vhosts;
}

struct lws_vhost **loop_socket_vhost(struct loop *loop)
{
    return &loop->socket_vhost;
}

struct resolver *loop_resolver(struct loop *loop)
{
    return loop->resolver;
}

bool loop_is_plain(const struct loop *loop)
{
    return loop->plain;
}

bool loop_is_ending(const struct loop *loop)
{
    return loop->ending;
}

void loop_hold(struct loop *loop, struct loop_item *item)
{
    item->prev = NULL;
    item->next = loop->items;
    if (loop->items)
        loop->items->prev = item;
    loop->items = item;
}

void loop_release(struct loop *loop, struct loop_item *item)
{
    if (!item->prev && loop->items != item)
        return;
    if (item->prev)
        item->prev->next = item->next;
    else
        loop->items = item->next;
    if (item->next)
        item->next->prev = item->prev;
    item->next = item->prev = NULL;
}

/* --- timers ------------------------------------------------------------------------------------
 */

void timer_start(struct loop *loop, struct timer *timer, int64_t after_ms)
{
    timer_stop(timer);
    timer->loop = loop;
    timers_add(&loop->timers, timer, clock_now_ms() + (after_ms > 0 ? after_ms : 0));
}

void timer_stop(struct timer *timer)
{
    if (timer_is_running(timer))
        timers_remove(&timer->loop->timers, timer);
}

static void run_timers(struct loop *loop)
{
    struct timer *timer;
    int64_t now = clock_now_ms();
    while ((timer = timers_take_due(&loop->timers, now)) != NULL)
        timer->fire(timer);
}

static void alarm_rang(lws_sorted_usec_list_t *alarm)
{
    (void)alarm; /* only bounds poll(); run_timers() follows each round */
}

static void set_alarm(struct loop *loop)
{
    const struct timer *first = timers_first(&loop->timers);
    if (!first) {
        lws_sul_cancel(&loop->alarm);
        return;
    }
    int64_t left = first->due_ms - clock_now_ms();
    if (left < 0)
        left = 0;
    /* one more, since poll() gets this cut to milliseconds and would spin through the last one */
    lws_sul_schedule(loop->lws, 0, &loop->alarm, alarm_rang, (left + 1) * 1000);
}

/* --- posted tasks ------------------------------------------------------------------------------
 */

/* The one call into libwebsockets that other threads may make. Under the lock, since it writes to a
 * descriptor that must not be closed and another's by then. */
static void wake(struct loop *loop)
{
    if (!loop->deaf)
        lws_cancel_service(loop->lws);
}

void loop_post(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&loop->lock);
    if (loop->task_count == loop->task_cap) {
        loop->task_cap = loop->task_cap ? 2 * loop->task_cap : 64;
        loop->tasks = xrealloc(loop->tasks, loop->task_cap * sizeof(*loop->tasks));
    }
    loop->tasks[loop->task_count++] = (struct task){fn, arg};
    if (loop->task_count == 1)
        wake(loop);
    pthread_mutex_unlock(&loop->lock);
}

/* Runs what has been posted so far; returns whether there was anything. */
static bool run_tasks(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct task *tasks = loop->tasks;
    size_t count = loop->task_count;
    loop->tasks = NULL;
    loop->task_count = loop->task_cap = 0;
    pthread_mutex_unlock(&loop->lock);
    for (size_t i = 0; i < count; i++)
        tasks[i].fn(tasks[i].arg);
    free(tasks);
    return count > 0;
}

/* --- the thread --------------------------------------------------------------------------------
 */

static bool is_stopping(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    bool stopping = loop->stopping;
    pthread_mutex_unlock(&loop->lock);
    return stopping;
}

static void end_everything(struct loop *loop)
{
    loop->ending = true;
    while (run_tasks(loop) || loop->items) {
        struct loop_item *item = loop->items;
        if (!item)
            continue;
        loop_release(loop, item);
        item->end(item);
    }
    resolver_stop(loop->resolver);
    lws_sul_cancel(&loop->alarm);
    pthread_mutex_lock(&loop->lock);
    loop->deaf = true;
    pthread_mutex_unlock(&loop->lock);
    lws_context_destroy(loop->lws);
    (void)run_tasks(loop); /* what closing posted */
    timers_done(&loop->timers);
    ws_vhosts_free(&loop->vhosts);
}

static void *loop_thread(void *arg)
{
    struct loop *loop = arg;
    current = loop;
    pthread_setname_np(pthread_self(), "io-loop");
    while (!is_stopping(loop)) {
        lws_service(loop->lws, 0);
        run_tasks(loop);
        run_timers(loop);
        set_alarm(loop);
    }
    end_everything(loop);
    return NULL;
}

static void lws_said(int level, const char *line)
{
    (void)level;
    size_t len = strcspn(line, "\n");
    log_detail(LOG_LEVEL_DEBUG, "libwebsockets", "%.*s", (int)len, line);
}

/* libwebsockets sizes two tables by the soft limit of open files, once. */
static struct lws_context *context_new(bool plain)
{
    struct rlimit files;
    bool known = getrlimit(RLIMIT_NOFILE, &files) == 0;
    if (known) {
        struct rlimit sizing = files;
        sizing.rlim_cur = files.rlim_max < LOOP_FILES_MAX ? files.rlim_max : LOOP_FILES_MAX;
        (void)setrlimit(RLIMIT_NOFILE, &sizing); /* else it goes by what is allowed now */
    }
    lws_set_log_level(LLL_ERR | LLL_WARN, lws_said);
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS |
                   (plain ? 0 : (uint64_t)LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT),
        .gid = -1,
        .uid = -1,
        .pt_serv_buf_size = LOOP_SERVICE_BUFFER,
        .max_http_header_data2 = LOOP_HANDSHAKE_HEADERS,
        .timeout_secs = 600, /* ours are shorter; this must not get in the way */
    };
    struct lws_context *context = lws_create_context(&info);
    if (known)
        (void)setrlimit(RLIMIT_NOFILE, &files);
    return context;
}

static void loop_free(struct loop *loop)
{
    pthread_mutex_destroy(&loop->lock);
    free(loop->tasks);
    free(loop);
}

/* Signals belong to main's sigwait; the thread starts with all of them blocked. */
static int start_thread(struct loop *loop)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&loop->thread, NULL, loop_thread, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static struct loop *start(bool plain, struct err *err)
{
    struct lws_context *context = context_new(plain);
    if (!context) {
        err_set(err, ERR_INTERNAL, "libwebsockets cannot start");
        return NULL;
    }
    struct loop *loop = xcalloc(1, sizeof(*loop));
    loop->lws = context;
    loop->plain = plain;
    pthread_mutex_init(&loop->lock, NULL);
    loop->resolver = resolver_new(loop);
    int code = start_thread(loop);
    if (code != 0) {
        err_errno(err, ERR_INTERNAL, code, "I/O thread");
        resolver_stop(loop->resolver);
        lws_context_destroy(context);
        loop_free(loop);
        return NULL;
    }
    return loop;
}

struct loop *loop_new(struct err *err)
{
    return start(false, err);
}

struct loop *loop_new_plain(struct err *err)
{
    return start(true, err);
}

void loop_stop(struct loop *loop)
{
    if (!loop)
        return;
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    wake(loop);
    pthread_mutex_unlock(&loop->lock);
    pthread_join(loop->thread, NULL);
    loop_free(loop);
}
