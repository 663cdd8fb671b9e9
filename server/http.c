#include "server/http.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "server/connection.h"
#include "server/http_impl.h"
#include "server/listen.h"
#include "server/sessions.h"

/* Start and stop of the HTTP side, and its connections. */

/* Of a connection: its request line and headers, a piece of the body, the reply's headers. A path
 * of 4096 bytes, percent-encoded, needs 12 KiB. */
#define CONNECTION_MEMORY (36 * KIB)
/* Without a byte from or to the client, while the connection is not suspended. */
#define CONNECTION_IDLE_S 75
/* After the deadline of a stop: for running handlers and last bytes. */
#define STOP_GRACE_MS 2000
/* At a stop, for requests to previews. */
#define PREVIEWS_MS 2000
/* For the last packet of a handshake that has begun. */
#define HALF_OPEN_MS 50
#define BACKLOG_MS 2000

/* --- connections --------------------------------------------------------------------------------
 */

/* While a request waits nothing is sent, so keepalive alone finds an unplugged client within 4 s.
 * TCP_USER_TIMEOUT would find it too, but would also end a client that pauses in reading an answer.
 */
static void set_keepalive(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 2},
        {IPPROTO_TCP, TCP_KEEPINTVL, 1},
        {IPPROTO_TCP, TCP_KEEPCNT, 2},
    };

    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof(options[i].value)); /* without it, a dead client is found later */
}

static void peer_add(struct http *http, struct peer *peer)
{
    pthread_mutex_lock(&http->peers_lock);
    peer->next = http->peers;
    if (peer->next)
        peer->next->prev = peer;
    http->peers = peer;
    http->peer_count++;
    pthread_mutex_unlock(&http->peers_lock);
}

static void peer_remove(struct http *http, struct peer *peer)
{
    pthread_mutex_lock(&http->peers_lock);
    if (peer->prev)
        peer->prev->next = peer->next;
    else
        http->peers = peer->next;
    if (peer->next)
        peer->next->prev = peer->prev;
    if (--http->peer_count == 0)
        pthread_cond_broadcast(&http->peers_left);
    pthread_mutex_unlock(&http->peers_lock);
    free(peer);
}

/* A connection of take_backlog has its peer already; else it could be overlooked by wait_for_peers.
 */
static struct peer *peer_of_backlog(struct http *http, int fd)
{
    struct peer *peer = NULL;

    if (!atomic_load(&http->stopping))
        return NULL;
    pthread_mutex_lock(&http->peers_lock);
    for (peer = http->peers; peer && (peer->fd != fd || peer->started); peer = peer->next)
        ;
    pthread_mutex_unlock(&http->peers_lock);
    return peer;
}

static struct peer *peer_new(struct http *http, int fd)
{
    struct peer *peer = xcalloc(1, sizeof(*peer));

    peer->fd = fd;
    peer_add(http, peer);
    return peer;
}

static void connection_changed(void *cls, struct MHD_Connection *connection, void **context,
                               enum MHD_ConnectionNotificationCode code)
{
    struct http *http = cls;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        struct peer *peer = peer_of_backlog(http, fd);

        if (!peer)
            peer = peer_new(http, fd);
        peer->started = true;
        set_keepalive(fd);
        *context = peer;
    } else if (*context) {
        peer_remove(http, *context);
        *context = NULL;
    }
}

/* --- start --------------------------------------------------------------------------------------
 */

static size_t keep_encoded(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    return strlen(text); /* decoded by our own rules, in route.c and uri.c */
}

__attribute__((format(printf, 2, 0))) static void log_library(void *cls, const char *fmt,
                                                              va_list args)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);

    (void)cls;
    (void)buf_vprintf(&text, fmt, args);
    while (text.len && text.ptr[text.len - 1] == '\n')
        text.ptr[--text.len] = '\0';
    log_detail(LOG_LEVEL_DEBUG, "libmicrohttpd", "%s", buf_text(&text));
}

/* Takes FD, also on failure. */
static int start_daemon(struct http *http, const struct http_config *config, int fd,
                        struct err *err)
{
    /* Suspending needs the inter-thread channel that the flag brings; epoll scales to the limit. */
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, connection_handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)config->connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_IDLE_S, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_encoded, NULL, MHD_OPTION_URI_LOG_CALLBACK,
        connection_uri, http, MHD_OPTION_NOTIFY_COMPLETED, connection_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, connection_changed, http, MHD_OPTION_END);
    if (!http->daemon) {
        (void)close(fd);
        return err_set(err, ERR_INTERNAL, "the HTTP server does not start");
    }
    return 0;
}

static struct http *http_new(const struct http_config *config, struct app *app)
{
    struct http *http = xcalloc(1, sizeof(*http));
    pthread_condattr_t clock;
    uint8_t random[4];
    cleanup_buf struct buf hex = BUF_INIT(sizeof(http->id_prefix));

    http->app = app;
    http->callers = app->callers;
    http->local_only = config->local_only;
    http->routes = config->routes;
    http->preview_domain = config->preview_domain;
    http->preview_scheme = config->preview_scheme;
    (void)pthread_mutex_init(&http->peers_lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&http->peers_left, &clock);
    (void)pthread_condattr_destroy(&clock);
    crypto_random(random, sizeof(random));
    (void)hex_encode(&hex, random, sizeof(random));
    memcpy(http->id_prefix, buf_text(&hex), hex.len + 1);
    return http;
}

