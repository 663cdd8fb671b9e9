#include "sandbox/unpack.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agent/entries.h"
#include "base/caps.h"
#include "sandbox/call.h"
#include "sandbox/pack.h"
#include "sandbox/sandbox.h"
#include "tar/reader.h"

#define PIPE_SIZE (256 * KIB)
#define TAR_OVERHEAD (2 * KIB) /* of an entry, headers and padding */

struct unpack {
    struct sandbox *sandbox;
    struct pipe *body, *out; /* as it came; as entries to the agent */
    struct call *call;
    pthread_t thread;
    struct event changed;
    atomic_bool done;
    struct err err; /* stands once it is done */
    bool bad_body;  /* `err` is of the body, of which nothing more comes */
    uint64_t entries, bytes;
    struct json *skipped;
    int64_t skipped_total;

    pthread_mutex_t lock; /* of what the thread waits for */
    pthread_cond_t turn;
    bool woken;
    struct waiter on_body, on_call;
};

/* --- waiting for the body, or for the agent's refusal -------------------------------------------
 */

static void wake(struct unpack *unpack)
{
    pthread_mutex_lock(&unpack->lock);
    unpack->woken = true;
    pthread_cond_signal(&unpack->turn);
    pthread_mutex_unlock(&unpack->lock);
}

static void wake_by_body(struct waiter *waiter)
{
    wake(container_of(waiter, struct unpack, on_body));
}

static void wake_by_call(struct waiter *waiter)
{
    wake(container_of(waiter, struct unpack, on_call));
}

static void wait_for_either(struct unpack *unpack, uint64_t body_seen, uint64_t call_seen)
{
    struct event *readable = pipe_readable(unpack->body);
    struct event *changed = call_changed(unpack->call);
    unpack->woken = false;
    if (event_wait(readable, body_seen, &unpack->on_body) &&
        event_wait(changed, call_seen, &unpack->on_call)) {
        pthread_mutex_lock(&unpack->lock);
        while (!unpack->woken)
            pthread_cond_wait(&unpack->turn, &unpack->lock);
        pthread_mutex_unlock(&unpack->lock);
    }
    (void)event_cancel(readable, &unpack->on_body);
    (void)event_cancel(changed, &unpack->on_call);
}

static ssize_t read_body(void *arg, void *data, size_t len, struct err *err)
{
    struct unpack *unpack = arg;
    for (;;) {
        uint64_t body_seen = event_count(pipe_readable(unpack->body));
        uint64_t call_seen = event_count(call_changed(unpack->call));
        if (call_state(unpack->call, err) == CALL_FAILED)
            return -1;
        size_t got = pipe_read(unpack->body, data, len);
        if (got > 0)
            return (ssize_t)got;
        switch (pipe_state(unpack->body, err)) {
        case PIPE_OPEN:
            wait_for_either(unpack, body_seen, call_seen);
            continue;
        case PIPE_ENDED:
            return 0;
        case PIPE_FAILED:
        case PIPE_ABANDONED:
            break;
        }
        unpack->bad_body = true;
        return err->code ? -1 : err_set(err, ERR_CANCELLED, "the request was given up");
    }
}

/* --- towards the agent --------------------------------------------------------------------------
 */

static void wait_for_agent(struct unpack *unpack, struct err *err)
{
    for (;;) {
        uint64_t seen = event_count(call_changed(unpack->call));
        struct err why = {0};
        enum call_state state = call_state(unpack->call, &why);
        if (state == CALL_FAILED && err->code == ERR_NONE)
            *err = why;
        if (state == CALL_FAILED || state == CALL_DONE)
            return;
        (void)event_block(call_changed(unpack->call), seen, INT64_MAX);
    }
}

static int put(struct unpack *unpack, const void *data, size_t len, struct err *err)
{
    const char *ptr = data;
    while (len > 0) {
        uint64_t seen = event_count(pipe_writable(unpack->out));
        size_t took = pipe_write(unpack->out, ptr, len);
        ptr += took;
        len -= took;
        if (took > 0)
            continue;
        if (pipe_state(unpack->out, NULL) == PIPE_ABANDONED) {
            struct err why = {0};
            wait_for_agent(unpack, &why); /* its reason comes just after */
            if (why.code == ERR_NONE)
                (void)err_set(&why, ERR_AGENT_FAILED, "the agent ended before the archive did");
            *err = why;
            return -1;
        }
        (void)event_block(pipe_writable(unpack->out), seen, INT64_MAX);
    }
    return 0;
}

static int put_chunk(struct unpack *unpack, const void *data, size_t len, uint64_t offset,
                     struct err *err)
{
    uint8_t header[ENTRY_CHUNK_HEADER];
    entry_chunk_write(header, (uint32_t)len, offset);
    return put(unpack, header, sizeof(header), err) < 0 ? -1 : put(unpack, data, len, err);
}

