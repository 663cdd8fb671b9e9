#include "net/http_client.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "net/http_handle.h"

/* Handles (a connection each) kept for the next request. */
#define HANDLES_KEPT 8

struct http_client {
    pthread_mutex_t lock; /* all below */
    struct tls_material tls;
    uint64_t generation;
    struct http_handle *idle;
    size_t idle_count;
};

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
    /* With CURLOPT_NOSIGNAL libcurl leaves this to us, and OpenSSL writes to cut connections.
     * libwebsockets does the same for the whole process. */
    signal(SIGPIPE, SIG_IGN);
}

void http_reply_done(struct http_reply *reply)
{
    buf_done(&reply->body);
}

struct http_client *http_client_new(const struct http_tls *tls, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    struct tls_material material;
    if (tls_material_load(&material, tls, err) < 0)
        return NULL;
    struct http_client *client = xcalloc(1, sizeof(*client));
    pthread_mutex_init(&client->lock, NULL);
    client->tls = material;
    return client;
}

static void free_handles(struct http_handle *handle)
{
    while (handle) {
        struct http_handle *next = handle->next;
        http_handle_free(handle);
        handle = next;
    }
}

int http_client_set_tls(struct http_client *client, const struct http_tls *tls, struct err *err)
{
    struct tls_material material;
    if (tls_material_load(&material, tls, err) < 0)
        return -1;
    pthread_mutex_lock(&client->lock);
    struct tls_material before = client->tls;
    struct http_handle *idle = client->idle;
    client->tls = material;
    client->generation++;
    client->idle = NULL;
    client->idle_count = 0;
    pthread_mutex_unlock(&client->lock);
    tls_material_done(&before);
    free_handles(idle);
    return 0;
}

void http_client_free(struct http_client *client)
{
    if (!client)
        return;
    free_handles(client->idle);
    tls_material_done(&client->tls);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static struct http_handle *handle_new(struct err *err)
{
    struct http_handle *handle = xcalloc(1, sizeof(*handle));
    handle->curl = curl_easy_init();
    if (!handle->curl) {
        err_set(err, ERR_INTERNAL, "libcurl cannot start");
        free(handle);
        return NULL;
    }
    return handle;
}

static struct http_handle *take_idle(struct http_client *client)
{
    pthread_mutex_lock(&client->lock);
    struct http_handle *handle = client->idle;
    if (handle) {
        client->idle = handle->next;
        client->idle_count--;
        handle->next = NULL;
    }
    pthread_mutex_unlock(&client->lock);
    return handle;
}

static void give_back(struct http_client *client, struct http_handle *handle)
{
    pthread_mutex_lock(&client->lock);
    bool keep = handle->generation == client->generation && client->idle_count < HANDLES_KEPT;
    if (keep) {
        handle->next = client->idle;
        client->idle = handle;
        client->idle_count++;
    }
    pthread_mutex_unlock(&client->lock);
    if (!keep)
        http_handle_free(handle);
}

/* Sets HANDLE up under the lock, since that copies the client's TLS settings. */
static int set_up(struct http_client *client, struct http_handle *handle,
                  const struct http_request *request, struct err *err)
{
    pthread_mutex_lock(&client->lock);
    handle->generation = client->generation;
    int code = http_handle_setup(handle, request, &client->tls, err);
    pthread_mutex_unlock(&client->lock);
    return code;
}

struct http_handle *http_client_handle(struct http_client *client,
                                       const struct http_request *request, struct err *err)
{
    struct http_handle *handle = handle_new(err);
    if (handle && set_up(client, handle, request, err) < 0) {
        http_handle_free(handle);
        return NULL;
    }
    return handle;
}

static size_t take_body(char *data, size_t size, size_t count, void *arg)
{
    return buf_append(arg, data, size * count) ? size * count : CURL_WRITEFUNC_ERROR;
}

static int perform(struct http_handle *handle, struct http_reply *reply, struct err *err)
{
    curl_easy_setopt(handle->curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(handle->curl, CURLOPT_WRITEDATA, &reply->body);
    CURLcode code = curl_easy_perform(handle->curl);
    if (reply->body.overflow)
        return err_set(err, ERR_TOO_LARGE, "a reply of more than %zu bytes", reply->body.max);
    if (code != CURLE_OK)
        return http_failure(handle, code, err);
    return http_handle_status(handle, reply, err);
}

int http_call(struct http_client *client, const struct http_request *request,
              struct http_reply *ret_reply, struct err *err)
{
    struct http_reply reply = {.status = 0};
    buf_init(&reply.body, request->max_reply > 0 ? request->max_reply : CAP_SMALL);
    struct http_handle *handle = take_idle(client);
    if (!handle)
        handle = handle_new(err);
    if (!handle)
        return -1;
    if (set_up(client, handle, request, err) < 0 || perform(handle, &reply, err) < 0) {
        http_handle_free(handle); /* whatever state its connection is in */
        http_reply_done(&reply);
        return -1;
    }
    give_back(client, handle);
    *ret_reply = reply;
    return 0;
}
