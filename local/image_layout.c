#include "local/image_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/str.h"

#define INDEX_DEPTH 4 /* indexes in indexes */

static bool is_file(int folder, const char *path)
{
    struct stat st;
    cleanup_fd int fd = image_open_beneath(folder, path, &st);
    return fd >= 0 && S_ISREG(st.st_mode);
}

enum image_kind image_layout_kind(int folder)
{
    /* What docker saves today is both; its own manifest has the tags that people know. */
    if (is_file(folder, "oci-layout") && is_file(folder, "index.json"))
        return IMAGE_OCI;
    return is_file(folder, "manifest.json") ? IMAGE_DOCKER : IMAGE_ANY;
}

/* --- reading the pieces ----------------------------------------------------------------------- */
static int open_file(int folder, const char *path, int64_t size, int *ret_fd, struct err *err)
{
    struct stat st;
    cleanup_fd int fd = image_open_beneath(folder, path, &st);
    if (fd < 0 && errno != ENOENT)
        return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "open '%s' of the image", path);
    if (fd < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID_IMAGE, "the image has no file '%s'", path);
    if (size >= 0 && st.st_size != size)
        return err_set(err, ERR_INVALID_IMAGE, "'%s' of the image has %lld bytes, not %lld", path,
                       (long long)st.st_size, (long long)size);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int read_file(int folder, const char *path, int64_t size, struct buf *text,
                     char ret_hex[IMAGE_HEX_LEN], struct err *err)
{
    cleanup_fd int fd = -1;
    struct crypto_sha256 sha;
    uint8_t hash[CRYPTO_HASH_LEN];
    char *room;
    ssize_t n;
    if (open_file(folder, path, size, &fd, err) < 0)
        return -1;
    buf_reset(text);
    while ((room = buf_reserve(text, 16 * KIB)) != NULL) {
        n = read(fd, room, 16 * KIB);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, ERR_IMAGE_PULL_FAILED, errno, "read '%s' of the image", path);
        buf_grew(text, (size_t)n);
        if (n == 0)
            break;
    }
    if (room == NULL)
        return err_set(err, ERR_INVALID_IMAGE, "'%s' of the image is too large", path);
    crypto_sha256_start(&sha);
    crypto_sha256_add(&sha, text->ptr, text->len);
    crypto_sha256_end(&sha, hash);
    image_hex(hash, ret_hex);
    return 0;
}

static int check_digest(const char *path, const char *want, const char *is, struct err *err)
{
    if (strcmp(want, is) == 0)
        return 0;
    return err_set(err, ERR_INVALID_IMAGE,
                   "'%s' of the image has the digest sha256:%s, not sha256:%s: it is damaged", path,
                   is, want);
}

static char *blob_path(const char *hex)
{
    return xasprintf("blobs/sha256/%s", hex);
}

static int read_blob(int folder, const struct oci_blob *blob, struct buf *text, struct err *err)
{
    cleanup_free char *path = blob_path(blob->hex);
    char hex[IMAGE_HEX_LEN];
    if (read_file(folder, path, blob->size, text, hex, err) < 0)
        return -1;
    return check_digest(path, blob->hex, hex, err);
}

/* --- an OCI layout ---------------------------------------------------------------------------- */
/* From index.json down to a manifest, whose text is left in TEXT. */
static int find_manifest(int folder, const struct oci_wanted *wanted, struct buf *text,
                         struct oci_blob *ret_blob, struct err *err)
{
    char ignored[IMAGE_HEX_LEN];
    bool asked = wanted->hex == NULL; /* for the digest of what was come by */
    if (read_file(folder, "index.json", -1, text, ignored, err) < 0 ||
        oci_index_pick(buf_text(text), text->len, wanted, ret_blob, err) < 0)
        return -1;
    for (int depth = 0; depth < INDEX_DEPTH; depth++) {
        asked = asked || strcmp(wanted->hex, ret_blob->hex) == 0;
        if (read_blob(folder, ret_blob, text, err) < 0)
            return -1;
        enum oci_kind kind = oci_kind_of(buf_text(text), text->len);
        if (kind == OCI_MANIFEST && !asked)
            return err_set(err, ERR_INVALID_IMAGE,
                           "the image has the digest sha256:%s, not the "
                           "one that was asked for",
                           ret_blob->hex);
        if (kind == OCI_MANIFEST)
            return 0;
        if (kind == OCI_NEITHER)
            break;
        if (oci_index_pick(buf_text(text), text->len, NULL, ret_blob, err) < 0)
            return -1;
    }
    return err_set(err, ERR_INVALID_IMAGE, "the image's index leads to no manifest");
}