static int put_head(struct unpack *unpack, const struct tar_item *item, const char *path,
                    const char *type, struct err *err)
{
    uint8_t room[4 + ENTRY_HEAD_MAX];
    struct field_writer fields = {.ptr = room + 4, .cap = ENTRY_HEAD_MAX};
    const char *link = item->hard_link ? item->hard_link : item->symlink;
    field_put_text(&fields, TAG_TYPE, type);
    field_put_text(&fields, TAG_PATH, path);
    if (link)
        field_put_text(&fields, TAG_LINK, link);
    field_put_u64(&fields, TAG_SIZE, item->size);
    field_put_u64(&fields, TAG_MODE, item->mode);
    field_put_u64(&fields, TAG_MTIME_S, (uint64_t)item->mtime_s);
    field_put_u64(&fields, TAG_MTIME_NS, item->mtime_ns);
    wire_put_u32(room, (uint32_t)fields.len);
    if (fields.overflow)
        return err_set(err, ERR_INVALID_ARCHIVE, "entry '%s': a name is too long", path);
    return put(unpack, room, 4 + fields.len, err);
}

/* The content, whole; or what there is of it, marked as not to be kept. */
static int put_content(struct unpack *unpack, struct tar_reader *tar, const struct tar_item *item,
                       struct err *err)
{
    const void *data;
    size_t len;
    uint64_t at = 0;
    int more;
    while ((more = tar_reader_content(tar, &data, &len, &at, err)) > 0) {
        for (size_t from = 0, piece; from < len; from += piece) {
            piece = len - from < ENTRY_CHUNK_MAX ? len - from : ENTRY_CHUNK_MAX;
            if (put_chunk(unpack, (const char *)data + from, piece, at + from, err) < 0)
                return -1;
        }
    }
    struct err late;
    if (more < 0) {
        (void)err_wrap(err, "entry '%s'", item->path);
        (void)put_chunk(unpack, "", 0, ENTRY_CUT, &late); /* ERR says already that it failed */
        return -1;
    }
    return put_chunk(unpack, "", 0, ENTRY_WHOLE, err);
}

/* --- entries ------------------------------------------------------------------------------------
 */

static void skip(struct unpack *unpack, const char *path, const char *why)
{
    if (++unpack->skipped_total > CAP_ARCHIVE_NOTES)
        return;
    struct json *item = json_new_object();
    cleanup_free char *shown = sandbox_mask_text(unpack->sandbox, path, strlen(path));
    json_set_text(item, "path", shown);
    json_set_text(item, "reason", why);
    json_add(unpack->skipped, item);
}

static int check_limits(struct unpack *unpack, const struct tar_item *item, struct err *err)
{
    if (++unpack->entries > CAP_ARCHIVE_ENTRIES)
        return err_set(err, ERR_TOO_LARGE, "the archive has more than %d entries",
                       CAP_ARCHIVE_ENTRIES);
    uint64_t size = item->type == 'f' && !item->hard_link ? item->size : 0;
    if (size > CAP_ARCHIVE_BYTES - unpack->bytes)
        return err_set(err, ERR_TOO_LARGE, "entry '%s': the archive has more than %zu GiB",
                       item->path, CAP_ARCHIVE_BYTES / (1024 * MIB));
    unpack->bytes += size;
    return 0;
}

static int take_entry(struct unpack *unpack, struct tar_reader *tar, const struct tar_item *item,
                      struct err *err)
{
    char path[PATH_MAX], target[PATH_MAX];
    if (!item->path)
        return err_set(err, ERR_INVALID_ARCHIVE, "entry %llu has a name that cannot be read",
                       (unsigned long long)unpack->entries + 1);
    if (check_limits(unpack, item, err) < 0)
        return -1;
    const char *why = entry_path(item->path, strlen(item->path), path);
    if (why)
        return err_set(err, ERR_INVALID_ARCHIVE, "entry '%s': %s", item->path, why);
    if (path[0] == '\0' && item->type == 'd')
        return 0; /* the directory itself stays as it is */
    if (path[0] == '\0')
        return err_set(err, ERR_INVALID_ARCHIVE, "entry '%s' would replace the directory itself",
                       item->path);
    if (strcmp(path, PACK_REPORT) == 0) {
        skip(unpack, path, "report");
        return 0;
    }
    if (item->hard_link) {
        why = entry_path(item->hard_link, strlen(item->hard_link), target);
        if (why)
            return err_set(err, ERR_INVALID_ARCHIVE, "entry '%s': the target of the hard link: %s",
                           item->path, why);
        return put_head(unpack, item, path, "h", err);
    }
    switch (item->type) {
    case 'd':
        return put_head(unpack, item, path, "d", err);
    case 'l':
        return put_head(unpack, item, path, "l", err);
    case 'f':
        return put_head(unpack, item, path, "f", err) < 0 ? -1
                                                          : put_content(unpack, tar, item, err);
    default:
        skip(unpack, path, "not_regular");
        return 0;
    }
}

