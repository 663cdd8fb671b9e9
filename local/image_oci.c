#include "local/image_oci.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"
#include "base/str.h"

#if defined(__x86_64__)
#define MACHINE "amd64"
#elif defined(__aarch64__)
#define MACHINE "arm64"
#elif defined(__arm__)
#define MACHINE "arm"
#elif defined(__i386__)
#define MACHINE "386"
#elif defined(__riscv)
#define MACHINE "riscv64"
#elif defined(__powerpc64__)
#define MACHINE "ppc64le"
#elif defined(__s390x__)
#define MACHINE "s390x"
#else
#error "which architecture is this, in the words of OCI images?"
#endif

#define NAME_KEY "org.opencontainers.image.ref.name"
#define CONTAINERD_KEY "io.containerd.image.name"

static int bad(struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID_IMAGE, "%s", what);
}

static int parse(const char *text, size_t len, const char *what, struct json **ret_json,
                 struct err *err)
{
    if (json_parse(text, len, JSON_LENIENT, ret_json, err) == 0)
        return 0;
    if (err != NULL)
        err->code = ERR_INVALID_IMAGE;
    return err_wrap(err, "the image's %s", what);
}

bool oci_digest_parse(const char *text, bool bare, char ret_hex[IMAGE_HEX_LEN])
{
    if (text != NULL && str_starts(text, "sha256:"))
        text += strlen("sha256:");
    else if (text == NULL || !bare)
        return false;
    if (strlen(text) != IMAGE_HEX_LEN - 1 || strspn(text, "0123456789abcdef") != IMAGE_HEX_LEN - 1)
        return false;
    memcpy(ret_hex, text, IMAGE_HEX_LEN);
    return true;
}

static int read_blob(const struct json *descriptor, struct oci_blob *ret_blob, struct err *err)
{
    const char *digest = json_get_text(descriptor, "digest");
    struct oci_blob blob = {.size = json_get_int(descriptor, "size", -1)};
    if (!oci_digest_parse(digest, false, blob.hex))
        return err_set(err, ERR_INVALID_IMAGE,
                       "the image has the digest '%s', not one of SHA-256 as it should be",
                       digest != NULL ? digest : "");
    if (blob.size < 0)
        return err_set(err, ERR_INVALID_IMAGE, "the image does not say how large sha256:%s is",
                       blob.hex);
    *ret_blob = blob;
    return 0;
}

enum oci_kind oci_kind_of(const char *text, size_t len)
{
    cleanup_json struct json *json = NULL;
    if (json_parse(text, len, JSON_LENIENT, &json, NULL) < 0)
        return OCI_NEITHER;
    if (json_is_array(json_get(json, "manifests")))
        return OCI_INDEX;
    return json_is_array(json_get(json, "layers")) ? OCI_MANIFEST : OCI_NEITHER;
}

/* --- an index --------------------------------------------------------------------------------- */
/* NAME is TAG, or a longer reference that ends with it. */
static bool has_tag(const char *name, const char *tag)
{
    if (name == NULL)
        return false;
    if (strcmp(name, tag) == 0)
        return true;
    size_t len = strlen(name), size = strlen(tag);
    return len > size && name[len - size - 1] == ':' && strcmp(name + len - size, tag) == 0;
}

static bool is_wanted(const struct json *entry, const struct oci_wanted *wanted)
{
    const struct json *notes = json_get(entry, "annotations");
    char hex[IMAGE_HEX_LEN];
    if (wanted == NULL)
        return true;
    if (wanted->tag != NULL)
        return has_tag(json_get_text(notes, NAME_KEY), wanted->tag) ||
               has_tag(json_get_text(notes, CONTAINERD_KEY), wanted->tag);
    return wanted->hex == NULL || (oci_digest_parse(json_get_text(entry, "digest"), false, hex) &&
                                   strcmp(hex, wanted->hex) == 0);
}

/* OBJECT is a platform, or a configuration; one that does not say for which it is fits. */
static bool fits_machine(const struct json *object)
{
    const char *os = json_get_text(object, "os");
    const char *machine = json_get_text(object, "architecture");
    return (os == NULL || strcmp(os, "linux") == 0) &&
           (machine == NULL || strcmp(machine, MACHINE) == 0);
}

static const char *name_of(const struct json *entry)
{
    const struct json *notes = json_get(entry, "annotations");
    const char *name = json_get_text(notes, NAME_KEY);
    return name != NULL ? name : json_get_text(entry, "digest");
}

