#include "tests/unit/image_builder.h"

#include <archive.h>
#include <archive_entry.h>
#include <check.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/crypto.h"

static void put(const char *folder, const char *hex, const struct buf *blob)
{
    cleanup_free char *path = xasprintf("%s/blobs/sha256/%s", folder, hex);
    write_file(path, buf_text(blob), blob->len);
}

void write_file(const char *path, const void *data, size_t len)
{
    cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
}

void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

char *read_text(const char *path)
{
    struct buf text = BUF_INIT(MIB);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0) {
        char *room = buf_reserve(&text, 4096);
        ck_assert_ptr_nonnull(room);
        n = read(fd, room, 4096);
        buf_grew(&text, n > 0 ? (size_t)n : 0);
    }
    if (n == 0)
        return buf_take(&text, NULL);
    buf_done(&text);
    return NULL;
}

const char *hex_of(const void *data, size_t len)
{
    static char texts[4][2 * CRYPTO_HASH_LEN + 1];
    static size_t next;
    char *text = texts[next++ % ARRAY_LEN(texts)];
    struct crypto_sha256 sha;
    uint8_t hash[CRYPTO_HASH_LEN];
    cleanup_buf struct buf hex = BUF_INIT(128);
    crypto_sha256_start(&sha);
    crypto_sha256_add(&sha, data, len);
    crypto_sha256_end(&sha, hash);
    ck_assert(hex_encode(&hex, hash, sizeof(hash)));
    memcpy(text, hex.ptr, hex.len + 1);
    return text;
}

/* --- tar -------------------------------------------------------------------------------------- */
static la_ssize_t to_buf(struct archive *archive, void *arg, const void *data, size_t len)
{
    (void)archive;
    return buf_append(arg, data, len) ? (la_ssize_t)len : -1;
}

static unsigned file_type(char type)
{
    switch (type) {
    case 'd':
        return AE_IFDIR;
    case 'l':
        return AE_IFLNK;
    case 'p':
        return AE_IFIFO;
    case 'c':
        return AE_IFCHR;
    default:
        return AE_IFREG;
    }
}

static void add_entry(struct archive *archive, const struct entry *from)
{
    struct archive_entry *entry = archive_entry_new();
    size_t len = from->content != NULL ? strlen(from->content) : 0;
    archive_entry_set_pathname(entry, from->path);
    archive_entry_set_filetype(entry, file_type(from->type));
    archive_entry_set_perm(entry, (from->mode ? from->mode : 0644) & 07777);
    archive_entry_set_mtime(entry, 1000000000, 0);
    if (from->type == 'l')
        archive_entry_set_symlink(entry, from->content);
    if (from->type == 'h')
        archive_entry_set_hardlink(entry, from->content);
    if (from->type == 0) {
        archive_entry_set_size(entry, from->size ? from->size : (int64_t)len);
        if (from->size)
            archive_entry_sparse_add_entry(entry, 0, (int64_t)len);
    }
    ck_assert_int_eq(archive_write_header(archive, entry), ARCHIVE_OK);
    if (from->type == 0 && len > 0)
        ck_assert_int_eq(archive_write_data(archive, from->content, len), (la_ssize_t)len);
    archive_entry_free(entry);
}

static struct archive *start(enum compression how, struct buf *out)
{
    struct archive *archive = archive_write_new();
    ck_assert_int_eq(archive_write_set_format_pax_restricted(archive), ARCHIVE_OK);
    ck_assert_int_eq(archive_write_set_bytes_in_last_block(archive, 1), ARCHIVE_OK);
    if (how == GZIP)
        ck_assert_int_eq(archive_write_add_filter_gzip(archive), ARCHIVE_OK);
    if (how == ZSTD)
        ck_assert_int_eq(archive_write_add_filter_zstd(archive), ARCHIVE_OK);
    if (how == XZ)
        ck_assert_int_eq(archive_write_add_filter_xz(archive), ARCHIVE_OK);
    ck_assert_int_eq(archive_write_open(archive, out, NULL, to_buf, NULL), ARCHIVE_OK);
    return archive;
}

static void finish(struct archive *archive)
{
    ck_assert_int_eq(archive_write_close(archive), ARCHIVE_OK);
    archive_write_free(archive);
}

void build_tar(const struct entry *entries, enum compression how, struct buf *out)
{
    struct archive *archive = start(how, out);
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = uselocale(utf8);
    for (; entries->path != NULL; entries++)
        add_entry(archive, entries);
    uselocale(before);
    freelocale(utf8);
    finish(archive);
}

