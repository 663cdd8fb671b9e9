/* Files of a sandbox as raw bytes: GET, HEAD, PUT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "sandbox/pump.h"
#include "sandbox/sandboxes.h"
#include "server/file_call.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

#define PIPE_SIZE (256 * KIB)

/* --- ranges ---------------------------------------------------------------------------------- */

struct byte_range {
    uint64_t from, to; /* to: without */
};

enum range_result { RANGE_NONE, RANGE_OK, RANGE_BAD };

/* One range of `bytes=`; several, or what is malformed, is ignored, as HTTP allows. */
static enum range_result range_parse(const char *header, uint64_t size,
                                     struct byte_range *ret_range)
{
    if (!header || !str_starts(header, "bytes=") || strchr(header, ',')) {
        return RANGE_NONE;
    }
    const char *first = header + 6;
    const char *dash = strchr(first, '-');
    uint64_t from = 0, to = 0;
    if (!dash) {
        return RANGE_NONE;
    }
    bool has_from = str_to_u64((struct str){first, (size_t)(dash - first)}, INT64_MAX, &from);
    bool has_to = str_to_u64(str_of(dash + 1), INT64_MAX - 1, &to);
    if ((!has_from && dash != first) || (!has_to && dash[1]) || (!has_from && !has_to)) {
        return RANGE_NONE;
    }
    if (!has_from) { /* the last TO bytes */
        *ret_range = (struct byte_range){to < size ? size - to : 0, size};
        return to > 0 && size > 0 ? RANGE_OK : RANGE_BAD;
    }
    if (has_to && to < from) {
        return RANGE_NONE;
    }
    *ret_range = (struct byte_range){from, has_to && to + 1 < size ? to + 1 : size};
    return from < size ? RANGE_OK : RANGE_BAD;
}

/* --- GET ------------------------------------------------------------------------------------- */

struct read_state {
    struct call *stat; /* HEAD and ranges ask for the size first */
    struct call *read;
    struct pipe *raw; /* from the agent */
    struct buf whole; /* the file, where it is not streamed */
    struct byte_range range;
    uint64_t size;
    uint64_t around; /* bytes read beyond each end, for secrets across it */
    bool ranged;
    bool given; /* the pipe is the reply's, or its pump's */
};

static void read_state_free(void *state)
{
    struct read_state *read = state;
    if (read->stat) {
        call_cancel(read->stat);
    }
    call_unref(read->stat);
    call_unref(read->read);
    if (read->raw && !read->given) {
        pipe_abandon(read->raw, NULL); /* ends the call, if it runs still */
    }
    pipe_unref(read->raw);
    buf_wipe(&read->whole);
    free(read);
}

static bool entry_u64(struct field_reader fields, uint16_t tag, uint64_t *ret_value)
{
    struct field field;
    while (field_next(&fields, &field)) {
        if (field.tag == tag) {
            return field_u64(&field, ret_value);
        }
    }
    return false;
}

static char *entry_text(struct field_reader fields, uint16_t tag)
{
    struct field field;
    while (field_next(&fields, &field)) {
        if (field.tag == tag) {
            return xstrndup((const char *)field.data, field.len);
        }
    }
    return NULL;
}

static void set_entry_headers(struct request *request, struct field_reader fields)
{
    uint64_t mode = 0;
    char text[16];
    cleanup_free char *etag = entry_text(fields, TAG_ETAG);
    file_etag_header(request, etag);
    if (entry_u64(fields, TAG_MODE, &mode)) {
        snprintf(text, sizeof(text), "%04o", (unsigned)(mode & 07777));
        reply_header(request, "X-File-Mode", text);
    }
    reply_header(request, "Accept-Ranges", "bytes");
}

static enum verdict reply_file_json(struct request *request, struct read_state *read)
{
    struct json *json = json_new_object();
    bool text = utf8_valid(buf_text(&read->whole), read->whole.len);
    char *data = read->whole.ptr;
    size_t scrubbed = 0;
    json_set_int(json, "size", (int64_t)read->whole.len);
    if (text) {
        cleanup_free char *copy = xstrndup(buf_text(&read->whole), read->whole.len);
        scrubbed = sandbox_mask(request_sandbox(request), copy, read->whole.len);
        size_t len = 0;
        cleanup_free char *shown = sandbox_mask_text_len(
            request_sandbox(request), buf_text(&read->whole), read->whole.len, &len);
        json_set_textn(json, "content", shown, len);
    } else {
        cleanup_buf struct buf encoded = BUF_INIT(CAP_JSON_FILE * 2);
        scrubbed = sandbox_mask(request_sandbox(request), data, read->whole.len);
        (void)base64_encode(&encoded, data, read->whole.len);
        json_set_text(json, "content", buf_text(&encoded));
    }
    json_set_text(json, "encoding", text ? "utf-8" : "base64");
    json_set_int(json, "scrubbed", (int64_t)scrubbed);
    return reply_json(request, 200, json);
}

