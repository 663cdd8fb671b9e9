/* Lives on the loop thread, which never blocks: what may block (a credential plugin, asking why a
 * handshake was refused) goes to one thread of its own and comes back by loop_post(). */
#include "k8s/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/pool.h"
#include "k8s/channel.h"
#include "k8s/pod.h"
#include "net/ws.h"

#define PROTOCOLS "v5.channel.k8s.io,v4.channel.k8s.io"
#define HANDSHAKES_MAX 32 /* at a time: each costs a connection to the kubelet and a process */
#define CHUNK_MAX (32 * KIB)
#define LINGER_MS 5000 /* for the server to close after it has told the end */
#define PROBE_TIMEOUT_MS 5000
#define JOBS_MAX 4096

struct exec_stream;

struct streams {
    struct loop *loop;
    const struct space *space;
    struct tracker *tracker;
    struct pool *pool; /* one thread */
    int handshakes;
    struct exec_stream *first, *last; /* waiting for their turn */
};

/* Work for the blocking thread. The loop thread's, but while it is on the way. */
struct job {
    struct streams *streams;
    struct exec_stream *stream; /* NULL: closed meanwhile */
    struct auth *rejected;      /* a 401: to be renewed */
    int refused;                /* HTTP status to ask about; 0: only get credentials */
    char *path;
    struct err result; /* ERR_NONE: go on */
};

struct exec_stream {
    struct stream base;
    struct streams *streams;
    struct exec_stream *next, *prev; /* in the queue */
    struct ws *ws;
    struct job *job;
    struct timer timer;
    struct channels channels;
    struct auth *auth; /* used for the handshake */
    char id[ID_LEN];
    char *path;
    bool queued, handshaking, open, paused, renewed;
    struct err why; /* for the timer: what to end with */
};

static void start(struct exec_stream *self);

/* --- the queue ----------------------------------------------------------------------------------
 */

static void enqueue(struct exec_stream *self)
{
    struct streams *streams = self->streams;

    self->queued = true;
    self->prev = streams->last;
    self->next = NULL;
    if (streams->last != NULL)
        streams->last->next = self;
    else
        streams->first = self;
    streams->last = self;
}

static void dequeue(struct exec_stream *self)
{
    struct streams *streams = self->streams;

    if (!self->queued)
        return;
    self->queued = false;
    if (self->prev != NULL)
        self->prev->next = self->next;
    else
        streams->first = self->next;
    if (self->next != NULL)
        self->next->prev = self->prev;
    else
        streams->last = self->prev;
}

static void run_queue(struct streams *streams)
{
    while (streams->first != NULL && streams->handshakes < HANDSHAKES_MAX) {
        struct exec_stream *self = streams->first;

        dequeue(self);
        start(self);
    }
}

static void handshake_over(struct exec_stream *self)
{
    if (!self->handshaking)
        return;
    self->handshaking = false;
    self->streams->handshakes--;
}

/* --- ends ---------------------------------------------------------------------------------------
 */

static void destroy(struct exec_stream *self)
{
    struct streams *streams = self->streams;

    dequeue(self);
    handshake_over(self);
    if (self->job != NULL)
        self->job->stream = NULL;
    timer_stop(&self->timer);
    if (self->ws != NULL)
        ws_close(self->ws);
    channels_done(&self->channels);
    auth_unref(self->auth);
    free(self->path);
    free(self);
    run_queue(streams);
}

/* Tells the handler and frees. */
static void finish(struct exec_stream *self, const struct err *why)
{
    const struct stream_handler *handler = self->base.handler;
    void *arg = self->base.arg;
    struct err copy = *why;

    destroy(self);
    handler->closed(arg, &copy);
}

static bool container_ran(const struct exec_stream *self)
{
    struct tracked known;

    return tracker_find(self->streams->tracker, self->id, &known) && known.has_run;
}

