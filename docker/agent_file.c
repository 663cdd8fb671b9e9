#include "docker/agent_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define BLOCK ((size_t)512)

/* A header of POSIX ustar. */
struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], padding[12];
};
_Static_assert(sizeof(struct tar_header) == BLOCK, "a header is one block");

static void make_header(unsigned mode, size_t size, struct tar_header *ret_header)
{
    struct tar_header header = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    unsigned sum = 0;

    (void)snprintf(header.name, sizeof(header.name), "%s", AGENT_NAME);
    (void)snprintf(header.mode, sizeof(header.mode), "%07o", mode);
    (void)snprintf(header.uid, sizeof(header.uid), "%07o", 0);
    (void)snprintf(header.gid, sizeof(header.gid), "%07o", 0);
    (void)snprintf(header.size, sizeof(header.size), "%011zo", size);
    (void)snprintf(header.mtime, sizeof(header.mtime), "%011o", 0);
    memset(header.checksum, ' ', sizeof(header.checksum));
    for (size_t i = 0; i < sizeof(header); i++)
        sum += ((const unsigned char *)&header)[i];
    (void)snprintf(header.checksum, sizeof(header.checksum), "%06o", sum);
    *ret_header = header;
}

static bool append_zeroes(struct buf *tar, size_t count)
{
    static const char zeroes[3 * BLOCK];

    return buf_append(tar, zeroes, count);
}

static int append_file(int fd, size_t size, struct buf *tar)
{
    char *at = buf_reserve(tar, size);
    size_t done = 0;

    while (at && done < size) {
        ssize_t got = read(fd, at + done, size - done);
        if (got == 0)
            errno = EIO; /* it has become shorter */
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        done += (size_t)got;
    }
    if (!at)
        errno = EFBIG;
    else
        buf_grew(tar, size);
    return at ? 0 : -1;
}

int agent_tar(const char *path, bool readable, struct buf *ret_tar, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct tar_header header;
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return err_errno(err, ERR_CONFIG, errno, "the agent '%s'", path);
    size_t size = (size_t)status.st_size;
    make_header(readable ? 0755 : 0711, size, &header);
    if (!buf_append(ret_tar, &header, sizeof(header)) || append_file(fd, size, ret_tar) < 0)
        return err_errno(err, ERR_CONFIG, errno, "the agent '%s'", path);
    if (!append_zeroes(ret_tar, (BLOCK - size % BLOCK) % BLOCK + 2 * BLOCK))
        return err_set(err, ERR_CONFIG, "the agent '%s' is too large", path);
    return 0;
}