static int none_fits(const struct json *entries, const struct oci_wanted *wanted, struct err *err)
{
    char names[512] = "";
    size_t len = 0;
    const struct json *entry;
    for (entry = json_first(entries); entry != NULL; entry = json_next(entry)) {
        const char *name = name_of(entry);
        int n = snprintf(names + len, sizeof(names) - len, " %s", name != NULL ? name : "?");
        len += n > 0 && (size_t)n < sizeof(names) - len ? (size_t)n : 0;
    }
    if (wanted != NULL && wanted->tag == NULL && wanted->hex == NULL)
        return err_set(err, ERR_INVALID_IMAGE,
                       "not one image for linux/" MACHINE " but none or several; name one of:%s",
                       names);
    return err_set(err, ERR_INVALID_IMAGE,
                   "there is no such image for linux/" MACHINE "; there are:%s", names);
}

/* Whether FOUND and ENTRY are two images. */
static bool differ(const struct json *found, const struct json *entry)
{
    const char *a = json_get_text(found, "digest"), *b = json_get_text(entry, "digest");
    return found != NULL && (a == NULL || b == NULL || strcmp(a, b) != 0);
}

int oci_index_pick(const char *text, size_t len, const struct oci_wanted *wanted,
                   struct oci_blob *ret_blob, struct err *err)
{
    cleanup_json struct json *json = NULL;
    const struct json *found = NULL, *entry;
    if (parse(text, len, "index", &json, err) < 0)
        return -1;
    const struct json *entries = json_get(json, "manifests");
    if (!json_is_array(entries))
        return bad(err, "the image's index has no list of manifests");
    bool single = json_count(entries) == 1;
    for (entry = json_first(entries); entry != NULL; entry = json_next(entry)) {
        /* A digest may be that of the manifest below the only entry: the caller compares it. */
        bool named = is_wanted(entry, wanted) || (single && wanted->tag == NULL);
        if (!named || !fits_machine(json_get(entry, "platform")))
            continue;
        if (wanted != NULL && differ(found, entry))
            return none_fits(entries, wanted, err);
        if (found == NULL)
            found = entry;
    }
    return found != NULL ? read_blob(found, ret_blob, err) : none_fits(entries, wanted, err);
}

/* --- a manifest ------------------------------------------------------------------------------- */
static int fill_manifest(const struct json *json, struct oci_manifest *manifest, struct err *err)
{
    const struct json *layers = json_get(json, "layers"), *layer;
    if (read_blob(json_get(json, "config"), &manifest->config, err) < 0)
        return -1;
    if (!json_is_array(layers) || json_count(layers) > CAP_IMAGE_LAYERS)
        return bad(err, "the image's manifest has no list of layers, or too many");
    manifest->layers = xcalloc(json_count(layers), sizeof(*manifest->layers));
    for (layer = json_first(layers); layer != NULL; layer = json_next(layer)) {
        if (read_blob(layer, &manifest->layers[manifest->count], err) < 0)
            return -1;
        manifest->count++;
    }
    return 0;
}

int oci_manifest_read(const char *text, size_t len, struct oci_manifest *ret_manifest,
                      struct err *err)
{
    cleanup_json struct json *json = NULL;
    struct oci_manifest manifest = {.layers = NULL};
    if (parse(text, len, "manifest", &json, err) < 0)
        return -1;
    if (fill_manifest(json, &manifest, err) < 0) {
        oci_manifest_done(&manifest);
        return -1;
    }
    *ret_manifest = manifest;
    return 0;
}

void oci_manifest_done(struct oci_manifest *manifest)
{
    free(manifest->layers);
    manifest->layers = NULL;
}

/* --- a configuration -------------------------------------------------------------------------- */
static char *copy_text(const struct json *object, const char *name)
{
    const char *text = json_get_text(object, name);
    return text != NULL && text[0] != '\0' ? xstrdup(text) : NULL;
}

static int check_machine(const struct json *json, struct err *err)
{
    const char *os = json_get_text(json, "os"), *machine = json_get_text(json, "architecture");
    if (fits_machine(json))
        return 0;
    return err_set(err, ERR_INVALID_IMAGE, "the image is for %s/%s, this machine is linux/" MACHINE,
                   os != NULL ? os : "?", machine != NULL ? machine : "?");
}