/* A whole small file with secrets in it: how many were masked can be told before its first byte.
 * (A larger one is masked on its way, and has no header `Scrubbed`.) */
static enum verdict reply_small(struct request *request, struct read_state *read)
{
    size_t scrubbed = sandbox_mask(request_sandbox(request), read->whole.ptr, read->whole.len);
    if (scrubbed) {
        char text[24];
        snprintf(text, sizeof(text), "%zu", scrubbed);
        reply_header(request, "Scrubbed", text);
    }
    return reply_bytes(request, 200, "application/octet-stream", buf_text(&read->whole),
                       read->whole.len);
}

static enum verdict reply_whole(struct request *request, struct read_state *read)
{
    return request_accepts_json(request) ? reply_file_json(request, read)
                                         : reply_small(request, read);
}

/* Collects the whole file: the pipe's end, or its failure, is the end of the call. */
static enum verdict collect(struct request *request)
{
    struct read_state *read = request_state(request);
    for (;;) {
        struct event *readable = pipe_readable(read->raw);
        uint64_t seen = event_count(readable);
        struct err err = {0};
        char *space = buf_reserve(&read->whole, 32 * KIB);
        if (!space) {
            (void)err_set(&err, ERR_TOO_LARGE, "the file is above 8 MiB: read it as raw bytes");
            pipe_abandon(read->raw, NULL);
            return reply_problem(request, &err);
        }
        size_t got = pipe_read(read->raw, space, 32 * KIB);
        buf_grew(&read->whole, got);
        if (got > 0) {
            continue;
        }
        switch (pipe_state(read->raw, &err)) {
        case PIPE_OPEN:
            return request_client_gone(request) ? reply_empty(request, 204)
                                                : request_wait(request, readable, seen, 0, collect);
        case PIPE_ENDED:
            return reply_whole(request, read);
        case PIPE_FAILED:
        case PIPE_ABANDONED:
            return reply_masked_problem(request, &err);
        }
    }
}

/* The reply's body: from the agent's pipe as it is, or through the scrubber. */
static struct pipe *masked_body(struct request *request, struct read_state *read,
                                const struct pump_range *range)
{
    struct sandbox *sandbox = request_sandbox(request);
    read->given = true;
    if (!sandbox_has_secrets(sandbox)) {
        return pipe_ref(read->raw);
    }
    struct pipe *out = pipe_new(PIPE_SIZE);
    sandbox_pump(sandbox, pipe_ref(read->raw), range, out);
    return out;
}

static enum verdict reply_range(struct request *request, struct read_state *read)
{
    uint64_t lead = read->range.from < read->around ? read->range.from : read->around;
    uint64_t length = read->range.to - read->range.from;
    const struct pump_range range = {.lead = lead, .length = (int64_t)length};
    char text[80];
    snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)read->range.from,
             (unsigned long long)read->range.to - 1, (unsigned long long)read->size);
    reply_header(request, "Content-Range", text);
    return reply_pipe(request, 206, "application/octet-stream", masked_body(request, read, &range),
                      (int64_t)length);
}

static enum verdict read_started(struct request *request)
{
    struct read_state *read = request_state(request);
    struct event *changed = call_changed(read->read);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    enum call_state state = call_state(read->read, &err);
    if (state == CALL_FAILED) {
        return reply_masked_problem(request, &err);
    }
    if (state == CALL_WAITING) {
        return request_client_gone(request) ? reply_empty(request, 204)
                                            : request_wait(request, changed, seen, 0, read_started);
    }
    struct field_reader entry = call_started(read->read);
    uint64_t size = 0;
    (void)entry_u64(entry, TAG_SIZE, &size);
    set_entry_headers(request, entry);
    bool small = size > 0 && size <= PIPE_SIZE && sandbox_has_secrets(request_sandbox(request));
    if (request_accepts_json(request) || (small && !read->ranged)) {
        return collect(request);
    }
    if (read->ranged) {
        return reply_range(request, read);
    }
    const struct pump_range whole = {.length = size ? (int64_t)size : -1};
    /* Files of /proc have no size and content all the same. */
    return reply_pipe(request, 200, "application/octet-stream", masked_body(request, read, &whole),
                      size ? (int64_t)size : -1);
}

