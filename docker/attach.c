/* Lives on the loop thread, which never blocks: to make the exec and to take its connection over is
 * the work of a few threads of its own, and comes back by loop_post(). */
#include "docker/attach.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/pool.h"
#include "docker/agent_file.h"
#include "docker/frames.h"
#include "net/socket_stream.h"

#define THREADS 4
#define JOBS_MAX 16384 /* one a sandbox at most */
#define OPEN_TIMEOUT_MS 15000
#define WORDS_MAX 1024
#define PIECE_MAX (64 * KIB)

struct attacher {
    struct loop *loop;
    struct engine *engine;
    pthread_mutex_t lock;
    struct pool *pool;        /* NULL: stopped */
    uint8_t piece[PIECE_MAX]; /* the output of what has come at once; the loop thread's */
};

/* The loop thread's, but while it is on the way. */
struct job {
    struct attacher *attacher;
    struct attached *stream; /* NULL: closed meanwhile */
    char *container;
    struct upgraded *upgraded;
    struct err result;
};

struct attached {
    struct stream base;
    struct attacher *attacher;
    struct job *job;      /* on the way */
    struct stream *below; /* the connection; NULL while there is none */
    struct frames frames;
    struct buf words; /* of standard error, its beginning */
    bool open, paused, has_output;
};

/* --- ends ---------------------------------------------------------------------------------------
 */

static void destroy(struct attached *self)
{
    if (self->job)
        self->job->stream = NULL;
    if (self->below)
        stream_close(self->below);
    buf_done(&self->words);
    free(self);
}

/* Tells the handler and frees. */
static void finish(struct attached *self, const struct err *why)
{
    const struct stream_handler *handler = self->base.handler;
    void *arg = self->base.arg;
    struct err copy = *why;

    destroy(self);
    handler->closed(arg, &copy);
}

/* What was said on standard error, without what a terminal would act on. */
static void said(const struct attached *self, char ret_text[WORDS_MAX + 1])
{
    size_t len = self->words.len;

    memcpy(ret_text, buf_text(&self->words), len);
    while (len > 0 && (ret_text[len - 1] == '\n' || ret_text[len - 1] == '\r'))
        len--;
    ret_text[len] = '\0';
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)ret_text[i] < ' ' || (unsigned char)ret_text[i] > '~')
            ret_text[i] = '?';
    }
}

static bool is_runtimes(const char *text)
{
    return strstr(text, "OCI runtime") || strstr(text, "exec failed") ||
           strstr(text, "executable file") || strstr(text, "rpc error");
}

/* LOST says what the connection itself reported. */
static void end_of(const struct attached *self, const struct err *lost, struct err *ret_why)
{
    char text[WORDS_MAX + 1];

    said(self, text);
    if (self->has_output && lost->code == ERR_NONE && !frames_in_frame(&self->frames))
        *ret_why = (struct err){.code = ERR_NONE};
    else if (self->has_output)
        (void)err_set(ret_why, ERR_STREAM_LOST, "the stream to the agent was cut: %s",
                      lost->code != ERR_NONE ? lost->msg : "within a frame");
    else if (is_runtimes(text))
        (void)err_set(ret_why, ERR_CONTAINER_START, "exec in the container: %s", text);
    else /* before its first byte: nothing listens yet, or it has been refused */
        (void)err_set(ret_why, ERR_NOT_READY, "attach ended: %s",
                      text[0] != '\0' ? text : "it said nothing");
}

/* --- the connection -----------------------------------------------------------------------------
 */

static void below_opened(void *arg)
{
    struct attached *self = arg;

    self->open = true;
    if (self->paused)
        stream_pause(self->below, 1);
    self->base.handler->opened(self->base.arg);
}