static void http_free(struct http *http)
{
    if (http->pool)
        pool_stop(http->pool);
    suspended_stop(http->suspended);
    sessions_stop(http->sessions);
    while (http->peers)
        peer_remove(http, http->peers);
    (void)pthread_mutex_destroy(&http->peers_lock);
    (void)pthread_cond_destroy(&http->peers_left);
    free(http);
}

int http_start(const struct http_config *config, struct app *app, struct http **ret_http,
               struct err *err)
{
    struct http *http = http_new(config, app);
    cleanup_fd int fd = -1;

    if (listen_open(config->listen, config->local_only, &fd, &http->port, err) ||
        suspended_start(&http->suspended, err) || sessions_start(&http->sessions, err)) {
        http_free(http);
        return -1;
    }
    http->pool = pool_new("http", config->workers, config->queue);
    if (!http->pool) {
        http_free(http);
        return err_set(err, ERR_INTERNAL, "the worker threads do not start");
    }
    if (config->bound)
        config->bound(app, http->port);
    app->http = http;     /* the first request may come before this returns */
    http->listen_fd = fd; /* libmicrohttpd's; to be looked at only */
    if (start_daemon(http, config, TAKE_FD(fd), err)) {
        app->http = NULL;
        http_free(http);
        return -1;
    }
    *ret_http = http;
    return 0;
}

int http_port(const struct http *http)
{
    return http->port;
}

bool http_stopping(const struct http *http)
{
    return atomic_load(&http->stopping);
}

const struct metrics *http_metrics(const struct http *http)
{
    return &http->metrics;
}

size_t http_queued(const struct http *http)
{
    return pool_queued(http->pool);
}

/* --- stop ---------------------------------------------------------------------------------------
 */

/* From now on the kernel drops every SYN, so that no connection comes to be between the last accept
 * and the close; its client tries again, and is refused by then. */
static void refuse_new(int listen_fd)
{
    /* What a filter sees of a TCP socket begins with the TCP header: flags are its byte 13. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12), /* SYN and ACK */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    const struct sock_fprog program = {ARRAY_LEN(code), code};

    /* Without it a few microseconds remain in which a connection is reset. */
    (void)setsockopt(listen_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

/* Connections that the kernel has accepted for us would be reset with the listening socket. */
static void take_backlog(struct http *http, int listen_fd)
{
    int64_t until = clock_now_ms() + BACKLOG_MS;

    while (clock_now_ms() < until) {
        struct sockaddr_storage address;
        socklen_t size = sizeof(address);
        int fd =
            accept4(listen_fd, (struct sockaddr *)&address, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0) {
            struct pollfd half_open = {.fd = listen_fd, .events = POLLIN};

            if (poll(&half_open, 1, HALF_OPEN_MS) > 0)
                continue;
            return;
        }
        struct peer *peer = peer_new(http, fd);
        if (MHD_add_connection(http->daemon, fd, (struct sockaddr *)&address, size) != MHD_YES) {
            log_event(LOG_LEVEL_WARN, "a waiting connection was not taken over", NULL);
            peer_remove(http, peer);
        }
    }
}

/* Idle connections end here; one with bytes to read is left for libmicrohttpd to find its request
 * in. */
static void end_idle_peers(struct http *http)
{
    char byte;

    pthread_mutex_lock(&http->peers_lock);
    for (struct peer *peer = http->peers; peer; peer = peer->next) {
        if (!peer->request && recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
            (void)shutdown(peer->fd, SHUT_RD);
    }
    pthread_mutex_unlock(&http->peers_lock);
}

/* A preview may stream for ever; its visitors come back by themselves. */
static void end_previews(struct http *http)
{
    pthread_mutex_lock(&http->peers_lock);
    for (struct peer *peer = http->peers; peer; peer = peer->next) {
        if (peer->request && peer->request->proxied)
            connection_interrupt(peer->request);
    }
    pthread_mutex_unlock(&http->peers_lock);
}

static bool wait_for_peers(struct http *http, int64_t at_most_ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += at_most_ms / 1000;
    until.tv_nsec += at_most_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&http->peers_lock);
    int result = 0;
    while (http->peer_count && result == 0)
        result = pthread_cond_timedwait(&http->peers_left, &http->peers_lock, &until);
    bool left = http->peer_count == 0;
    pthread_mutex_unlock(&http->peers_lock);
    return left;
}

/* libmicrohttpd cannot stop with a suspended connection. */
static void resume_all(struct http *http)
{
    atomic_store(&http->dead, true);
    pthread_mutex_lock(&http->peers_lock);
    for (struct peer *peer = http->peers; peer; peer = peer->next) {
        if (peer->request)
            connection_resume(peer->request);
    }
    pthread_mutex_unlock(&http->peers_lock);
}

void http_stop(struct http *http, int64_t at_most_ms)
{
    if (!http)
        return;
    atomic_store(&http->stopping, true);
    refuse_new(http->listen_fd);
    int fd = MHD_quiesce_daemon(http->daemon);
    if (fd >= 0) {
        take_backlog(http, fd);
        (void)close(fd);
    }
    end_idle_peers(http);
    sessions_end_all(http->sessions);
    int64_t first_ms = at_most_ms < PREVIEWS_MS ? at_most_ms : PREVIEWS_MS;
    bool left = wait_for_peers(http, first_ms);
    end_previews(http);
    left = left || wait_for_peers(http, at_most_ms - first_ms);
    atomic_store(&http->aborting, true);
    suspended_break_all(http->suspended);
    if (!left)
        (void)wait_for_peers(http, STOP_GRACE_MS);
    resume_all(http);
    MHD_stop_daemon(http->daemon);
    http_free(http);
}
