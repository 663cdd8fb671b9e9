#include "agent/file_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/intake.h"
#include "agent/proto.h"

#define RENAME_NOREPLACE_FLAG 1u

/* --- conditions ----------------------------------------------------------------------------------
 */

bool request_mode(struct worker *worker, int *ret_mode)
{
    uint64_t mode = message_u64(&worker->request, TAG_MODE, UINT64_MAX);
    *ret_mode = mode == UINT64_MAX ? -1 : (int)mode;
    if (mode == UINT64_MAX || mode <= 07777)
        return true;
    worker_error(worker, "invalid_field", "MODE is out of range");
    return false;
}

bool request_matches(struct worker *worker, const struct stat *status)
{
    char wanted[ETAG_LEN], found[ETAG_LEN] = "";
    int given = message_text(&worker->request, TAG_IF_MATCH, wanted, sizeof(wanted));
    if (given == 0)
        return true;
    if (status != NULL)
        etag_of(status, found);
    if (given > 0 && strcmp(wanted, found) == 0)
        return true;
    worker_error(worker, "precondition_failed", "the file is another one or has changed");
    return false;
}

static bool check_target(struct worker *worker, const struct target *target)
{
    if (target->exists && S_ISDIR(target->status.st_mode)) {
        worker_error(worker, "is_directory", "it is a directory");
        return false;
    }
    if (target->exists && !S_ISREG(target->status.st_mode)) {
        worker_error(worker, "not_regular", "it is not a regular file");
        return false;
    }
    if (target->exists && message_u64(&worker->request, TAG_IF_NONE_MATCH, 0) != 0) {
        worker_error(worker, "precondition_failed", "the file is there already");
        return false;
    }
    if (target->exists && faccessat(target->directory, target->name, W_OK, 0) < 0) {
        worker_errno(worker);
        return false;
    }
    return request_matches(worker, target->exists ? &target->status : NULL);
}

/* --- the temporary file
 * --------------------------------------------------------------------------- */

bool rewrite_begin(struct worker *worker, const char *path, bool make, struct rewrite *ret_rewrite)
{
    struct rewrite rewrite = {.fd = -1, .target.directory = -1};
    uint64_t number = 0;
    if (target_open(path, make, &rewrite.target) < 0) {
        worker_errno(worker);
        return false;
    }
    if (!check_target(worker, &rewrite.target)) {
        target_close(&rewrite.target);
        return false;
    }
    rewrite.must_be_new = message_u64(&worker->request, TAG_IF_NONE_MATCH, 0) != 0;
    (void)!getrandom(&number, sizeof(number), 0);
    (void)snprintf(rewrite.temporary, sizeof(rewrite.temporary), ".podsandbox-%016llx",
                   (unsigned long long)number);
    rewrite.fd = openat(rewrite.target.directory, rewrite.temporary,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (rewrite.fd < 0) {
        /* Writing into the old file instead would lose it when the new contents do not arrive. */
        worker_error(worker, errno_code(errno), "new file in the directory: %m");
        target_close(&rewrite.target);
        return false;
    }
    *ret_rewrite = rewrite;
    return true;
}

bool rewrite_write(struct worker *worker, struct rewrite *rewrite, const void *data, size_t len)
{
    const uint8_t *ptr = data;
    while (len > 0) {
        ssize_t count = write(rewrite->fd, ptr, len);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            worker_errno(worker);
            return false;
        }
        ptr += count;
        len -= (size_t)count;
        rewrite->size += (uint64_t)count;
    }
    return true;
}

void rewrite_abort(struct rewrite *rewrite)
{
    if (rewrite->fd >= 0)
        close(rewrite->fd);
    rewrite->fd = -1;
    (void)unlinkat(rewrite->target.directory, rewrite->temporary, 0);
    target_close(&rewrite->target);
}

/* Owner and mode of the old file, or what was asked for, whatever the umask. */
static bool finish_temporary(struct rewrite *rewrite, int mode, struct stat *ret_status)
{
    const struct stat *old = &rewrite->target.status;
    if (mode < 0)
        mode = rewrite->target.exists ? (int)(old->st_mode & 07777) : 0644;
    if (rewrite->target.exists && (old->st_uid != geteuid() || old->st_gid != getegid()))
        (void)!fchown(rewrite->fd, old->st_uid, old->st_gid); /* only root can */
    if (fchmod(rewrite->fd, (mode_t)mode) < 0 || fstat(rewrite->fd, ret_status) < 0)
        return false;
    int fd = rewrite->fd;
    rewrite->fd = -1;
    return close(fd) == 0; /* some file systems tell only here that there is no space */
}

