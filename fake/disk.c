#include "fake/disk.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/caps.h"

#define NODE_COST 128 /* a name takes about this much, whatever is in it */

/* --- bytes ------------------------------------------------------------------------------------
 */

int space_take(struct disk_space *space, size_t len, struct err *err)
{
    size_t used = space->used;

    do {
        if (len > space->max || used > space->max - len)
            return err_set(err, ERR_NO_SPACE,
                           "the files of all sandboxes take at most %zu MiB with the fake driver",
                           space->max / MIB);
    } while (!atomic_compare_exchange_weak(&space->used, &used, used + len));
    return 0;
}

void space_free(struct disk_space *space, size_t len)
{
    space->used -= len;
}

struct content *content_new(const void *bytes, size_t len)
{
    struct content *content = xmalloc(sizeof(*content) + len);

    content->refs = 1;
    content->len = len;
    if (len > 0 && bytes != NULL)
        memcpy(content->bytes, bytes, len);
    return content;
}

struct content *content_ref(struct content *content)
{
    content->refs++;
    return content;
}

void content_unref(struct content *content)
{
    if (content != NULL && --content->refs == 0)
        free(content);
}

/* --- the table --------------------------------------------------------------------------------
 */

static int rank(char c)
{
    return c == '\0' ? 0 : c == '/' ? 1 : (unsigned char)c + 1;
}

/* What is in a directory follows it at once. */
static int compare(const char *a, const char *b)
{
    while (*a == *b && *a != '\0') {
        a++;
        b++;
    }
    return rank(*a) - rank(*b);
}

/* Where PATH is, or would be. */
static size_t place_of(const struct disk *disk, const char *path)
{
    size_t low = 0, high = disk->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare(disk->nodes[middle].path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct node *disk_find(const struct disk *disk, const char *path)
{
    size_t at = place_of(disk, path);

    return at < disk->count && strcmp(disk->nodes[at].path, path) == 0 ? &disk->nodes[at] : NULL;
}

static struct node *find(struct disk *disk, const char *path)
{
    return (struct node *)(uintptr_t)disk_find(disk, path);
}

static size_t cost_of(const struct node *node)
{
    return NODE_COST + strlen(node->path) + (node->content != NULL ? node->content->len : 0);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Takes the node, which is paid for. */
static struct node *insert(struct disk *disk, struct node node)
{
    size_t at = place_of(disk, node.path);

    if (disk->count == disk->cap) {
        disk->cap = disk->cap != 0 ? 2 * disk->cap : 8;
        disk->nodes = xrealloc(disk->nodes, disk->cap * sizeof(*disk->nodes));
    }
    memmove(&disk->nodes[at + 1], &disk->nodes[at], (disk->count - at) * sizeof(*disk->nodes));
    disk->count++;
    disk->nodes[at] = node;
    return &disk->nodes[at];
}

static struct node take_out(struct disk *disk, size_t at)
{
    struct node node = disk->nodes[at];

    disk->count--;
    memmove(&disk->nodes[at], &disk->nodes[at + 1], (disk->count - at) * sizeof(*disk->nodes));
    return node;
}

static void node_done(struct disk *disk, struct node *node)
{
    space_free(disk->space, cost_of(node));
    content_unref(node->content);
    free(node->path);
}

static int add(struct disk *disk, const char *path, struct content *content, unsigned mode,
               struct node **ret_node, struct err *err)
{
    struct node node = {.content = content, .mode = mode, .mtime_ns = now_ns()};

    if (space_take(disk->space, NODE_COST + strlen(path) + (content != NULL ? content->len : 0),
                   err) < 0)
        return -1;
    node.path = xstrdup(path);
    node.inode = ++disk->inodes;
    if (content != NULL)
        content_ref(content);
    *ret_node = insert(disk, node);
    return 0;
}

/* --- paths ------------------------------------------------------------------------------------
 */

static void drop_last(struct buf *path)
{
    while (path->len > 0 && path->ptr[path->len - 1] != '/')
        path->len--;
    if (path->len > 0)
        path->len--;
}

static int add_parts(struct buf *path, const char *text, struct err *err)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "/");

        if (len > NAME_MAX)
            return err_set(err, ERR_NAME_TOO_LONG, "a name is longer than %d bytes", NAME_MAX);
        if (len == 2 && strncmp(text, "..", 2) == 0) {
            drop_last(path);
        } else if (len > 0 && !(len == 1 && text[0] == '.') &&
                   (!buf_append_char(path, '/') || !buf_append(path, text, len))) {
            return err_set(err, ERR_NAME_TOO_LONG, "the path is longer than %d bytes",
                           CAP_PATH - 1);
        }
        text += len + (text[len] == '/');
    }
    return 0;
}

