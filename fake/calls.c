#include "fake/calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/mem.h"

#define PAGE_BYTES (16 * MIB)

/* As text, which takes a tenth of the tree. */
struct call {
    struct call *next;
    int64_t number;
    char *sandbox;
    const char *type; /* a literal */
    char *text;
    size_t len;
};

struct calls {
    pthread_mutex_t lock;
    struct call *first, *last;
    size_t count, bytes;
    int64_t last_number;
    int64_t dropped;
};

struct calls *calls_new(void)
{
    struct calls *calls = xcalloc(1, sizeof(*calls));

    pthread_mutex_init(&calls->lock, NULL);
    return calls;
}

static size_t weight(const struct call *call)
{
    return sizeof(*call) + call->len + strlen(call->sandbox);
}

static void drop_first_locked(struct calls *calls)
{
    struct call *call = calls->first;

    calls->first = call->next;
    if (calls->first == NULL)
        calls->last = NULL;
    calls->count--;
    calls->bytes -= weight(call);
    free(call->sandbox);
    free(call->text);
    free(call);
}

void calls_clear(struct calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    while (calls->first != NULL)
        drop_first_locked(calls);
    calls->dropped = 0;
    pthread_mutex_unlock(&calls->lock);
}

void calls_free(struct calls *calls)
{
    if (calls == NULL)
        return;
    calls_clear(calls);
    pthread_mutex_destroy(&calls->lock);
    free(calls);
}

static void bound_locked(struct calls *calls)
{
    while (calls->count > CAP_FAKE_CALLS || calls->bytes > CAP_FAKE_CALL_BYTES) {
        drop_first_locked(calls);
        calls->dropped++;
    }
}

/* What does not fit the cap of one call keeps its name and place. */
static char *print(const struct json *json, size_t *ret_len)
{
    struct buf text = BUF_INIT(CAP_FAKE_CALL);

    if (!json_print(json, &text)) {
        buf_reset(&text);
        (void)buf_append_str(&text, "{\"truncated\":true}");
    }
    return buf_take(&text, ret_len);
}

int64_t calls_add(struct calls *calls, const char *sandbox, const char *type, struct json *fields)
{
    struct call *call = xcalloc(1, sizeof(*call));

    call->sandbox = xstrdup(sandbox);
    call->type = type;
    json_set_time(fields, "at", clock_wall_ms());
    call->text = print(fields, &call->len);
    json_free(fields);
    pthread_mutex_lock(&calls->lock);
    int64_t number = call->number = ++calls->last_number;
    if (calls->last != NULL)
        calls->last->next = call;
    else
        calls->first = call;
    calls->last = call;
    calls->count++;
    calls->bytes += weight(call);
    bound_locked(calls);
    pthread_mutex_unlock(&calls->lock);
    return number;
}

static struct json *parse(const struct call *call)
{
    struct json *json = NULL;

    if (json_parse(call->text, call->len, JSON_LENIENT, &json, NULL) < 0)
        json = json_new_object();
    return json;
}

static void merge(struct json *into, const struct json *from)
{
    for (const struct json *item = json_first(from); item != NULL; item = json_next(item)) {
        if (json_get(into, json_key(item)) == NULL)
            json_set(into, json_key(item), json_copy(item));
    }
}

void calls_amend(struct calls *calls, int64_t number, struct json *fields)
{
    pthread_mutex_lock(&calls->lock);
    struct call *call = calls->first;
    while (call != NULL && call->number != number)
        call = call->next;
    if (call != NULL) {
        cleanup_json struct json *json = parse(call);

        merge(json, fields);
        calls->bytes -= weight(call);
        free(call->text);
        call->text = print(json, &call->len);
        calls->bytes += weight(call);
        bound_locked(calls);
    }
    pthread_mutex_unlock(&calls->lock);
    json_free(fields);
}

static bool wanted(const struct call *call, const struct calls_query *query)
{
    return call->number > query->after &&
           (query->sandbox == NULL || strcmp(query->sandbox, call->sandbox) == 0) &&
           (query->type == NULL || strcmp(query->type, call->type) == 0);
}

static struct json *show(const struct call *call)
{
    struct json *json = json_new_object();
    cleanup_json struct json *fields = parse(call);

    json_set_int(json, "number", call->number);
    json_set_text(json, "sandbox", call->sandbox);
    json_set_text(json, "type", call->type);
    merge(json, fields);
    return json;
}

struct json *calls_list(struct calls *calls, const struct calls_query *query)
{
    struct json *page = json_new_object(), *items = json_set_array(page, "items");
    size_t count = 0, bytes = 0;
    int64_t last = 0;
    bool more = false;

    pthread_mutex_lock(&calls->lock);
    for (const struct call *call = calls->first; call != NULL && !more; call = call->next) {
        if (!wanted(call, query))
            continue;
        more = count == query->limit || (count > 0 && bytes + call->len > PAGE_BYTES);
        if (more)
            break;
        json_add(items, show(call));
        count++;
        bytes += call->len;
        last = call->number;
    }
    int64_t dropped = calls->dropped;
    pthread_mutex_unlock(&calls->lock);
    if (more)
        json_set_int(page, "next", last);
    else
        json_set_null(page, "next");
    json_set_int(page, "dropped", dropped);
    return page;
}

void calls_put_bytes(struct json *object, const char *name, struct str bytes, uint64_t total)
{
    cleanup_free char *encoding = xasprintf("%s_encoding", name);
    cleanup_free char *count = xasprintf("%s_bytes", name);
    size_t kept = bytes.len < CAP_FAKE_CALL_CONTENT ? bytes.len : CAP_FAKE_CALL_CONTENT;

    if (kept < total) { /* not within a character */
        size_t whole = kept - utf8_partial_tail(bytes.ptr, kept);

        kept = utf8_valid(bytes.ptr, whole) ? whole : kept;
    }
    bool text = utf8_valid(bytes.ptr, kept) && (kept == 0 || memchr(bytes.ptr, 0, kept) == NULL);
    if (text) {
        cleanup_free char *copy = xstrndup(kept > 0 ? bytes.ptr : "", kept);

        json_set_text(object, name, copy);
    } else {
        cleanup_buf struct buf encoded = BUF_INIT(2 * CAP_FAKE_CALL_CONTENT);

        (void)base64_encode(&encoded, bytes.ptr, kept); /* four thirds: it fits */
        json_set_text(object, name, buf_text(&encoded));
    }
    json_set_text(object, encoding, text ? "utf-8" : "base64");
    json_set_int(object, count, (int64_t)total);
}
