#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

#define CRYPTO_KEY_LEN 32
#define CRYPTO_HASH_LEN 32

struct crypto_key {
    uint8_t bytes[CRYPTO_KEY_LEN];
};

/* Must be called once before anything else here. */
int crypto_start(struct err *err) must_check;

void crypto_random(void *ret_bytes, size_t len);

/* Reads the server's key (32 bytes as 64 hex digits), or makes the file with mode 0600: whole or
 * not at all, and of several that try at once all get the same key. */
int crypto_key_load(const char *path, struct crypto_key *ret_key, struct err *err) must_check;

/* Keyed hash (BLAKE2b-256) of PURPOSE and the PARTS in order; each part is framed by its length. */
void crypto_keyed_hash(const struct crypto_key *key, const char *purpose, const struct str *parts,
                       size_t count, uint8_t ret_hash[CRYPTO_HASH_LEN]);
/* Plain BLAKE2b-256 (`crypto_hash` is a name of libsodium's). */
void crypto_digest(const void *data, size_t len, uint8_t ret_hash[CRYPTO_HASH_LEN]);

/* SHA-256 of bytes as they come. */
struct crypto_sha256 {
    uint64_t opaque[16];
};
void crypto_sha256_start(struct crypto_sha256 *sha);
void crypto_sha256_add(struct crypto_sha256 *sha, const void *data, size_t len);
void crypto_sha256_end(struct crypto_sha256 *sha, uint8_t ret_hash[CRYPTO_HASH_LEN]);

int crypto_compare(const void *a, const void *b, size_t len); /* constant time; 0 = equal */

/* XChaCha20-Poly1305 with a random nonce, bound to PURPOSE and BOUND (not secret, must be given
 * again to open). The result is appended to OUT. crypto_open fails with ERR_INTERNAL for whatever
 * was not sealed exactly so; the caller puts in the code that fits. */
int crypto_seal(const struct crypto_key *key, const char *purpose, struct str bound,
                struct str plain, struct buf *out, struct err *err) must_check;
int crypto_open(const struct crypto_key *key, const char *purpose, struct str bound,
                struct str sealed, struct buf *out, struct err *err) must_check;

/* API keys: a memory-hard hash would cost 50 ms a request, and the keys are random, so BLAKE2b. */
