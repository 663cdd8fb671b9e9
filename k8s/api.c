#include "k8s/api.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/event.h"

#define THROTTLE_DEFAULT_MS 1000
#define THROTTLE_MAX_MS 10000 /* a longer wait is left to the client, which gets a Retry-After */

struct api {
    struct credentials *credentials;
    struct http_client *http;
    pthread_mutex_t lock; /* the next two, and calls of http_client_set_tls */
    uint64_t tls_version;
    int64_t throttled_until_ms; /* the server said 429: nobody asks before */
    struct event stop;
    _Atomic bool stopping;
};

struct api *api_new(struct access *access, struct err *err)
{
    struct api *api = xcalloc(1, sizeof(*api));

    pthread_mutex_init(&api->lock, NULL);
    event_init(&api->stop);
    api->credentials = credentials_new(access, err);
    if (api->credentials != NULL) {
        struct http_tls bare = {.insecure = credentials_access(api->credentials)->insecure};

        api->http = http_client_new(&bare, err); /* the real one follows with the first request */
    }
    if (api->http == NULL) {
        api_free(api);
        return NULL;
    }
    return api;
}

void api_free(struct api *api)
{
    if (api == NULL)
        return;
    http_client_free(api->http);
    credentials_free(api->credentials);
    event_done(&api->stop);
    pthread_mutex_destroy(&api->lock);
    free(api);
}

void api_stop(struct api *api)
{
    api->stopping = true;
    event_fire(&api->stop);
}

bool api_sleep(struct api *api, int64_t ms)
{
    uint64_t seen = event_count(&api->stop);

    if (!api->stopping && ms > 0)
        (void)event_block(&api->stop, seen, clock_now_ms() + ms);
    return !api->stopping;
}

int64_t api_jitter(int64_t ms)
{
    uint16_t random;

    crypto_random(&random, sizeof(random));
    return ms - ms / 4 + (ms / 2) * random / UINT16_MAX;
}

const char *api_server(const struct api *api)
{
    return credentials_access(api->credentials)->server;
}

struct credentials *api_credentials(struct api *api)
{
    return api->credentials;
}

/* --- one request -------------------------------------------------------------------------------
 */

/* What a request carries; made anew for each try, since credentials may have changed. */
struct prepared {
    struct auth *auth;
    struct text_list headers;
    char *url;
};

static void prepared_done(struct prepared *prepared)
{
    for (size_t i = 0; i < prepared->headers.count; i++)
        explicit_bzero(prepared->headers.items[i], strlen(prepared->headers.items[i]));
    text_list_done(&prepared->headers);
    auth_unref(prepared->auth);
    free(prepared->url);
}

static int use_tls(struct api *api, const struct auth *auth, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&api->lock);
    if (api->tls_version != auth->tls_version) {
        rc = http_client_set_tls(api->http, &auth->tls, err);
        if (rc == 0)
            api->tls_version = auth->tls_version;
    }
    pthread_mutex_unlock(&api->lock);
    return rc;
}

static int prepare(struct api *api, const struct api_request *request, struct prepared *prepared,
                   struct err *err)
{
    char *authorization;

    prepared->auth = credentials_get(api->credentials, true, err);
    if (prepared->auth == NULL || use_tls(api, prepared->auth, err) < 0)
        return -1;
    prepared->url = xasprintf("%s%s", api_server(api), request->path);
    text_list_add(&prepared->headers, "Accept: application/json");
    if (request->body != NULL)
        text_list_add(&prepared->headers, "Content-Type: application/json");
    for (size_t i = 0; request->extra != NULL && i < request->extra->count; i++)
        text_list_add(&prepared->headers, request->extra->items[i]);
    authorization = auth_header(prepared->auth);
    if (authorization != NULL) {
        text_list_add(&prepared->headers, authorization);
        free_secret(authorization, strlen(authorization));
    }
    return 0;
}

/* Another request of ours was told to slow down: so does this one, within reason. */
static int wait_for_turn(struct api *api, const struct api_request *request, struct err *err)
{
    int64_t wait_ms;

    pthread_mutex_lock(&api->lock);
    wait_ms = api->throttled_until_ms - clock_now_ms();
    pthread_mutex_unlock(&api->lock);
    if (wait_ms > THROTTLE_MAX_MS + THROTTLE_MAX_MS / 4)
        return err_set(err, ERR_BACKEND_THROTTLED, "%s %s: the API server asks to wait %lld s",
                       request->about.verb, request->about.resource, (long long)wait_ms / 1000);
    if (!api_sleep(api, wait_ms))
        return err_set(err, ERR_STOPPING, "the server is stopping");
    return 0;
}

