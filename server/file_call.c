#include "server/file_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/json.h"
#include "sandbox/sandboxes.h"
#include "server/subject.h"

static void file_call_free(void *state)
{
    struct file_call *file = state;
    enum call_state reached = call_state(file->call, NULL);
    if (reached == CALL_WAITING || reached == CALL_STARTED) {
        call_cancel(file->call);
    }
    call_unref(file->call);
    free(file);
}

struct call *file_call_of(const struct request *request)
{
    return ((struct file_call *)request_state(request))->call;
}

static enum verdict file_call_wait(struct request *request)
{
    struct file_call *file = request_state(request);
    struct event *changed = call_changed(file->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    switch (call_state(file->call, &err)) {
    case CALL_DONE:
        return file->next(request);
    case CALL_FAILED:
        return reply_masked_problem(request, &err);
    case CALL_WAITING:
    case CALL_STARTED:
        break;
    }
    if (request_client_gone(request)) {
        return reply_empty(request, 204); /* nobody reads it */
    }
    return request_wait(request, changed, seen, 0, file_call_wait);
}

enum verdict file_call_run(struct request *request, struct call *call, handler_fn next)
{
    struct err err = {0};
    struct file_call *file = xmalloc(sizeof(*file));
    *file = (struct file_call){.call = call, .next = next};
    request_keep(request, file, file_call_free);
    if (call_start(request_sandbox(request), call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return file_call_wait(request);
}

int file_path_resolve(const struct request *request, struct str path, char **ret_path,
                      struct err *err)
{
    if (path.len == 0 || memchr(path.ptr, '\0', path.len)) {
        return err_set(err, ERR_INVALID_PATH, "the path must not be empty or hold a NUL");
    }
    const char *workdir = sandbox_workdir(request_sandbox(request));
    if (path.len + strlen(workdir) + 2 > CAP_PATH) {
        return err_set(err, ERR_NAME_TOO_LONG, "the path is longer than %d bytes", CAP_PATH - 1);
    }
    *ret_path = path.ptr[0] == '/' ? xstrndup(path.ptr, path.len)
                                   : xasprintf("%s/%.*s", workdir, (int)path.len, path.ptr);
    return 0;
}

int file_call_path(const struct request *request, struct call *call, struct err *err)
{
    struct str given;
    cleanup_free char *path = NULL;
    if (!request_query(request, "path", &given)) {
        return err_set(err, ERR_INVALID_FIELD, "query parameter 'path' is required");
    }
    if (file_path_resolve(request, given, &path, err) < 0) {
        return -1;
    }
    call_put_text(call, TAG_PATH, path);
    return 0;
}

int file_path_or_workdir(const struct request *request, char **ret_path, struct err *err)
{
    struct str text;
    if (request_query(request, "path", &text)) {
        return file_path_resolve(request, text, ret_path, err);
    }
    *ret_path = xstrdup(sandbox_workdir(request_sandbox(request)));
    return 0;
}

/* The text between the quotes of one entity tag. */
static int etag_of(const char *header, const char *value, struct str *ret_etag, struct err *err)
{
    size_t len = strlen(value);
    if (len < 2 || value[0] != '"' || value[len - 1] != '"' || memchr(value + 1, '"', len - 2)) {
        return err_set(err, ERR_INVALID_REQUEST, "the header %s must be one quoted ETag", header);
    }
    *ret_etag = (struct str){value + 1, len - 2};
    return 0;
}

int file_call_conditions(const struct request *request, struct call *call, struct err *err)
{
    const char *match = request_header(request, "If-Match");
    const char *none = request_header(request, "If-None-Match");
    struct str etag = {0};
    if (match) {
        if (etag_of("If-Match", match, &etag, err) < 0) {
            return -1;
        }
        call_put(call, TAG_IF_MATCH, etag.ptr, etag.len);
    }
    if (none) {
        if (strcmp(none, "*") != 0) {
            return err_set(err, ERR_NOT_SUPPORTED, "If-None-Match takes only * for a change");
        }
        call_put_u64(call, TAG_IF_NONE_MATCH, 1);
    }
    return 0;
}

int file_mode_parse(struct str text, uint64_t *ret_mode, struct err *err)
{
    uint64_t mode = 0;
    bool ok = text.len >= 3 && text.len <= 4;
    for (size_t i = 0; ok && i < text.len; i++) {
        ok = text.ptr[i] >= '0' && text.ptr[i] <= '7';
        mode = mode * 8 + (uint64_t)(text.ptr[i] - '0');
    }
    if (!ok || mode > 0777) {
        return err_set(err, ERR_INVALID_FIELD,
                       "'mode' must be an octal string such as 0644, at most 0777");
    }
    *ret_mode = mode;
    return 0;
}

/* A name from inside the sandbox: masked, and base64 where it is not UTF-8. */
static void set_name(const struct request *request, struct json *json, const char *key,
                     const char *encoding_key, const void *name, size_t len)
{
    cleanup_buf struct buf text = BUF_INIT((size_t)4 * CAP_PATH);
    (void)buf_append(&text, name, len);
    if (!utf8_valid(buf_text(&text), text.len)) {
        cleanup_buf struct buf encoded = BUF_INIT((size_t)8 * CAP_PATH);
        sandbox_mask(request_sandbox(request), text.ptr, text.len);
        (void)base64_encode(&encoded, text.ptr, text.len);
        json_set_text(json, key, buf_text(&encoded));
        json_set_text(json, encoding_key, "base64");
        return;
    }
    cleanup_free char *shown =
        sandbox_mask_text(request_sandbox(request), buf_text(&text), text.len);
    json_set_text(json, key, shown);
}

static void set_type(struct json *json, const struct field *field)
{
    static const struct {
        char letter;
        const char *name;
    } types[] = {{'f', "file"},   {'d', "directory"}, {'l', "symlink"}, {'p', "fifo"},
                 {'s', "socket"}, {'b', "block"},     {'c', "char"}};
    for (size_t i = 0; field->len == 1 && i < ARRAY_LEN(types); i++) {
        if (types[i].letter == (char)field->data[0]) {
            json_set_text(json, "type", types[i].name);
        }
    }
}

static void set_number(struct json *json, const struct field *field)
{
    uint64_t value = 0;
    char mode[8];
    if (!field_u64(field, &value)) {
        return;
    }
    switch (field->tag) {
    case TAG_SIZE:
        json_set_int(json, "size", (int64_t)value);
        break;
    case TAG_MODE:
        snprintf(mode, sizeof(mode), "%04o", (unsigned)(value & 07777));
        json_set_text(json, "mode", mode);
        break;
    case TAG_MTIME_MS:
        json_set_time(json, "mtime", (int64_t)value);
        break;
    case TAG_CREATED:
        json_set_bool(json, "created", value != 0);
        break;
    case TAG_COUNT:
        json_set_int(json, "count", (int64_t)value);
        break;
    default:
        break;
    }
}

struct json *file_entry_json(const struct request *request, struct field_reader fields,
                             const char *path)
{
    struct json *json = json_new_object();
    struct field field;
    if (path) {
        set_name(request, json, "path", "name_encoding", path, strlen(path));
    }
    while (field_next(&fields, &field)) {
        switch (field.tag) {
        case TAG_PATH:
            if (!path) {
                set_name(request, json, "path", "name_encoding", field.data, field.len);
            }
            break;
        case TAG_TYPE:
            set_type(json, &field);
            break;
        case TAG_LINK:
            set_name(request, json, "target", "target_encoding", field.data, field.len);
            break;
        case TAG_ETAG:
            json_set_textn(json, "etag", (const char *)field.data, field.len);
            break;
        default:
            set_number(json, &field);
        }
    }
    return json;
}

void file_etag_header(struct request *request, const char *etag)
{
    if (etag) {
        cleanup_free char *quoted = xasprintf("\"%s\"", etag);
        reply_header(request, "ETag", quoted);
    }
}
