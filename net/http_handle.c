#include "net/http_handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"

#define CONNECT_TIMEOUT_MS 5000
#define TIMEOUT_MS 30000
#define RETRY_AFTER_MAX 86400 /* seconds; more is taken as nonsense */

void http_handle_free(struct http_handle *handle)
{
    if (!handle)
        return;
    curl_easy_cleanup(handle->curl);
    curl_slist_free_all(handle->headers);
    free(handle->server_name);
    free(handle);
}

/* libcurl 7.88 opens its sockets without close-on-exec. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)arg, (void)purpose;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static void set_blob(CURL *curl, CURLoption option, char *text)
{
    if (!text)
        return;
    struct curl_blob blob = {.data = text, .len = strlen(text), .flags = CURL_BLOB_COPY};
    curl_easy_setopt(curl, option, &blob);
}

static CURLcode on_context(CURL *curl, void *context, void *name)
{
    (void)curl;
    tls_expect_name(context, name);
    return CURLE_OK;
}

/* libcurl can check a certificate for the URL's host only; another name is set in OpenSSL. */
static int set_server_name(struct http_handle *handle, const char *name, struct err *err)
{
    free(handle->server_name);
    handle->server_name = name ? xstrdup(name) : NULL;
    if (!name)
        return 0;
    if (curl_easy_setopt(handle->curl, CURLOPT_SSL_CTX_FUNCTION, on_context) != CURLE_OK)
        return err_set(err, ERR_CONFIG, "this libcurl cannot check for a tls-server-name");
    curl_easy_setopt(handle->curl, CURLOPT_SSL_CTX_DATA, handle->server_name);
    curl_easy_setopt(handle->curl, CURLOPT_SSL_VERIFYHOST, 0L);
    return 0;
}

static int set_tls(struct http_handle *handle, const struct tls_material *tls, struct err *err)
{
    CURL *curl = handle->curl;
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (tls->ca) {
        set_blob(curl, CURLOPT_CAINFO_BLOB, tls->ca);
        curl_easy_setopt(curl, CURLOPT_CAPATH, NULL); /* else the system's CAs count too */
    }
    set_blob(curl, CURLOPT_SSLCERT_BLOB, tls->cert);
    set_blob(curl, CURLOPT_SSLKEY_BLOB, tls->key);
    if (tls->insecure) {
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    return set_server_name(handle, tls->server_name, err);
}

static int add_header(struct http_handle *handle, const char *line, struct err *err)
{
    if (!str_is_printable(line, strlen(line)))
        return err_set(err, ERR_CONFIG, "a request header is not printable");
    struct curl_slist *list = curl_slist_append(handle->headers, line);
    if (!list)
        return err_set(err, ERR_INTERNAL, "out of memory");
    handle->headers = list;
    return 0;
}

static bool has_header(const struct text_list *headers, const char *name_colon)
{
    for (size_t i = 0; headers && i < headers->count; i++) {
        if (strncasecmp(headers->items[i], name_colon, strlen(name_colon)) == 0)
            return true;
    }
    return false;
}

static int set_headers(struct http_handle *handle, const struct http_request *request,
                       struct err *err)
{
    curl_slist_free_all(handle->headers);
    handle->headers = NULL;
    for (size_t i = 0; request->headers && i < request->headers->count; i++) {
        if (add_header(handle, request->headers->items[i], err) < 0)
            return -1;
    }
    /* what libcurl would add by itself; Expect costs a second with servers that do not know it */
    if (add_header(handle, "Expect:", err) < 0)
        return -1;
    if (!has_header(request->headers, "Content-Type:") &&
        add_header(handle, "Content-Type:", err) < 0)
        return -1;
    curl_easy_setopt(handle->curl, CURLOPT_HTTPHEADER, handle->headers);
    return 0;
}

static void set_method(CURL *curl, const struct http_request *request)
{
    const char *method = request->method ? request->method : "GET";
    bool post = strcmp(method, "POST") == 0;
    if (request->body.ptr || post) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body.len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.ptr ? request->body.ptr : "");
    }
    if (strcmp(method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    else
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    /* When a kept connection turns out to be dead, libcurl sends the request again, even if the
     * server had got it; with a connection of its own a POST goes out once. */
    curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, post ? 1L : 0L);
}

static void set_connection(CURL *curl, const struct http_request *request)
{
    if (request->unix_socket) {
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, request->unix_socket);
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    }
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_MAXCONNECTS, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, 30L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, 10L);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    int64_t connect = request->connect_timeout_ms;
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(connect > 0 ? connect : CONNECT_TIMEOUT_MS));
    int64_t whole = request->timeout_ms;
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(whole > 0 ? whole : TIMEOUT_MS));
}

int http_handle_setup(struct http_handle *handle, const struct http_request *request,
                      const struct tls_material *tls, struct err *err)
{
    CURL *curl = handle->curl;
    curl_easy_reset(curl); /* keeps the connection */
    handle->words[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, handle->words);
    if ((strncasecmp(request->url, "http://", 7) != 0 &&
         strncasecmp(request->url, "https://", 8) != 0) ||
        curl_easy_setopt(curl, CURLOPT_URL, request->url) != CURLE_OK)
        return err_set(err, ERR_CONFIG, "malformed URL");
    set_connection(curl, request);
    set_method(curl, request);
    if (set_tls(handle, tls, err) < 0)
        return -1;
    return set_headers(handle, request, err);
}

static int no_connection(const struct http_handle *handle, const char *words, struct err *err)
{
    long number = 0;
    curl_easy_getinfo(handle->curl, CURLINFO_OS_ERRNO, &number);
    if (number == 0)
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "%s", words);
    return err_errno(err, ERR_BACKEND_UNAVAILABLE, (int)number, "%s", words);
}

int http_failure(const struct http_handle *handle, CURLcode code, struct err *err)
{
    const char *words = handle->words[0] ? handle->words : curl_easy_strerror(code);
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        return no_connection(handle, words, err);
    case CURLE_PEER_FAILED_VERIFICATION:
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "%s; " TLS_REMEDY, words);
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_URL_MALFORMAT:
        return err_set(err, ERR_CONFIG, "%s", words);
    case CURLE_FILESIZE_EXCEEDED:
        return err_set(err, ERR_TOO_LARGE, "%s", words);
    case CURLE_OUT_OF_MEMORY:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_FAILED_INIT:
    case CURLE_UNKNOWN_OPTION:
        return err_set(err, ERR_INTERNAL, "libcurl: %s", words);
    default: /* no connection, time-out, cut, or not HTTP */
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "%s", words);
    }
}

/* Seconds or a date, which libcurl reads; it says 0 for what is neither. */
static int64_t retry_after(CURL *curl)
{
    struct curl_header *header = NULL;
    if (curl_easy_header(curl, "Retry-After", 0, CURLH_HEADER, -1, &header) != CURLHE_OK)
        return -1;
    uint64_t given = 0;
    curl_off_t seconds = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds);
    if (seconds == 0 && !str_to_u64(str_of(header->value), 0, &given))
        return -1;
    return seconds >= 0 && seconds <= RETRY_AFTER_MAX ? seconds * 1000 : -1;
}

int http_handle_status(const struct http_handle *handle, struct http_reply *reply, struct err *err)
{
    long status = 0;
    curl_easy_getinfo(handle->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status < 100 || status > 999)
        return err_set(err, ERR_BACKEND_UNAVAILABLE, "a reply without an HTTP status");
    reply->status = (int)status;
    reply->retry_after_ms = retry_after(handle->curl);
    return 0;
}
