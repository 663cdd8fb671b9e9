#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/entries.h"
#include "agent/intake.h"
#include "agent/path.h"

#define DIRECTORIES_MAX ((size_t)16 << 20) /* bytes of what is kept of them until the end */
#define MODE_MAX 0777u                     /* set-id and sticky bits are not taken over */
#define TEMPORARY_LEN 40

/* Modes and times of directories are set when nothing is made in them any more. */
struct made_directory {
    struct made_directory *before;
    struct timespec mtime;
    mode_t mode;
    char path[];
};

/* One entry: where it belongs, and what it is to be. */
struct place {
    int directory; /* borrowed */
    char name[NAME_MAX + 1];
    char temporary[TEMPORARY_LEN];
    mode_t mode;
    struct timespec mtime;
    uint64_t size;
};

struct unpack {
    struct worker *worker;
    int root;
    int directory; /* the one that was used last, and its path */
    char directory_path[PATH_MAX];
    struct made_directory *directories;
    size_t directories_len;
    uint64_t files, links, made, bytes;
    struct place place; /* of the file whose content comes: `fd` */
    int fd;
    struct entry_parser parser;
};

/* --- directories
 * ----------------------------------------------------------------------------------- */

static int open_directory(int from, const char *name)
{
    int fd = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) /* it may be passed without being read */
        fd = openat(from, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd;
}

/* One name further down; no link is followed. gVisor does follow one with O_DIRECTORY, whatever
 * O_NOFOLLOW says: so what was opened must be what the name is. */
static int go_down(int from, const char *name, bool make)
{
    struct stat named, opened;
    if (fstatat(from, name, &named, AT_SYMLINK_NOFOLLOW) < 0 &&
        (errno != ENOENT || !make || (mkdirat(from, name, 0755) < 0 && errno != EEXIST) ||
         fstatat(from, name, &named, AT_SYMLINK_NOFOLLOW) < 0))
        return -1;
    int fd = -1;
    errno = ENOTDIR;
    if (S_ISDIR(named.st_mode))
        fd = open_directory(from, name);
    if (fd >= 0 && (fstat(fd, &opened) < 0 || opened.st_dev != named.st_dev ||
                    opened.st_ino != named.st_ino)) {
        close(fd);
        errno = ENOTDIR;
        fd = -1;
    }
    if (fd < 0 && errno == ELOOP)
        errno = ENOTDIR;
    return fd;
}

/* The directory PATH below the root, a plain path of LEN bytes; the one of the last entry is kept.
 * -1 with errno. */
static int enter(struct unpack *unpack, const char *path, size_t len, bool make)
{
    char name[NAME_MAX + 1];
    if (len == 0)
        return unpack->root;
    if (unpack->directory >= 0 && strlen(unpack->directory_path) == len &&
        memcmp(unpack->directory_path, path, len) == 0)
        return unpack->directory;
    int fd = unpack->root;
    for (size_t from = 0, to; from < len && fd >= 0; from = to + 1) {
        for (to = from; to < len && path[to] != '/'; to++)
            continue;
        memcpy(name, path + from, to - from);
        name[to - from] = '\0';
        int above = fd;
        fd = go_down(above, name, make);
        int errnum = errno;
        if (above != unpack->root)
            close(above);
        errno = errnum;
    }
    if (fd < 0)
        return -1;
    if (unpack->directory >= 0)
        close(unpack->directory);
    unpack->directory = fd;
    memcpy(unpack->directory_path, path, len);
    unpack->directory_path[len] = '\0';
    return fd;
}

static int enter_parent(struct unpack *unpack, const char *path, bool make, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    *ret_name = slash != NULL ? slash + 1 : path;
    return enter(unpack, path, slash != NULL ? (size_t)(slash - path) : 0, make);
}