static enum verdict begin_read(struct request *request)
{
    struct read_state *read = request_state(request);
    struct err err = {0};
    read->read = call_new(OP_READ);
    read->raw = pipe_new(PIPE_SIZE);
    if (file_call_path(request, read->read, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (read->ranged) {
        read->around = sandbox_longest_secret(request_sandbox(request));
        uint64_t from = read->range.from < read->around ? 0 : read->range.from - read->around;
        call_put_u64(read->read, TAG_OFFSET, from);
        call_put_u64(read->read, TAG_LENGTH, read->range.to - from + read->around);
    }
    call_download(read->read, read->raw);
    if (call_start(request_sandbox(request), read->read, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return read_started(request);
}

static int not_a_file(struct field_reader entry, struct err *err)
{
    cleanup_free char *type = entry_text(entry, TAG_TYPE);
    if (type && *type == 'd') {
        return err_set(err, ERR_IS_DIRECTORY, "the path is a directory");
    }
    return type && *type != 'f' ? err_set(err, ERR_NOT_REGULAR, "the path is not a regular file")
                                : 0;
}

static enum verdict reply_head(struct request *request, struct read_state *read)
{
    struct err err = {0};
    struct field_reader entry = call_result(read->stat);
    if (not_a_file(entry, &err) < 0) {
        return reply_problem(request, &err);
    }
    struct pipe *empty = pipe_new(1);
    pipe_finish(empty, NULL);
    set_entry_headers(request, entry);
    return reply_pipe(request, 200, "application/octet-stream", empty, (int64_t)read->size);
}

static enum verdict stat_done(struct request *request)
{
    struct read_state *read = request_state(request);
    struct event *changed = call_changed(read->stat);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    enum call_state state = call_state(read->stat, &err);
    if (state == CALL_FAILED) {
        return reply_masked_problem(request, &err);
    }
    if (state != CALL_DONE) {
        return request_client_gone(request) ? reply_empty(request, 204)
                                            : request_wait(request, changed, seen, 0, stat_done);
    }
    (void)entry_u64(call_result(read->stat), TAG_SIZE, &read->size);
    if (strcmp(request_method(request), "HEAD") == 0) {
        return reply_head(request, read);
    }
    cleanup_free char *etag = entry_text(call_result(read->stat), TAG_ETAG);
    const char *known = request_header(request, "If-None-Match");
    size_t len = etag ? strlen(etag) : 0;
    if (known && etag && strlen(known) == len + 2 && strncmp(known + 1, etag, len) == 0) {
        file_etag_header(request, etag);
        return reply_empty(request, 304);
    }
    enum range_result result =
        range_parse(request_header(request, "Range"), read->size, &read->range);
    if (result == RANGE_BAD) {
        char text[48];
        snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)read->size);
        reply_header(request, "Content-Range", text);
        (void)err_set(&err, ERR_RANGE_NOT_SATISFIABLE, "the file has %llu bytes",
                      (unsigned long long)read->size);
        return reply_problem(request, &err);
    }
    read->ranged = result == RANGE_OK;
    return begin_read(request);
}

static enum verdict get_file(struct request *request)
{
    struct err err = {0};
    struct read_state *read = xcalloc(1, sizeof(*read));
    buf_init(&read->whole, CAP_JSON_FILE + 32 * KIB);
    request_keep(request, read, read_state_free);
    bool head = strcmp(request_method(request), "HEAD") == 0;
    if (!head && !request_header(request, "Range") && !request_header(request, "If-None-Match")) {
        return begin_read(request);
    }
    read->stat = call_new(OP_STAT);
    if (file_call_path(request, read->stat, &err) < 0) {
        return reply_problem(request, &err);
    }
    if (call_start(request_sandbox(request), read->stat, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return stat_done(request);
}

/* --- PUT ------------------------------------------------------------------------------------- */

static enum verdict put_done(struct request *request)
{
    struct call *call = file_call_of(request);
    uint64_t created = 0;
    cleanup_free char *etag = call_result_text(call, TAG_ETAG);
    (void)call_result_u64(call, TAG_CREATED, &created);
    file_etag_header(request, etag);
    return reply_json(request, created ? 201 : 200,
                      file_entry_json(request, call_result(call), NULL));
}

static enum verdict put_file(struct request *request)
{
    struct err err = {0};
    struct str text;
    uint64_t mode = 0;
    struct call *call = call_new(OP_WRITE);
    if (file_call_path(request, call, &err) < 0 || file_call_conditions(request, call, &err) < 0 ||
        (request_query(request, "mode", &text) && file_mode_parse(text, &mode, &err) < 0)) {
        call_unref(call);
        return reply_problem(request, &err);
    }
    if (request_query(request, "mode", &text)) {
        call_put_u64(call, TAG_MODE, mode);
    }
    if (request_body_length(request) >= 0) {
        call_put_u64(call, TAG_SIZE, (uint64_t)request_body_length(request));
    }
    call_upload(call, request_body_pipe(request));
    return file_call_run(request, call, put_done);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/files", get_file, ROUTE_SANDBOX, "path"},
    {"PUT", "/v1/sandboxes/{id}/files", put_file, ROUTE_SANDBOX | ROUTE_STREAM_BODY, "path mode"},
};

const struct route_table file_routes = {routes, ARRAY_LEN(routes)};