int disk_path(const char *workdir, const char *path, char *ret_path, struct err *err)
{
    cleanup_buf struct buf plain = BUF_INIT(CAP_PATH - 1);

    if ((path[0] != '/' && add_parts(&plain, workdir, err) < 0) || add_parts(&plain, path, err) < 0)
        return -1;
    if (plain.len > 0)
        memcpy(ret_path, plain.ptr, plain.len);
    else
        ret_path[plain.len++] = '/';
    ret_path[plain.len] = '\0';
    return 0;
}

/* The directory that PATH is in. */
static void parent_of(const char *path, char ret_parent[CAP_PATH])
{
    const char *slash = strrchr(path, '/');
    size_t len = slash == path ? 1 : (size_t)(slash - path);

    memcpy(ret_parent, path, len);
    ret_parent[len] = '\0';
}

static bool is_below(const char *path, const char *directory)
{
    size_t len = strlen(directory);

    if (strcmp(directory, "/") == 0)
        return path[1] != '\0';
    return strncmp(path, directory, len) == 0 && path[len] == '/';
}

int disk_need(const struct disk *disk, const char *path, const struct node **ret_node,
              struct err *err)
{
    char above[CAP_PATH];

    *ret_node = disk_find(disk, path);
    if (*ret_node != NULL)
        return 0;
    (void)snprintf(above, sizeof(above), "%s", path);
    while (above[1] != '\0') {
        char parent[CAP_PATH];

        parent_of(above, parent);
        const struct node *node = disk_find(disk, parent);
        if (node != NULL && node->content != NULL)
            return err_set(err, ERR_NOT_DIRECTORY, "%s: %s is a file", path, parent);
        if (node != NULL)
            break;
        memcpy(above, parent, sizeof(above));
    }
    return err_set(err, ERR_FILE_NOT_FOUND, "%s: there is no such file or directory", path);
}

/* PATH and every directory above it. */
static int make_directories(struct disk *disk, const char *path, struct err *err)
{
    const struct node *there = disk_find(disk, path);
    char part[CAP_PATH];
    struct node *made;

    if (there != NULL && there->content == NULL)
        return 0;
    for (size_t i = 1;; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        there = disk_find(disk, part);
        if (there != NULL && there->content != NULL)
            return err_set(err, ERR_NOT_DIRECTORY, "%s is a file", part);
        if (there == NULL && add(disk, part, NULL, 0755, &made, err) < 0)
            return -1;
        if (path[i] == '\0')
            return 0;
    }
}

/* --- operations -------------------------------------------------------------------------------
 */

static void begin(struct disk *disk, const char *path)
{
    struct node node = {.path = xstrdup(path), .mode = 0755, .mtime_ns = now_ns()};

    if (disk_find(disk, path) != NULL) {
        free(node.path);
        return;
    }
    node.inode = ++disk->inodes;
    disk->space->used += cost_of(&node); /* few and small: whoever makes sandboxes may have them */
    (void)insert(disk, node);
}

void disk_init(struct disk *disk, struct disk_space *space, const char *workdir)
{
    char part[CAP_PATH];

    *disk = (struct disk){.space = space};
    begin(disk, "/");
    begin(disk, "/tmp");
    for (size_t i = 1; i < sizeof(part) && workdir[0] == '/' && workdir[1] != '\0'; i++) {
        if (workdir[i] != '/' && workdir[i] != '\0')
            continue;
        memcpy(part, workdir, i);
        part[i] = '\0';
        begin(disk, part);
        if (workdir[i] == '\0')
            break;
    }
}

void disk_done(struct disk *disk)
{
    for (size_t i = 0; i < disk->count; i++)
        node_done(disk, &disk->nodes[i]);
    free(disk->nodes);
    *disk = (struct disk){.space = disk->space};
}

static int replace_content(struct disk *disk, struct node *node, struct content *content, int mode,
                           struct err *err)
{
    if (space_take(disk->space, content->len, err) < 0)
        return -1;
    space_free(disk->space, node->content->len);
    content_unref(node->content);
    node->content = content_ref(content);
    node->mode = mode >= 0 ? (unsigned)mode : node->mode;
    node->mtime_ns = now_ns();
    node->inode = ++disk->inodes;
    return 0;
}

int disk_write(struct disk *disk, const char *path, struct content *content, int mode,
               const struct node **ret_node, struct err *err)
{
    char parent[CAP_PATH];
    struct node *node = find(disk, path);

    if (node != NULL && node->content == NULL)
        return err_set(err, ERR_IS_DIRECTORY, "%s: it is a directory", path);
    if (node != NULL) {
        if (replace_content(disk, node, content, mode, err) < 0)
            return -1;
    } else {
        parent_of(path, parent);
        if (make_directories(disk, parent, err) < 0 ||
            add(disk, path, content, mode >= 0 ? (unsigned)mode : 0644, &node, err) < 0)
            return -1;
    }
    *ret_node = node;
    return 0;
}

