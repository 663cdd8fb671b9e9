/* What a hostile image can say. The first byte of the input picks the reader, the second varies it;
 * the rest is what it reads. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "local/image_oci.h"
#include "local/image_unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
    if (!good)
        abort();
}

static void check_hex(const char *hex)
{
    check(strlen(hex) == IMAGE_HEX_LEN - 1 && strspn(hex, "0123456789abcdef") == IMAGE_HEX_LEN - 1);
}

static void read_index(const char *text, size_t len, uint8_t vary)
{
    const struct oci_wanted any = {.tag = NULL}, tagged = {.tag = "1"};
    const struct oci_wanted *const wanted[] = {NULL, &any, &tagged};
    struct oci_blob blob;
    struct err err = {.code = ERR_NONE};
    (void)oci_kind_of(text, len);
    if (oci_index_pick(text, len, wanted[vary % ARRAY_LEN(wanted)], &blob, &err) < 0) {
        check(err.code == ERR_INVALID_IMAGE);
    } else {
        check_hex(blob.hex);
        check(blob.size >= 0);
    }
}

static void read_manifest(const char *text, size_t len)
{
    struct oci_manifest manifest = {.layers = NULL};
    struct err err = {.code = ERR_NONE};
    if (oci_manifest_read(text, len, &manifest, &err) < 0)
        check(err.code == ERR_INVALID_IMAGE && manifest.layers == NULL);
    else
        check_hex(manifest.config.hex);
    for (size_t i = 0; manifest.layers != NULL && i < manifest.count; i++)
        check_hex(manifest.layers[i].hex);
    oci_manifest_done(&manifest);
}

static void read_config(const char *text, size_t len)
{
    struct oci_config config = {.user = NULL};
    struct err err = {.code = ERR_NONE};
    if (oci_config_read(text, len, &config, &err) < 0)
        check(err.code == ERR_INVALID_IMAGE && config.env.count == 0);
    for (size_t i = 0; i < config.env.count; i++)
        check(strchr(config.env.items[i], '=') > config.env.items[i]);
    for (size_t i = 0; i < config.diff_ids.count; i++)
        check_hex(config.diff_ids.items[i]);
    check(config.workdir == NULL || config.workdir[0] == '/');
    oci_config_done(&config);
}

static void read_docker(const char *text, size_t len, uint8_t vary)
{
    struct docker_image image = {.config = NULL};
    struct err err = {.code = ERR_NONE};
    if (docker_manifest_read(text, len, vary & 1 ? "1" : NULL, &image, &err) < 0)
        check(err.code == ERR_INVALID_IMAGE && image.config == NULL);
    else
        check(image.config != NULL);
    docker_image_done(&image);
}

/* Beside the root stands a file that nothing may touch, with a name that entries can reach for. */
static void unpack(const uint8_t *data, size_t len, uint8_t vary)
{
    char folder[] = "/tmp/podsandbox-fuzz-XXXXXX";
    atomic_bool stop = false;
    struct image_work work = {.bytes_left = 1 << 20, .entries_left = 100, .stop = &stop};
    struct image_sums sums;
    struct err err = {.code = ERR_NONE};
    struct stat before, after;
    check(mkdtemp(folder) != NULL);
    cleanup_fd int top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_fd int out = openat(top, "x", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cleanup_fd int archive = memfd_create("archive", MFD_CLOEXEC);
    check(top >= 0 && out >= 0 && archive >= 0 && mkdirat(top, "root", 0755) == 0);
    check(write(archive, data, len) == (ssize_t)len && lseek(archive, 0, SEEK_SET) == 0);
    cleanup_fd int root = openat(top, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(root >= 0 && fstat(out, &before) == 0);
    struct image_tree tree = {
        .root = root, .is_layer = vary & 1, .entries_left = &work.entries_left};
    if (image_unpack(&tree, archive, &work, &sums, &err) < 0)
        check(err.code == ERR_INVALID_IMAGE);
    image_tree_done(&tree);
    check(fstat(out, &after) == 0 && after.st_nlink == 1 && after.st_size == 0);
    check(after.st_mode == before.st_mode);
    check(image_tree_remove(top, "root") == 0 && unlinkat(top, "x", 0) == 0);
    check(rmdir(folder) == 0); /* and nothing else has come to be there */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 2;
    if (size < 2)
        return 0;
    switch (data[0]) {
    case 'i':
        read_index(text, size - 2, data[1]);
        break;
    case 'm':
        read_manifest(text, size - 2);
        break;
    case 'c':
        read_config(text, size - 2);
        break;
    case 'd':
        read_docker(text, size - 2, data[1]);
        break;
    case 't':
        unpack(data + 2, size - 2, data[1]);
        break;
    default:
        break;
    }
    return 0;
}