static void throttle(struct api *api, int64_t retry_after_ms)
{
    int64_t wait_ms = retry_after_ms >= 0 ? retry_after_ms : THROTTLE_DEFAULT_MS;
    int64_t until_ms;

    /* Never earlier than asked; spread over a quarter more. */
    until_ms = clock_now_ms() + wait_ms + (api_jitter(wait_ms) - (wait_ms - wait_ms / 4)) / 2;
    pthread_mutex_lock(&api->lock);
    if (until_ms > api->throttled_until_ms)
        api->throttled_until_ms = until_ms;
    pthread_mutex_unlock(&api->lock);
}

static int call_once(struct api *api, const struct api_request *request, const struct buf *body,
                     struct http_reply *ret_reply, struct prepared *prepared, struct err *err)
{
    struct http_request http = {
        .method = request->method,
        .timeout_ms = request->timeout_ms,
        .max_reply = CAP_K8S_BODY,
    };
    struct err why;

    if (wait_for_turn(api, request, err) < 0 || prepare(api, request, prepared, err) < 0)
        return -1;
    http.url = prepared->url;
    http.headers = &prepared->headers;
    if (request->body != NULL)
        http.body = (struct str){buf_text(body), body->len};
    if (http_call(api->http, &http, ret_reply, &why) == 0)
        return 0;
    /* A reply beyond all measure is the server's fault, not the client's. */
    if (why.code == ERR_TOO_LARGE)
        return err_set(err, ERR_BACKEND, "%s %s: the API server's answer is too large: %s",
                       request->about.verb, request->about.resource, why.msg);
    return err_set(err, why.code, "%s %s: %s", request->about.verb, request->about.resource,
                   why.msg);
}

/* The parsed reply, or the error it says. */
static int judge(const struct api_request *request, const struct http_reply *reply,
                 const struct auth *auth, struct json **ret_reply, struct err *err)
{
    if (reply->status < 200 || reply->status > 299) {
        (void)status_error(&request->about, reply->status, buf_text(&reply->body), reply->body.len,
                           err);
        if (err != NULL)
            auth_scrub(auth, err);
        return -1;
    }
    if (ret_reply == NULL)
        return 0;
    if (json_parse(buf_text(&reply->body), reply->body.len, JSON_LENIENT, ret_reply, err) < 0) {
        if (err != NULL)
            err->code = ERR_BACKEND;
        return err_wrap(err, "%s %s: the API server's answer", request->about.verb,
                        request->about.resource);
    }
    return 0;
}

/* One 401 makes us read the credentials again, one 429 makes us wait; then it is the caller's. */
int api_call(struct api *api, const struct api_request *request, struct json **ret_reply,
             struct err *err)
{
    cleanup_buf struct buf body = BUF_INIT(CAP_K8S_BODY);
    bool renewed = false, waited = false;

    if (request->body != NULL && !json_print(request->body, &body))
        return err_set(err, ERR_TOO_LARGE, "the request is too large");
    for (;;) {
        cleanup(prepared_done) struct prepared prepared = {.auth = NULL};
        cleanup(http_reply_done) struct http_reply reply = {.status = 0};

        if (call_once(api, request, &body, &reply, &prepared, err) < 0)
            return -1;
        if (reply.status == 401 && !renewed) {
            renewed = true;
            credentials_renew(api->credentials, prepared.auth);
            continue;
        }
        if (reply.status == 429)
            throttle(api, reply.retry_after_ms);
        if (reply.status == 429 && !waited && reply.retry_after_ms <= THROTTLE_MAX_MS) {
            waited = true;
            continue;
        }
        return judge(request, &reply, prepared.auth, ret_reply, err);
    }
}

int api_watch(struct api *api, const struct api_request *request, const struct http_lines *lines,
              struct err *err)
{
    for (bool renewed = false;; renewed = true) {
        cleanup(prepared_done) struct prepared prepared = {.auth = NULL};
        cleanup(http_reply_done) struct http_reply reply = {.status = 0};
        struct http_request http = {.method = "GET", .max_reply = CAP_SMALL};

        if (wait_for_turn(api, request, err) < 0 || prepare(api, request, &prepared, err) < 0)
            return -1;
        http.url = prepared.url;
        http.headers = &prepared.headers;
        if (http_lines(api->http, &http, lines, &reply, err) < 0)
            return -1;
        if (reply.status == 401 && !renewed) {
            credentials_renew(api->credentials, prepared.auth);
            continue;
        }
        if (reply.status == 429)
            throttle(api, reply.retry_after_ms);
        return judge(request, &reply, prepared.auth, NULL, err);
    }
}
