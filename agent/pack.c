#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "agent/entries.h"
#include "agent/file_write.h"
#include "agent/inodes.h"
#include "agent/walk.h"

#define SPARSE_MIN (1 << 20) /* smaller files are sent with their holes */

struct pack {
    struct worker *worker;
    dev_t device; /* of the root */
    struct inodes inodes;
    uint8_t room[4 + ENTRY_HEAD_MAX];
    uint8_t extents[ENTRY_EXTENTS][ENTRY_EXTENT_LEN];
    size_t extent_count;
};

static struct field_writer head(struct pack *pack)
{
    return (struct field_writer){.ptr = pack->room + 4, .cap = ENTRY_HEAD_MAX};
}

static bool send_head(struct pack *pack, const struct field_writer *fields)
{
    wire_put_u32(pack->room, (uint32_t)fields->len);
    return worker_write(pack->worker, pack->room, 4 + fields->len);
}

static bool send_chunk(struct pack *pack, const void *data, size_t len, uint64_t offset)
{
    uint8_t header[ENTRY_CHUNK_HEADER];
    entry_chunk_write(header, (uint32_t)len, offset);
    return worker_write(pack->worker, header, sizeof(header)) &&
           worker_write(pack->worker, data, len);
}

/* What is not sent, and why. */
static bool send_note(struct pack *pack, const struct walk_entry *entry, const char *code)
{
    struct field_writer fields = head(pack);
    field_put_text(&fields, TAG_TYPE, "n");
    field_put(&fields, TAG_PATH, entry->path, entry->path_len);
    field_put_text(&fields, TAG_ERROR, code);
    return send_head(pack, &fields);
}

static struct field_writer begin(struct pack *pack, const struct walk_entry *entry,
                                 const char *type)
{
    struct field_writer fields = head(pack);
    const struct stat *status = entry->status;
    field_put_text(&fields, TAG_TYPE, type);
    field_put(&fields, TAG_PATH, entry->path, entry->path_len);
    field_put_u64(&fields, TAG_MODE, status->st_mode & 07777u);
    field_put_u64(&fields, TAG_MTIME_S, (uint64_t)(int64_t)status->st_mtim.tv_sec);
    field_put_u64(&fields, TAG_MTIME_NS, (uint64_t)status->st_mtim.tv_nsec);
    return fields;
}

/* --- the content of files
 * -------------------------------------------------------------------------- */

static void add_extent(struct pack *pack, uint64_t from, uint64_t to)
{
    uint8_t *extent = pack->extents[pack->extent_count++];
    wire_put_u64(extent, from);
    wire_put_u64(extent + 8, to - from);
}

/* Where the file is no hole. In one piece where that is not known, or where there are too many. */
static void find_extents(struct pack *pack, int fd, const struct stat *status)
{
    off_t size = status->st_size, at = 0;
    pack->extent_count = 0;
    bool sparse = size >= SPARSE_MIN && status->st_blocks < size / 512;
    while (sparse && at < size && pack->extent_count < ENTRY_EXTENTS - 1) {
        off_t from = lseek(fd, at, SEEK_DATA);
        if (from < 0 && errno == ENXIO)
            return; /* a hole up to the end */
        off_t to = from >= at ? lseek(fd, from, SEEK_HOLE) : -1;
        if (to <= from)
            break;
        to = to < size ? to : size;
        if (from < size)
            add_extent(pack, (uint64_t)from, (uint64_t)to);
        at = to;
    }
    if (at < size)
        add_extent(pack, (uint64_t)at, (uint64_t)size);
}

/* False: cancelled. What cannot be read ends RET_END. */
static bool send_extent(struct pack *pack, int fd, uint64_t from, uint64_t length,
                        enum entry_end *ret_end)
{
    static uint8_t bytes[ENTRY_CHUNK_MAX];
    while (length > 0 && *ret_end == ENTRY_WHOLE) {
        size_t want = length < sizeof(bytes) ? (size_t)length : sizeof(bytes);
        ssize_t count = pread(fd, bytes, want, (off_t)from);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            *ret_end = count == 0 ? ENTRY_CHANGED : ENTRY_UNREADABLE;
            break;
        }
        if (!send_chunk(pack, bytes, (size_t)count, from))
            return false;
        from += (uint64_t)count;
        length -= (uint64_t)count;
    }
    return true;
}

static bool send_content(struct pack *pack, int fd, off_t size)
{
    enum entry_end end = ENTRY_WHOLE;
    struct stat now;
    for (size_t i = 0; i < pack->extent_count; i++) {
        const uint8_t *extent = pack->extents[i];
        if (!send_extent(pack, fd, wire_u64(extent), wire_u64(extent + 8), &end))
            return false;
    }
    if (end == ENTRY_WHOLE && fstat(fd, &now) == 0 && now.st_size != size)
        end = ENTRY_CHANGED;
    return send_chunk(pack, "", 0, end);
}

static bool send_open_file(struct pack *pack, const struct walk_entry *entry, int fd)
{
    struct field_writer fields = begin(pack, entry, "f");
    off_t size = entry->status->st_size;
    field_put_u64(&fields, TAG_SIZE, (uint64_t)size);
    find_extents(pack, fd, entry->status);
    bool whole = pack->extent_count == 1 && wire_u64(pack->extents[0] + 8) == (uint64_t)size;
    for (size_t i = 0; i < pack->extent_count && !whole; i++)
        field_put(&fields, TAG_EXTENT, pack->extents[i], ENTRY_EXTENT_LEN);
    if (pack->extent_count == 0 && size > 0) { /* one hole */
        static const uint8_t none[ENTRY_EXTENT_LEN];
        field_put(&fields, TAG_EXTENT, none, sizeof(none));
    }
    return send_head(pack, &fields) && send_content(pack, fd, size);
}