/* Without the call, or the flag (an old kernel or file system): a link does not replace either. */
static int rename_new(const struct rewrite *rewrite)
{
    int directory = rewrite->target.directory;
    const char *name = rewrite->target.name;
    if (syscall(SYS_renameat2, directory, rewrite->temporary, directory, name,
                RENAME_NOREPLACE_FLAG) == 0)
        return 0;
    if (errno != ENOSYS && errno != EINVAL)
        return -1;
    if (linkat(directory, rewrite->temporary, directory, name, 0) < 0)
        return -1;
    return unlinkat(directory, rewrite->temporary, 0);
}

bool rewrite_commit(struct worker *worker, struct rewrite *rewrite, int mode,
                    struct stat *ret_status)
{
    struct target *target = &rewrite->target;
    struct stat now;
    bool matches = true;
    bool done = finish_temporary(rewrite, mode, ret_status);
    if (done && message_count(&worker->request, TAG_IF_MATCH) > 0) {
        bool exists = fstatat(target->directory, target->name, &now, AT_SYMLINK_NOFOLLOW) == 0;
        matches = request_matches(worker, exists ? &now : NULL);
        done = matches;
    }
    if (done)
        done = rewrite->must_be_new ? rename_new(rewrite) == 0
                                    : renameat(target->directory, rewrite->temporary,
                                               target->directory, target->name) == 0;
    if (done) {
        target_close(target);
        return true;
    }
    if (matches && errno == EEXIST)
        worker_error(worker, "precondition_failed", "the file is there already");
    else if (matches)
        worker_errno(worker);
    rewrite_abort(rewrite);
    return false;
}

/* --- OP_WRITE
 * ------------------------------------------------------------------------------------- */

struct upload {
    struct rewrite rewrite;
    struct intake intake;
};

static bool take_data(struct worker *worker, struct upload *upload, const struct frame *frame)
{
    const uint8_t *data;
    size_t len;
    if (!intake_take(worker, &upload->intake, frame, &data, &len))
        return false;
    if (!rewrite_write(worker, &upload->rewrite, data, len))
        return false;
    if (len > 0)
        intake_stored(worker, &upload->intake, len);
    return true;
}

static bool check_size(struct worker *worker, const struct rewrite *rewrite,
                       const struct frame *end)
{
    struct frame_data data;
    uint64_t wanted = message_u64(&worker->request, TAG_SIZE, rewrite->size);
    if (frame_data_read(end, &data) && data.offset == rewrite->size && wanted == rewrite->size)
        return true;
    worker_error(worker, "size_mismatch", "%llu bytes have arrived of %llu",
                 (unsigned long long)rewrite->size, (unsigned long long)wanted);
    return false;
}

static bool receive_all(struct worker *worker, struct upload *upload)
{
    struct frame frame;
    while (worker_receive(worker, &frame)) {
        if (frame.type == FRAME_DATA && !take_data(worker, upload, &frame))
            return false;
        if (frame.type == FRAME_END)
            return check_size(worker, &upload->rewrite, &frame);
    }
    return false; /* cancelled, or the stream is gone */
}

void op_write(struct worker *worker)
{
    char path[PATH_MAX];
    struct upload upload;
    struct stat status;
    struct reply reply;
    int mode;
    intake_init(&upload.intake);
    if (!request_mode(worker, &mode) || !worker_path(worker, TAG_PATH, path) ||
        !rewrite_begin(worker, path, true, &upload.rewrite))
        return;
    bool created = !upload.rewrite.target.exists;
    if (!receive_all(worker, &upload)) {
        rewrite_abort(&upload.rewrite);
        return;
    }
    if (!rewrite_commit(worker, &upload.rewrite, mode, &status))
        return;
    reply_init(&reply);
    put_etag(&reply.fields, &status);
    field_put_u64(&reply.fields, TAG_SIZE, (uint64_t)status.st_size);
    field_put_u64(&reply.fields, TAG_MODE, status.st_mode & 07777u);
    field_put_u64(&reply.fields, TAG_CREATED, created);
    worker_reply(worker, FRAME_RESULT, &reply);
}
