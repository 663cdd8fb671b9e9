#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "local/image_unpack.h"

/* Reading the JSON of OCI layouts and of `docker save`. Unknown keys are passed over; what is read
 * is checked. All errors are ERR_INVALID_IMAGE. */

/* A file of the layout, by its digest; `size` is -1 where none is said. */
struct oci_blob {
    char hex[IMAGE_HEX_LEN];
    int64_t size;
};

/* What the image's name asks for; NULL: anything. */
struct oci_wanted {
    const char *tag, *hex;
};

struct oci_manifest {
    struct oci_blob config;
    struct oci_blob *layers; /* the lowest first */
    size_t count;
};

struct oci_config {
    struct text_list diff_ids; /* hex digits */
    struct text_list env;
    char *workdir, *user; /* NULL when not said */
};

struct docker_image {
    char *config;            /* paths in the archive */
    struct text_list layers; /* the lowest first */
};

/* "sha256:<64 hex digits>" or the digits alone, if BARE. */
bool oci_digest_parse(const char *text, bool bare, char ret_hex[IMAGE_HEX_LEN]);

enum oci_kind { OCI_INDEX, OCI_MANIFEST, OCI_NEITHER };
enum oci_kind oci_kind_of(const char *text, size_t len);

/* The one entry of an index for this machine's platform. In the layout's own index (WANTED not
 * NULL) several that fit are an error that names their tags; in one below it the first is taken. */
int oci_index_pick(const char *text, size_t len, const struct oci_wanted *wanted,
                   struct oci_blob *ret_blob, struct err *err) must_check;

int oci_manifest_read(const char *text, size_t len, struct oci_manifest *ret_manifest,
                      struct err *err) must_check;
void oci_manifest_done(struct oci_manifest *manifest);

/* Refuses an image for another platform. */
int oci_config_read(const char *text, size_t len, struct oci_config *ret_config,
                    struct err *err) must_check;
void oci_config_done(struct oci_config *config);

/* The one image of `docker save`'s manifest.json that has the tag. */
int docker_manifest_read(const char *text, size_t len, const char *tag,
                         struct docker_image *ret_image, struct err *err) must_check;
void docker_image_done(struct docker_image *image);
