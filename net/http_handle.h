#pragma once

#include <curl/curl.h>
#include <stdint.h>

#include "net/http_client.h"
#include "net/tls.h"

/* One libcurl handle with its kept connection; shared by http_client.c and http_lines.c. */
struct http_handle {
    struct http_handle *next;
    CURL *curl;
    struct curl_slist *headers;
    char *server_name;   /* for the TLS callback; NULL: the URL's host */
    uint64_t generation; /* of the client's TLS settings */
    char words[CURL_ERROR_SIZE];
};

/* Sets every option of REQUEST but where the reply's body goes. */
int http_handle_setup(struct http_handle *handle, const struct http_request *request,
                      const struct tls_material *tls, struct err *err) must_check;
void http_handle_free(struct http_handle *handle);

/* What libcurl's CODE (not CURLE_OK) means; returns -1. */
int http_failure(const struct http_handle *handle, CURLcode code, struct err *err);

/* Status and Retry-After of a reply that has come. A reply without a status is a failure. */
int http_handle_status(const struct http_handle *handle, struct http_reply *reply,
                       struct err *err) must_check;

/* A new handle for a long reply, set up with the client's TLS settings. NULL and ERR. */
struct http_handle *http_client_handle(struct http_client *client,
                                       const struct http_request *request,
                                       struct err *err) must_check;