static bool send_file(struct pack *pack, const struct walk_entry *entry)
{
    struct stat status;
    struct walk_entry opened = *entry;
    opened.status = &status;
    int fd = openat(entry->directory, entry->name,
                    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || send_note(pack, entry, errno_code(errno));
    bool good = fstat(fd, &status) < 0 || !S_ISREG(status.st_mode)
                    ? send_note(pack, entry, "not_regular")
                    : send_open_file(pack, &opened, fd);
    close(fd);
    return good;
}

/* --- entries
 * --------------------------------------------------------------------------------------- */

static bool send_link(struct pack *pack, const struct walk_entry *entry)
{
    static char target[PATH_MAX];
    struct field_writer fields = begin(pack, entry, "l");
    ssize_t len = readlinkat(entry->directory, entry->name, target, sizeof(target));
    if (len < 0)
        return errno == ENOENT || send_note(pack, entry, errno_code(errno));
    field_put(&fields, TAG_LINK, target, (size_t)len);
    return send_head(pack, &fields);
}

static bool send_regular(struct pack *pack, const struct walk_entry *entry)
{
    const struct stat *status = entry->status;
    const char *first = status->st_nlink < 2 ? NULL
                                             : inodes_first(&pack->inodes, status->st_dev,
                                                            status->st_ino, entry->path);
    if (first == NULL)
        return send_file(pack, entry);
    if (faccessat(entry->directory, entry->name, R_OK, AT_EACCESS) < 0) /* nor was the first sent */
        return send_note(pack, entry, errno_code(errno));
    struct field_writer fields = begin(pack, entry, "h");
    field_put_text(&fields, TAG_LINK, first);
    return send_head(pack, &fields);
}

/* What the kernel makes up has no end and no sense elsewhere. */
static bool is_made_up(int directory, const char *name)
{
    static const unsigned long types[] = {0x9fa0,     0x62656572, 0x27e0eb,   0x63677270,
                                          0x1cd1,     0x64626720, 0x74726163, 0x73636673,
                                          0xcafe4a11, 0x19800202};
    struct statfs status;
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool known = fd >= 0 && fstatfs(fd, &status) == 0;
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; known && i < sizeof(types) / sizeof(types[0]); i++) {
        if ((unsigned long)status.f_type == types[i])
            return true;
    }
    return false;
}

static enum walk_turn visit(void *arg, const struct walk_entry *entry)
{
    struct pack *pack = arg;
    const struct stat *status = entry->status;
    bool good;
    if (S_ISDIR(status->st_mode)) {
        if (status->st_dev != pack->device && is_made_up(entry->directory, entry->name))
            return send_note(pack, entry, "not_regular") ? WALK_OVER : WALK_STOP;
        struct field_writer fields = begin(pack, entry, "d");
        good = send_head(pack, &fields);
    } else if (S_ISLNK(status->st_mode)) {
        good = send_link(pack, entry);
    } else if (S_ISREG(status->st_mode)) {
        good = send_regular(pack, entry);
    } else {
        good = send_note(pack, entry, "not_regular");
    }
    return good ? WALK_ON : WALK_STOP;
}

static bool failed(void *arg, const struct walk_entry *entry, int errnum)
{
    return send_note(arg, entry, errno_code(errnum));
}

/* --- OP_PACK
 * --------------------------------------------------------------------------------------- */

static bool pack_file(struct pack *pack, const char *path, const struct stat *status)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const struct walk_entry entry = {.path = name,
                                     .path_len = strlen(name),
                                     .directory = AT_FDCWD,
                                     .name = path,
                                     .status = status};
    struct stat now;
    int fd = open_regular(pack->worker, path, &now);
    if (fd < 0)
        return false;
    struct walk_entry opened = entry;
    opened.status = &now;
    bool good = send_open_file(pack, &opened, fd);
    close(fd);
    return good;
}

static void start(struct worker *worker, const struct stat *status)
{
    struct reply reply;
    reply_init(&reply);
    put_entry(&reply.fields, status);
    worker_reply(worker, FRAME_STARTED, &reply);
}

void op_pack(struct worker *worker)
{
    static struct pack pack;
    const struct walk_plan plan = {.arg = &pack, .visit = visit, .failed = failed};
    char path[PATH_MAX];
    struct stat status;
    struct reply reply;
    if (!worker_path(worker, TAG_PATH, path))
        return;
    bool directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    int fd = directory ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                       : open_regular(worker, path, &status);
    if (fd < 0) {
        worker_errno(worker);
        return;
    }
    close(fd);
    pack.worker = worker;
    pack.device = status.st_dev;
    start(worker, &status);
    errno = 0;
    bool good = directory ? walk(path, &plan) : pack_file(&pack, path, &status);
    int errnum = errno;
    inodes_done(&pack.inodes);
    errno = errnum;
    reply_init(&reply);
    if (good && worker_end(worker))
        worker_reply(worker, FRAME_RESULT, &reply);
    else if (!worker->cancelled)
        worker_error(worker, errno == E2BIG ? "too_large" : errno_code(errno), "%m");
}
