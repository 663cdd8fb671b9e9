/* Changes of files as they happen. */
#include <stdlib.h>

#include "base/caps.h"
#include "sandbox/file_watch.h"
#include "server/file_call.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define PIPE_SIZE (32 * KIB)

struct watch_state {
    struct call *call;
    struct pipe *raw;
    bool given; /* the pipe is the events' */
};

static void watch_state_free(void *state)
{
    struct watch_state *watch = state;
    if (!watch->given) {
        pipe_abandon(watch->raw, NULL);
        call_cancel(watch->call);
    }
    call_unref(watch->call);
    pipe_unref(watch->raw);
    free(watch);
}

static enum verdict reply_events(struct request *request, struct watch_state *watch)
{
    static const char *const types[] = {"application/x-ndjson", "text/event-stream", NULL};
    size_t type = request_accepts(request, types);
    struct pipe *out = pipe_new(PIPE_SIZE);
    watch->given = true;
    file_watch_start(request_sandbox(request), watch->call, watch->raw,
                     type == 1 ? WATCH_SSE : WATCH_NDJSON, out);
    reply_header(request, "X-Accel-Buffering", "no"); /* proxies that would collect it */
    return reply_pipe(request, 200, types[type], out, -1);
}

static enum verdict watch_started(struct request *request)
{
    struct watch_state *watch = request_state(request);
    struct event *changed = call_changed(watch->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    switch (call_state(watch->call, &err)) {
    case CALL_FAILED:
        return reply_masked_problem(request, &err);
    case CALL_WAITING:
        return request_client_gone(request)
                   ? reply_empty(request, 204)
                   : request_wait(request, changed, seen, 0, watch_started);
    case CALL_STARTED:
    case CALL_DONE:
        break;
    }
    return reply_events(request, watch);
}

static enum verdict get_watch(struct request *request)
{
    struct err err = {0};
    bool recursive = false;
    cleanup_free char *path = NULL;
    struct watch_state *watch = xcalloc(1, sizeof(*watch));
    watch->call = call_new(OP_WATCH);
    watch->raw = pipe_new(PIPE_SIZE);
    request_keep(request, watch, watch_state_free);
    if (file_path_or_workdir(request, &path, &err) < 0 ||
        request_query_bool(request, "recursive", &recursive, &err) < 0) {
        return reply_problem(request, &err);
    }
    call_put_text(watch->call, TAG_PATH, path);
    call_put_u64(watch->call, TAG_RECURSIVE, recursive);
    call_download(watch->call, watch->raw);
    if (call_start(request_sandbox(request), watch->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return watch_started(request);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/files/watch", get_watch, ROUTE_SANDBOX, "path recursive"},
};

const struct route_table watch_routes = {routes, ARRAY_LEN(routes)};
