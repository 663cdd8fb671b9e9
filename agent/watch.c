#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "agent/walk.h"
#include "agent/watch_map.h"
#include "agent/worker.h"

#define WATCHED                                                                                    \
    (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |                 \
     IN_DELETE_SELF | IN_EXCL_UNLINK)
#define GATHER_MS 20 /* events that come so soon after the first are looked at together */
#define HEARTBEAT_MS 10000
#define BATCH_BYTES 65536 /* of events */
#define LOOK_BACK 64      /* for one that says the same */

struct watching {
    struct worker *worker;
    struct watch_map map;
    bool recursive, root_gone;
    char name[NAME_MAX + 1]; /* of the file, if the root is one */
    bool told_full;
    char prefix[PATH_MAX]; /* of a walk, in which all paths are from the root */
    bool announce;         /* of a walk: what it finds has just been made */
    _Alignas(struct inotify_event) char batch[BATCH_BYTES];
    size_t batch_len;
    const struct inotify_event *seen[LOOK_BACK];
    size_t seen_count;
};

/* --- what is told
 * ---------------------------------------------------------------------------------- */

static bool tell(struct watching *watching, const char *type, const char *path, const char *from,
                 bool directory)
{
    static uint8_t room[2 * PATH_MAX + 128];
    struct field_writer fields = {.ptr = room + 4, .cap = sizeof(room) - 4};
    field_put_text(&fields, TAG_TYPE, type);
    if (path != NULL)
        field_put_text(&fields, TAG_PATH, path);
    if (from != NULL)
        field_put_text(&fields, TAG_FROM, from);
    if (directory)
        field_put_u64(&fields, TAG_DIRECTORY, 1);
    wire_put_u32(room, (uint32_t)fields.len);
    return worker_write(watching->worker, room, fields.len + 4);
}

static bool join(char path[PATH_MAX], const char *directory, const char *name)
{
    const char *slash = directory[0] != '\0' && name[0] != '\0' ? "/" : "";
    return (size_t)snprintf(path, PATH_MAX, "%s%s%s", directory, slash, name) < PATH_MAX;
}

/* --- watches
 * --------------------------------------------------------------------------------------- */

/* What cannot be watched for lack of room is told once; what is gone or shut is not there. */
static bool watch_directory(struct watching *watching, const char *path)
{
    if (watch_add(&watching->map, path) || (errno != ENOSPC && errno != ENOMEM))
        return true;
    if (watching->told_full)
        return true;
    watching->told_full = true;
    return tell(watching, "overflow", path, NULL, true);
}

static enum walk_turn visit(void *arg, const struct walk_entry *entry)
{
    struct watching *watching = arg;
    char path[PATH_MAX];
    bool directory = S_ISDIR(entry->status->st_mode);
    if (!join(path, watching->prefix, entry->path))
        return WALK_OVER;
    bool good = !watching->announce || tell(watching, "created", path, NULL, directory);
    if (good && directory)
        good = watch_directory(watching, path);
    return good ? WALK_ON : WALK_STOP;
}

/* The directory PATH and all below it. False: cancelled. */
static bool watch_tree(struct watching *watching, const char *path, bool announce)
{
    const struct walk_plan plan = {.arg = watching, .visit = visit};
    (void)snprintf(watching->prefix, sizeof(watching->prefix), "%s", path);
    watching->announce = announce;
    if (path[0] != '\0' && !watch_directory(watching, path))
        return false;
    if (watching->recursive)
        (void)walk(path[0] != '\0' ? path : ".", &plan); /* what has gone is not there */
    return !watching->worker->cancelled;
}

/* --- events
 * ---------------------------------------------------------------------------------------- */

/* Whether one of this batch has said it: of several changes of a file the first is told, since who
 * reads it then sees them all. */
