#include "fake/callback.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/pool.h"
#include "net/http_client.h"
#include "net/loop.h"

#define THREADS 4
#define WAITING_MAX 4096
#define CALL_TIMEOUT_MS 10000

struct callbacks {
    struct loop *loop;
    struct http_client *client;
    struct pool *pool;
};

/* The loop thread's, but for `reply`, `url` and `call` while it is on the way. */
struct callback {
    struct callbacks *callbacks;
    char *url;
    struct json *call;
    struct fake_reply *reply;
    void (*done)(void *arg, struct fake_reply *reply); /* NULL: not wanted any more */
    void *arg;
};

struct callbacks *callbacks_new(struct loop *loop, struct err *err)
{
    struct callbacks *callbacks = xcalloc(1, sizeof(*callbacks));

    callbacks->loop = loop;
    callbacks->client = http_client_new(NULL, err);
    callbacks->pool = callbacks->client != NULL ? pool_new("callback", THREADS, WAITING_MAX) : NULL;
    if (callbacks->pool != NULL)
        return callbacks;
    if (callbacks->client != NULL)
        (void)err_set(err, ERR_INTERNAL, "no threads for callbacks");
    callbacks_stop(callbacks);
    return NULL;
}

void callbacks_stop(struct callbacks *callbacks)
{
    if (callbacks == NULL)
        return;
    if (callbacks->pool != NULL)
        pool_stop(callbacks->pool);
    if (callbacks->client != NULL)
        http_client_free(callbacks->client);
    free(callbacks);
}

static int ask(const struct callback *callback, struct fake_reply **ret_reply, struct err *err)
{
    cleanup(text_list_done) struct text_list headers = {.items = NULL};
    cleanup_buf struct buf body = BUF_INIT(CAP_JSON_BODY);
    cleanup_json struct json *answer = NULL;
    cleanup(http_reply_done) struct http_reply reply = {.status = 0};

    text_list_add(&headers, "Content-Type: application/json");
    if (!json_print(callback->call, &body))
        return err_set(err, ERR_TOO_LARGE, "the call is too large");
    const struct http_request request = {
        .method = "POST",
        .url = callback->url,
        .headers = &headers,
        .body = {body.ptr, body.len},
        .timeout_ms = CALL_TIMEOUT_MS,
        .max_reply = CAP_JSON_BODY,
    };
    if (http_call(callback->callbacks->client, &request, &reply, err) < 0)
        return -1;
    if (reply.status != 200)
        return err_set(err, ERR_EXEC_FAILED, "it answered with status %d", reply.status);
    if (json_parse(buf_text(&reply.body), reply.body.len, JSON_STRICT, &answer, err) < 0)
        return -1;
    return fake_reply_parse(answer, "reply", ret_reply, err);
}

static void finished(void *arg)
{
    struct callback *callback = arg;

    if (callback->done != NULL)
        callback->done(callback->arg, callback->reply);
    else
        fake_reply_unref(callback->reply);
    json_free(callback->call);
    free(callback->url);
    free(callback);
}

static void run(void *arg)
{
    struct callback *callback = arg;
    struct err err = {.code = ERR_NONE};

    if (ask(callback, &callback->reply, &err) < 0) {
        cleanup_free char *message = xasprintf("callback to %s: %s", callback->url, err.msg);

        callback->reply = fake_reply_new(ERR_EXEC_FAILED, message);
    }
    loop_post(callback->callbacks->loop, finished, callback);
}

struct callback *callback_start(struct callbacks *callbacks, const char *url, struct json *call,
                                void (*done)(void *arg, struct fake_reply *reply), void *arg)
{
    struct callback *callback = xcalloc(1, sizeof(*callback));

    callback->callbacks = callbacks;
    callback->url = xstrdup(url);
    callback->call = call;
    callback->done = done;
    callback->arg = arg;
    if (!pool_submit(callbacks->pool, run, callback)) {
        callback->reply = fake_reply_new(ERR_BUSY, "too many callbacks at once");
        loop_post(callbacks->loop, finished, callback);
    }
    return callback;
}

void callback_cancel(struct callback *callback)
{
    if (callback != NULL)
        callback->done = NULL;
}
