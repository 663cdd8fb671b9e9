/* Changes of files in place, and listings: PATCH, DELETE, tree. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "sandbox/sandboxes.h"
#include "server/file_call.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/subject.h"

/* --- PATCH ----------------------------------------------------------------------------------- */

struct edit_body {
    char *to, *mode, *old, *new;
    int64_t count;
    bool overwrite;
};

#define EDIT(member) offsetof(struct edit_body, member)
static const struct json_field edit_fields[] = {
    {.name = "to",
     .decode = json_decode_text_any,
     .offset = EDIT(to),
     .min = 1,
     .max = CAP_PATH - 1},
    {.name = "overwrite", .decode = json_decode_bool, .offset = EDIT(overwrite)},
    {.name = "mode", .decode = json_decode_text, .offset = EDIT(mode), .max = 8},
    {.name = "old", .decode = json_decode_text_any, .offset = EDIT(old), .min = 1, .max = MIB},
    {.name = "new", .decode = json_decode_text_any, .offset = EDIT(new), .max = MIB},
    {.name = "count", .decode = json_decode_int, .offset = EDIT(count), .min = 1, .max = INT32_MAX},
    JSON_FIELDS_END,
};

static void edit_body_done(struct edit_body *body)
{
    free(body->to);
    free(body->mode);
    free(body->old);
    free(body->new);
}

static enum verdict edit_done(struct request *request)
{
    struct call *call = file_call_of(request);
    cleanup_free char *etag = call_result_text(call, TAG_ETAG);
    file_etag_header(request, etag);
    return reply_json(request, 200, file_entry_json(request, call_result(call), NULL));
}

static int move_fields(const struct request *request, const struct edit_body *body,
                       struct call *call, struct err *err)
{
    cleanup_free char *to = NULL;
    if (file_path_resolve(request, str_of(body->to), &to, err) < 0) {
        return -1;
    }
    call_put_text(call, TAG_TO, to);
    call_put_u64(call, TAG_OVERWRITE, body->overwrite);
    return 0;
}

static int mode_fields(const struct edit_body *body, struct call *call, struct err *err)
{
    uint64_t mode = 0;
    if (file_mode_parse(str_of(body->mode), &mode, err) < 0) {
        return -1;
    }
    call_put_u64(call, TAG_MODE, mode);
    return 0;
}

static int edit_call(const struct request *request, const struct edit_body *body,
                     struct call **ret_call, struct err *err)
{
    int kinds = (body->to != NULL) + (body->mode != NULL) + (body->old != NULL);
    if (kinds != 1 || (body->new != NULL) != (body->old != NULL)) {
        return err_set(err, ERR_INVALID_REQUEST,
                       "give one change: 'to' (move), 'mode', or 'old' and 'new' (exact replace)");
    }
    struct call *call = call_new(body->to ? OP_MOVE : body->mode ? OP_MODE : OP_REPLACE);
    int result = file_call_path(request, call, err);
    if (result == 0) {
        result = file_call_conditions(request, call, err);
    }
    if (result == 0 && body->to) {
        result = move_fields(request, body, call, err);
    } else if (result == 0 && body->mode) {
        result = mode_fields(body, call, err);
    } else if (result == 0) {
        call_put_text(call, TAG_OLD, body->old);
        call_put_text(call, TAG_NEW, body->new);
        call_put_u64(call, TAG_COUNT, (uint64_t)body->count);
    }
    if (result < 0) {
        call_unref(call);
        return -1;
    }
    *ret_call = call;
    return 0;
}

static enum verdict patch_file(struct request *request)
{
    struct err err = {0};
    const struct json *json = NULL;
    struct call *call = NULL;
    cleanup(edit_body_done) struct edit_body body = {0};
    if (request_json(request, false, &json, &err) < 0 ||
        json_decode(json, edit_fields, "", &body, &err) < 0 ||
        edit_call(request, &body, &call, &err) < 0) {
        return reply_problem(request, &err);
    }
    return file_call_run(request, call, edit_done);
}

/* --- DELETE ---------------------------------------------------------------------------------- */

static enum verdict delete_done(struct request *request)
{
    return reply_empty(request, 204);
}