static bool is_said(const struct watching *watching, const struct inotify_event *event)
{
    uint32_t same = (event->mask & IN_MODIFY) != 0 ? IN_MODIFY | IN_CREATE : IN_ATTRIB | IN_CREATE;
    for (size_t i = watching->seen_count; i-- > 0;) {
        const struct inotify_event *before = watching->seen[i];
        if (before->wd != event->wd || (before->len == 0) != (event->len == 0) ||
            (event->len > 0 && strcmp(before->name, event->name) != 0))
            continue;
        if ((before->mask & same) != 0)
            return true;
        if ((before->mask & (IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)) != 0)
            return false; /* that was another file */
    }
    return false;
}

static void remember(struct watching *watching, const struct inotify_event *event)
{
    if (watching->seen_count == LOOK_BACK) {
        memmove(watching->seen, watching->seen + 1, sizeof(watching->seen) - sizeof(void *));
        watching->seen_count--;
    }
    watching->seen[watching->seen_count++] = event;
}

static const struct inotify_event *after(const struct watching *watching,
                                         const struct inotify_event *event)
{
    const char *ptr = (const char *)event + sizeof(*event) + event->len;
    return ptr < watching->batch + watching->batch_len ? (const void *)ptr : NULL;
}

/* The other half of a move lies right behind the first, if it is within what is watched. */
static const struct inotify_event *other_half(const struct watching *watching,
                                              const struct inotify_event *event)
{
    const struct inotify_event *next = after(watching, event);
    bool fits = next != NULL && (next->mask & IN_MOVED_TO) != 0 && next->cookie == event->cookie;
    return fits && watch_find(&watching->map, next->wd) != NULL ? next : NULL;
}

static bool made(struct watching *watching, const char *path, bool directory)
{
    if (!tell(watching, "created", path, NULL, directory))
        return false;
    return !directory || !watching->recursive || watch_tree(watching, path, true);
}

static bool gone(struct watching *watching, const char *path, bool directory)
{
    if (directory && watching->recursive)
        (void)watch_moved(&watching->map, path, NULL);
    return tell(watching, "deleted", path, NULL, directory);
}

/* RET_USED: the event behind it, too. */
static bool moved(struct watching *watching, const struct inotify_event *event, const char *path,
                  bool *ret_used)
{
    const struct inotify_event *other = other_half(watching, event);
    char to[PATH_MAX];
    bool directory = (event->mask & IN_ISDIR) != 0;
    if (other == NULL ||
        !join(to, watch_find(&watching->map, other->wd)->path, other->len > 0 ? other->name : ""))
        return gone(watching, path, directory);
    *ret_used = true;
    bool followed = !directory || !watching->recursive || watch_moved(&watching->map, path, to);
    if (!tell(watching, "moved", to, path, directory))
        return false;
    return followed || watch_tree(watching, to, true); /* it was gone before it could be watched */
}

static bool overflowed(struct watching *watching)
{
    return tell(watching, "overflow", NULL, NULL, false) &&
           (!watching->recursive || watch_tree(watching, "", false));
}

/* False: it is over. */
static bool take(struct watching *watching, const struct inotify_event *event, bool *ret_used)
{
    char path[PATH_MAX];
    bool directory = (event->mask & IN_ISDIR) != 0;
    if ((event->mask & IN_Q_OVERFLOW) != 0)
        return overflowed(watching);
    const struct watched *watched = watch_find(&watching->map, event->wd);
    if (watched == NULL || !join(path, watched->path, event->len > 0 ? event->name : ""))
        return true; /* of a directory that has just been given up */
    if ((event->mask & (IN_DELETE_SELF | IN_IGNORED | IN_UNMOUNT)) != 0) {
        watching->root_gone = watching->root_gone || watched->path[0] == '\0';
        if ((event->mask & IN_IGNORED) != 0)
            watch_forget(&watching->map, event->wd);
        return true;
    }
    if (path[0] == '\0')
        memcpy(path, watching->name, sizeof(watching->name));
    if ((event->mask & IN_MOVED_FROM) != 0)
        return moved(watching, event, path, ret_used);
    if ((event->mask & (IN_CREATE | IN_MOVED_TO)) != 0)
        return made(watching, path, directory);
    if ((event->mask & IN_DELETE) != 0)
        return gone(watching, path, directory);
    /* The directory that it is in says the same of a directory. */
    if ((directory && watched->path[0] != '\0' && event->len == 0) || is_said(watching, event))
        return true;
    return tell(watching, (event->mask & IN_MODIFY) != 0 ? "modified" : "attrib", path, NULL,
                directory);
}

