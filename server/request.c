#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "sandbox/sandboxes.h"
#include "server/exchange.h"
#include "server/http_impl.h"
#include "server/proxy.h"
#include "server/reply.h"

struct request *request_new(struct http *http, const char *raw_uri)
{
    struct request *request = xcalloc(1, sizeof(*request));
    uint64_t number = atomic_fetch_add(&http->next_id, 1);

    request->http = http;
    atomic_init(&request->refs, 1);
    request->raw_uri = xstrdup(raw_uri);
    request->uri_at = raw_uri;
    request->started_us = clock_now_us();
    (void)snprintf(request->id, sizeof(request->id), "%s-%llu", http->id_prefix,
                   (unsigned long long)number);
    (void)pthread_mutex_init(&request->lock, NULL);
    return request;
}

static void request_free(struct request *request)
{
    if (request->state_free)
        request->state_free(request->state);
    if (request->sandbox)
        sandbox_unref(request->sandbox);
    reply_done(&request->reply);
    json_free(request->json);
    buf_wipe(&request->body); /* it may hold secrets */
    pipe_unref(request->body_pipe);
    proxied_free(request->proxied);
    uri_query_done(&request->query);
    route_match_done(&request->match);
    for (size_t i = 0; i < request->header_count; i++) {
        free(request->headers[i].name);
        free_secret(request->headers[i].value, strlen(request->headers[i].value));
    }
    free(request->headers);
    free(request->path);
    free(request->raw_uri);
    (void)pthread_mutex_destroy(&request->lock);
    free(request);
}

void request_unref(struct request *request)
{
    if (atomic_fetch_sub(&request->refs, 1) == 1)
        request_free(request);
}

struct app *request_app(const struct request *request)
{
    return request->http->app;
}

const struct caller *request_caller(const struct request *request)
{
    return &request->caller;
}

const char *request_id(const struct request *request)
{
    return request->id;
}

const char *request_method(const struct request *request)
{
    return request->method;
}

const char *request_param(const struct request *request, const char *name)
{
    size_t len = strlen(name), index = 0;

    for (const char *at = strchr(request->match.route->path, '{'); at; at = strchr(at, '{')) {
        at++;
        if (strncmp(at, name, len) == 0 && at[len] == '}')
            return request->match.params[index];
        index++;
    }
    return NULL;
}

int request_param_number(const struct request *request, const char *name, int64_t *ret_value,
                         struct err *err)
{
    const char *text = request_param(request, name);
    uint64_t value;

    if (!text || !str_to_u64(str_of(text), INT64_MAX, &value))
        return err_set(err, ERR_NOT_FOUND, "'%.64s' is not a number", text ? text : "");
    *ret_value = (int64_t)value;
    return 0;
}

struct sandbox *request_sandbox(const struct request *request)
{
    return request->sandbox;
}

/* --- the query ----------------------------------------------------------------------------------
 */

bool request_query(const struct request *request, const char *name, struct str *ret_value)
{
    const struct uri_param *param = uri_query_get(&request->query, name);

    if (!param)
        return false;
    *ret_value = (struct str){param->value, param->len};
    return true;
}

int request_query_int(const struct request *request, const char *name, int64_t min, int64_t max,
                      int64_t *value, struct err *err)
{
    struct str text, digits;
    uint64_t number = 0;

    if (!request_query(request, name, &text))
        return 0;
    bool minus = min < 0 && text.len && text.ptr[0] == '-';
    digits = minus ? (struct str){text.ptr + 1, text.len - 1} : text;
    bool good = str_to_u64(digits, INT64_MAX, &number);
    int64_t given = minus ? -(int64_t)number : (int64_t)number;
    if (!good || given < min || given > max)
        return err_set(err, ERR_INVALID_FIELD, "%s: must be a number from %lld to %lld", name,
                       (long long)min, (long long)max);
    *value = given;
    return 0;
}

int request_query_bool(const struct request *request, const char *name, bool *value,
                       struct err *err)
{
    struct str text;