static void on_timer(struct timer *timer)
{
    struct exec_stream *self = container_of(timer, struct exec_stream, timer);

    if (self->open)
        channels_why(&self->channels, container_ran(self), NULL, &self->why);
    finish(self, &self->why);
}

/* From within a call of the handler's: the callback comes later, from the loop. */
static void finish_soon(struct exec_stream *self, const struct err *why)
{
    self->why = *why;
    timer_start(self->streams->loop, &self->timer, 0);
}

/* --- blocking work ------------------------------------------------------------------------------
 */

static void job_free(struct job *job)
{
    auth_unref(job->rejected);
    free(job->path);
    free(job);
}

static void job_done(void *arg)
{
    struct job *job = arg;
    struct exec_stream *self = job->stream;
    struct err result = job->result;
    int refused = job->refused;

    job_free(job);
    if (self == NULL)
        return;
    self->job = NULL;
    if (refused != 0) {
        struct err why;

        stream_refusal(refused, &result, container_ran(self), &why);
        finish(self, &why);
    } else if (result.code != ERR_NONE) {
        finish(self, &result);
    } else {
        enqueue(self);
        run_queue(self->streams);
    }
}

/* A plain request to the same URL is answered as the handshake was, with words. Only a refusal that
 * depends on the upgrade itself (the right to `create`) needs to look like one. */