static bool take_batch(struct watching *watching)
{
    const struct inotify_event *event = (const void *)watching->batch;
    watching->seen_count = 0;
    while (event != NULL) {
        bool used = false;
        if (!take(watching, event, &used))
            return false;
        remember(watching, event);
        event = after(watching, event);
        if (used && event != NULL)
            event = after(watching, event);
    }
    return worker_flush(watching->worker);
}

/* --- the loop
 * -------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for events, or with WITHOUT for a moment; false: cancelled. */
static bool wait_until(struct watching *watching, int64_t until_ms, bool without)
{
    struct pollfd fds[2] = {{.fd = watching->worker->fd, .events = POLLIN},
                            {.fd = without ? -1 : watching->map.fd, .events = POLLIN}};
    for (;;) {
        int64_t left = until_ms - now_ms();
        if (left <= 0)
            return true;
        int count = poll(fds, 2, (int)left);
        if (count < 0 && errno != EINTR)
            return false;
        if (worker_is_cancelled(watching->worker))
            return false;
        if (count > 0 && fds[1].revents != 0)
            return true;
    }
}

static bool watch_all(struct watching *watching)
{
    int64_t beat_ms = now_ms() + HEARTBEAT_MS;
    while (!watching->root_gone) {
        if (!wait_until(watching, beat_ms, false) ||
            !wait_until(watching, now_ms() + GATHER_MS, true))
            return false;
        ssize_t count = read(watching->map.fd, watching->batch, sizeof(watching->batch));
        if (count > 0) {
            watching->batch_len = (size_t)count;
            if (!take_batch(watching))
                return false;
            beat_ms = now_ms() + HEARTBEAT_MS;
        } else if (now_ms() >= beat_ms) {
            if (!tell(watching, "heartbeat", NULL, NULL, false) || !worker_flush(watching->worker))
                return false;
            beat_ms = now_ms() + HEARTBEAT_MS;
        }
    }
    return worker_flush(watching->worker);
}

/* All paths are from the root: it is entered. For a file, what it is in. */
static bool begin(struct watching *watching, const char *path)
{
    struct stat status;
    if (stat(path, &status) < 0)
        return false;
    watching->map.mask = WATCHED;
    watching->map.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watching->map.fd < 0)
        return false;
    if (S_ISDIR(status.st_mode))
        return chdir(path) == 0 && watch_add(&watching->map, "") && watch_tree(watching, "", false);
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    if (strlen(name) > NAME_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(watching->name, name, strlen(name) + 1);
    int number = inotify_add_watch(watching->map.fd, path, WATCHED);
    return number >= 0 && watch_know(&watching->map, number, "");
}

void op_watch(struct worker *worker)
{
    static struct watching watching;
    char path[PATH_MAX];
    struct reply reply;
    watching.worker = worker;
    watching.recursive = message_u64(&worker->request, TAG_RECURSIVE, 0) != 0;
    if (!worker_path(worker, TAG_PATH, path))
        return;
    if (!begin(&watching, path)) {
        if (!worker->cancelled)
            worker_error(worker,
                         errno == ENOSPC || errno == EMFILE ? "too_many" : errno_code(errno),
                         "watch it: %m");
        return;
    }
    reply_init(&reply);
    worker_reply(worker, FRAME_STARTED, &reply);
    if (watch_all(&watching) && worker_end(worker))
        worker_error(worker, "file_not_found", "what was watched has been removed");
}