    if (!request_query(request, name, &text))
        return 0;
    if (!str_is(text, "true") && !str_is(text, "false"))
        return err_set(err, ERR_INVALID_FIELD, "%s: must be true or false", name);
    *value = str_is(text, "true");
    return 0;
}

int request_query_seconds(const struct request *request, const char *name, int64_t max_ms,
                          int64_t *value_ms, struct err *err)
{
    const struct uri_param *param = uri_query_get(&request->query, name);
    uint64_t milli;

    if (!param)
        return 0;
    /* Digits and one point: units mean something in a quantity, but nothing in seconds. */
    if (param->value[strspn(param->value, "0123456789.")] || !str_to_milli(param->value, &milli) ||
        milli > (uint64_t)max_ms)
        return err_set(err, ERR_INVALID_FIELD, "%s: must be seconds, at most %lld", name,
                       (long long)(max_ms / 1000));
    *value_ms = (int64_t)milli;
    return 0;
}

/* --- headers ------------------------------------------------------------------------------------
 */

const char *request_header(const struct request *request, const char *name)
{
    return framing_header(request->headers, request->header_count, name);
}

/* The media type at the start of TEXT, without its parameters, is TYPE. */
static bool media_type_is(const char *text, const char *type)
{
    size_t len = strlen(type);

    text += strspn(text, " \t");
    return strncasecmp(text, type, len) == 0 && strchr(" \t;,", text[len]);
}

bool request_accepts_json(const struct request *request)
{
    for (const char *at = request_header(request, "Accept"); at;) {
        if (media_type_is(at, "application/json"))
            return true;
        at = strchr(at, ',');
        if (at)
            at++;
    }
    return false;
}

size_t request_accepts(const struct request *request, const char *const *types)
{
    for (const char *at = request_header(request, "Accept"); at;) {
        for (size_t i = 0; types[i]; i++) {
            if (media_type_is(at, types[i]))
                return i;
        }
        at = strchr(at, ',');
        if (at)
            at++;
    }
    return 0;
}

/* --- the body -----------------------------------------------------------------------------------
 */

struct str request_body(const struct request *request)
{
    return (struct str){buf_text(&request->body), request->body.len};
}

int request_json(struct request *request, bool optional, const struct json **ret_json,
                 struct err *err)
{
    const char *type = request_header(request, "Content-Type");

    if (optional && request->body.len == 0) {
        json_free(request->json);
        request->json = json_new_object();
        *ret_json = request->json;
        return 0;
    }
    if (!type || !media_type_is(type, "application/json"))
        return err_set(err, ERR_UNSUPPORTED_MEDIA_TYPE,
                       "the body must be sent with Content-Type: application/json");
    struct json *json;
    if (json_parse(buf_text(&request->body), request->body.len, JSON_STRICT, &json, err))
        return -1;
    json_free(request->json);
    request->json = json;
    if (!json_is_object(json))
        return err_set(err, ERR_INVALID_JSON, "the body must be a JSON object");
    *ret_json = json;
    return 0;
}

struct pipe *request_body_pipe(struct request *request)
{
    return request->body_pipe;
}

int64_t request_body_length(const struct request *request)
{
    return request->body_length;
}

/* --- waiting ------------------------------------------------------------------------------------
 */

enum verdict request_wait(struct request *request, struct event *event, uint64_t seen,
                          int64_t deadline_ms, handler_fn resume)
{
    request->wait_event = event;
    request->wait_seen = seen;
    request->wait_deadline_ms = deadline_ms;
    request->next = resume;
    return WAIT;
}

enum verdict request_on_worker(struct request *request, handler_fn next)
{
    request->next = next;
    return ON_WORKER;
}

bool request_timed_out(const struct request *request)
{
    return request->wait.timed_out;
}

bool request_client_gone(const struct request *request)
{
    return atomic_load(&request->gone);
}

void request_keep(struct request *request, void *state, void (*free_fn)(void *state))
{
    if (request->state_free)
        request->state_free(request->state);
    request->state = state;
    request->state_free = free_fn;
}

void *request_state(const struct request *request)
{
    return request->state;
}