/* What a runtime could not start, an engine tells where the output would be. */
static bool take_for_words(struct attached *self, size_t len)
{
    char text[256];
    size_t looked = len < sizeof(text) - 1 ? len : sizeof(text) - 1;

    if (self->has_output || looked == 0)
        return false;
    memcpy(text, self->attacher->piece, looked);
    text[looked] = '\0';
    if (!str_starts(text, "OCI runtime") && !str_starts(text, "rpc error") &&
        !str_starts(text, "exec failed"))
        return false;
    size_t room = self->words.max - self->words.len;
    (void)buf_append(&self->words, self->attacher->piece, len < room ? len : room);
    return true;
}

static void below_received(void *arg, const uint8_t *data, size_t len)
{
    struct attached *self = arg;
    size_t out_len = 0;

    if (len > PIECE_MAX ||
        !frames_feed(&self->frames, data, len, self->attacher->piece, &out_len, &self->words)) {
        struct err why;

        (void)err_set(&why, ERR_BACKEND, "what the engine sends is not the stream of an exec");
        finish(self, &why);
        return;
    }
    if (out_len == 0 || take_for_words(self, out_len))
        return;
    self->has_output = true;
    self->base.handler->received(self->base.arg, self->attacher->piece,
                                 out_len); /* may close and free */
}

static void below_writable(void *arg)
{
    struct attached *self = arg;

    self->base.handler->writable(self->base.arg);
}

static void below_closed(void *arg, const struct err *why)
{
    struct attached *self = arg;
    struct err end;

    self->below = NULL;
    end_of(self, why, &end);
    finish(self, &end);
}

static const struct stream_handler below_handler = {
    .opened = below_opened,
    .received = below_received,
    .writable = below_writable,
    .closed = below_closed,
};

/* --- opening ------------------------------------------------------------------------------------
 */

static void job_free(struct job *job)
{
    upgraded_free(job->upgraded);
    free(job->container);
    free(job);
}

static void job_done(void *arg)
{
    struct job *job = arg;
    struct attached *self = job->stream;

    if (self) {
        self->job = NULL;
        if (job->upgraded)
            self->below = upgraded_stream(self->attacher->loop, TAKE_PTR(job->upgraded),
                                          &below_handler, self);
        else
            finish(self, &job->result);
    }
    job_free(job);
}

/* A container that does not run takes no exec: it has ended, since we begin only after its start.
 */
static int refused(const struct err *why, struct err *err)
{
    bool waits = strstr(why->msg, "paused") || strstr(why->msg, "restarting");

    if (why->code == ERR_BACKEND_CONFLICT && waits)
        return err_set(err, ERR_NOT_READY, "%s", why->msg);
    if (why->code == ERR_BACKEND_NOT_FOUND || why->code == ERR_BACKEND_CONFLICT)
        return err_set(err, ERR_SANDBOX_GONE, "%s", why->msg);
    if (is_runtimes(why->msg))
        return err_set(err, ERR_CONTAINER_START, "%s", why->msg);
    return err_set(err, why->code, "%s", why->msg);
}

static int make_exec(struct job *job, char **ret_exec, struct err *err)
{
    cleanup_json struct json *body = json_new_object(), *reply = NULL;
    cleanup_free char *path = xasprintf("/containers/%s/exec", job->container);
    struct engine_request request = {
        .method = "POST",
        .path = path,
        .about = "attach to the container",
        .body = body,
        .timeout_ms = OPEN_TIMEOUT_MS,
    };
    struct json *command = json_set_array(body, "Cmd");

    json_set_bool(body, "AttachStdin", true);
    json_set_bool(body, "AttachStdout", true);
    json_set_bool(body, "AttachStderr", true);
    json_set_bool(body, "Tty", false);
    json_add_text(command, AGENT_PATH);
    json_add_text(command, "attach");
    if (engine_call(job->attacher->engine, &request, &reply, err) < 0)
        return -1;
    const char *id = json_get_text(reply, "Id");
    if (!id || strlen(id) > 128 || strspn(id, "0123456789abcdef") != strlen(id))
        return err_set(err, ERR_BACKEND, "the engine made an exec without an id");
    *ret_exec = xstrdup(id);
    return 0;
}

