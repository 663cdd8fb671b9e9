#include "net/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "net/http_handle.h"
#include "net/socket_stream.h"

/* libcurl only connects (with TLS, if need be): an upgraded connection is none of its transfers. */
#define TIMEOUT_MS 30000
#define HEAD_MAX (16 * KIB)

struct upgraded {
    struct http_handle *handle;
    curl_socket_t socket;
    bool tls;
};

struct exchange {
    struct upgraded *upgraded;
    int64_t due_ms;
    struct buf head;
};

void upgraded_free(struct upgraded *upgraded)
{
    if (!upgraded)
        return;
    http_handle_free(upgraded->handle);
    free(upgraded);
}

/* --- bytes --------------------------------------------------------------------------------------
 */

static int await(const struct exchange *exchange, short events, struct err *err)
{
    struct pollfd wanted = {.fd = exchange->upgraded->socket, .events = events};
    for (;;) {
        int64_t left = exchange->due_ms - clock_now_ms();
        int ready = left > 0 ? poll(&wanted, 1, (int)left) : 0;
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return err_errno(err, ERR_BACKEND_UNAVAILABLE, errno, "poll");
        if (ready == 0)
            return err_set(err, ERR_BACKEND_UNAVAILABLE, "no answer in time");
    }
}

static int send_all(const struct exchange *exchange, const struct buf *bytes, struct err *err)
{
    const struct http_handle *handle = exchange->upgraded->handle;
    for (size_t at = 0; at < bytes->len;) {
        size_t sent = 0;
        CURLcode code = curl_easy_send(handle->curl, bytes->ptr + at, bytes->len - at, &sent);
        if (code == CURLE_OK)
            at += sent;
        else if (code != CURLE_AGAIN)
            return http_failure(handle, code, err);
        else if (await(exchange, POLLOUT, err) < 0)
            return -1;
    }
    return 0;
}

/* 1: a byte; 0: the end. */
static int receive_byte(const struct exchange *exchange, char *ret_byte, struct err *err)
{
    const struct http_handle *handle = exchange->upgraded->handle;
    for (;;) {
        size_t got = 0;
        CURLcode code = curl_easy_recv(handle->curl, ret_byte, 1, &got);
        if (code == CURLE_OK)
            return got == 1;
        if (code != CURLE_AGAIN)
            return http_failure(handle, code, err);
        if (await(exchange, POLLIN, err) < 0)
            return -1;
    }
}

/* --- the request --------------------------------------------------------------------------------
 */

static int send_request(const struct exchange *exchange, const struct http_request *request,
                        struct err *err)
{
    cleanup_buf struct buf bytes = BUF_INIT(MIB);
    const char *host = strstr(request->url, "://");
    host = host ? host + 3 : request->url;
    size_t host_len = strcspn(host, "/");
    buf_printf(&bytes, "%s %s HTTP/1.1\r\nHost: %.*s\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n",
               request->method ? request->method : "GET", host[host_len] ? host + host_len : "/",
               (int)host_len, host);
    for (size_t i = 0; request->headers && i < request->headers->count; i++)
        buf_printf(&bytes, "%s\r\n", request->headers->items[i]);
    buf_printf(&bytes, "Content-Length: %zu\r\n\r\n", request->body.len);
    buf_append(&bytes, request->body.ptr ? request->body.ptr : "", request->body.len);
    if (bytes.overflow)
        return err_set(err, ERR_TOO_LARGE, "a request of more than %zu bytes", bytes.max);
    return send_all(exchange, &bytes, err);
}

/* Byte by byte, so that none of the stream is taken with it. */
static int receive_head(struct exchange *exchange, struct err *err)
{
    struct buf *head = &exchange->head;
    while (head->len < 4 || memcmp(head->ptr + head->len - 4, "\r\n\r\n", 4) != 0) {
        char byte;
        int got = receive_byte(exchange, &byte, err);
        if (got < 0)
            return -1;
        if (got == 0)
            return err_set(err, ERR_BACKEND_UNAVAILABLE,
                           "the connection was closed instead of an "
                           "answer");
        if (!buf_append_char(head, byte))
            return err_set(err, ERR_BACKEND, "the head of an answer of more than %zu bytes",
                           head->max);
    }
    return 0;
}

/* The value of header NAME, "" when there is none. */
static struct str header(const struct buf *head, const char *name)
{
    size_t name_len = strlen(name);
    for (const char *line = strstr(head->ptr, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, name_len) != 0 || at[name_len] != ':')
            continue;
        at += name_len + 1 + strspn(at + name_len + 1, " \t");
        return (struct str){at, strcspn(at, "\r\n")};
    }
    return STR("");
}

static int status_of(const struct buf *head)
{
    uint64_t status = 0;
    bool known = str_starts(head->ptr, "HTTP/1.1 ") || str_starts(head->ptr, "HTTP/1.0 ");
    if (!known || !str_to_u64((struct str){head->ptr + 9, 3}, 999, &status))
        return 0;
    return (int)status;
}

