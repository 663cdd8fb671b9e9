#include "server/exec_stream.h"

#include "base/caps.h"
#include "sandbox/follow.h"
#include "server/subject.h"

#define PIPE_SIZE (256 * KIB)

/* A record where nothing else is asked for. */
static const char *const types[] = {"application/json", "application/x-ndjson", "text/event-stream",
                                    NULL};

bool exec_stream_wanted(const struct request *request)
{
    return request_accepts(request, types) > 0;
}

enum verdict exec_stream_reply(struct request *request, const struct exec_key *key)
{
    size_t type = request_accepts(request, types);
    const char *last = request_header(request, "Last-Event-ID");
    struct follow_position from = {.sequence = 0};
    struct err err = {0};
    if (last && !follow_position_parse(last, &from)) {
        err_set(&err, ERR_INVALID_FIELD,
                "the header Last-Event-ID must be the id of an event of this execution");
        return reply_problem(request, &err);
    }
    struct pipe *pipe = pipe_new(PIPE_SIZE);
    if (follow_events(request_sandboxes(request), key, type == 2 ? FOLLOW_SSE : FOLLOW_NDJSON,
                      &from, pipe, &err) < 0) {
        pipe_unref(pipe);
        return reply_masked_problem(request, &err);
    }
    reply_header(request, "X-Accel-Buffering", "no"); /* proxies that would collect it */
    return reply_pipe(request, 200, types[type], pipe, -1);
}