static bool remember_directory(struct unpack *unpack, const char *path, const struct place *place)
{
    size_t size = strlen(path) + 1;
    struct made_directory *directory = NULL;
    if (unpack->directories_len + sizeof(*directory) + size <= DIRECTORIES_MAX)
        directory = malloc(sizeof(*directory) + size);
    if (directory == NULL) {
        worker_error(unpack->worker, "too_large", "too many directories in one archive");
        return false;
    }
    *directory = (struct made_directory){
        .before = unpack->directories, .mtime = place->mtime, .mode = place->mode};
    memcpy(directory->path, path, size);
    unpack->directories = directory;
    unpack->directories_len += sizeof(*directory) + size;
    return true;
}

/* The last one first, which is the deepest of its branch. */
static void finish_directories(struct unpack *unpack)
{
    while (unpack->directories != NULL) {
        struct made_directory *directory = unpack->directories;
        const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, directory->mtime};
        const char *name;
        int parent = enter_parent(unpack, directory->path, false, &name);
        int fd =
            parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            (void)futimens(fd, times); /* a time that the file system cannot hold is none */
            (void)fchmod(fd, directory->mode);
            close(fd);
        }
        unpack->directories = directory->before;
        free(directory);
    }
}

/* --- entries
 * --------------------------------------------------------------------------------------- */

static bool fail(struct unpack *unpack)
{
    if (errno == ENOTDIR)
        worker_error(unpack->worker, "invalid_archive",
                     "a part of the path is no directory (links are not followed)");
    else
        worker_errno(unpack->worker);
    return false;
}

static bool make_directory(struct unpack *unpack, const char *path, const struct place *place)
{
    struct stat status;
    if (mkdirat(place->directory, place->name, 0700) < 0) {
        if (errno != EEXIST)
            return fail(unpack);
        if (fstatat(place->directory, place->name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            return fail(unpack);
        if (!S_ISDIR(status.st_mode)) {
            worker_error(unpack->worker, "not_directory", "it is there and is no directory");
            return false;
        }
    }
    unpack->made++;
    return remember_directory(unpack, path, place);
}

/* Gives the temporary entry its name. Two names of one file are left by rename() as they are. */
static bool put_in_place(struct unpack *unpack, const struct place *place)
{
    bool done = renameat(place->directory, place->temporary, place->directory, place->name) == 0;
    int errnum = errno;
    (void)unlinkat(place->directory, place->temporary, 0);
    errno = errnum;
    return done || fail(unpack);
}

static bool make_symlink(struct unpack *unpack, const struct place *place, const char *target)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, place->mtime};
    if (symlinkat(target, place->directory, place->temporary) < 0)
        return fail(unpack);
    (void)utimensat(place->directory, place->temporary, times, AT_SYMLINK_NOFOLLOW);
    unpack->links++;
    return put_in_place(unpack, place);
}

static bool make_hard_link(struct unpack *unpack, const struct place *place, const char *given)
{
    char target[PATH_MAX];
    const char *why = entry_path(given, strlen(given), target);
    const char *name;
    if (why == NULL && target[0] == '\0')
        why = "it links to the root";
    if (why != NULL) {
        worker_error(unpack->worker, "invalid_archive", "the target of the hard link: %s", why);
        return false;
    }
    /* The place's directory may be the kept one, which enter_parent() closes. */
    int directory = fcntl(place->directory, F_DUPFD_CLOEXEC, 0);
    struct place own = *place;
    own.directory = directory;
    int parent = directory < 0 ? -1 : enter_parent(unpack, target, false, &name);
    bool done = parent >= 0 && linkat(parent, name, directory, place->temporary, 0) == 0;
    if (!done && errno == ENOENT)
        worker_error(unpack->worker, "invalid_archive", "the target of the hard link is not there");
    done = done ? put_in_place(unpack, &own) : fail(unpack);
    if (directory >= 0)
        close(directory);
    unpack->links += done;
    return done;
}