static int read_oci(int folder, const struct oci_wanted *wanted, struct layout_image *image,
                    struct buf *text, struct err *err)
{
    cleanup(oci_manifest_done) struct oci_manifest manifest = {.layers = NULL};
    struct oci_blob blob;
    if (find_manifest(folder, wanted, text, &blob, err) < 0 ||
        oci_manifest_read(buf_text(text), text->len, &manifest, err) < 0 ||
        read_blob(folder, &manifest.config, text, err) < 0)
        return -1;
    memcpy(image->hex, blob.hex, sizeof(image->hex));
    image->layers = xcalloc(manifest.count, sizeof(*image->layers));
    image->count = manifest.count;
    for (size_t i = 0; i < manifest.count; i++) {
        image->layers[i] = (struct layout_layer){.path = blob_path(manifest.layers[i].hex),
                                                 .size = manifest.layers[i].size};
        memcpy(image->layers[i].hex, manifest.layers[i].hex, IMAGE_HEX_LEN);
    }
    return 0;
}

/* --- docker save ------------------------------------------------------------------------------ */
/* The digest that the path of a configuration ends with: "<hex>.json" or "blobs/sha256/<hex>". */
static bool digest_of_path(const char *path, char ret_hex[IMAGE_HEX_LEN])
{
    const char *slash = strrchr(path, '/');
    cleanup_free char *name = xstrdup(slash != NULL ? slash + 1 : path);
    if (str_ends(name, ".json"))
        name[strlen(name) - strlen(".json")] = '\0';
    return oci_digest_parse(name, true, ret_hex);
}

static int read_docker(int folder, const struct oci_wanted *wanted, struct layout_image *image,
                       struct buf *text, struct err *err)
{
    cleanup(docker_image_done) struct docker_image docker = {.config = NULL};
    char hex[IMAGE_HEX_LEN], said[IMAGE_HEX_LEN];
    if (read_file(folder, "manifest.json", -1, text, hex, err) < 0 ||
        docker_manifest_read(buf_text(text), text->len, wanted->tag, &docker, err) < 0 ||
        read_file(folder, docker.config, -1, text, hex, err) < 0)
        return -1;
    if (digest_of_path(docker.config, said) && check_digest(docker.config, said, hex, err) < 0)
        return -1;
    if (wanted->hex != NULL && strcmp(wanted->hex, hex) != 0)
        return err_set(err, ERR_INVALID_IMAGE,
                       "the image has the id sha256:%s, not the one that was asked for", hex);
    memcpy(image->hex, hex, sizeof(image->hex));
    image->layers = xcalloc(docker.layers.count, sizeof(*image->layers));
    image->count = docker.layers.count;
    for (size_t i = 0; i < image->count; i++)
        image->layers[i] =
            (struct layout_layer){.path = xstrdup(docker.layers.items[i]), .size = -1};
    return 0;
}

/* --- either ----------------------------------------------------------------------------------- */
int image_layout_read(int folder, enum image_kind kind, const struct oci_wanted *wanted,
                      struct layout_image *ret_image, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_IMAGE_JSON);
    cleanup(layout_image_done) struct layout_image image = {.layers = NULL};
    int rc = kind == IMAGE_DOCKER ? read_docker(folder, wanted, &image, &text, err)
                                  : read_oci(folder, wanted, &image, &text, err);
    /* Both left the configuration in TEXT. */
    if (rc < 0 || oci_config_read(buf_text(&text), text.len, &image.config, err) < 0)
        return -1;
    if (image.config.diff_ids.count != image.count)
        return err_set(err, ERR_INVALID_IMAGE,
                       "the image has %zu layers, its configuration speaks of %zu", image.count,
                       image.config.diff_ids.count);
    *ret_image = image;
    image = (struct layout_image){.layers = NULL};
    return 0;
}

void layout_image_done(struct layout_image *image)
{
    for (size_t i = 0; i < image->count; i++)
        free(image->layers[i].path);
    free(image->layers);
    oci_config_done(&image->config);
    *image = (struct layout_image){.layers = NULL};
}

static int unpack_layer(int folder, const struct layout_layer *layer, const char *diff_id,
                        struct image_tree *tree, struct image_work *work, struct err *err)
{
    cleanup_fd int fd = -1;
    struct image_sums sums;
    if (open_file(folder, layer->path, layer->size, &fd, err) < 0)
        return -1;
    if (image_unpack(tree, fd, work, &sums, err) < 0)
        return err_wrap(err, "layer '%s'", layer->path);
    if (layer->hex[0] != '\0' && check_digest(layer->path, layer->hex, sums.raw, err) < 0)
        return -1;
    return check_digest(layer->path, diff_id, sums.plain, err);
}

int image_layout_unpack(int folder, const struct layout_image *image, int root,
                        struct image_work *work, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < image->count && rc == 0; i++) {
        struct image_tree tree = {
            .root = root, .entries_left = &work->entries_left, .is_layer = true};
        rc = unpack_layer(folder, &image->layers[i], image->config.diff_ids.items[i], &tree, work,
                          err);
        image_tree_done(&tree);
    }
    return rc;
}