static int start_exec(struct job *job, const char *exec, struct err *err)
{
    cleanup_json struct json *body = json_new_object();
    cleanup_free char *path = xasprintf("/exec/%s/start", exec);
    struct engine_request request = {
        .method = "POST",
        .path = path,
        .about = "attach to the container",
        .body = body,
        .timeout_ms = OPEN_TIMEOUT_MS,
    };

    json_set_bool(body, "Detach", false);
    json_set_bool(body, "Tty", false);
    return engine_upgrade(job->attacher->engine, &request, &job->upgraded, err);
}

static void job_run(void *arg)
{
    struct job *job = arg;
    cleanup_free char *exec = NULL;
    struct err why = {.code = ERR_NONE};

    if (make_exec(job, &exec, &why) < 0 || start_exec(job, exec, &why) < 0)
        (void)refused(&why, &job->result);
    loop_post(job->attacher->loop, job_done, job);
}

/* --- the stream ---------------------------------------------------------------------------------
 */

static struct attached *of(struct stream *stream)
{
    return container_of(stream, struct attached, base);
}

static size_t stream_op_write(struct stream *stream, const void *data, size_t len)
{
    struct attached *self = of(stream);

    return self->open && self->below ? stream_write(self->below, data, len) : 0;
}

static void stream_op_pause(struct stream *stream, int paused)
{
    struct attached *self = of(stream);

    self->paused = paused != 0;
    if (self->open && self->below)
        stream_pause(self->below, paused);
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

static bool submit(struct attacher *attacher, struct job *job)
{
    pthread_mutex_lock(&attacher->lock);
    bool taken = attacher->pool && pool_submit(attacher->pool, job_run, job);
    pthread_mutex_unlock(&attacher->lock);
    return taken;
}

struct stream *attacher_open(struct attacher *attacher, const char *container,
                             const struct stream_handler *handler, void *arg)
{
    struct attached *self = xcalloc(1, sizeof(*self));
    struct job *job = xcalloc(1, sizeof(*job));
    struct err why;

    job->attacher = attacher;
    job->container = xstrdup(container);
    if (!submit(attacher, job)) {
        job_free(job);
        free(self);
        (void)err_set(&why, engine_is_stopping(attacher->engine) ? ERR_STOPPING : ERR_BUSY,
                      "no room for one more stream to an agent");
        return socket_stream_refused(attacher->loop, &why, handler, arg);
    }
    self->base = (struct stream){.ops = &stream_ops, .handler = handler, .arg = arg};
    self->attacher = attacher;
    buf_init(&self->words, WORDS_MAX);
    self->job = job;
    job->stream = self; /* only job_done() looks at it, on this thread */
    return &self->base;
}

struct attacher *attacher_new(struct loop *loop, struct engine *engine, struct err *err)
{
    struct attacher *attacher = xcalloc(1, sizeof(*attacher));

    attacher->loop = loop;
    attacher->engine = engine;
    pthread_mutex_init(&attacher->lock, NULL);
    attacher->pool = pool_new("docker-attach", THREADS, JOBS_MAX);
    if (!attacher->pool) {
        (void)err_set(err, ERR_INTERNAL, "cannot start a thread");
        attacher_free(attacher);
        return NULL;
    }
    return attacher;
}

void attacher_stop(struct attacher *attacher)
{
    pthread_mutex_lock(&attacher->lock);
    struct pool *pool = TAKE_PTR(attacher->pool);
    pthread_mutex_unlock(&attacher->lock);
    if (pool)
        pool_stop(pool);
}

void attacher_free(struct attacher *attacher)
{
    if (!attacher)
        return;
    attacher_stop(attacher);
    pthread_mutex_destroy(&attacher->lock);
    free(attacher);
}
