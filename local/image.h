#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

/* The root file systems of the local driver. An image is named by a client and found only below the
 * folders that the operator gave; it is unpacked once into the cache, which this store owns:
 *
 *     images/<sha256>/root       the root file system
 *     images/<sha256>/image.json what else is to be known of it; touched at each use
 *     names/<sha256>             which image a file held when it was last unpacked
 *     unpacking/                 what is not whole yet; emptied when the store is opened
 *
 * Names: PATH, PATH:TAG and either with @sha256:DIGEST; PATH is relative to one of the folders (the
 * first that has it wins) or absolute and below one of them. It is a folder that is a root, a tar
 * of one (.tar, .tar.gz, .tgz, .tar.zst, .tar.xz), an OCI layout, or an OCI or docker-save archive;
 * what it is shows by its content, or is said by a prefix: dir: tar: oci: oci-archive:
 * docker-archive:. For a plain name N:T these are looked for, each also with the endings above:
 * N:T, N_T, and N as a layout or archive that has the tag T. The name `host` is the driver's. */
struct image_store;

struct image {
    char *root;   /* a directory, made for reading by any uid; never written to */
    char *digest; /* 64 hex digits, what image_gc() is given; NULL: the operator's own directory */
    struct text_list env; /* NAME=value */
    char *workdir, *user; /* NULL when the image does not say */
};

/* Beyond these an image is refused. */
struct image_limits {
    uint64_t bytes;   /* unpacked, and as much again in its archive */
    uint64_t entries; /* files, folders and links, in all layers together */
};

/* CACHE is made if it is missing (mode 0711: a sandbox of another uid passes through) and belongs
 * to this store alone: another process that has it open is ERR_CONFIG, and for root a folder on its
 * way that others may not pass. FOLDERS are the operator's, absolute. LIMITS NULL: those of
 * base/caps.h. */
int image_store_open(const char *cache, const struct text_list *folders,
                     const struct image_limits *limits, struct image_store **ret_store,
                     struct err *err) must_check;
/* What is being unpacked fails with ERR_STOPPING soon, and so does what comes later. */
void image_store_stop(struct image_store *store);
void image_store_free(struct image_store *store); /* no call runs, every image is released */

/* Finds the image and unpacks it if that was not done before; blocks meanwhile. Of several calls
 * for the same one, one unpacks and all get its result. The image is held until image_release().
 * ERR_POLICY: outside of the folders. ERR_IMAGE_PULL_FAILED: it could not be read or written.
 * ERR_INVALID_IMAGE: it is not there, or the name or the content is bad; nothing of it is left. */
int image_resolve(struct image_store *store, const char *name, struct image *ret_image,
                  struct err *err) must_check;
/* Lets go of it and frees what IMAGE has. */
void image_release(struct image_store *store, struct image *image);
/* Takes hold of the image of that digest again, for a box found after a restart; then released as
 * above. ERR_IMAGE_PULL_FAILED: it is no longer in the cache. */
int image_hold(struct image_store *store, const char *digest, struct image *ret_image,
               struct err *err) must_check;

/* Removes unpacked images, the one used longest ago first, until the rest take no more than
 * KEEP_BYTES; never one that is held or whose digest is in IN_USE (the boxes' records). */
int image_gc(struct image_store *store, const struct text_list *in_use, uint64_t keep_bytes,
             struct err *err) must_check;
