#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sandbox/sandboxes.h"
#include "server/route.h"
#include "tests/unit/http_support.h"

/* --- the domain, as far as the core asks it ------------------------------------------------ */

int sandboxes_find(struct sandboxes *all, const struct owner_view *view, const char *id,
                   struct sandbox **ret_sandbox, struct json **ret_record, struct err *err)
{
    (void)all;
    (void)view;
    (void)ret_sandbox;
    if (strcmp(id, "gone") == 0) {
        *ret_record = json_new_object();
        json_set_text(*ret_record, "id", id);
        json_set_text(*ret_record, "reason", "ttl");
        return err_set(err, ERR_GONE, "sandbox '%s' is gone", id);
    }
    if (strcmp(id, "here") != 0)
        return err_set(err, ERR_NOT_FOUND, "sandbox '%s'", id);
    *ret_sandbox = NULL;
    return 0;
}

static char in_memory; /* stands for a sandbox */

struct sandbox *sandboxes_peek(struct sandboxes *all, const struct owner_view *view, const char *id)
{
    (void)all;
    (void)view;
    return strcmp(id, "memory") == 0 ? (struct sandbox *)(void *)&in_memory : NULL;
}

void sandbox_unref(struct sandbox *sandbox)
{
    ck_assert(sandbox == NULL || (void *)sandbox == (void *)&in_memory);
}

/* --- routes -------------------------------------------------------------------------------- */

struct event gate;      /* /wait waits for it */
struct event arrived;   /* fires when a handler begins */
atomic_int evil_served; /* what a smuggled request would reach */
atomic_int gone_seen, states_freed;
struct pipe *kept_pipe; /* of /upload-held */

static enum verdict serve_plain(struct request *request)
{
    return reply_bytes(request, 200, "text/plain", "plain", 5);
}

/* Which thread that is. */
static enum verdict serve_thread(struct request *request)
{
    char name[16] = "";

    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    return reply_bytes(request, 200, "text/plain", strncmp(name, "http-", 5) == 0 ? "pool" : "here",
                       4);
}

static enum verdict serve_inline(struct request *request)
{
    return request_wait(request, &gate, event_count(&gate), clock_now_ms() + 10, serve_thread);
}

static enum verdict to_worker(struct request *request)
{
    return request_on_worker(request, serve_thread);
}

static enum verdict serve_inline_moved(struct request *request)
{
    return request_wait(request, &gate, event_count(&gate), clock_now_ms() + 10, to_worker);
}

static enum verdict serve_evil(struct request *request)
{
    atomic_fetch_add(&evil_served, 1);
    return reply_bytes(request, 200, "text/plain", "evil", 4);
}

static enum verdict serve_echo(struct request *request)
{
    const struct json *json;
    struct err err;

    if (request_json(request, false, &json, &err))
        return reply_problem(request, &err);
    return reply_json(request, 200, json_copy(json));
}

static enum verdict wait_over(struct request *request)
{
    if (request_client_gone(request)) {
        atomic_fetch_add(&gone_seen, 1);
        event_fire(&arrived);
        return reply_empty(request, 204);
    }
    return reply_bytes(request, 200, "text/plain", request_timed_out(request) ? "late" : "fired",
                       request_timed_out(request) ? 4 : 5);
}

static enum verdict serve_wait(struct request *request)
{
    int64_t at_most = 0;
    struct err err;

    if (request_query_seconds(request, "timeout", 60000, &at_most, &err))
        return reply_problem(request, &err);
    uint64_t seen = event_count(&gate);
    event_fire(&arrived);
    return request_wait(request, &gate, seen, at_most ? clock_now_ms() + at_most : 0, wait_over);
}

static void count_freed(void *state)
{
    free(state);
    atomic_fetch_add(&states_freed, 1);
}

/* Waits a few times for a thing that has happened already, or happens at once. */
static enum verdict again(struct request *request)
{
    int *left = request_state(request);

    if (--*left == 0)
        return reply_bytes(request, 200, "text/plain", "again", 5);
    uint64_t seen = event_count(&gate);
    event_fire(&gate);
    return request_wait(request, &gate, seen, 0, again);
}

static enum verdict serve_again(struct request *request)
{
    int *left = xmalloc(sizeof(*left));

