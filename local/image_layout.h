#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "local/image_name.h"
#include "local/image_oci.h"

/* A folder that holds an image in pieces: an OCI layout, or what `docker save` wrote. */
struct layout_layer {
    char *path;              /* in the folder */
    int64_t size;            /* -1: not said */
    char hex[IMAGE_HEX_LEN]; /* of the file; "": not said */
};

struct layout_image {
    char hex[IMAGE_HEX_LEN]; /* its digest: the manifest's, or docker's image id */
    struct layout_layer *layers;
    size_t count;
    struct oci_config config; /* as many diff_ids as layers */
};

/* IMAGE_OCI, IMAGE_DOCKER, or IMAGE_ANY when it is neither. */
enum image_kind image_layout_kind(int folder);

/* Finds the image and reads what says how it is made up, each digest verified. */
int image_layout_read(int folder, enum image_kind kind, const struct oci_wanted *wanted,
                      struct layout_image *ret_image, struct err *err) must_check;
void layout_image_done(struct layout_image *image);

/* Unpacks the layers into the empty directory ROOT, the digests of each verified. */
int image_layout_unpack(int folder, const struct layout_image *image, int root,
                        struct image_work *work, struct err *err) must_check;
