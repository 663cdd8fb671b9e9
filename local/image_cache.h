#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "local/image.h"
#include "local/image_unpack.h"

/* The folder of unpacked images on disk (image.h has its shape). An image appears and goes in one
 * step, by a rename. Calls that name an image must not run at once for the same one, but for
 * what is said. */
struct image_cache {
    char *path;
    int top, images, names, unpacking;
    atomic_uint next; /* name of a temporary */
};

int image_cache_open(const char *path, struct image_cache *ret_cache, struct err *err) must_check;
void image_cache_close(struct image_cache *cache);

/* A folder in unpacking/; any number at once. */
struct image_temp {
    char name[16];
    int fd;
};
int image_temp_make(struct image_cache *cache, struct image_temp *ret_temp,
                    struct err *err) must_check;
/* A new folder in it, open. -1 with `err`. */
int image_temp_folder(const struct image_temp *temp, const char *name, struct err *err) must_check;
void image_temp_remove(struct image_cache *cache, struct image_temp *temp); /* with what is in it */

/* Makes TEMP, in which the folder `root` is whole, the image of that digest. If it is there
 * already, that one stays. TEMP is removed or used either way. */
int image_cache_commit(struct image_cache *cache, struct image_temp *temp,
                       const struct image *image, uint64_t bytes, struct err *err) must_check;
/* False when it is not there, or not whole (the machine lost power). Counts as a use. */
bool image_cache_load(struct image_cache *cache, const char *hex, struct image *ret_image);
/* Whether image_cache_load() would find it; no use. */
bool image_cache_has(struct image_cache *cache, const char *hex);
/* Takes the image away, into TEMP, which the caller removes. False when it is not there. */
bool image_cache_take(struct image_cache *cache, const char *hex, struct image_temp *ret_temp);

/* Which image a request led to, when what it named had that identity; both as hashes. */
bool image_cache_recall(struct image_cache *cache, const char *request, const char *identity,
                        char ret_hex[IMAGE_HEX_LEN]);
void image_cache_remember(struct image_cache *cache, const char *request, const char *identity,
                          const char *hex);
void image_cache_forget(struct image_cache *cache); /* those whose image is gone */

struct image_entry {
    char hex[IMAGE_HEX_LEN];
    uint64_t bytes;
    int64_t used_ns;
};
/* All images, the one used longest ago first; malloc'd. */
int image_cache_list(struct image_cache *cache, struct image_entry **ret_entries, size_t *ret_count,
                     struct err *err) must_check;