static int take_all(struct unpack *unpack, struct err *err)
{
    const struct tar_source source = {.arg = unpack, .read = read_body};
    const struct tar_limits limits = {
        .plain_max = CAP_ARCHIVE_BYTES + CAP_ARCHIVE_ENTRIES * TAR_OVERHEAD,
        .header_max = CAP_ARCHIVE_HEADER,
        .bad = ERR_INVALID_ARCHIVE,
        .large = ERR_TOO_LARGE,
        .what = "an archive",
    };
    struct tar_item item;
    int more = -1;
    struct tar_reader *tar = tar_reader_open(&source, &limits, err);
    while (tar && (more = tar_reader_next(tar, &item, err)) > 0) {
        if (take_entry(unpack, tar, &item, err) < 0) {
            more = -1;
            break;
        }
    }
    /* What follows the end counts for nothing; a client that is not done sending is not cut. */
    if (tar && more == 0)
        more = tar_reader_rest(tar, err);
    tar_reader_free(tar);
    return more;
}

/* --- its life -----------------------------------------------------------------------------------
 */

/* What was refused is refused after what came before it is there: the agent says what that is. */
static void *run(void *arg)
{
    struct unpack *unpack = arg;
    struct err err = {0};
    if (take_all(unpack, &err) < 0 && unpack->bad_body)
        pipe_finish(unpack->out, &err);
    else
        pipe_finish(unpack->out, NULL);
    wait_for_agent(unpack, &err);
    unpack->err = err;
    atomic_store(&unpack->done, true);
    event_fire(&unpack->changed);
    return NULL;
}

static void destroy(struct unpack *unpack)
{
    call_unref(unpack->call);
    pipe_unref(unpack->body);
    pipe_unref(unpack->out);
    sandbox_unref(unpack->sandbox);
    json_free(unpack->skipped);
    event_done(&unpack->changed);
    pthread_cond_destroy(&unpack->turn);
    pthread_mutex_destroy(&unpack->lock);
    free(unpack);
}

static struct unpack *unpack_new(struct sandbox *sandbox, struct pipe *body)
{
    struct unpack *unpack = xcalloc(1, sizeof(*unpack));
    unpack->sandbox = sandbox_ref(sandbox);
    unpack->body = pipe_ref(body);
    unpack->out = pipe_new(PIPE_SIZE);
    unpack->call = call_new(OP_UNPACK);
    unpack->skipped = json_new_array();
    unpack->on_body.wake = wake_by_body;
    unpack->on_call.wake = wake_by_call;
    event_init(&unpack->changed);
    pthread_mutex_init(&unpack->lock, NULL);
    pthread_cond_init(&unpack->turn, NULL);
    return unpack;
}

int unpack_start(struct sandbox *sandbox, const char *path, struct pipe *body,
                 struct unpack **ret_unpack, struct err *err)
{
    struct unpack *unpack = unpack_new(sandbox, body);
    call_put_text(unpack->call, TAG_PATH, path);
    call_upload(unpack->call, unpack->out);
    int rc = call_start(sandbox, unpack->call, err);
    int errnum = rc == 0 ? pthread_create(&unpack->thread, NULL, run, unpack) : 0;
    if (errnum) {
        call_cancel(unpack->call);
        rc = err_errno(err, ERR_BUSY, errnum, "a thread for the archive");
    }
    if (rc < 0)
        destroy(unpack);
    else
        *ret_unpack = unpack;
    return rc;
}

void unpack_free(struct unpack *unpack)
{
    if (!unpack)
        return;
    if (!atomic_load(&unpack->done)) {
        pipe_abandon(unpack->body, NULL);
        call_cancel(unpack->call);
    }
    pthread_join(unpack->thread, NULL);
    destroy(unpack);
}

struct event *unpack_changed(struct unpack *unpack)
{
    return &unpack->changed;
}

bool unpack_done(struct unpack *unpack, struct err *ret_err)
{
    if (!atomic_load(&unpack->done))
        return false;
    *ret_err = unpack->err;
    return true;
}

struct json *unpack_json(struct unpack *unpack)
{
    static const struct {
        uint16_t tag;
        const char *name;
    } counts[] = {{TAG_FILES, "files"},
                  {TAG_DIRECTORIES, "directories"},
                  {TAG_LINKS, "links"},
                  {TAG_SIZE, "bytes"}};
    struct json *json = json_new_object();
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        uint64_t value = 0;
        if (call_result_u64(unpack->call, counts[i].tag, &value))
            json_set_int(json, counts[i].name, (int64_t)value);
        else
            json_set_null(json, counts[i].name); /* the agent could not be asked */
    }
    json_set(json, "skipped", json_copy(unpack->skipped));
    json_set_int(json, "skipped_total", unpack->skipped_total);
    return json;
}
