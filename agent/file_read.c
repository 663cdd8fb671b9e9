#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent/file_write.h"

/* The type is looked at before the open, so that nothing happens
 * to a device, and after it, because the name may have changed its meaning. */
int open_regular(struct worker *worker, const char *path, struct stat *ret_status)
{
    if (stat(path, ret_status) < 0) {
        worker_errno(worker);
        return -1;
    }
    int fd = -1;
    if (S_ISREG(ret_status->st_mode)) {
        fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, ret_status) < 0) {
            worker_errno(worker);
            if (fd >= 0)
                close(fd);
            return -1;
        }
    }
    if (S_ISREG(ret_status->st_mode))
        return fd;
    if (S_ISDIR(ret_status->st_mode))
        worker_error(worker, "is_directory", "it is a directory");
    else
        worker_error(worker, "not_regular", "it is not a regular file");
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Files of /proc say that they are empty, and are not: they are read to their end. What grows
 * meanwhile is read up to the size that was told. */
static bool send_range(struct worker *worker, int fd, uint64_t offset, uint64_t length)
{
    while (length > 0) {
        size_t want = length < FRAME_DATA_MAX ? (size_t)length : FRAME_DATA_MAX;
        ssize_t count = pread(fd, worker_room(worker), want, (off_t)offset);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            worker_errno(worker);
            return false;
        }
        if (count == 0)
            break;
        if (!worker_send(worker, (size_t)count))
            return false;
        offset += (uint64_t)count;
        length -= (uint64_t)count;
    }
    return worker_end(worker);
}

void op_read(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    struct reply reply;
    uint64_t offset = message_u64(&worker->request, TAG_OFFSET, 0);
    uint64_t length = message_u64(&worker->request, TAG_LENGTH, UINT64_MAX);
    if (!worker_path(worker, TAG_PATH, path))
        return;
    if (offset > INT64_MAX) {
        worker_error(worker, "invalid_field", "OFFSET is out of range");
        return;
    }
    int fd = open_regular(worker, path, &status);
    if (fd < 0)
        return;
    uint64_t size = (uint64_t)status.st_size;
    if (size > 0) {
        uint64_t left = offset < size ? size - offset : 0;
        length = length < left ? length : left;
    }
    reply_init(&reply);
    put_entry(&reply.fields, &status);
    put_etag(&reply.fields, &status);
    worker_reply(worker, FRAME_STARTED, &reply);
    reply_init(&reply);
    if (send_range(worker, fd, offset, length))
        worker_reply(worker, FRAME_RESULT, &reply);
    close(fd);
}

void op_stat(struct worker *worker)
{
    char path[PATH_MAX];
    struct stat status;
    struct reply reply;
    if (!worker_path(worker, TAG_PATH, path))
        return;
    if (stat(path, &status) < 0) {
        worker_errno(worker);
        return;
    }
    reply_init(&reply);
    put_entry(&reply.fields, &status);
    put_etag(&reply.fields, &status);
    worker_reply(worker, FRAME_RESULT, &reply);
}
