/* Changes of files in place, and listings: PATCH, DELETE, tree. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "sandbox/sandboxes.h"
#include "server/file_call.h"
#include "server/listing.h"
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
    struct listing listing;
    bool paths; /* format=paths */
};

static void tree_state_free(void *state)
{
    struct tree_state *tree = state;
    listing_done(&tree->listing);
    free(tree);
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
    while (listing_next(&entries, &fields)) {
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
    while (listing_next(&entries, &fields)) {
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
    cleanup_free char *root = call_result_text(tree->listing.call, TAG_ROOT);
    struct str entries = {buf_text(&tree->listing.entries), tree->listing.entries.len};
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
        if (file_call_path(request, tree->listing.call, err) < 0) {
            return -1;
        }
    } else {
        call_put_text(tree->listing.call, TAG_PATH, sandbox_workdir(request_sandbox(request)));
    }
    call_put_u64(tree->listing.call, TAG_DEPTH, (uint64_t)depth);
    call_put_u64(tree->listing.call, TAG_FILES_ONLY, tree->paths);
    return 0;
}

static enum verdict get_tree(struct request *request)
{
    struct err err = {0};
    struct tree_state *tree = xcalloc(1, sizeof(*tree));
    listing_init(&tree->listing, OP_TREE, CAP_TREE, reply_tree);
    request_keep(request, tree, tree_state_free);
    if (tree_call(request, tree, &err) < 0) {
        return reply_problem(request, &err);
    }
    return listing_run(request, &tree->listing);
}

static const struct route routes[] = {
    {"PATCH", "/v1/sandboxes/{id}/files", patch_file, ROUTE_SANDBOX | ROUTE_JSON_BODY, "path"},
    {"DELETE", "/v1/sandboxes/{id}/files", delete_file, ROUTE_SANDBOX, "path recursive"},
    {"GET", "/v1/sandboxes/{id}/tree", get_tree, ROUTE_SANDBOX, "path depth format"},
};

const struct route_table file_edit_routes = {routes, ARRAY_LEN(routes)};