/* What the refusal says: as much as is told to come, or comes. */
static int receive_body(const struct exchange *exchange, struct buf *body, struct err *err)
{
    uint64_t left = UINT64_MAX;
    (void)str_to_u64(header(&exchange->head, "Content-Length"), INT64_MAX, &left);
    bool chunked = header(&exchange->head, "Transfer-Encoding").len > 0;
    for (; left > 0; left--) {
        char byte;
        int got = receive_byte(exchange, &byte, err);
        if (got < 0)
            return -1;
        if (got == 0 || !buf_append_char(body, byte) ||
            (chunked && str_ends(buf_text(body), "\r\n0\r\n\r\n")))
            return 0;
    }
    return 0;
}

static int exchange_heads(struct exchange *exchange, const struct http_request *request,
                          struct http_reply *reply, struct err *err)
{
    if (send_request(exchange, request, err) < 0 || receive_head(exchange, err) < 0)
        return -1;
    reply->status = status_of(&exchange->head);
    reply->retry_after_ms = -1;
    if (reply->status < 100)
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "an answer that is not HTTP/1.1");
    if (reply->status == 101)
        return 0;
    bool framed = header(&exchange->head, "Transfer-Encoding").len > 0 ||
                  header(&exchange->head, "Content-Length").len > 0;
    if (reply->status == 200 && framed)
        return err_set(err, ERR_BACKEND,
                       "the connection was not upgraded: something on the way to the engine does "
                       "not pass upgrades");
    return reply->status == 200 ? 0 : receive_body(exchange, &reply->body, err);
}

static CURLcode on_context(CURL *curl, void *context, void *arg)
{
    (void)curl, (void)arg;
    /* A write that is tried again may come from another place in memory. */
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_ENABLE_PARTIAL_WRITE);
    return CURLE_OK;
}

static int connect_only(struct upgraded *upgraded, const char *url, struct err *err)
{
    CURL *curl = upgraded->handle->curl;
    upgraded->tls = str_starts(url, "https:");
    curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
    if (upgraded->tls && !upgraded->handle->server_name)
        curl_easy_setopt(curl, CURLOPT_SSL_CTX_FUNCTION, on_context);
    CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
        return http_failure(upgraded->handle, code, err);
    code = curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &upgraded->socket);
    return code == CURLE_OK ? 0 : http_failure(upgraded->handle, code, err);
}

int http_upgrade(struct http_client *client, const struct http_request *request,
                 struct upgraded **ret_upgraded, struct http_reply *ret_reply, struct err *err)
{
    int64_t timeout = request->timeout_ms > 0 ? request->timeout_ms : TIMEOUT_MS;
    struct http_reply reply = {.status = 0};
    struct upgraded *upgraded = xcalloc(1, sizeof(*upgraded));
    struct exchange exchange = {.upgraded = upgraded, .due_ms = clock_now_ms() + timeout};
    buf_init(&exchange.head, HEAD_MAX);
    buf_init(&reply.body, request->max_reply > 0 ? request->max_reply : CAP_SMALL);
    upgraded->handle = http_client_handle(client, request, err);
    int result = upgraded->handle ? connect_only(upgraded, request->url, err) : -1;
    if (result == 0)
        result = exchange_heads(&exchange, request, &reply, err);
    buf_done(&exchange.head);
    if (result < 0 || (reply.status != 101 && reply.status != 200)) {
        upgraded_free(upgraded);
        upgraded = NULL;
    }
    if (result < 0) {
        http_reply_done(&reply);
        return -1;
    }
    *ret_upgraded = upgraded;
    *ret_reply = reply;
    return 0;
}

/* --- the stream ---------------------------------------------------------------------------------
 */

static ssize_t tls_result(CURLcode code, size_t done)
{
    if (code == CURLE_OK)
        return (ssize_t)done;
    errno = code == CURLE_AGAIN ? EAGAIN : EIO;
    return -1;
}

static ssize_t tls_send(void *arg, const void *data, size_t len)
{
    struct upgraded *upgraded = arg;
    size_t done = 0;
    CURLcode code = curl_easy_send(upgraded->handle->curl, data, len, &done);
    return tls_result(code, done);
}

static ssize_t tls_recv(void *arg, void *data, size_t len)
{
    struct upgraded *upgraded = arg;
    size_t done = 0;
    CURLcode code = curl_easy_recv(upgraded->handle->curl, data, len, &done);
    return tls_result(code, done);
}

static void tls_free(void *arg)
{
    upgraded_free(arg);
}

struct stream *upgraded_stream(struct loop *loop, struct upgraded *upgraded,
                               const struct stream_handler *handler, void *arg)
{
    struct socket_io io = {.send = tls_send, .recv = tls_recv, .free = tls_free, .arg = upgraded};
    /* libcurl closes its own descriptor, the loop this one. */
    int fd = fcntl(upgraded->socket, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) {
        struct err why;
        (void)err_errno(&why, ERR_BUSY, errno, "no descriptor for one more stream");
        upgraded_free(upgraded);
        return socket_stream_refused(loop, &why, handler, arg);
    }
    if (upgraded->tls)
        return socket_stream_new_over(loop, fd, &io, handler, arg);
    upgraded_free(upgraded);
    return socket_stream_new(loop, fd, handler, arg);
}