    *left = 5;
    request_keep(request, left, count_freed);
    return again(request);
}

struct upload {
    uint64_t bytes;
    uint32_t sum;
};

static enum verdict take_upload(struct request *request)
{
    static _Thread_local char block[32768];
    struct upload *upload = request_state(request);
    struct pipe *pipe = request_body_pipe(request);
    uint64_t seen = event_count(pipe_readable(pipe));
    struct err err;
    char text[64];

    for (size_t len; (len = pipe_read(pipe, block, sizeof(block)));) {
        upload->bytes += len;
        for (size_t i = 0; i < len; i++)
            upload->sum = upload->sum * 31 + (unsigned char)block[i];
        seen = event_count(pipe_readable(pipe));
    }
    switch (pipe_state(pipe, &err)) {
    case PIPE_OPEN:
        return request_wait(request, pipe_readable(pipe), seen, 0, take_upload);
    case PIPE_ENDED:
        (void)snprintf(text, sizeof(text), "%llu %u", (unsigned long long)upload->bytes,
                       upload->sum);
        return reply_bytes(request, 200, "text/plain", text, strlen(text));
    default:
        atomic_fetch_add(&gone_seen, 1);
        event_fire(&arrived);
        return reply_problem(request, &err);
    }
}

static enum verdict serve_upload(struct request *request)
{
    request_keep(request, xcalloc(1, sizeof(struct upload)), count_freed);
    event_fire(&arrived);
    return take_upload(request);
}

static enum verdict serve_refuse_upload(struct request *request)
{
    const struct err err = {ERR_NO_SPACE, "full"};

    return reply_problem(request, &err);
}

/* Leaves the body where it is until the gate is opened. */
static enum verdict serve_upload_held(struct request *request)
{
    uint64_t seen = event_count(&gate);

    kept_pipe = request_body_pipe(request);
    request_keep(request, xcalloc(1, sizeof(struct upload)), count_freed);
    event_fire(&arrived);
    return request_wait(request, &gate, seen, 0, take_upload);
}

struct feeder {
    struct feeder *next;
    pthread_t thread;
    struct pipe *pipe;
    uint64_t left;
    bool fail, hold;
};

char pattern_at(uint64_t offset)
{
    return (char)('a' + offset % 23);
}

static pthread_mutex_t feeders_lock = PTHREAD_MUTEX_INITIALIZER;
static struct feeder *feeders;

void join_feeders(void)
{
    for (;;) {
        pthread_mutex_lock(&feeders_lock);
        struct feeder *feeder = feeders;
        if (feeder)
            feeders = feeder->next;
        pthread_mutex_unlock(&feeders_lock);
        if (!feeder)
            return;
        (void)pthread_join(feeder->thread, NULL);
        free(feeder);
    }
}

static void *feed_reply(void *arg)
{
    struct feeder *feeder = arg;
    const struct err why = {ERR_STREAM_LOST, "cut"};
    uint64_t offset = 0;
    char block[5000];

    while (feeder->left) {
        size_t want = feeder->left < sizeof(block) ? (size_t)feeder->left : sizeof(block);
        uint64_t seen = event_count(pipe_writable(feeder->pipe));

        for (size_t i = 0; i < want; i++)
            block[i] = pattern_at(offset + i);
        size_t taken = pipe_write(feeder->pipe, block, want);
        offset += taken;
        feeder->left -= taken;
        if (taken == 0) {
            if (pipe_state(feeder->pipe, NULL) == PIPE_ABANDONED)
                break;
            (void)event_block(pipe_writable(feeder->pipe), seen, clock_now_ms() + 20000);
        }
    }
    if (feeder->hold) {
        while (pipe_state(feeder->pipe, NULL) != PIPE_ABANDONED) {
            uint64_t seen = event_count(pipe_writable(feeder->pipe));

            if (pipe_state(feeder->pipe, NULL) == PIPE_ABANDONED)
                break;
            if (!event_block(pipe_writable(feeder->pipe), seen, clock_now_ms() + 20000))
                break;
        }
        atomic_fetch_add(&gone_seen, 1);
        event_fire(&arrived);
    }
    pipe_finish(feeder->pipe, feeder->fail ? &why : NULL);
    pipe_unref(feeder->pipe);
    return NULL;
}

