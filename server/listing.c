#include "server/listing.h"

#include "base/caps.h"
#include "server/subject.h"

#define PIECE (32 * KIB)

void listing_init(struct listing *listing, enum proto_op op, size_t max, handler_fn done)
{
    listing->call = call_new(op);
    listing->pipe = pipe_new(256 * KIB);
    listing->done = done;
    buf_init(&listing->entries, max);
}

void listing_done(struct listing *listing)
{
    pipe_abandon(listing->pipe, NULL);
    call_unref(listing->call);
    pipe_unref(listing->pipe);
    buf_done(&listing->entries);
}

/* The result follows the end of the stream. */
static enum verdict wait_result(struct request *request)
{
    struct listing *listing = request_state(request);
    struct event *changed = call_changed(listing->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    enum call_state state = call_state(listing->call, &err);
    if (state == CALL_FAILED) {
        return reply_masked_problem(request, &err);
    }
    if (state == CALL_DONE) {
        return listing->done(request);
    }
    return request_client_gone(request) ? reply_empty(request, 204)
                                        : request_wait(request, changed, seen, 0, wait_result);
}

static enum verdict collect(struct request *request)
{
    struct listing *listing = request_state(request);
    struct event *readable = pipe_readable(listing->pipe);
    for (;;) {
        uint64_t seen = event_count(readable);
        struct err err = {0};
        char *space = buf_reserve(&listing->entries, PIECE);
        if (!space) {
            err_set(&err, ERR_TOO_LARGE, "the listing is too large: ask for less, where you can");
            return reply_problem(request, &err);
        }
        size_t got = pipe_read(listing->pipe, space, PIECE);
        buf_grew(&listing->entries, got);
        if (got > 0) {
            continue;
        }
        switch (pipe_state(listing->pipe, &err)) {
        case PIPE_OPEN:
            return request_client_gone(request) ? reply_empty(request, 204)
                                                : request_wait(request, readable, seen, 0, collect);
        case PIPE_ENDED:
            return wait_result(request);
        case PIPE_FAILED:
        case PIPE_ABANDONED:
            return reply_masked_problem(request, &err);
        }
    }
}

enum verdict listing_run(struct request *request, struct listing *listing)
{
    struct err err = {0};
    call_download(listing->call, listing->pipe);
    if (call_start(request_sandbox(request), listing->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return collect(request);
}

bool listing_next(struct str *entries, struct field_reader *ret_fields)
{
    if (entries->len < 4) {
        return false;
    }
    size_t len = wire_u32((const uint8_t *)entries->ptr);
    if (len > entries->len - 4) {
        return false;
    }
    field_reader_init(ret_fields, entries->ptr + 4, len);
    entries->ptr += 4 + len;
    entries->len -= 4 + len;
    return true;
}