static bool begin_file(struct unpack *unpack, const struct place *place)
{
    struct stat status;
    if (fstatat(place->directory, place->name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(status.st_mode)) {
        worker_error(unpack->worker, "is_directory", "it is there and is a directory");
        return false;
    }
    unpack->fd = openat(place->directory, place->temporary,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (unpack->fd < 0)
        return fail(unpack);
    unpack->place = *place;
    unpack->place.directory = fcntl(place->directory, F_DUPFD_CLOEXEC, 0);
    if (unpack->place.directory >= 0)
        return true;
    (void)unlinkat(place->directory, place->temporary, 0);
    close(unpack->fd);
    unpack->fd = -1;
    return fail(unpack);
}

static void drop_file(struct unpack *unpack)
{
    if (unpack->fd < 0)
        return;
    (void)unlinkat(unpack->place.directory, unpack->place.temporary, 0);
    close(unpack->place.directory);
    close(unpack->fd);
    unpack->fd = -1;
}

static bool write_file(struct unpack *unpack, const struct entry_item *item)
{
    const uint8_t *data = item->data;
    size_t len = item->len;
    uint64_t at = item->offset;
    if (at > unpack->place.size || len > unpack->place.size - at) {
        worker_error(unpack->worker, "invalid_request", "it has more than its size");
        return false;
    }
    while (len > 0) {
        ssize_t count = pwrite(unpack->fd, data, len, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return fail(unpack);
        data += count;
        len -= (size_t)count;
        at += (uint64_t)count;
        unpack->bytes += (uint64_t)count;
    }
    return true;
}

static bool end_file(struct unpack *unpack, uint64_t end)
{
    struct place *place = &unpack->place;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, place->mtime};
    if (end != ENTRY_WHOLE) {
        drop_file(unpack);
        return true;
    }
    if (ftruncate(unpack->fd, (off_t)place->size) < 0 || fchmod(unpack->fd, place->mode) < 0)
        return fail(unpack);
    (void)futimens(unpack->fd, times);
    int fd = unpack->fd;
    unpack->fd = -1;
    bool closed = close(fd) == 0; /* some file systems tell only here that there is no space */
    bool done = closed ? put_in_place(unpack, place) : fail(unpack);
    if (!closed)
        (void)unlinkat(place->directory, place->temporary, 0);
    close(place->directory);
    unpack->files += done;
    return done;
}

/* --- the stream
 * ------------------------------------------------------------------------------------ */

static bool read_place(struct unpack *unpack, const struct message *message, const char *path,
                       struct place *place)
{
    const char *name;
    uint64_t number = 0, size = message_u64(message, TAG_SIZE, 0);
    place->directory = enter_parent(unpack, path, true, &name);
    if (place->directory < 0)
        return fail(unpack);
    (void)!getrandom(&number, sizeof(number), 0);
    memcpy(place->name, name, strlen(name) + 1);
    (void)snprintf(place->temporary, sizeof(place->temporary), ".podsandbox-%016llx",
                   (unsigned long long)number);
    place->mode = (mode_t)(message_u64(message, TAG_MODE, 0644) & MODE_MAX);
    place->mtime.tv_sec = (time_t)(int64_t)message_u64(message, TAG_MTIME_S, 0);
    place->mtime.tv_nsec = (long)(message_u64(message, TAG_MTIME_NS, 0) % 1000000000u);
    place->size = size;
    if (size <= INT64_MAX)
        return true;
    worker_error(unpack->worker, "invalid_field", "SIZE is out of range");
    return false;
}

static bool begin_entry(struct unpack *unpack, const struct field_reader *fields)
{
    const struct message message = {.data = (uint8_t *)(uintptr_t)fields->ptr, .len = fields->left};
    char path[PATH_MAX], link[PATH_MAX], type[4];
    struct field field = {0};
    struct place place = {.directory = -1};
    if (!message_find(&message, TAG_PATH, &field) ||
        message_text(&message, TAG_TYPE, type, sizeof(type)) <= 0 ||
        message_text(&message, TAG_LINK, link, sizeof(link)) < 0) {
        worker_error(unpack->worker, "invalid_request", "an entry has no PATH or TYPE");
        return false;
    }
    const char *why = entry_path((const char *)field.data, field.len, path);
    if (why == NULL)
        worker_about(unpack->worker, path);
    if (why == NULL && path[0] == '\0')
        why = "it is the root";
    if (why != NULL) {
        worker_error(unpack->worker, "invalid_archive", "%s", why);
        return false;
    }
    if (!read_place(unpack, &message, path, &place))
        return false;
    if (strcmp(type, "d") == 0)
        return make_directory(unpack, path, &place);
    if (strcmp(type, "l") == 0)
        return make_symlink(unpack, &place, link);
    if (strcmp(type, "h") == 0)
        return make_hard_link(unpack, &place, link);
    if (strcmp(type, "f") == 0)
        return begin_file(unpack, &place);
    worker_error(unpack->worker, "not_supported", "entries of type '%s' cannot be made", type);
    return false;
}

static bool take(struct unpack *unpack, const uint8_t *data, size_t len)
{
    struct entry_item item;
    bool good = true;
    while (good) {
        switch (entry_parse(&unpack->parser, &data, &len, &item)) {
        case ENTRY_MORE:
            return true;
        case ENTRY_BEGIN:
            good = begin_entry(unpack, &item.fields);
            break;
        case ENTRY_DATA:
            good = write_file(unpack, &item);
            break;
        case ENTRY_END:
            good = end_file(unpack, item.end);
            break;
        case ENTRY_BROKEN:
            worker_error(unpack->worker, "invalid_request", "the entries make no sense");
            good = false;
        }
    }
    return false;
}

/* True at the END of the stream. */
static bool receive_all(struct unpack *unpack)
{
    struct worker *worker = unpack->worker;
    struct intake intake;
    struct frame frame;
    const uint8_t *data;
    size_t len;
    intake_init(&intake);
    while (worker_receive(worker, &frame)) {
        if (frame.type == FRAME_DATA) {
            if (!intake_take(worker, &intake, &frame, &data, &len) || !take(unpack, data, len))
                return false;
            if (len > 0)
                intake_stored(worker, &intake, len);
        }
        if (frame.type == FRAME_END && entry_parser_between(&unpack->parser))
            return true;
        if (frame.type == FRAME_END) {
            worker_error(worker, "size_mismatch", "the entries are not whole");
            return false;
        }
    }
    return false; /* cancelled, or the stream is gone */
}

static void put_counts(const struct unpack *unpack, struct field_writer *fields)
{
    field_put_u64(fields, TAG_FILES, unpack->files);
    field_put_u64(fields, TAG_DIRECTORIES, unpack->made);
    field_put_u64(fields, TAG_LINKS, unpack->links);
    field_put_u64(fields, TAG_SIZE, unpack->bytes);
}

static int open_root(const char *path)
{
    if (path_make_directories(AT_FDCWD, path) < 0)
        return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void op_unpack(struct worker *worker)
{
    static struct unpack unpack = {.fd = -1, .directory = -1};
    char path[PATH_MAX];
    struct reply reply;
    if (!worker_path(worker, TAG_PATH, path))
        return;
    unpack.worker = worker;
    unpack.root = open_root(path);
    if (unpack.root < 0) {
        worker_errno(worker);
        return;
    }
    entry_parser_init(&unpack.parser);
    bool good = receive_all(&unpack);
    drop_file(&unpack);
    finish_directories(&unpack);
    if (good) {
        reply_init(&reply);
        put_counts(&unpack, &reply.fields);
        worker_reply(worker, FRAME_RESULT, &reply);
    } else if (worker->failed) {
        put_counts(&unpack, &worker->failure.fields);
    }
    if (unpack.directory >= 0)
        close(unpack.directory);
    close(unpack.root);
}