static int read_diff_ids(const struct json *json, struct text_list *ids, struct err *err)
{
    const struct json *list = json_path(json, "rootfs.diff_ids"), *item;
    char hex[IMAGE_HEX_LEN];
    if (!json_is_array(list) || json_count(list) > CAP_IMAGE_LAYERS)
        return bad(err, "the image's configuration has no rootfs.diff_ids, or too many");
    for (item = json_first(list); item != NULL; item = json_next(item)) {
        if (!oci_digest_parse(json_text(item), false, hex))
            return bad(err, "rootfs.diff_ids of the image holds what is no digest of SHA-256");
        text_list_add(ids, hex);
    }
    return 0;
}

static int read_environment(const struct json *list, struct text_list *env, struct err *err)
{
    const struct json *item;
    if (json_count(list) > CAP_ENV)
        return bad(err, "the image has more environment variables than are allowed");
    for (item = json_is_array(list) ? json_first(list) : NULL; item != NULL;
         item = json_next(item)) {
        const char *text = json_text(item);
        if (text == NULL || text[0] == '=' || strchr(text, '=') == NULL || strlen(text) > CAP_ARG)
            return bad(err, "config.Env of the image holds what is not NAME=value");
        text_list_add(env, text);
    }
    return 0;
}

static int fill_config(const struct json *json, struct oci_config *config, struct err *err)
{
    const struct json *run = json_get(json, "config");
    if (check_machine(json, err) < 0 || read_diff_ids(json, &config->diff_ids, err) < 0 ||
        read_environment(json_get(run, "Env"), &config->env, err) < 0)
        return -1;
    config->user = copy_text(run, "User");
    config->workdir = copy_text(run, "WorkingDir");
    if (config->workdir != NULL && config->workdir[0] != '/')
        return bad(err, "config.WorkingDir of the image is not an absolute path");
    return 0;
}

int oci_config_read(const char *text, size_t len, struct oci_config *ret_config, struct err *err)
{
    cleanup_json struct json *json = NULL;
    struct oci_config config = {.user = NULL};
    if (parse(text, len, "configuration", &json, err) < 0)
        return -1;
    if (fill_config(json, &config, err) < 0) {
        oci_config_done(&config);
        return -1;
    }
    *ret_config = config;
    return 0;
}

void oci_config_done(struct oci_config *config)
{
    text_list_done(&config->diff_ids);
    text_list_done(&config->env);
    free(config->workdir);
    free(config->user);
    *config = (struct oci_config){.user = NULL};
}

/* --- docker save ------------------------------------------------------------------------------ */
static bool docker_has_tag(const struct json *entry, const char *tag)
{
    const struct json *name = json_first(json_get(entry, "RepoTags"));
    while (tag != NULL && name != NULL && !has_tag(json_text(name), tag))
        name = json_next(name);
    return tag == NULL || name != NULL;
}

static int find_docker(const struct json *list, const char *tag, const struct json **ret_found,
                       struct err *err)
{
    const struct json *found = NULL, *entry = json_is_array(list) ? json_first(list) : NULL;
    for (; entry != NULL; entry = json_next(entry)) {
        if (!docker_has_tag(entry, tag))
            continue;
        if (found != NULL)
            return bad(err, "the archive has several images: add :TAG of one");
        found = entry;
    }
    if (found == NULL)
        return bad(err, "manifest.json of the archive has no such image");
    *ret_found = found;
    return 0;
}

static int fill_docker(const struct json *entry, struct docker_image *image, struct err *err)
{
    const struct json *layers = json_get(entry, "Layers"), *layer;
    image->config = copy_text(entry, "Config");
    if (image->config == NULL || !json_is_array(layers) || json_count(layers) > CAP_IMAGE_LAYERS)
        return bad(err, "manifest.json of the archive names no Config or Layers, or too many");
    for (layer = json_first(layers); layer != NULL; layer = json_next(layer)) {
        if (json_text(layer) == NULL)
            return bad(err, "manifest.json of the archive has a layer without a path");
        text_list_add(&image->layers, json_text(layer));
    }
    return 0;
}

int docker_manifest_read(const char *text, size_t len, const char *tag,
                         struct docker_image *ret_image, struct err *err)
{
    cleanup_json struct json *json = NULL;
    struct docker_image image = {.config = NULL};
    const struct json *entry = NULL;
    if (parse(text, len, "manifest.json", &json, err) < 0 ||
        find_docker(json, tag, &entry, err) < 0)
        return -1;
    if (fill_docker(entry, &image, err) < 0) {
        docker_image_done(&image);
        return -1;
    }
    *ret_image = image;
    return 0;
}

void docker_image_done(struct docker_image *image)
{
    free(image->config);
    text_list_done(&image->layers);
    *image = (struct docker_image){.config = NULL};
}
