#include "local/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 16
#define LOCK_TRIES 25
#define LOCK_STEP_MS 20

/* --- the whole ----------------------------------------------------------------------------------
 */

static int make_private(int parent, const char *path, struct err *err)
{
    struct stat status;

    if (mkdirat(parent, path, 0700) < 0 && errno != EEXIST)
        return err_errno(err, ERR_CONFIG, errno, "make the directory '%s'", path);
    if (fstatat(parent, path, &status, 0) < 0)
        return err_errno(err, ERR_CONFIG, errno, "use '%s'", path);
    if (!S_ISDIR(status.st_mode))
        return err_set(err, ERR_CONFIG, "'%s' is not a directory", path);
    if (status.st_uid != geteuid())
        return err_set(err, ERR_CONFIG,
                       "the directory '%s' belongs to uid %u, not to this server's", path,
                       status.st_uid);
    if ((status.st_mode & 077) != 0 && fchmodat(parent, path, 0700, 0) < 0)
        return err_errno(err, ERR_CONFIG, errno, "make '%s' private", path);
    return 0;
}

static int lock_it(int dir, const char *path, int *ret_fd, struct err *err)
{
    bool locked = false;
    cleanup_fd int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "write into '%s'", path);
    /* A process that a killed server was just starting may hold it for a moment. */
    for (int tries = 0; tries < LOCK_TRIES && !locked; tries++) {
        locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (!locked)
            (void)poll(NULL, 0, LOCK_STEP_MS);
    }
    if (!locked)
        return err_set(err, ERR_CONFIG, "another server uses the directory '%s'", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int place_open(const char *path, struct place *ret_place, struct err *err)
{
    cleanup_fd int lock = -1, root = -1;

    if (make_private(AT_FDCWD, path, err) < 0)
        return -1;
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_errno(err, ERR_CONFIG, errno, "open the directory '%s'", path);
    if (lock_it(root, path, &lock, err) < 0 || make_private(root, "boxes", err) < 0)
        return -1;
    int boxes = openat(root, "boxes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (boxes < 0)
        return err_errno(err, ERR_CONFIG, errno, "open '%s/boxes'", path);
    *ret_place = (struct place){.lock = TAKE_FD(lock), .boxes = boxes};
    return 0;
}

void place_close(struct place *place)
{
    cleanup_fd_close(&place->boxes);
    cleanup_fd_close(&place->lock);
    *place = (struct place){.lock = -1, .boxes = -1};
}

void place_list(const struct place *place, struct text_list *ret_ids)
{
    int fd = openat(place->boxes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!dir) {
        cleanup_fd_close(&fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL) { /* NOLINT: a stream of our own */
        if (entry->d_name[0] != '.')
            text_list_add(ret_ids, entry->d_name);
    }
    (void)closedir(dir);
}

/* --- one box ------------------------------------------------------------------------------------
 */

int place_open_box(const struct place *place, const char *id)
{
    return openat(place->boxes, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

void place_remove_box(const struct place *place, const char *id)
{
    static const char *const names[] = {"record", "record.new", "socket", PLACE_STATUS, PLACE_LOG};
    cleanup_fd int dir = place_open_box(place, id);

    for (size_t i = 0; dir >= 0 && i < ARRAY_LEN(names); i++)
        (void)unlinkat(dir, names[i], 0); /* it need not be there */
    if (dir >= 0)
        (void)unlinkat(place->boxes, id, AT_REMOVEDIR);
}

int place_write_error(struct err *err, int errnum, const char *what)
{
    bool full = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
    return err_errno(err, full ? ERR_STORE_FULL : ERR_BACKEND, errnum, "%s", what);
}

int place_make_box(const struct place *place, const char *id, int *ret_dir, struct err *err)
{
    place_remove_box(place, id);
    if (mkdirat(place->boxes, id, 0700) < 0)
        return place_write_error(err, errno, "make the directory of a sandbox");
    *ret_dir = place_open_box(place, id);
    if (*ret_dir < 0) {
        int code = errno;
        place_remove_box(place, id);
        return err_errno(err, ERR_BACKEND, code, "open the directory of a sandbox");
    }
    return 0;
}

/* Through our own descriptor, since an address holds no more than 107 bytes. */
static struct sockaddr_un address_of(const struct place *place, const char *id)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s/socket",
                   place->boxes, id);
    return address;
}

int place_listen(const struct place *place, const char *id, int *ret_fd, struct err *err)
{
    const struct sockaddr_un address = address_of(place, id);
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return err_errno(err, ERR_BACKEND, errno, "the socket of a sandbox");
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int place_connect(const struct place *place, const char *id, int *ret_fd, struct err *err)
{
    const struct sockaddr_un address = address_of(place, id);
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_errno(err, ERR_NOT_READY, errno, "a socket to a sandbox");
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        enum err_code code = errno == ENOENT ? ERR_SANDBOX_GONE : ERR_NOT_READY;
        return err_errno(err, code, errno, "connect to the agent");
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

void place_read(const struct place *place, const char *id, const char *name, char *ret_text,
                size_t size)
{
    cleanup_fd int dir = place_open_box(place, id);
    cleanup_fd int fd = dir >= 0 ? openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    ssize_t n = fd >= 0 ? read(fd, ret_text, size - 1) : 0;

    ret_text[n > 0 ? n : 0] = '\0';
}