/* ?size= bytes; ?known=true with Content-Length; ?fail=true ends with an error; ?hold=true not at
 * all. */
static enum verdict serve_download(struct request *request)
{
    struct feeder *feeder = xcalloc(1, sizeof(*feeder));
    int64_t size = 0;
    bool known = false;
    struct err err;

    if (request_query_int(request, "size", 0, 1 << 30, &size, &err) ||
        request_query_bool(request, "known", &known, &err) ||
        request_query_bool(request, "fail", &feeder->fail, &err) ||
        request_query_bool(request, "hold", &feeder->hold, &err)) {
        free(feeder);
        return reply_problem(request, &err);
    }
    struct pipe *pipe = pipe_new(65536);
    feeder->pipe = pipe_ref(pipe);
    feeder->left = (uint64_t)(feeder->fail ? size / 2 : size);
    pthread_mutex_lock(&feeders_lock);
    feeder->next = feeders;
    feeders = feeder;
    ck_assert_int_eq(pthread_create(&feeder->thread, NULL, feed_reply, feeder), 0);
    pthread_mutex_unlock(&feeders_lock);
    return reply_pipe(request, 200, "application/octet-stream", pipe, known ? size : -1);
}

static enum verdict serve_whoami(struct request *request)
{
    const struct caller *caller = request_caller(request);

    return reply_bytes(request, 200, "text/plain", caller->owner, strlen(caller->owner));
}

static enum verdict serve_param(struct request *request)
{
    struct str path = {"", 0};

    (void)request_query(request, "path", &path);
    reply_header(request, "X-Param", request_param(request, "id"));
    return reply_bytes(request, 200, "application/octet-stream", path.ptr, path.len);
}

static enum verdict serve_silent(struct request *request)
{
    (void)request;
    return DONE;
}

static const struct route routes[] = {
    {"GET", "/", serve_plain, ROUTE_PUBLIC, NULL},
    {"GET", "/plain", serve_plain, 0, NULL},
    {"GET", "/quick", serve_plain, ROUTE_QUICK, NULL},
    {"GET", "/quick/{id}", serve_thread, ROUTE_QUICK | ROUTE_SANDBOX, NULL},
    {"GET", "/slow/{id}", serve_thread, ROUTE_SANDBOX, NULL},
    {"GET", "/waits", serve_inline, 0, NULL},
    {"GET", "/inline", serve_inline, ROUTE_INLINE, NULL},
    {"GET", "/inline-moved", serve_inline_moved, ROUTE_INLINE, NULL},
    {"GET", "/moved", to_worker, 0, NULL},
    {"GET", "/quick-moved", to_worker, ROUTE_QUICK, NULL},
    {"GET", "/quick-again", serve_again, ROUTE_QUICK, NULL},
    {"GET", "/evil", serve_evil, 0, NULL},
    {"POST", "/evil", serve_evil, 0, NULL},
    {"POST", "/echo", serve_echo, ROUTE_JSON_BODY, NULL},
    {"PATCH", "/echo", serve_echo, ROUTE_JSON_BODY, NULL},
    {"GET", "/wait", serve_wait, 0, "timeout"},
    {"POST", "/wait", serve_wait, ROUTE_JSON_BODY, "timeout"},
    {"GET", "/again", serve_again, 0, NULL},
    {"PUT", "/upload", serve_upload, ROUTE_STREAM_BODY, NULL},
    {"PUT", "/upload-refused", serve_refuse_upload, ROUTE_STREAM_BODY, NULL},
    {"PUT", "/upload-held", serve_upload_held, ROUTE_STREAM_BODY, NULL},
    {"GET", "/download", serve_download, 0, "size known fail hold"},
    {"GET", "/admin", serve_plain, ROUTE_ADMIN, NULL},
    {"GET", "/whoami", serve_whoami, 0, NULL},
    {"GET", "/sandbox/{id}", serve_param, ROUTE_SANDBOX, "path"},
    {"DELETE", "/sandbox/{id}", serve_plain, ROUTE_SANDBOX | ROUTE_GONE_TOO, NULL},
    {"GET", "/silent", serve_silent, 0, NULL},
};
static const struct route_table table = {routes, ARRAY_LEN(routes)};
const struct route_table *const http_test_routes[] = {&table, NULL};
