#include "local/root.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRIES_MAX 4096 /* binds of one box */
#define DEPTH_MAX 64

struct parts {
    struct text_list *arguments;
    const struct text_list *places;
    size_t entries;
    int depth;
};

static bool is_in(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

/* What of PLACE is below PATH, without a slash before it; NULL: it is not below. */
static const char *below(const char *place, const char *path)
{
    size_t len = strlen(path);

    return strncmp(place, path, len) == 0 && place[len] == '/' ? place + len + 1 : NULL;
}

/* Whether the directory HERE has all of PATH, and no link in it. */
static bool has(const char *here, const char *path)
{
    for (size_t end = 0; end < strlen(path); end++) {
        end += strcspn(path + end, "/");
        cleanup_free char *part = xasprintf("%s/%.*s", here, (int)end, path);
        struct stat status;
        if (lstat(part, &status) < 0 || S_ISLNK(status.st_mode) ||
            (path[end] == '/' && !S_ISDIR(status.st_mode)))
            return false;
    }
    return true;
}

enum fit { FIT_WHOLE, FIT_COVERED, FIT_APART };

/* How what is at HERE on this machine can be shown at PATH in the box. */
static enum fit fit_of(const struct parts *parts, const char *here, const char *path)
{
    enum fit fit = FIT_WHOLE;

    for (size_t i = 0; i < parts->places->count; i++) {
        const char *place = parts->places->items[i], *rest = below(place, path);
        if (strcmp(place, path) == 0)
            return FIT_COVERED;
        if (rest && !has(here, rest))
            fit = FIT_APART;
    }
    return fit;
}

static void add(struct parts *parts, const char *option, const char *first, const char *second)
{
    text_list_add(parts->arguments, option);
    text_list_add(parts->arguments, first);
    if (second)
        text_list_add(parts->arguments, second);
}

static int add_entries(struct parts *parts, const char *here, const char *path,
                       const char *const *only, struct err *err);

static int take_apart(struct parts *parts, const char *here, const char *path, mode_t mode,
                      struct err *err)
{
    char octal[8];

    (void)snprintf(octal, sizeof(octal), "%04o", mode & 0777U);
    add(parts, "--perms", octal, NULL);
    add(parts, "--dir", path, NULL);
    if (++parts->depth > DEPTH_MAX)
        return err_set(err, ERR_INVALID_IMAGE, "'%s' lies too deep for a place to write", path);
    int result = add_entries(parts, here, path, NULL, err);
    parts->depth--;
    return result;
}

static void add_link(struct parts *parts, const char *here, const char *path)
{
    char target[PATH_MAX];
    ssize_t len = readlink(here, target, sizeof(target) - 1);

    target[len > 0 ? len : 0] = '\0';
    if (len > 0)
        add(parts, "--symlink", target, path);
}

static int add_entry(struct parts *parts, const char *here, const char *path, struct err *err)
{
    struct stat status;
    enum fit fit = fit_of(parts, here, path);

    if (lstat(here, &status) < 0 || fit == FIT_COVERED)
        return 0;
    if (++parts->entries > ENTRIES_MAX)
        return err_set(err, ERR_INVALID_FIELD,
                       "field 'writable_mounts': too many files lie beside the places asked for");
    if (S_ISDIR(status.st_mode) && fit == FIT_APART)
        return take_apart(parts, here, path, status.st_mode, err);
    if (S_ISDIR(status.st_mode) || S_ISREG(status.st_mode))
        add(parts, "--ro-bind", here, path);
    else if (S_ISLNK(status.st_mode) && fit == FIT_WHOLE)
        add_link(parts, here, path);
    return 0; /* devices, sockets and pipes of an image mean nothing here */
}

static int add_entries(struct parts *parts, const char *here, const char *path,
                       const char *const *only, struct err *err)
{
    DIR *directory = opendir(*here ? here : "/");
    const struct dirent *entry;
    int result = 0;

    if (!directory)
        return err_errno(err, ERR_INVALID_IMAGE, errno, "read '%s' of the image", path);
    while (result == 0 && (entry = readdir(directory)) != NULL) { /* NOLINT: of our own */
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (only && !is_in(only, name)))
            continue;
        cleanup_free char *from = xasprintf("%s/%s", here, name);
        cleanup_free char *to = xasprintf("%s/%s", path, name);
        result = add_entry(parts, from, to, err);
    }
    (void)closedir(directory);
    return result;
}

int root_add(struct text_list *ret_arguments, const char *directory, const char *const *only,
             const struct text_list *places, struct err *err)
{
    struct parts parts = {.arguments = ret_arguments, .places = places};

    return add_entries(&parts, directory, "", only, err);
}
