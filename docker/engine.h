#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "docker/place.h"
#include "net/upgrade.h"

/* Requests to the engine, in a version of its API that both know; answers that are no success as
 * errors. Calls block and are thread-safe. */
struct engine;

/* Takes what PLACE holds, also on failure. */
struct engine *engine_new(struct place *place, struct err *err) must_check;
void engine_free(struct engine *engine); /* no call may be running */
void engine_stop(struct engine *engine); /* calls fail soon with ERR_STOPPING */
bool engine_is_stopping(const struct engine *engine);
const _Atomic bool *engine_stop_flag(const struct engine *engine);
/* Sleeps, at most until engine_stop(): false when stopping. */
bool engine_sleep(struct engine *engine, int64_t ms);
/* Ask for the version again: another engine may answer now. */
void engine_forget_version(struct engine *engine);
/* Whether it is Podman's service, whose options differ here and there. */
int engine_ask_kind(struct engine *engine, bool *ret_podman, struct err *err) must_check;
const char *engine_address(const struct engine *engine); /* for messages */
bool engine_is_insecure(const struct engine *engine);

struct engine_request {
    const char *method; /* GET when NULL */
    const char *path;   /* behind the version: "/containers/json?all=1" */
    const char *about;  /* for messages: "create the container" */
    const struct json *body;
    struct str tar;     /* a body that is a tar instead */
    int64_t timeout_ms; /* 0: 60 s */
};

/* A success (2xx, or 304: it was so already) is 0, with the parsed reply in RET_REPLY unless that
 * is NULL. ERR_BACKEND_NOT_FOUND for 404, ERR_BACKEND_CONFLICT for 409, ERR_INVALID_OBJECT for 400,
 * with the engine's own words. */
int engine_call(struct engine *engine, const struct engine_request *request,
                struct json **ret_reply, struct err *err) must_check;

/* A reply that comes in lines. */
int engine_lines(struct engine *engine, const struct engine_request *request,
                 const struct http_lines *lines, struct err *err) must_check;

/* A request that turns its connection into a stream. */
int engine_upgrade(struct engine *engine, const struct engine_request *request,
                   struct upgraded **ret_upgraded, struct err *err) must_check;
