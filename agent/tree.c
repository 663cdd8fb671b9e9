#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/walk.h"
#include "agent/worker.h"

struct tree {
    struct worker *worker;
    bool files_only, details;
};

static enum walk_turn visit(void *arg, const struct walk_entry *entry)
{
    static uint8_t room[2 * PATH_MAX + 256];
    const struct tree *tree = arg;
    char link[PATH_MAX];
    struct field_writer fields = {.ptr = room + 4, .cap = sizeof(room) - 4};
    if (tree->files_only && !S_ISREG(entry->status->st_mode))
        return WALK_ON;
    field_put(&fields, TAG_PATH, entry->path, entry->path_len);
    put_entry(&fields, entry->status);
    if (S_ISLNK(entry->status->st_mode)) {
        ssize_t len = readlinkat(entry->directory, entry->name, link, sizeof(link));
        if (len >= 0)
            field_put(&fields, TAG_LINK, link, (size_t)len);
    }
    if (tree->details) {
        const struct timespec *changed = &entry->status->st_ctim;
        put_etag(&fields, entry->status);
        field_put_u64(&fields, TAG_CTIME_NS,
                      (uint64_t)changed->tv_sec * 1000000000u + (uint64_t)changed->tv_nsec);
    }
    wire_put_u32(room, (uint32_t)fields.len);
    return worker_write(tree->worker, room, fields.len + 4) ? WALK_ON : WALK_STOP;
}

static void send_result(struct worker *worker, const char *path)
{
    static char root[PATH_MAX];
    struct reply reply;
    reply_init(&reply);
    if (realpath(path, root) != NULL)
        field_put_text(&reply.fields, TAG_ROOT, root);
    worker_reply(worker, FRAME_RESULT, &reply);
}

void op_tree(struct worker *worker)
{
    struct tree tree = {.worker = worker,
                        .files_only = message_u64(&worker->request, TAG_FILES_ONLY, 0) != 0,
                        .details = message_u64(&worker->request, TAG_DETAILS, 0) != 0};
    const struct walk_plan plan = {.arg = &tree,
                                   .visit = visit,
                                   .depth = message_u64(&worker->request, TAG_DEPTH, 0),
                                   .by_path = tree.files_only || tree.details,
                                   .without_git = tree.files_only || tree.details};
    char path[PATH_MAX];
    if (!worker_path(worker, TAG_PATH, path))
        return;
    if (walk(path, &plan) && worker_end(worker))
        send_result(worker, path);
    else if (!worker->cancelled && errno == E2BIG)
        worker_error(worker, "too_large", "too many names in one directory");
    else if (!worker->cancelled)
        worker_errno(worker);
}
