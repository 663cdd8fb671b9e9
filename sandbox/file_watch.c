#include "sandbox/file_watch.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"
#include "sandbox/fields.h"
#include "sandbox/pump.h"
#include "sandbox/sandbox.h"

#define PIECE (16 * KIB)
#define EVENT_MAX (64 * KIB) /* as JSON */

struct watcher {
    struct sandbox *sandbox;
    struct call *call;
    struct pipe *raw;
    enum watch_format format;
    struct buf input; /* of an event that is not whole yet */
    struct buf ready;
    bool over;
};

static void watcher_free(void *arg)
{
    struct watcher *watcher = arg;
    pipe_abandon(watcher->raw, NULL); /* ends the call, if it runs still */
    pipe_unref(watcher->raw);
    call_unref(watcher->call);
    sandbox_unref(watcher->sandbox);
    buf_done(&watcher->input);
    buf_done(&watcher->ready);
    free(watcher);
}

/* Takes EVENT. */
static int put_event(struct watcher *watcher, struct json *event, struct err *err)
{
    bool sse = watcher->format == WATCH_SSE;
    bool fits = !sse || buf_append_str(&watcher->ready, "data: ");
    fits = fits && json_print(event, &watcher->ready) &&
           buf_append_str(&watcher->ready, sse ? "\n\n" : "\n");
    json_free(event);
    return fits ? 0 : err_set(err, ERR_INTERNAL, "an event is too large");
}

static void set_path(const struct watcher *watcher, struct json *event, const char *name,
                     const struct field *path)
{
    if (utf8_valid((const char *)path->data, path->len)) {
        cleanup_free char *shown =
            sandbox_mask_text(watcher->sandbox, (const char *)path->data, path->len);
        json_set_text(event, name, shown);
        return;
    }
    cleanup_buf struct buf encoded = BUF_INIT((size_t)2 * CAP_PATH);
    cleanup_free char *copy = xstrndup((const char *)path->data, path->len);
    (void)sandbox_mask(watcher->sandbox, copy, strlen(copy));
    (void)base64_encode(&encoded, copy, strlen(copy));
    json_set_text(event, name, buf_text(&encoded));
    json_set_text(event, "name_encoding", "base64");
}

static int take_event(struct watcher *watcher, const char *data, size_t len, struct err *err)
{
    static const char *const types[] = {"created", "modified", "deleted",  "moved",
                                        "attrib",  "overflow", "heartbeat"};
    struct json *event = json_new_object();
    struct field field;
    uint64_t directory = 0;
    cleanup_free char *type = fields_text(data, len, TAG_TYPE);
    for (size_t i = 0; type && i < ARRAY_LEN(types); i++) {
        if (strcmp(type, types[i]) == 0)
            json_set_text(event, "type", types[i]);
    }
    if (!json_get(event, "type")) {
        json_free(event);
        return 0; /* of a newer agent */
    }
    if (fields_find(data, len, TAG_PATH, &field)) {
        set_path(watcher, event, "path", &field);
        (void)fields_u64(data, len, TAG_DIRECTORY, &directory);
        json_set_bool(event, "directory", directory != 0);
    }
    if (fields_find(data, len, TAG_FROM, &field))
        set_path(watcher, event, "from", &field);
    return put_event(watcher, event, err);
}

/* The whole events of the input. */
static int take_input(struct watcher *watcher, struct err *err)
{
    size_t at = 0;
    const struct buf *input = &watcher->input;
    while (input->len - at >= 4) {
        size_t len = wire_u32((const uint8_t *)input->ptr + at);
        if (len > PIECE - 4)
            return err_set(err, ERR_AGENT_FAILED, "the agent's events make no sense");
        if (input->len - at - 4 < len)
            break;
        if (take_event(watcher, input->ptr + at + 4, len, err) < 0)
            return -1;
        at += 4 + len;
    }
    buf_consume(&watcher->input, at);
    return 0;
}

static int put_end(struct watcher *watcher, const struct err *why, struct err *err)
{
    struct json *event = json_new_object();
    watcher->over = true;
    json_set_text(event, "type", "error");
    struct json *error = json_set_object(event, "error");
    json_set_text(error, "code", err_code_name(why->code ? why->code : ERR_STREAM_LOST));
    json_set_text(error, "message", why->code ? why->msg : "the agent watches no more");
    return put_event(watcher, event, err);
}

static int refill(struct watcher *watcher, struct err *err)
{
    struct err why = {0};
    char *space = buf_reserve(&watcher->input, PIECE);
    if (!space)
        return err_set(err, ERR_AGENT_FAILED, "the agent's events make no sense");
    size_t got = pipe_read(watcher->raw, space, PIECE);
    buf_grew(&watcher->input, got);
    if (got > 0)
        return take_input(watcher, err) < 0 ? -1 : PUMP_AGAIN;
    if (pipe_state(watcher->raw, &why) == PIPE_OPEN)
        return PUMP_WAIT;
    return put_end(watcher, &why, err);
}

static ssize_t watch_read(void *arg, void *data, size_t len, struct err *err)
{
    struct watcher *watcher = arg;
    while (watcher->ready.len == 0) {
        if (watcher->over)
            return 0;
        int rc = refill(watcher, err);
        if (rc < 0 && (rc != PUMP_AGAIN || watcher->ready.len == 0))
            return rc;
    }
    return (ssize_t)buf_take_front(&watcher->ready, data, len);
}

static struct event *watch_event(void *arg)
{
    return pipe_readable(((struct watcher *)arg)->raw);
}

static const struct pump_source source = {
    .read = watch_read,
    .readable = watch_event,
    .free = watcher_free,
};

void file_watch_start(struct sandbox *sandbox, struct call *call, struct pipe *raw,
                      enum watch_format format, struct pipe *out)
{
    const struct pump_range whole = {.length = -1};
    struct watcher *watcher = xcalloc(1, sizeof(*watcher));
    watcher->sandbox = sandbox_ref(sandbox);
    watcher->call = call_ref(call);
    watcher->raw = pipe_ref(raw);
    watcher->format = format;
    buf_init(&watcher->input, 2 * PIECE);
    /* What comes out is longer: names of events, escapes, masks. */
    buf_init(&watcher->ready, 16 * PIECE + EVENT_MAX);
    pump_start(sandbox->all, &source, watcher, NULL, &whole, out);
}
