#include "local/image_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#define WHITEOUT ".wh."
#define WHITEOUT_META ".wh..wh."
#define WHITEOUT_OPAQUE ".wh..wh..opq"

/* --- inodes ----------------------------------------------------------------------------------- */
static void set_insert(uint64_t *slots, size_t cap, uint64_t inode)
{
    size_t at = (size_t)(inode * 0x9e3779b97f4a7c15u) & (cap - 1);
    while (slots[at] != 0 && slots[at] != inode)
        at = (at + 1) & (cap - 1);
    slots[at] = inode;
}

static bool set_has(const struct inode_set *set, uint64_t inode)
{
    if (set->cap == 0)
        return false;
    size_t at = (size_t)(inode * 0x9e3779b97f4a7c15u) & (set->cap - 1);
    while (set->slots[at] != 0 && set->slots[at] != inode)
        at = (at + 1) & (set->cap - 1);
    return set->slots[at] == inode;
}

static void set_add(struct inode_set *set, uint64_t inode)
{
    if (set_has(set, inode))
        return;
    if (2 * (set->count + 1) > set->cap) {
        size_t cap = set->cap > 0 ? 2 * set->cap : 256;
        uint64_t *slots = xcalloc(cap, sizeof(*slots));
        for (size_t i = 0; i < set->cap; i++) {
            if (set->slots[i] != 0)
                set_insert(slots, cap, set->slots[i]);
        }
        free(set->slots);
        set->slots = slots;
        set->cap = cap;
    }
    set_insert(set->slots, set->cap, inode);
    set->count++;
}

void image_tree_done(struct image_tree *tree)
{
    free(tree->fresh.slots);
    tree->fresh = (struct inode_set){.slots = NULL};
}

/* --- paths ------------------------------------------------------------------------------------ */
/* What the archive is to blame for is ERR_INVALID_IMAGE, what this machine is, the other. */
static int failed(struct err *err, int errnum, const char *path)
{
    switch (errnum) {
    case ELOOP:
    case ENOTDIR:
        return err_set(err, ERR_INVALID_IMAGE,
                       "entry '%s' lies below what is not a folder (links are not followed)", path);
    case E2BIG:
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' is one more than an image may have",
                       path);
    case ENAMETOOLONG:
    case EMLINK:
    case EINVAL:
        return err_errno(err, ERR_INVALID_IMAGE, errnum, "entry '%s'", path);
    default:
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errnum, "unpack entry '%s'", path);
    }
}

int image_path_clean(const char *path, char ret_path[CAP_PATH], struct err *err)
{
    size_t len = 0, depth = 0;
    if (path[0] == '/')
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' has an absolute path", path);
    for (const char *part = path; *part != '\0';) {
        size_t size = strcspn(part, "/");
        if (size == 2 && memcmp(part, "..", 2) == 0)
            return err_set(err, ERR_INVALID_IMAGE, "entry '%s' has '..' in its path", path);
        if (size > NAME_MAX || len + size + 2 > CAP_PATH || depth == CAP_IMAGE_DEPTH)
            return err_set(err, ERR_INVALID_IMAGE, "entry '%.200s…' is too long or too deep", path);
        if (size > 0 && !(size == 1 && part[0] == '.')) {
            if (len > 0)
                ret_path[len++] = '/';
            memcpy(ret_path + len, part, size);
            len += size;
            depth++;
        }
        part += size + (part[size] == '/');
    }
    ret_path[len] = '\0';
    return 0;
}

/* The folder that an entry is in, and its name there. */
struct place {
    int folder;
    const char *name;
};

static void place_done(struct place *place)
{
    if (place->folder >= 0)
        close(place->folder);
}
#define cleanup_place cleanup(place_done)

static void note_fresh(struct image_tree *tree, int folder, const char *name)
{
    struct stat st;
    if (tree->is_layer && fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0)
        set_add(&tree->fresh, st.st_ino);
}

static int take_entry(struct image_tree *tree)
{
    if (*tree->entries_left == 0) {
        errno = E2BIG;
        return -1;
    }
    --*tree->entries_left;
    return 0;
}

static int make_folder(struct image_tree *tree, int folder, const char *name)
{
    if (take_entry(tree) < 0 || mkdirat(folder, name, 0755) < 0)
        return -1;
    return fchmodat(folder, name, 0755, 0); /* whatever the umask is */
}

/* Opens the folder NAME in FOLDER; with MAKE it is made if it is missing. -1 with errno. */
static int step(struct image_tree *tree, int folder, const char *name, bool make)
{
    const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int next = openat(folder, name, how);
    if (next >= 0 || errno != ENOENT || !make || make_folder(tree, folder, name) < 0)
        return next;
    return openat(folder, name, how);
}