static void ask_why(struct job *job)
{
    struct text_list upgrade = {.items = NULL};
    struct api_request request = {
        .path = job->path,
        .about = {"create", "pods/exec", NULL},
        .timeout_ms = PROBE_TIMEOUT_MS,
    };

    if (job->refused == 403) {
        text_list_add(&upgrade, "Connection: Upgrade");
        text_list_add(&upgrade, "Upgrade: websocket");
        text_list_add(&upgrade, "Sec-WebSocket-Version: 13");
        text_list_add(&upgrade, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==");
        text_list_add(&upgrade, "Sec-WebSocket-Protocol: v4.channel.k8s.io");
        request.extra = &upgrade;
    }
    if (api_call(job->streams->space->api, &request, NULL, &job->result) == 0)
        job->result = (struct err){.code = ERR_NONE};
    text_list_done(&upgrade);
}

static void job_run(void *arg)
{
    struct job *job = arg;
    struct credentials *credentials = api_credentials(job->streams->space->api);

    if (job->refused != 0) {
        ask_why(job);
    } else {
        if (job->rejected != NULL)
            credentials_renew(credentials, job->rejected);
        auth_unref(credentials_get(credentials, true, &job->result));
    }
    loop_post(job->streams->loop, job_done, job);
}

static void submit(struct exec_stream *self, int refused, struct auth *rejected)
{
    struct job *job = xcalloc(1, sizeof(*job));

    job->streams = self->streams;
    job->stream = self;
    job->refused = refused;
    job->rejected = rejected;
    job->path = xstrdup(self->path);
    self->job = job;
    if (pool_submit(self->streams->pool, job_run, job))
        return;
    self->job = NULL;
    job_free(job);
    (void)err_set(&self->why, ERR_BACKEND_UNAVAILABLE, "too many refused handshakes to ask about");
    finish_soon(self, &self->why);
}

void stream_refusal(int http_status, const struct err *probed, bool ran, struct err *ret_why)
{
    enum err_code code = probed->code;

    if (code == ERR_NONE || strstr(probed->msg, "Upgrade request required") != NULL ||
        strstr(probed->msg, "unable to upgrade") != NULL) {
        code = http_status == 429   ? ERR_BACKEND_THROTTLED
               : http_status == 404 ? ERR_SANDBOX_GONE
               : http_status >= 500 ? ERR_BACKEND_UNAVAILABLE
                                    : ERR_BACKEND;
        (void)err_set(ret_why, code, "the exec handshake was refused with HTTP %d", http_status);
        return;
    }
    if (code == ERR_BACKEND_NOT_FOUND)
        code = ERR_SANDBOX_GONE;
    else if (code == ERR_INVALID_OBJECT || code == ERR_BACKEND || code == ERR_BACKEND_CONFLICT ||
             code == ERR_BACKEND_UNAVAILABLE)
        code = channel_refusal(probed->msg, ran);
    if (code == ERR_NONE)
        code = probed->code == ERR_BACKEND_CONFLICT ? ERR_NOT_READY : probed->code;
    (void)err_set(ret_why, code, "the exec handshake was refused: %s", probed->msg);
}

/* --- the WebSocket ------------------------------------------------------------------------------
 */

static void ws_opened(void *arg, const char *protocol)
{
    struct exec_stream *self = arg;

    handshake_over(self);
    if (strcmp(protocol, "v5.channel.k8s.io") != 0 && strcmp(protocol, "v4.channel.k8s.io") != 0) {
        (void)err_set(&self->why, ERR_BACKEND,
                      "the API server, or a proxy before it, chose no exec protocol we know");
        finish_soon(self, &self->why);
        return;
    }
    self->open = true;
    auth_unref(TAKE_PTR(self->auth));
    if (self->paused)
        ws_pause(self->ws, 1);
    run_queue(self->streams);
    self->base.handler->opened(self->base.arg);
}

static void ws_received(void *arg, const uint8_t *data, size_t len, int first, int last)
{
    struct exec_stream *self = arg;
    enum exec_end before = self->channels.end;
    struct piece piece = {data, len, first != 0, last != 0};
    struct str out;

    if (!self->open)
        return;
    if (channels_feed(&self->channels, piece, &out)) {
        /* may close and free */
        self->base.handler->received(self->base.arg, (const uint8_t *)out.ptr, out.len);
        return;
    }
    /* Output may still follow the status (B01): it ends with the server's close, or a little later.
     */
    if (before == EXEC_END_UNKNOWN && self->channels.end != EXEC_END_UNKNOWN)
        timer_start(self->streams->loop, &self->timer, LINGER_MS);
}

static void ws_writable(void *arg)
{
    struct exec_stream *self = arg;

    if (self->open)
        self->base.handler->writable(self->base.arg);
}

static void ws_closed(void *arg, int status, const struct err *why)
{
    struct exec_stream *self = arg;
    struct err end;

    self->ws = NULL;
    if (self->open) {
        channels_why(&self->channels, container_ran(self), why, &end);
        finish(self, &end);
        return;
    }
    handshake_over(self);
    if (timer_is_running(&self->timer))
        return; /* ending already */
    if (status == 401 && !self->renewed) {
        self->renewed = true;
        submit(self, 0, TAKE_PTR(self->auth));
    } else if (status != 0 && status != 101) {
        submit(self, status, NULL);
    } else {
        (void)err_set(&end, status == 101 ? ERR_BACKEND : ERR_BACKEND_UNAVAILABLE,
                      "the exec handshake failed: %s", why->msg);
        auth_scrub(self->auth, &end);
        finish(self, &end);
        return;
    }
    run_queue(self->streams);
}

static const struct ws_handler ws_handler = {
    .opened = ws_opened,
    .received = ws_received,
    .writable = ws_writable,
    .closed = ws_closed,
};

static void start(struct exec_stream *self)
{
    struct api *api = self->streams->space->api;
    struct text_list headers = {.items = NULL};
    struct ws_target target = {.protocols = PROTOCOLS, .headers = &headers};
    cleanup_free char *url = xasprintf("%s%s", api_server(api), self->path);
    char *authorization;

    auth_unref(self->auth);
    self->auth = credentials_get(api_credentials(api), false, &self->why);
    if (self->auth == NULL) {
        submit(self, 0, NULL);
        return;
    }
    target.url = url;
    target.tls = &self->auth->tls;
    authorization = auth_header(self->auth);
    if (authorization != NULL) {
        text_list_add(&headers, authorization);
        free_secret(authorization, strlen(authorization));
    }
    self->ws = ws_connect(self->streams->loop, &target, &ws_handler, self, &self->why);
    for (size_t i = 0; i < headers.count; i++)
        explicit_bzero(headers.items[i], strlen(headers.items[i]));
    text_list_done(&headers);
    if (self->ws == NULL) {
        finish_soon(self, &self->why);
        return;
    }
    self->handshaking = true;
    self->streams->handshakes++;
}

/* --- the stream ---------------------------------------------------------------------------------
 */

static struct exec_stream *of(struct stream *stream)
{
    return container_of(stream, struct exec_stream, base);
}

static size_t stream_op_write(struct stream *stream, const void *data, size_t len)
{
    static const uint8_t head[1] = {CHANNEL_STDIN};
    struct exec_stream *self = of(stream);
    const uint8_t *bytes = data;
    size_t taken = 0;

    while (self->open && self->ws != NULL && taken < len) {
        size_t chunk = len - taken < CHUNK_MAX ? len - taken : CHUNK_MAX;

        if (!ws_send(self->ws, head, sizeof(head), bytes + taken, chunk))
            break;
        taken += chunk;
    }
    return taken;
}

static void stream_op_pause(struct stream *stream, int paused)
{
    struct exec_stream *self = of(stream);

    self->paused = paused != 0;
    if (self->open && self->ws != NULL)
        ws_pause(self->ws, paused);
}

static void stream_op_close(struct stream *stream)
{
    destroy(of(stream));
}

static const struct stream_ops stream_ops = {
    .write = stream_op_write,
    .pause = stream_op_pause,
    .close = stream_op_close,
};

char *stream_exec_path(const struct space *space, const char *id, const char *agent)
{
    cleanup_buf struct buf query = BUF_INIT(CAP_SMALL);
    cleanup_free char *pod = NULL;
    char name[64];

    pod_name(id, name);
    pod = object_path(space, KIND_POD, name, NULL);
    if (pod == NULL || !url_append_query(&query, "container", STR(POD_CONTAINER)) ||
        !buf_append_str(&query, "&stdin=true&stdout=true&stderr=true&tty=false") ||
        !url_append_query(&query, "command", str_of(agent)) ||
        !url_append_query(&query, "command", STR("attach")))
        return NULL;
    return xasprintf("%s/exec%s", pod, buf_text(&query));
}

struct stream *streams_open(struct streams *streams, const char *id, const char *box_uid,
                            const struct stream_handler *handler, void *arg)
{
    struct exec_stream *self = xcalloc(1, sizeof(*self));
    struct tracked known;

    self->base = (struct stream){.ops = &stream_ops, .handler = handler, .arg = arg};
    self->streams = streams;
    self->timer.fire = on_timer;
    channels_init(&self->channels);
    (void)snprintf(self->id, sizeof(self->id), "%s", id);
    if (!tracker_find(streams->tracker, id, &known) ||
        (box_uid[0] != '\0' && strcmp(known.box_uid, box_uid) != 0)) {
        (void)err_set(&self->why, ERR_SANDBOX_GONE, "the pod of sandbox '%s' is gone", id);
        finish_soon(self, &self->why);
        return &self->base;
    }
    self->path = stream_exec_path(streams->space, id, known.agent);
    if (self->path == NULL) {
        (void)err_set(&self->why, ERR_INTERNAL, "no exec request can be made for '%s'", id);
        finish_soon(self, &self->why);
        return &self->base;
    }
    enqueue(self);
    run_queue(streams);
    return &self->base;
}

struct streams *streams_new(struct loop *loop, const struct space *space, struct tracker *tracker)
{
    struct streams *streams = xcalloc(1, sizeof(*streams));

    streams->loop = loop;
    streams->space = space;
    streams->tracker = tracker;
    streams->pool = pool_new("k8s-handshake", 1, JOBS_MAX);
    return streams;
}

void streams_free(struct streams *streams)
{
    if (streams == NULL)
        return;
    pool_stop(streams->pool);
    free(streams);
}
