#include "local/image_name.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/str.h"
#include "local/image_oci.h"

static const struct {
    const char *prefix;
    enum image_kind kind;
} kinds[] = {
    {"dir:", IMAGE_FOLDER},
    {"tar:", IMAGE_TAR},
    {"oci:", IMAGE_OCI},
    {"oci-archive:", IMAGE_OCI},
    {"docker-archive:", IMAGE_DOCKER},
};

static const char *const endings[] = {"", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz"};

int image_open_beneath(int folder, const char *path, struct stat *ret_st)
{
    /* O_NONBLOCK: a pipe must not hang; what is neither file nor folder is refused below. */
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    cleanup_fd int fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof(how));
    if (fd < 0 || fstat(fd, ret_st) < 0)
        return -1;
    if (!S_ISREG(ret_st->st_mode) && !S_ISDIR(ret_st->st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return TAKE_FD(fd);
}

void image_place_done(struct image_place *place)
{
    if (place->fd >= 0)
        close(place->fd);
    free(place->tag);
    *place = (struct image_place){.fd = -1};
}

/* --- the name --------------------------------------------------------------------------------- */
struct parts {
    enum image_kind kind;
    char path[CAP_PATH];
    char hex[IMAGE_HEX_LEN];
};

static bool path_is_plain(const char *path)
{
    bool plain = *path != '\0' && strcmp(path, "/") != 0;
    for (const char *part = path; plain && part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        size_t len = strcspn(part, "/");
        plain = !(len == 1 && part[0] == '.') && !(len == 2 && part[0] == '.' && part[1] == '.') &&
                (len > 0 || part == path);
    }
    return plain;
}

static int split_name(const char *name, struct parts *ret_parts, struct err *err)
{
    struct parts parts = {.kind = IMAGE_ANY};
    const char *rest = name;
    for (size_t i = 0; i < ARRAY_LEN(kinds) && parts.kind == IMAGE_ANY; i++) {
        if (str_starts(name, kinds[i].prefix)) {
            parts.kind = kinds[i].kind;
            rest = name + strlen(kinds[i].prefix);
        }
    }
    const char *at = strrchr(rest, '@');
    size_t len = at != NULL ? (size_t)(at - rest) : strlen(rest);
    if (at != NULL && !oci_digest_parse(at + 1, false, parts.hex))
        return err_set(err, ERR_INVALID_IMAGE,
                       "image '%s': what follows @ is not sha256: and 64 hex digits", name);
    if (len >= sizeof(parts.path))
        return err_set(err, ERR_INVALID_IMAGE, "the image's name is too long");
    memcpy(parts.path, rest, len);
    parts.path[len] = '\0';
    if (!path_is_plain(parts.path))
        return err_set(err, ERR_INVALID_IMAGE, "image '%s': not a plain path", name);
    *ret_parts = parts;
    return 0;
}

/* --- looking ---------------------------------------------------------------------------------- */
struct lookup {
    const struct image_folder *folder;
    struct image_place *place;
    int errnum; /* why what is there cannot be opened, or 0 */
};

/* True when PATH is there; with an ending only a file counts. */
static bool try_path(struct lookup *lookup, const char *path, const char *ending)
{
    cleanup_free char *whole = xasprintf("%s%s", path, ending);
    struct stat st;
    int fd = image_open_beneath(lookup->folder->fd, whole, &st);
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
        lookup->errnum = errno;
    if (fd >= 0 && S_ISDIR(st.st_mode) && ending[0] != '\0') {
        close(fd);
        return false;
    }
    lookup->place->fd = fd;
    lookup->place->st = st;
    return fd >= 0;
}

static bool try_endings(struct lookup *lookup, const char *path)
{
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        if (try_path(lookup, path, endings[i]))
            return true;
    }
    return false;
}

static bool try_folder(struct lookup *lookup, const char *path)
{
    if (try_endings(lookup, path))
        return true;
    const char *colon = strrchr(path, ':');
    if (colon == NULL || colon == path || colon[1] == '\0' || strchr(colon, '/') != NULL)
        return false;
    cleanup_free char *joined = xstrdup(path);
    joined[colon - path] = '_';
    if (try_endings(lookup, joined))
        return true;
    joined[colon - path] = '\0';
    if (!try_endings(lookup, joined))
        return false;
    lookup->place->tag = xstrdup(colon + 1);
    return true;
}

/* The part of an absolute PATH below FOLDER, or NULL; a relative one is below each. */
static const char *below(const struct image_folder *folder, const char *path)
{
    size_t len = strlen(folder->path);
    if (path[0] != '/')
        return path;
    if (strncmp(path, folder->path, len) != 0 || path[len] != '/')
        return NULL;
    return path + len + 1;
}

static int not_found(const char *name, bool inside, int errnum, struct err *err)
{
    if (!inside)
        return err_set(err, ERR_POLICY,
                       "image '%s': not below a folder that the operator allows images from", name);
    if (errnum == EXDEV)
        return err_set(err, ERR_POLICY, "image '%s': a link on its way leads out of the folder",
                       name);
    if (errnum != 0)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errnum, "image '%s'", name);
    return err_set(
        err, ERR_INVALID_IMAGE,
        "image '%s': there is no such file or folder among the local images: put it into "
        "a folder of --local-images, or use 'host'",
        name);
}

int image_find(const struct image_folder *folders, size_t count, const char *name,
               struct image_place *ret_place, struct err *err)
{
    struct parts parts = {.kind = IMAGE_ANY};
    struct image_place place = {.fd = -1};
    struct lookup lookup = {.place = &place};
    bool inside = false, found = false;
    if (count == 0)
        return err_set(err, ERR_POLICY,
                       "image '%s': the operator allows no folder of images; "
                       "only 'host' can be used",
                       name);
    if (split_name(name, &parts, err) < 0)
        return -1;
    for (size_t i = 0; i < count && !found; i++) {
        const char *path = below(&folders[i], parts.path);
        lookup.folder = &folders[i];
        inside = inside || path != NULL;
        found = path != NULL && try_folder(&lookup, path);
    }
    if (!found)
        return not_found(name, inside, lookup.errnum, err);
    place.kind = parts.kind;
    memcpy(place.hex, parts.hex, sizeof(place.hex));
    *ret_place = place;
    return 0;
}