/* 0, or -1 with errno. */
static int walk(struct image_tree *tree, const char *path, bool make, struct place *ret_place)
{
    char part[NAME_MAX + 1];
    int folder = fcntl(tree->root, F_DUPFD_CLOEXEC, 0);
    for (const char *slash; folder >= 0 && (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        int next = step(tree, folder, part, make);
        int errnum = errno;
        close(folder);
        errno = errnum;
        folder = next;
        if (make && folder >= 0)
            note_fresh(tree, folder, "");
    }
    if (folder < 0)
        return -1;
    *ret_place = (struct place){folder, path};
    return 0;
}

/* --- removing --------------------------------------------------------------------------------- */
static int remove_entry(int folder, const char *name, const struct inode_set *spare);

/* Empties the folder FD (taken) but for what is in SPARE. */
static int remove_content(int fd, const struct inode_set *spare)
{
    int failure = 0;
    struct dirent *entry;
    DIR *list = fdopendir(fd);
    if (list == NULL) {
        failure = errno;
        close(fd);
        errno = failure;
        return -1;
    }
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): a stream of our own */
    while (failure == 0 && (errno = 0, entry = readdir(list)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            remove_entry(dirfd(list), entry->d_name, spare) < 0)
            failure = errno;
    }
    if (failure == 0)
        failure = errno;
    closedir(list);
    errno = failure;
    return failure != 0 ? -1 : 0;
}

/* The depth is bounded by CAP_IMAGE_DEPTH, since image_path_clean() let the paths through. */
static int remove_entry(int folder, const char *name, const struct inode_set *spare)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -1;
    bool spared = spare != NULL && set_has(spare, st.st_ino);
    if (!S_ISDIR(st.st_mode))
        return spared ? 0 : unlinkat(folder, name, 0);
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || remove_content(fd, spare) < 0)
        return -1;
    return spared ? 0 : unlinkat(folder, name, AT_REMOVEDIR);
}

int image_tree_remove(int folder, const char *name)
{
    return remove_entry(folder, name, NULL);
}

/* --- making ----------------------------------------------------------------------------------- */
int image_tree_folder(struct image_tree *tree, const char *path, struct err *err)
{
    cleanup_place struct place place = {.folder = -1};
    struct stat st;
    if (walk(tree, path, true, &place) < 0)
        return failed(err, errno, path);
    bool exists = fstatat(place.folder, place.name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && !S_ISDIR(st.st_mode)) {
        if (unlinkat(place.folder, place.name, 0) < 0)
            return failed(err, errno, path);
        exists = false;
    }
    if (!exists && make_folder(tree, place.folder, place.name) < 0)
        return failed(err, errno, path);
    note_fresh(tree, place.folder, place.name);
    return 0;
}

/* Walks to where PATH is to be made and removes what is there. */
static int clear(struct image_tree *tree, const char *path, struct place *ret_place,
                 struct err *err)
{
    if (walk(tree, path, true, ret_place) < 0 || take_entry(tree) < 0 ||
        image_tree_remove(ret_place->folder, ret_place->name) < 0)
        return failed(err, errno, path);
    return 0;
}

int image_tree_file(struct image_tree *tree, const char *path, bool executable, int *ret_fd,
                    struct err *err)
{
    cleanup_place struct place place = {.folder = -1};
    if (clear(tree, path, &place, err) < 0)
        return -1;
    cleanup_fd int fd = openat(place.folder, place.name,
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, executable ? 0755 : 0644) < 0)
        return failed(err, errno, path);
    note_fresh(tree, fd, "");
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int image_tree_symlink(struct image_tree *tree, const char *path, const char *target,
                       struct err *err)
{
    cleanup_place struct place place = {.folder = -1};
    if (target[0] == '\0' || strlen(target) >= CAP_PATH)
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' is a link to nothing or too far", path);
    if (clear(tree, path, &place, err) < 0)
        return -1;
    if (symlinkat(target, place.folder, place.name) < 0)
        return failed(err, errno, path);
    note_fresh(tree, place.folder, place.name);
    return 0;
}

int image_tree_hardlink(struct image_tree *tree, const char *path, const char *target,
                        struct err *err)
{
    cleanup_place struct place from = {.folder = -1}, to = {.folder = -1};
    struct stat st;
    if (strcmp(path, target) == 0)
        return 0;
    if (walk(tree, target, false, &from) < 0 ||
        fstatat(from.folder, from.name, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID_IMAGE,
                       "entry '%s' is a hard link to '%s', not a file of it", path, target);
    if (clear(tree, path, &to, err) < 0)
        return -1;
    if (linkat(from.folder, from.name, to.folder, to.name, 0) < 0)
        return failed(err, errno, path);
    note_fresh(tree, to.folder, to.name);
    return 0;
}

/* --- whiteouts -------------------------------------------------------------------------------- */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool image_tree_is_whiteout(const char *path)
{
    return str_starts(last_name(path), WHITEOUT);
}

int image_tree_whiteout(struct image_tree *tree, const char *path, struct err *err)
{
    cleanup_place struct place place = {.folder = -1};
    if (walk(tree, path, false, &place) < 0)
        return errno == ENOENT ? 0 : failed(err, errno, path);
    if (strcmp(place.name, WHITEOUT_OPAQUE) == 0) {
        int fd = place.folder;
        place.folder = -1;
        return remove_content(fd, &tree->fresh) < 0 ? failed(err, errno, path) : 0;
    }
    if (str_starts(place.name, WHITEOUT_META))
        return 0; /* aufs's own */
    const char *hidden = place.name + strlen(WHITEOUT);
    if (hidden[0] == '\0' || strcmp(hidden, ".") == 0 || strcmp(hidden, "..") == 0)
        return err_set(err, ERR_INVALID_IMAGE, "entry '%s' hides no name", path);
    return remove_entry(place.folder, hidden, &tree->fresh) < 0 ? failed(err, errno, path) : 0;
}
