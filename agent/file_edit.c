#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/file_write.h"

#define REPLACE_MAX ((size_t)64 << 20)
#define NOREPLACE 1u
#define COPY_CHUNK 65536

/* --- OP_REPLACE
 * ----------------------------------------------------------------------------------- */

struct text {
    uint8_t *data;
    size_t len;
};

static bool read_whole(struct worker *worker, int fd, const struct stat *status, struct text *text)
{
    if ((uint64_t)status->st_size > REPLACE_MAX) {
        worker_error(worker, "too_large", "the file is larger than 64 MiB");
        return false;
    }
    text->data = malloc((size_t)status->st_size + 1);
    while (text->data != NULL && text->len < (size_t)status->st_size) {
        ssize_t count = read(fd, text->data + text->len, (size_t)status->st_size - text->len);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            break;
        if (count == 0)
            return true;
        text->len += (size_t)count;
    }
    if (text->data != NULL && text->len == (size_t)status->st_size)
        return true;
    worker_errno(worker);
    return false;
}

static uint64_t count_matches(const struct text *text, const struct field *old)
{
    const uint8_t *ptr = text->data, *end = text->data + text->len;
    uint64_t count = 0;
    while ((ptr = memmem(ptr, (size_t)(end - ptr), old->data, old->len)) != NULL) {
        count++;
        ptr += old->len;
    }
    return count;
}

static bool write_replaced(struct worker *worker, struct rewrite *rewrite, const struct text *text,
                           const struct field *old, const struct field *new)
{
    const uint8_t *ptr = text->data, *end = text->data + text->len;
    for (;;) {
        const uint8_t *match = memmem(ptr, (size_t)(end - ptr), old->data, old->len);
        const uint8_t *until = match != NULL ? match : end;
        if (!rewrite_write(worker, rewrite, ptr, (size_t)(until - ptr)))
            return false;
        if (match == NULL)
            return true;
        if (!rewrite_write(worker, rewrite, new->data, new->len))
            return false;
        ptr = match + old->len;
    }
}

static bool check_count(struct worker *worker, uint64_t found)
{
    uint64_t wanted = message_u64(&worker->request, TAG_COUNT, 0);
    if (found > 0 && (wanted == 0 || wanted == found))
        return true;
    struct reply *failure = worker_failure(worker);
    if (failure != NULL) {
        reply_error(failure, "conflict", "%s: the text is there %llu times", worker->subject,
                    (unsigned long long)found);
        field_put_u64(&failure->fields, TAG_COUNT, found);
    }
    return false;
}

/* TEXT is what STATUS was when it was read; a change meanwhile must not be lost. */
static void replace_in(struct worker *worker, const char *path, const struct text *text,
                       const struct stat *status)
{
    struct field old = {0}, new = {.data = (const uint8_t *)""};
    struct rewrite rewrite;
    struct stat result;
    struct reply reply;
    char before[ETAG_LEN], now[ETAG_LEN];
    if (!message_find(&worker->request, TAG_OLD, &old) || old.len == 0) {
        worker_error(worker, "invalid_field", "OLD is missing or empty");
        return;
    }
    (void)message_find(&worker->request, TAG_NEW, &new);
    uint64_t found = count_matches(text, &old);
    if (!request_matches(worker, status) || !check_count(worker, found) ||
        !rewrite_begin(worker, path, false, &rewrite))
        return;
    etag_of(status, before);
    etag_of(&rewrite.target.status, now);
    bool done = rewrite.target.exists && strcmp(before, now) == 0;
    if (!done)
        worker_error(worker, "conflict", "the file has changed meanwhile");
    if (!done || !write_replaced(worker, &rewrite, text, &old, &new)) {
        rewrite_abort(&rewrite);
        return;
    }
    if (!rewrite_commit(worker, &rewrite, -1, &result))
        return;
    reply_init(&reply);
    put_etag(&reply.fields, &result);
    field_put_u64(&reply.fields, TAG_COUNT, found);
    worker_reply(worker, FRAME_RESULT, &reply);
}

void op_replace(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    struct text text = {0};
    if (!worker_path(worker, TAG_PATH, path))
        return;
    int fd = open_regular(worker, path, &status);
    if (fd < 0)
        return;
    if (read_whole(worker, fd, &status, &text))
        replace_in(worker, path, &text, &status);
    free(text.data);
    close(fd);
}

/* --- OP_MOVE
 * --------------------------------------------------------------------------------------- */

static int rename_to(const char *from, const char *to, bool overwrite)
{
    struct stat status;
    if (overwrite)
        return rename(from, to);
    if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, NOREPLACE) == 0)
        return 0;
    if (errno != ENOSYS && errno != EINVAL)
        return -1;
    if (lstat(to, &status) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

static int make_parents(const char *path)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return 0;
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = '\0';
    return path_make_directories(AT_FDCWD, directory);
}