static enum verdict delete_file(struct request *request)
{
    struct err err = {0};
    bool recursive = false;
    struct call *call = call_new(OP_REMOVE);
    if (file_call_path(request, call, &err) < 0 ||
        request_query_bool(request, "recursive", &recursive, &err) < 0) {
        call_unref(call);
        return reply_problem(request, &err);
    }
    call_put_u64(call, TAG_RECURSIVE, recursive);
    return file_call_run(request, call, delete_done);
}

/* --- tree ------------------------------------------------------------------------------------ */

struct tree_state {
    struct call *call;
    struct pipe *pipe;
    struct buf entries;
    bool paths; /* format=paths */
};

static void tree_state_free(void *state)
{
    struct tree_state *tree = state;
    pipe_abandon(tree->pipe, NULL); /* ends the call, if it runs still */
    call_unref(tree->call);
    pipe_unref(tree->pipe);
    buf_done(&tree->entries);
    free(tree);
}

/* One entry: u32 length, fields. False at the end. */
static bool next_entry(struct str *rest, struct field_reader *ret_fields)
{
    if (rest->len < 4) {
        return false;
    }
    const uint8_t *at = (const uint8_t *)rest->ptr;
    size_t len = (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
    if (len > rest->len - 4) {
        return false;
    }
    field_reader_init(ret_fields, at + 4, len);
    rest->ptr += 4 + len;
    rest->len -= 4 + len;
    return true;
}

static char *entry_path(struct field_reader fields, size_t *ret_len)
{
    struct field field;
    while (field_next(&fields, &field)) {
        if (field.tag == TAG_PATH) {
            *ret_len = field.len;
            return xstrndup((const char *)field.data, field.len);
        }
    }
    *ret_len = 0;
    return xstrdup("");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* PREFIX goes before each path: the way from the workdir to the root of the listing. */
static struct json *paths_json(struct request *request, struct str entries, const char *prefix)
{
    struct json *items = json_new_array();
    size_t count = 0, room = 64;
    char **paths = xcalloc(room, sizeof(*paths));
    struct field_reader fields;
    while (next_entry(&entries, &fields)) {
        size_t len = 0;
        cleanup_free char *path = entry_path(fields, &len);
        if (count == room) {
            room *= 2;
            paths = xrealloc(paths, room * sizeof(*paths));
        }
        bool slash = len && *prefix && !str_ends(prefix, "/");
        paths[count++] = xasprintf("%s%s%s", prefix, slash ? "/" : "", path);
    }
    qsort(paths, count, sizeof(*paths), by_name);
    for (size_t i = 0; i < count; i++) {
        if (utf8_valid(paths[i], strlen(paths[i]))) {
            cleanup_free char *shown =
                sandbox_mask_text(request_sandbox(request), paths[i], strlen(paths[i]));
            json_add_text(items, shown);
        } else {
            struct field_reader none;
            field_reader_init(&none, NULL, 0);
            json_add(items, file_entry_json(request, none, paths[i]));
        }
        free(paths[i]);
    }
    free(paths);
    return items;
}

static struct json *entries_json(struct request *request, struct str entries)
{
    struct json *items = json_new_array();
    struct field_reader fields;
    while (next_entry(&entries, &fields)) {
        json_add(items, file_entry_json(request, fields, NULL));
    }
    return items;
}

/* Relative to the workdir, absolute outside it; "" for the workdir itself. */
static const char *shown_root(struct request *request, const char *root)
{
    const char *workdir = sandbox_workdir(request_sandbox(request));
    size_t len = strlen(workdir);
    if (strncmp(root, workdir, len) == 0 && (root[len] == '/' || root[len] == '\0')) {
        return root[len] ? root + len + 1 : "";
    }
    return root;
}

static enum verdict reply_tree(struct request *request)
{
    struct tree_state *tree = request_state(request);
    cleanup_free char *root = call_result_text(tree->call, TAG_ROOT);
    struct str entries = {buf_text(&tree->entries), tree->entries.len};
    struct json *json = json_new_object();
    cleanup_free char *shown =
        sandbox_mask_text(request_sandbox(request), root ? root : "", root ? strlen(root) : 0);
    json_set_text(json, "root", shown);
    json_set(json, "items",
             tree->paths ? paths_json(request, entries, root ? shown_root(request, root) : "")
                         : entries_json(request, entries));
    json_set_null(json, "next");
    return reply_json(request, 200, json);
}

/* The result follows the end of the stream. */
static enum verdict tree_result(struct request *request)
{
    struct tree_state *tree = request_state(request);
    struct event *changed = call_changed(tree->call);
    uint64_t seen = event_count(changed);
    struct err err = {0};
    enum call_state state = call_state(tree->call, &err);
    if (state == CALL_FAILED) {
        return reply_masked_problem(request, &err);
    }
    if (state == CALL_DONE) {
        return reply_tree(request);
    }
    return request_client_gone(request) ? reply_empty(request, 204)
                                        : request_wait(request, changed, seen, 0, tree_result);
}

static enum verdict tree_collect(struct request *request)
{
    struct tree_state *tree = request_state(request);
    struct event *readable = pipe_readable(tree->pipe);
    for (;;) {
        uint64_t seen = event_count(readable);
        struct err err = {0};
        char *space = buf_reserve(&tree->entries, 32 * KIB);
        if (!space) {
            err_set(&err, ERR_TOO_LARGE,
                    "the listing is too large: ask for less with path and depth");
            return reply_problem(request, &err);
        }
        size_t got = pipe_read(tree->pipe, space, 32 * KIB);
        buf_grew(&tree->entries, got);
        if (got > 0) {
            continue;
        }
        switch (pipe_state(tree->pipe, &err)) {
        case PIPE_OPEN:
            return request_client_gone(request)
                       ? reply_empty(request, 204)
                       : request_wait(request, readable, seen, 0, tree_collect);
        case PIPE_ENDED:
            return tree_result(request);
        case PIPE_FAILED:
        case PIPE_ABANDONED:
            return reply_masked_problem(request, &err);
        }
    }
}

static int tree_call(struct request *request, struct tree_state *tree, struct err *err)
{
    struct str text;
    int64_t depth = 0;
    if (request_query(request, "format", &text)) {
        if (!str_is(text, "paths") && !str_is(text, "entries")) {
            return err_set(err, ERR_INVALID_FIELD,
                           "query parameter 'format' must be paths or entries");
        }
        tree->paths = str_is(text, "paths");
    }
    if (request_query_int(request, "depth", 0, 10000, &depth, err) < 0) {
        return -1;
    }
    if (request_query(request, "path", &text)) {
        if (file_call_path(request, tree->call, err) < 0) {
            return -1;
        }
    } else {
        call_put_text(tree->call, TAG_PATH, sandbox_workdir(request_sandbox(request)));
    }
    call_put_u64(tree->call, TAG_DEPTH, (uint64_t)depth);
    call_put_u64(tree->call, TAG_FILES_ONLY, tree->paths);
    return 0;
}

static enum verdict get_tree(struct request *request)
{
    struct err err = {0};
    struct tree_state *tree = xcalloc(1, sizeof(*tree));
    tree->call = call_new(OP_TREE);
    tree->pipe = pipe_new(256 * KIB);
    buf_init(&tree->entries, CAP_TREE);
    request_keep(request, tree, tree_state_free);
    if (tree_call(request, tree, &err) < 0) {
        return reply_problem(request, &err);
    }
    call_download(tree->call, tree->pipe);
    if (call_start(request_sandbox(request), tree->call, &err) < 0) {
        return reply_masked_problem(request, &err);
    }
    return tree_collect(request);
}

static const struct route routes[] = {
    {"PATCH", "/v1/sandboxes/{id}/files", patch_file, ROUTE_SANDBOX | ROUTE_JSON_BODY, "path"},
    {"DELETE", "/v1/sandboxes/{id}/files", delete_file, ROUTE_SANDBOX, "path recursive"},
    {"GET", "/v1/sandboxes/{id}/tree", get_tree, ROUTE_SANDBOX, "path depth format"},
};

const struct route_table file_edit_routes = {routes, ARRAY_LEN(routes)};
