#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/crypto.h"
#include "base/err.h"
#include "local/image_tree.h"

#define IMAGE_HEX_LEN 65 /* SHA-256 in hex digits, with its NUL */

void image_hex(const uint8_t hash[CRYPTO_HASH_LEN], char ret_hex[IMAGE_HEX_LEN]);

/* What an image may yet take, over all its layers. */
struct image_work {
    uint64_t bytes_left, entries_left;
    const atomic_bool *stop; /* set by another thread: give up with ERR_STOPPING */
};

struct image_sums {
    char raw[IMAGE_HEX_LEN];   /* of the archive as it is stored */
    char plain[IMAGE_HEX_LEN]; /* of a layer: of the tar in it, else "" */
};

/* Unpacks the tar that FD reads (plain, or in gzip, zstd or xz) into TREE, all of it read, and says
 * what it was. Owners, set-id bits
 * and extended attributes are dropped, device nodes, pipes and sockets passed over. What was made
 * before a failure stays: TREE is a temporary one. */
int image_unpack(struct image_tree *tree, int fd, struct image_work *work,
                 struct image_sums *ret_sums, struct err *err) must_check;