static bool copy_contents(struct worker *worker, int fd, struct rewrite *rewrite)
{
    static uint8_t bytes[COPY_CHUNK];
    for (;;) {
        ssize_t count = read(fd, bytes, sizeof(bytes));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            worker_errno(worker);
        if (count <= 0)
            return count == 0;
        if (worker_is_cancelled(worker) || !rewrite_write(worker, rewrite, bytes, (size_t)count))
            return false;
    }
}

/* To another file system: only a regular file, as a copy that takes the place at once. */
static bool move_by_copy(struct worker *worker, const char *from, const char *to, bool overwrite)
{
    struct stat status;
    struct rewrite rewrite;
    worker_about(worker, from);
    if (lstat(from, &status) < 0 || !S_ISREG(status.st_mode)) {
        worker_error(worker, "not_supported",
                     "only a regular file can be moved to another file system");
        return false;
    }
    if (!overwrite && lstat(to, &status) == 0) {
        worker_about(worker, to);
        worker_error(worker, "already_exists", "it is there already");
        return false;
    }
    int fd = open_regular(worker, from, &status);
    if (fd < 0)
        return false;
    worker_about(worker, to);
    bool done = rewrite_begin(worker, to, false, &rewrite);
    if (done) {
        rewrite.must_be_new = !overwrite;
        done = copy_contents(worker, fd, &rewrite);
        if (done)
            done = rewrite_commit(worker, &rewrite, (int)(status.st_mode & 07777), &status);
        else
            rewrite_abort(&rewrite);
    }
    close(fd);
    worker_about(worker, from);
    if (done && unlink(from) < 0) {
        worker_error(worker, errno_code(errno), "remove the original: %m");
        done = false;
    }
    return done;
}

static bool move_to(struct worker *worker, const char *from, const char *to, bool overwrite)
{
    if (rename_to(from, to, overwrite) == 0)
        return true;
    if (errno == EXDEV)
        return move_by_copy(worker, from, to, overwrite);
    if (errno == EINVAL)
        worker_error(worker, "invalid_path", "a directory cannot be moved into itself");
    else
        worker_errno(worker);
    return false;
}

/* STATUS may be NULL: it has gone since. */
static void reply_etag(struct worker *worker, const struct stat *status)
{
    struct reply reply;
    reply_init(&reply);
    if (status != NULL)
        put_etag(&reply.fields, status);
    worker_reply(worker, FRAME_RESULT, &reply);
}

void op_move(struct worker *worker)
{
    char from[PATH_MAX], to[PATH_MAX];
    bool overwrite = message_u64(&worker->request, TAG_OVERWRITE, 0) != 0;
    struct stat status;
    if (!worker_path(worker, TAG_PATH, from) || !worker_path(worker, TAG_TO, to))
        return;
    if (lstat(from, &status) < 0) {
        worker_errno(worker);
        return;
    }
    worker_about(worker, to);
    if (make_parents(to) < 0) {
        worker_errno(worker);
        return;
    }
    if (!move_to(worker, from, to, overwrite))
        return;
    reply_etag(worker, lstat(to, &status) == 0 ? &status : NULL);
}

/* --- OP_MODE, OP_MKDIR
 * ----------------------------------------------------------------------------- */

void op_mode(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    int mode;
    if (!request_mode(worker, &mode) || !worker_path(worker, TAG_PATH, path))
        return;
    if (mode < 0) {
        worker_error(worker, "invalid_field", "MODE is missing");
        return;
    }
    if (stat(path, &status) < 0) {
        worker_errno(worker);
        return;
    }
    if (!request_matches(worker, &status))
        return;
    if (chmod(path, (mode_t)mode) < 0 || stat(path, &status) < 0) {
        worker_errno(worker);
        return;
    }
    reply_etag(worker, &status);
}

void op_mkdir(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    struct reply reply;
    int mode;
    if (!request_mode(worker, &mode) || !worker_path(worker, TAG_PATH, path))
        return;
    bool exists = stat(path, &status) == 0;
    if (exists && !S_ISDIR(status.st_mode)) {
        worker_error(worker, "not_directory", "it is there and is no directory");
        return;
    }
    if (!exists && (path_make_directories(AT_FDCWD, path) < 0 ||
                    (mode >= 0 && chmod(path, (mode_t)mode) < 0) || stat(path, &status) < 0)) {
        worker_errno(worker);
        return;
    }
    reply_init(&reply);
    field_put_u64(&reply.fields, TAG_CREATED, !exists);
    worker_reply(worker, FRAME_RESULT, &reply);
}