int disk_mkdir(struct disk *disk, const char *path, int mode, bool *ret_created, struct err *err)
{
    struct node *node = find(disk, path);

    *ret_created = node == NULL;
    if (node != NULL)
        return node->content == NULL
                   ? 0
                   : err_set(err, ERR_NOT_DIRECTORY, "%s: it is there and is no directory", path);
    if (make_directories(disk, path, err) < 0)
        return -1;
    if (mode >= 0)
        find(disk, path)->mode = (unsigned)mode;
    return 0;
}

size_t disk_below(const struct disk *disk, const char *path, size_t *ret_first)
{
    size_t first = place_of(disk, path), end;

    if (first < disk->count && strcmp(disk->nodes[first].path, path) == 0)
        first++;
    for (end = first; end < disk->count && is_below(disk->nodes[end].path, path);)
        end++;
    *ret_first = first;
    return end - first;
}

static void remove_range(struct disk *disk, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++)
        node_done(disk, &disk->nodes[i]);
    disk->count -= count;
    memmove(&disk->nodes[first], &disk->nodes[first + count],
            (disk->count - first) * sizeof(*disk->nodes));
}

int disk_remove(struct disk *disk, const char *path, bool recursive, struct err *err)
{
    const struct node *node;
    size_t first = 0, count;

    if (path[1] == '\0')
        return err_set(err, ERR_PERMISSION, "/: it cannot be removed");
    if (disk_need(disk, path, &node, err) < 0)
        return -1;
    count = disk_below(disk, path, &first);
    if (count > 0 && !recursive)
        return err_set(err, ERR_NOT_EMPTY, "%s: the directory is not empty", path);
    remove_range(disk, first - 1, count + 1);
    return 0;
}

/* What stands at TO must be something that FROM may replace. */
static int check_move(const struct disk *disk, const struct node *from, const char *to,
                      bool overwrite, struct err *err)
{
    const struct node *there = disk_find(disk, to);
    size_t first = 0;

    if (is_below(to, from->path) || from->path[1] == '\0')
        return err_set(err, ERR_INVALID_PATH, "a directory cannot be moved into itself");
    if (there == NULL)
        return 0;
    if (!overwrite)
        return err_set(err, ERR_ALREADY_EXISTS, "%s: it exists", to);
    if (there->content == NULL && from->content != NULL)
        return err_set(err, ERR_IS_DIRECTORY, "%s: it is a directory", to);
    if (there->content != NULL && from->content == NULL)
        return err_set(err, ERR_NOT_DIRECTORY, "%s: it is no directory", to);
    if (there->content == NULL && disk_below(disk, to, &first) > 0)
        return err_set(err, ERR_NOT_EMPTY, "%s: the directory is not empty", to);
    return 0;
}

static int check_lengths(const struct disk *disk, const char *from, const char *to, size_t first,
                         size_t count, struct err *err)
{
    for (size_t i = first; i < first + count; i++) {
        if (strlen(disk->nodes[i].path) - strlen(from) + strlen(to) >= CAP_PATH)
            return err_set(err, ERR_NAME_TOO_LONG, "a path below %s would be too long", to);
    }
    return 0;
}

int disk_move(struct disk *disk, const char *from, const char *to, bool overwrite,
              const struct node **ret_node, struct err *err)
{
    const struct node *node;
    char parent[CAP_PATH];
    size_t first = 0, count;

    if (disk_need(disk, from, &node, err) < 0)
        return -1;
    if (strcmp(from, to) == 0) {
        *ret_node = node;
        return overwrite ? 0 : err_set(err, ERR_ALREADY_EXISTS, "%s: it exists", to);
    }
    parent_of(to, parent);
    if (check_move(disk, node, to, overwrite, err) < 0 || make_directories(disk, parent, err) < 0)
        return -1;
    count = disk_below(disk, from, &first) + 1;
    if (check_lengths(disk, from, to, --first, count, err) < 0)
        return -1;
    if (disk_find(disk, to) != NULL && disk_remove(disk, to, false, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        struct node moved = take_out(disk, place_of(disk, from));
        char *path = xasprintf("%s%s", to, moved.path + strlen(from));

        disk->space->used += strlen(path);
        space_free(disk->space, strlen(moved.path));
        free(moved.path);
        moved.path = path;
        (void)insert(disk, moved);
    }
    *ret_node = disk_find(disk, to);
    return 0;
}

int disk_set_mode(struct disk *disk, const char *path, unsigned mode, const struct node **ret_node,
                  struct err *err)
{
    if (disk_need(disk, path, ret_node, err) < 0)
        return -1;
    find(disk, path)->mode = mode;
    return 0;
}

void disk_etag(const struct node *node, char ret_text[DISK_ETAG_LEN])
{
    (void)snprintf(ret_text, DISK_ETAG_LEN, "%llu-%zu-%lld", (unsigned long long)node->inode,
                   node->content != NULL ? node->content->len : 0, (long long)node->mtime_ns);
}
