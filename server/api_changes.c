/* What has become of a sandbox's files since somebody looked. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/handle.h"
#include "server/app.h"
#include "server/file_call.h"
#include "server/listing.h"
#include "server/route.h"
#include "server/routes.h"
#include "server/snapshots.h"
#include "server/subject.h"

struct changes {
    struct listing listing; /* first: it is the request's state */
    char *path;
    char *before; /* the entries then; NULL: nothing is compared */
    size_t before_len;
};

static void changes_free(void *state)
{
    struct changes *changes = state;
    listing_done(&changes->listing);
    free(changes->path);
    free(changes->before);
    free(changes);
}

/* --- comparing ------------------------------------------------------------------------------- */

struct entry {
    bool there;
    struct field_reader fields;
    struct field path, etag;
    uint64_t mode, ctime_ns;
    char type;
};

static void entry_next(struct str *entries, struct entry *entry)
{
    struct field field;
    *entry = (struct entry){.there = false};
    entry->there = listing_next(entries, &entry->fields);
    struct field_reader fields = entry->fields;
    while (entry->there && field_next(&fields, &field)) {
        if (field.tag == TAG_PATH) {
            entry->path = field;
        } else if (field.tag == TAG_ETAG) {
            entry->etag = field;
        } else if (field.tag == TAG_TYPE && field.len == 1) {
            entry->type = (char)field.data[0];
        } else if (field.tag == TAG_MODE) {
            (void)field_u64(&field, &entry->mode);
        } else if (field.tag == TAG_CTIME_NS) {
            (void)field_u64(&field, &entry->ctime_ns);
        }
    }
}

/* A directory's name ends in a slash, as the agent sorts them. */
static int byte_at(const struct entry *entry, size_t at)
{
    if (at < entry->path.len) {
        return entry->path.data[at];
    }
    return at == entry->path.len && entry->type == 'd' ? '/' : -1;
}

/* Below 0: A comes first, or is alone. */
static int compare(const struct entry *a, const struct entry *b)
{
    if (!a->there || !b->there) {
        return a->there ? -1 : 1;
    }
    size_t at = 0;
    int one, two;
    do {
        one = byte_at(a, at);
        two = byte_at(b, at);
        at++;
    } while (one == two && one >= 0);
    return one - two;
}

static bool is_same(const struct entry *a, const struct entry *b)
{
    if (a->type == 'd') {
        return a->mode == b->mode;
    }
    return a->type == b->type && a->mode == b->mode && a->ctime_ns == b->ctime_ns &&
           a->etag.len == b->etag.len && memcmp(a->etag.data, b->etag.data, a->etag.len) == 0;
}

static void add_entry(struct request *request, struct json *list, const struct entry *entry)
{
    json_add(list, file_entry_json(request, entry->fields, NULL));
}

static void put_differences(struct request *request, struct json *json, struct str before,
                            struct str now)
{
    struct json *added = json_set_array(json, "added");
    struct json *changed = json_set_array(json, "changed");
    struct json *removed = json_set_array(json, "removed");
    struct entry old, new;
    entry_next(&before, &old);
    entry_next(&now, &new);
    while (old.there || new.there) {
        int order = compare(&old, &new);
        if (order == 0 && !is_same(&old, &new)) {
            add_entry(request, changed, &new);
        } else if (order < 0) {
            add_entry(request, removed, &old);
        } else if (order > 0) {
            add_entry(request, added, &new);
        }
        if (order <= 0) {
            entry_next(&before, &old);
        }
        if (order >= 0) {
            entry_next(&now, &new);
        }
    }
}

/* --- GET ------------------------------------------------------------------------------------- */

static enum verdict reply_changes(struct request *request)
{
    struct changes *changes = request_state(request);
    struct json *json = json_new_object();
    struct str now = {buf_text(&changes->listing.entries), changes->listing.entries.len};
    char token[SNAPSHOT_TOKEN_LEN];
    cleanup_free char *root = call_result_text(changes->listing.call, TAG_ROOT);
    cleanup_free char *shown =
        sandbox_mask_text(request_sandbox(request), root ? root : "", root ? strlen(root) : 0);
    json_set_text(json, "root", shown);
    /* Without a former look nothing differs. */
    struct str before = changes->before ? (struct str){changes->before, changes->before_len} : now;
    put_differences(request, json, before, now);
    snapshots_add(request_app(request)->snapshots, sandbox_uid(request_sandbox(request)),
                  changes->path, &changes->listing.entries, token);
    json_set_text(json, "token", token);
    return reply_json(request, 200, json);
}

/* The workdir is an empty directory at first: then all in it has been added. */
static int since_creation(struct request *request, struct changes *changes, struct err *err)
{
    const char *workdir = sandbox_workdir(request_sandbox(request));
    size_t len = strlen(workdir);
    bool below = strncmp(changes->path, workdir, len) == 0 &&
                 (changes->path[len] == '/' || changes->path[len] == '\0');
    if (!below || strstr(changes->path, "..") || !sandbox_began_empty(request_sandbox(request))) {
        return err_set(
            err, ERR_NOT_SUPPORTED,
            "'since=create' is known of the workdir and below alone; elsewhere ask for a "
            "token before what is to be looked at");
    }
    changes->before = xstrdup("");
    return 0;
}

static int find_before(struct request *request, struct changes *changes, struct err *err)
{
    struct str since;
    if (!request_query(request, "since", &since)) {
        return 0;
    }
    if (str_is(since, "create")) {
        return since_creation(request, changes, err);
    }
    if (since.len > 5 && memcmp(since.ptr, "exec:", 5) == 0) {
        return err_set(err, ERR_NOT_SUPPORTED,
                       "'since' takes a token: ask for one before the command is started");
    }
    changes->before =
        snapshots_get(request_app(request)->snapshots, sandbox_uid(request_sandbox(request)),
                      changes->path, since, &changes->before_len);
    return changes->before ? 0
                           : err_set(err, ERR_NOT_FOUND,
                                     "the token is not known (any more) for this path: look anew");
}

static enum verdict get_changes(struct request *request)
{
    struct err err = {0};
    struct changes *changes = xcalloc(1, sizeof(*changes));
    listing_init(&changes->listing, OP_TREE, CAP_SNAPSHOT, reply_changes);
    request_keep(request, changes, changes_free);
    if (file_path_or_workdir(request, &changes->path, &err) < 0 ||
        find_before(request, changes, &err) < 0) {
        return reply_problem(request, &err);
    }
    call_put_text(changes->listing.call, TAG_PATH, changes->path);
    call_put_u64(changes->listing.call, TAG_DETAILS, 1);
    return listing_run(request, &changes->listing);
}

static const struct route routes[] = {
    {"GET", "/v1/sandboxes/{id}/changes", get_changes, ROUTE_SANDBOX, "path since"},
};

const struct route_table changes_routes = {routes, ARRAY_LEN(routes)};
