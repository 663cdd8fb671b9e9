#pragma once

#include "base/err.h"
#include "local/image.h"
#include "tests/unit/image_builder.h"
#include "tests/unit/temp_dir.h"

/* A store in a folder of its own: `images` in it is the operator's, `cache` the store's. */
extern struct temp_dir dir;
extern struct image_store *store;
extern struct err err;

extern const struct entry base_layer[], top_layer[];

void store_setup(void);
void store_teardown(void); /* nothing half done may be left */
void store_reopen(const struct image_limits *limits);

char *in_images(const char *name);
size_t count_in(const char *folder);

void make_tar(const char *name, const struct entry *entries, enum compression how);
/* Without layers: base_layer and top_layer. Returns the manifest's digest. */
const char *make_layout(const char *name, struct layout layout);
void make_archive(const char *name, struct layout layout);

void assert_resolves(const char *name, struct image *ret_image);
/* Until the archive is old enough for its image to be remembered, as one of COUNT. */
void await_name(const char *name, size_t count);
void assert_refused(const char *name, enum err_code code);
void assert_has(const struct image *image, const char *path, const char *want);
