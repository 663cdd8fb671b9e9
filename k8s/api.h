#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "k8s/credentials.h"
#include "k8s/status.h"
#include "net/http_client.h"

/* Requests to the API server: signed in, retried where that is safe, answers that are no success as
 * errors. Calls block and are thread-safe. */
struct api;

/* Consumes what ACCESS holds, also on failure. */
struct api *api_new(struct access *access, struct err *err) must_check;
void api_free(struct api *api); /* no request may be running */
/* Ends waits for another try; requests fail soon. */
void api_stop(struct api *api);

/* Sleeps, at most until api_stop(): false when stopping. */
bool api_sleep(struct api *api, int64_t ms);
/* MS with up to a quarter more or less. */
int64_t api_jitter(int64_t ms);

const char *api_server(const struct api *api);
struct credentials *api_credentials(struct api *api);

struct api_request {
    const char *method;            /* GET when NULL */
    const char *path;              /* behind the server's URL, with its query */
    const struct json *body;       /* may be NULL */
    struct status_request about;   /* for messages */
    int64_t timeout_ms;            /* 0: 30 s */
    const struct text_list *extra; /* more headers; may be NULL */
};

/* A success (2xx) is 0, with the parsed reply in RET_REPLY unless that is NULL. */
int api_call(struct api *api, const struct api_request *request, struct json **ret_reply,
             struct err *err) must_check;

/* A watch: REQUEST is a GET whose reply comes in lines. 0 when it ended by itself or by `line`. */
int api_watch(struct api *api, const struct api_request *request, const struct http_lines *lines,
              struct err *err) must_check;