void pack_folder(const char *folder, const char *tar)
{
    char file[256], directory[256];
    (void)snprintf(file, sizeof(file), "--file=%s", tar);
    (void)snprintf(directory, sizeof(directory), "--directory=%s", folder);
    pid_t child = fork();
    if (child == 0) {
        execlp("tar", "tar", "--create", file, directory, ".", (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* --- layouts ---------------------------------------------------------------------------------- */
static const char *this_machine(void)
{
    static struct utsname name;
    ck_assert_int_eq(uname(&name), 0);
    if (strcmp(name.machine, "x86_64") == 0)
        return "amd64";
    return strcmp(name.machine, "aarch64") == 0 ? "arm64" : name.machine;
}

static void describe(struct buf *out, const char *hex, size_t size, const char *more)
{
    ck_assert(buf_printf(out, "{\"digest\":\"sha256:%s\",\"size\":%zu%s}", hex, size, more));
}

/* The blob's text becomes JSON that names it. */
static void put_layers(const struct layout *layout, struct buf *layers, struct buf *diff_ids)
{
    for (const struct entry *const *layer = layout->layers; *layer != NULL; layer++) {
        const char *comma = layer == layout->layers ? "" : ",";
        cleanup_buf struct buf tar = BUF_INIT(8 * MIB), blob = BUF_INIT(8 * MIB);
        build_tar(*layer, PLAIN, &tar);
        build_tar(*layer, layout->how, &blob);
        const char *hex = hex_of(blob.ptr, blob.len);
        put(layout->folder, hex, &blob);
        ck_assert(buf_append_str(layers, comma));
        describe(layers, hex, blob.len, "");
        ck_assert(buf_printf(diff_ids, "%s\"sha256:%s\"", comma,
                             layout->bad_diff_id ? hex_of("", 0) : hex_of(tar.ptr, tar.len)));
    }
}

static const char *put_text(const struct layout *layout, const struct buf *text)
{
    const char *hex = hex_of(text->ptr, text->len);
    put(layout->folder, hex, text);
    return hex;
}

static const char *put_manifest(const struct layout *layout, struct buf *manifest)
{
    cleanup_buf struct buf layers = BUF_INIT(MIB), ids = BUF_INIT(MIB), config = BUF_INIT(MIB);
    put_layers(layout, &layers, &ids);
    ck_assert(buf_printf(&config,
                         "{\"os\":\"linux\",\"architecture\":\"%s\",\"config\":{%s},"
                         "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[%s]},\"history\":[]}",
                         layout->machine ? layout->machine : this_machine(),
                         layout->config_more ? layout->config_more : "", buf_text(&ids)));
    ck_assert(buf_append_str(manifest, "{\"schemaVersion\":2,\"config\":"));
    describe(manifest, put_text(layout, &config), config.len, "");
    ck_assert(buf_printf(manifest, ",\"layers\":[%s]}", buf_text(&layers)));
    return put_text(layout, manifest);
}

static void make_folders(const char *folder)
{
    cleanup_free char *blobs = xasprintf("%s/blobs", folder);
    cleanup_free char *sha256 = xasprintf("%s/blobs/sha256", folder);
    (void)mkdir(folder, 0700);
    (void)mkdir(blobs, 0700);
    (void)mkdir(sha256, 0700);
}

const char *build_layout(const struct layout *layout)
{
    cleanup_buf struct buf manifest = BUF_INIT(MIB), index = BUF_INIT(MIB), top = BUF_INIT(MIB);
    cleanup_free char *mark = xasprintf("%s/oci-layout", layout->folder);
    cleanup_free char *index_path = xasprintf("%s/index.json", layout->folder);
    char more[256] = "";
    make_folders(layout->folder);
    write_text(mark, "{\"imageLayoutVersion\":\"1.0.0\"}");
    const char *hex = put_manifest(layout, &manifest), *entry = hex;
    size_t size = manifest.len;
    if (layout->nested) {
        (void)snprintf(more, sizeof(more),
                       ",\"platform\":{\"os\":\"linux\",\"architecture\":\"%s\"}", this_machine());
        ck_assert(buf_append_str(&index, "{\"manifests\":["));
        describe(&index, hex_of("", 0), 7,
                 ",\"platform\":{\"os\":\"linux\",\"architecture\":\"pdp11\"}");
        ck_assert(buf_append_str(&index, ","));
        describe(&index, hex, size, more);
        ck_assert(buf_append_str(&index, "]}"));
        entry = put_text(layout, &index);
        size = index.len;
    }
    more[0] = '\0';
    if (layout->tag != NULL)
        (void)snprintf(more, sizeof(more),
                       ",\"annotations\":{\"org.opencontainers.image.ref.name\":\"%s\"}",
                       layout->tag);
    ck_assert(buf_append_str(&top, "{\"manifests\":["));
    describe(&top, entry, size, more);
    ck_assert(buf_append_str(&top, "]}"));
    write_file(index_path, top.ptr, top.len);
    return hex;
}
