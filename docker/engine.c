#include "docker/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/event.h"

#define TIMEOUT_MS 60000
#define VERSION_TIMEOUT_MS 10000
#define MESSAGE_MAX 1000

/* Versions of the API: the one we were written for first, and the newest whose changes we know. */
#define MINOR_LEAST 40
#define MINOR_KNOWN 47

struct engine {
    struct place place;
    struct http_client *http;
    pthread_mutex_t lock;
    int minor; /* of version 1; 0: not asked yet */
    bool podman;
    struct event stopped;
    _Atomic bool stopping;
};

struct engine *engine_new(struct place *place, struct err *err)
{
    struct engine *engine = xcalloc(1, sizeof(*engine));
    struct http_tls tls = {
        .ca_file = place->ca,
        .cert_file = place->cert,
        .key_file = place->key,
        .insecure = place->insecure,
    };

    engine->place = *place;
    *place = (struct place){.url = NULL};
    pthread_mutex_init(&engine->lock, NULL);
    event_init(&engine->stopped);
    engine->http = http_client_new(&tls, err);
    if (!engine->http) {
        engine_free(engine);
        return NULL;
    }
    return engine;
}

void engine_free(struct engine *engine)
{
    if (!engine)
        return;
    http_client_free(engine->http);
    place_done(&engine->place);
    event_done(&engine->stopped);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void engine_stop(struct engine *engine)
{
    engine->stopping = true;
    event_fire(&engine->stopped);
}

bool engine_is_stopping(const struct engine *engine)
{
    return engine->stopping;
}

const _Atomic bool *engine_stop_flag(const struct engine *engine)
{
    return &engine->stopping;
}

bool engine_sleep(struct engine *engine, int64_t ms)
{
    uint64_t seen = event_count(&engine->stopped);

    if (!engine->stopping && ms > 0)
        (void)event_block(&engine->stopped, seen, clock_now_ms() + ms);
    return !engine->stopping;
}

void engine_forget_version(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->minor = 0;
    pthread_mutex_unlock(&engine->lock);
}

const char *engine_address(const struct engine *engine)
{
    return engine->place.unix_socket ? engine->place.unix_socket : engine->place.url;
}

bool engine_is_insecure(const struct engine *engine)
{
    return engine->place.insecure;
}

/* --- answers ------------------------------------------------------------------------------------
 */

/* The engine's own words out of {"message": …} (Podman adds a "cause"), or all of the body. */
static void words_of(const struct buf *body, char ret_words[MESSAGE_MAX])
{
    cleanup_json struct json *json = NULL;
    const char *text = buf_text(body), *begin = strchr(text, '{'), *end = strrchr(text, '}');
    const char *message = NULL;

    if (begin && end && end > begin &&
        json_parse(begin, (size_t)(end - begin) + 1, JSON_LENIENT, &json, NULL) == 0)
        message = json_get_text(json, "message");
    (void)snprintf(ret_words, MESSAGE_MAX, "%s", message ? message : text);
    for (char *c = ret_words; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ')
            *c = ' ';
    }
}

static enum err_code code_of(int status)
{
    switch (status) {
    case 400:
        return ERR_INVALID_OBJECT;
    case 401:
        return ERR_BACKEND_UNAUTHORIZED;
    case 403:
        return ERR_BACKEND_FORBIDDEN;
    case 404:
        return ERR_BACKEND_NOT_FOUND;
    case 409:
        return ERR_BACKEND_CONFLICT;
    case 429:
        return ERR_BACKEND_THROTTLED;
    case 502:
    case 503:
    case 504:
        return ERR_BACKEND_UNAVAILABLE;
    default:
        return ERR_BACKEND;
    }
}

static int judge(const char *about, const struct http_reply *reply, struct err *err)
{
    char words[MESSAGE_MAX];

    if ((reply->status >= 200 && reply->status < 300) || reply->status == 304 ||
        reply->status == 101)
        return 0;
    words_of(&reply->body, words);
    return err_set(err, code_of(reply->status), "%s: the engine answered %d: %s", about,
                   reply->status, words[0] != '\0' ? words : "without a word");
}

/* --- the version --------------------------------------------------------------------------------
 */

/* The minor number of "1.41", 0 for anything else. */
static int minor_of(const char *version)
{
    uint64_t minor = 0;

    if (!version || !str_starts(version, "1.") || !str_to_u64(str_of(version + 2), 10000, &minor))
        return 0;
    return (int)minor;
}

static int choose(const struct json *version, int *ret_minor, struct err *err)
{
    int newest = minor_of(json_get_text(version, "ApiVersion"));
    int oldest = minor_of(json_get_text(version, "MinAPIVersion"));
    int chosen = newest < MINOR_KNOWN ? newest : MINOR_KNOWN;

    if (newest == 0)
        return err_set(err, ERR_BACKEND, "what answers is no Docker Engine: it tells no version");
    if (newest < MINOR_LEAST)
        return err_set(err, ERR_BACKEND,
                       "the engine is too old: its API is 1.%d, needed is 1.%d (Docker 19.03)",
                       newest, MINOR_LEAST);
    *ret_minor = chosen < oldest ? oldest : chosen;
    return 0;
}

static void fill(const struct engine *engine, const char *url, struct http_request *http)
{
    http->url = url;
    http->unix_socket = engine->place.unix_socket;
    http->max_reply = CAP_ENGINE_REPLY;
}

/* A connection that cannot be made is told with where it was tried. */
static int call(struct engine *engine, const struct http_request *http, const char *about,
                struct http_reply *ret_reply, struct err *err)
{
    if (engine->stopping)
        return err_set(err, ERR_STOPPING, "the server stops");
    if (http_call(engine->http, http, ret_reply, err) == 0)
        return 0;
    return err_wrap(err, "%s: the engine at %s", about, engine_address(engine));
}

static bool is_podman(const struct json *version)
{
    const struct json *parts = json_get(version, "Components");

    for (const struct json *item = json_first(parts); item; item = json_next(item)) {
        const char *name = json_get_text(item, "Name");

        if (name && strcmp(name, "Podman Engine") == 0)
            return true;
    }
    return false;
}

static int ask_version(struct engine *engine, int *ret_minor, bool *ret_podman, struct err *err)
{
    cleanup_free char *url = xasprintf("%s/version", engine->place.url);
    struct http_request http = {.timeout_ms = VERSION_TIMEOUT_MS};
    cleanup(http_reply_done) struct http_reply reply = {.status = 0};
    cleanup_json struct json *version = NULL;

    fill(engine, url, &http);
    if (call(engine, &http, "ask for its version", &reply, err) < 0 ||
        judge("ask for its version", &reply, err) < 0)
        return -1;
    if (json_parse(buf_text(&reply.body), reply.body.len, JSON_LENIENT, &version, NULL) < 0)
        return err_set(err, ERR_BACKEND, "what answers at %s is no Docker Engine",
                       engine_address(engine));
    *ret_podman = is_podman(version);
    return choose(version, ret_minor, err);
}

/* Whoever comes first asks; the others ask, too, rather than wait for one that may hang. */
static int version(struct engine *engine, int *ret_minor, bool *ret_podman, struct err *err)
{
    pthread_mutex_lock(&engine->lock);
    *ret_minor = engine->minor;
    *ret_podman = engine->podman;
    pthread_mutex_unlock(&engine->lock);
    if (*ret_minor != 0)
        return 0;
    if (ask_version(engine, ret_minor, ret_podman, err) < 0)
        return -1;
    pthread_mutex_lock(&engine->lock);
    engine->minor = *ret_minor;
    engine->podman = *ret_podman;
    pthread_mutex_unlock(&engine->lock);
    return 0;
}

int engine_ask_kind(struct engine *engine, bool *ret_podman, struct err *err)
{
    int minor = 0;

    return version(engine, &minor, ret_podman, err);
}

/* --- requests -----------------------------------------------------------------------------------
 */

/* What a request carries. */
struct prepared {
    char *url;
    struct buf body;
    struct text_list headers;
    struct http_request http;
};

static void prepared_done(struct prepared *prepared)
{
    free(prepared->url);
    buf_done(&prepared->body);
    text_list_done(&prepared->headers);
}

static int prepare(struct engine *engine, const struct engine_request *request,
                   struct prepared *prepared, struct err *err)
{
    bool podman = false;
    int minor = 0;

    buf_init(&prepared->body, CAP_ENGINE_REQUEST);
    if (version(engine, &minor, &podman, err) < 0)
        return -1;
    prepared->url = xasprintf("%s/v1.%d%s", engine->place.url, minor, request->path);
    if (request->body) {
        if (!json_print(request->body, &prepared->body))
            return err_set(err, ERR_TOO_LARGE, "%s: the request is too large", request->about);
        text_list_add(&prepared->headers, "Content-Type: application/json");
        prepared->http.body = (struct str){buf_text(&prepared->body), prepared->body.len};
    } else if (request->tar.ptr) {
        text_list_add(&prepared->headers, "Content-Type: application/x-tar");
        prepared->http.body = request->tar;
    }
    fill(engine, prepared->url, &prepared->http);
    prepared->http.method = request->method;
    prepared->http.headers = &prepared->headers;
    prepared->http.timeout_ms = request->timeout_ms > 0 ? request->timeout_ms : TIMEOUT_MS;
    return 0;
}

int engine_call(struct engine *engine, const struct engine_request *request,
                struct json **ret_reply, struct err *err)
{
    cleanup(prepared_done) struct prepared prepared = {.url = NULL};
    cleanup(http_reply_done) struct http_reply reply = {.status = 0};

    if (prepare(engine, request, &prepared, err) < 0 ||
        call(engine, &prepared.http, request->about, &reply, err) < 0 ||
        judge(request->about, &reply, err) < 0)
        return -1;
    if (!ret_reply)
        return 0;
    if (json_parse(buf_text(&reply.body), reply.body.len, JSON_LENIENT, ret_reply, NULL) < 0)
        return err_set(err, ERR_BACKEND, "%s: the engine's answer is not JSON", request->about);
    return 0;
}

int engine_lines(struct engine *engine, const struct engine_request *request,
                 const struct http_lines *lines, struct err *err)
{
    cleanup(prepared_done) struct prepared prepared = {.url = NULL};
    cleanup(http_reply_done) struct http_reply reply = {.status = 0};

    if (prepare(engine, request, &prepared, err) < 0)
        return -1;
    if (http_lines(engine->http, &prepared.http, lines, &reply, err) < 0)
        return err_wrap(err, "%s: the engine at %s", request->about, engine_address(engine));
    return judge(request->about, &reply, err);
}

int engine_upgrade(struct engine *engine, const struct engine_request *request,
                   struct upgraded **ret_upgraded, struct err *err)
{
    cleanup(prepared_done) struct prepared prepared = {.url = NULL};
    cleanup(http_reply_done) struct http_reply reply = {.status = 0};
    struct upgraded *upgraded = NULL;

    if (prepare(engine, request, &prepared, err) < 0)
        return -1;
    if (http_upgrade(engine->http, &prepared.http, &upgraded, &reply, err) < 0)
        return err_wrap(err, "%s: the engine at %s", request->about, engine_address(engine));
    if (upgraded) {
        *ret_upgraded = upgraded;
        return 0;
    }
    return judge(request->about, &reply, err) < 0
               ? -1
               : err_set(err, ERR_BACKEND, "%s: no stream came", request->about);
}
