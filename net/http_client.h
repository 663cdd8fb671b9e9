#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

/* Blocking HTTP requests on libcurl, from any thread; connections are kept and shared. Silent above
 * debug; never re-sends a POST by itself (CURLOPT_FRESH_CONNECT for POST; see B17). */
struct http_client;

/* Plain values; PEM files or PEM text in memory (the latter wins). NULL: not set. */
struct http_tls {
    const char *ca_file, *ca_pem;
    const char *cert_file, *cert_pem;
    const char *key_file, *key_pem;
    const char *server_name; /* other than the URL's host */
    bool insecure;           /* skip verification: only when a kubeconfig says so */
};

struct http_client *http_client_new(const struct http_tls *tls, struct err *err) must_check;
/* Connections made from now on use TLS; called when a CA or certificate file has changed. */
int http_client_set_tls(struct http_client *client, const struct http_tls *tls, struct err *err);
/* As proxy from HTTPS_PROXY/NO_PROXY environment unless given here. */
void http_client_free(struct http_client *client); /* no request may be running */

struct http_request {
    const char *method; /* GET when NULL */
    const char *url;
    const char *unix_socket;         /* path; NULL: the URL's host and port */
    const struct text_list *headers; /* "Name: value"; may be NULL */
    struct str body;                 /* sent when ptr is not NULL */
    int64_t connect_timeout_ms;      /* 0: 5 s */
    int64_t timeout_ms;              /* whole request; 0: 30 s */
    size_t max_reply;                /* bytes of the body; 0: CAP_SMALL. More is ERR_TOO_LARGE */
};

struct http_reply {
    int status;
    struct buf body;
    int64_t retry_after_ms; /* from Retry-After; -1: not given */
};
void http_reply_done(struct http_reply *reply);

/* 0 with any HTTP status; -1 with ERR_BACKEND_UNAVAILABLE (no connection, time-out, cut) or another
 * code when there was no whole reply. A reply without a status is a failure. */
int http_call(struct http_client *client, const struct http_request *request,
              struct http_reply *ret_reply, struct err *err) must_check;

/* A reply that comes in lines (a Kubernetes watch), until it ends, `line` returns false, or `stop`
 * is set. No timeout but `idle_ms` (0: none) without a byte. LINE's text is valid in the call. */
struct http_lines {
    bool (*line)(void *arg, const char *text, size_t len);
    bool (*opened)(void *arg); /* the reply begins, with status 200; false ends it; may be NULL */
    void *arg;
    int64_t idle_ms;
    size_t max_line;
    const _Atomic bool *stop; /* looked at about four times a second */
};
/* 0 when the reply ended or `line` stopped it: `ret_reply` has the status, and the body if it was
 * not 200. -1 with ERR_CANCELLED when `stop` was set, ERR_TOO_LARGE for a longer line, otherwise as
 * http_call. */
int http_lines(struct http_client *client, const struct http_request *request,
               const struct http_lines *lines, struct http_reply *ret_reply,
               struct err *err) must_check;
