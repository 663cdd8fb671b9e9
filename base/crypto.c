#include "base/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"

_Static_assert(CRYPTO_KEY_LEN == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "key of the cipher");
_Static_assert(CRYPTO_KEY_LEN == crypto_generichash_KEYBYTES, "key of the hash");
_Static_assert(CRYPTO_HASH_LEN == crypto_generichash_BYTES, "length of the hash");

int crypto_start(struct err *err)
{
    if (sodium_init() < 0)
        return err_set(err, ERR_INTERNAL, "libsodium cannot be initialised");
    return 0;
}

void crypto_random(void *ret_bytes, size_t len)
{
    randombytes_buf(ret_bytes, len);
}

int crypto_compare(const void *a, const void *b, size_t len)
{
    return sodium_memcmp(a, b, len);
}

#define KEY_TEXT_LEN ((size_t)2 * CRYPTO_KEY_LEN)

static int parse_key(const char *path, struct str text, struct crypto_key *ret_key, struct err *err)
{
    struct buf key = BUF_INIT(CRYPTO_KEY_LEN);
    while (text.len > 0 && (text.ptr[text.len - 1] == '\n' || text.ptr[text.len - 1] == '\r'))
        text.len--;
    bool good = text.len == KEY_TEXT_LEN && hex_decode(&key, text);
    if (good)
        memcpy(ret_key->bytes, key.ptr, CRYPTO_KEY_LEN);
    buf_wipe(&key);
    if (!good)
        return err_set(err, ERR_CONFIG, "key file '%s': expected %zu hex digits", path,
                       KEY_TEXT_LEN);
    return 0;
}

/* 1: there is no such file. */
static int read_key(const char *path, struct crypto_key *ret_key, struct err *err)
{
    char text[KEY_TEXT_LEN + 8];
    size_t len = 0;
    /* O_NONBLOCK: a FIFO must not hang the start. */
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 1;
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "open key file '%s'", path);
    while (len < sizeof(text)) {
        ssize_t n = read(fd, text + len, sizeof(text) - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, ERR_CONFIG, errno, "read key file '%s'", path);
        if (n == 0)
            break;
        len += (size_t)n;
    }
    int rc = parse_key(path, (struct str){text, len}, ret_key, err);
    explicit_bzero(text, sizeof(text));
    return rc;
}

static int write_new_key(int fd)
{
    struct crypto_key key;
    struct buf text = BUF_INIT(KEY_TEXT_LEN + 1);
    crypto_random(key.bytes, sizeof(key.bytes));
    bool written = hex_encode(&text, key.bytes, sizeof(key.bytes)) && buf_append_char(&text, '\n');
    written = written && write(fd, text.ptr, text.len) == (ssize_t)text.len && fsync(fd) == 0;
    buf_wipe(&text);
    explicit_bzero(&key, sizeof(key));
    return written ? 0 : -1;
}

static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    cleanup_free char *folder = len ? xstrndup(path, len) : xstrdup(".");
    cleanup_fd int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)fsync(fd); /* the file itself is synced; this only makes its name last */
}

/* Written under another name and linked: nobody sees half a key, and the first of two wins. */
static int make_key(const char *path, struct err *err)
{
    cleanup_free char *temporary = xasprintf("%s.new-XXXXXX", path);
    cleanup_fd int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "create key file '%s'", path);
    int failed = 0;
    if (fchmod(fd, 0600) < 0 || write_new_key(fd) < 0)
        failed = errno ? errno : EIO;
    else if (link(temporary, path) < 0 && errno != EEXIST)
        failed = errno;
    unlink(temporary);
    if (failed)
        return err_errno(err, ERR_CONFIG, failed, "create key file '%s'", path);
    sync_folder(path);
    return 0;
}

int crypto_key_load(const char *path, struct crypto_key *ret_key, struct err *err)
{
    int rc = read_key(path, ret_key, err);
    if (rc <= 0)
        return rc;
    if (make_key(path, err) < 0)
        return -1;
    rc = read_key(path, ret_key, err);
    if (rc > 0)
        return err_set(err, ERR_CONFIG, "key file '%s' was removed while it was made", path);
    return rc;
}

/* Eight bytes, least significant first: no two lists of parts give the same bytes. */
static void frame_length(uint64_t len, uint8_t ret_bytes[8])
{
    for (size_t i = 0; i < 8; i++)
        ret_bytes[i] = (uint8_t)(len >> (8 * i));
}

static void hash_part(crypto_generichash_state *state, struct str part)
{
    uint8_t length[8];
    frame_length(part.len, length);
    crypto_generichash_update(state, length, sizeof(length));
    crypto_generichash_update(state, (const uint8_t *)part.ptr, part.len);
}

void crypto_keyed_hash(const struct crypto_key *key, const char *purpose, const struct str *parts,
                       size_t count, uint8_t ret_hash[CRYPTO_HASH_LEN])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, key->bytes, sizeof(key->bytes), CRYPTO_HASH_LEN);
    hash_part(&state, str_of(purpose));
    for (size_t i = 0; i < count; i++)
        hash_part(&state, parts[i]);
    crypto_generichash_final(&state, ret_hash, CRYPTO_HASH_LEN);
    sodium_memzero(&state, sizeof(state));
}

void crypto_digest(const void *data, size_t len, uint8_t ret_hash[CRYPTO_HASH_LEN])
{
    crypto_generichash(ret_hash, CRYPTO_HASH_LEN, data, len, NULL, 0);
}

_Static_assert(sizeof(struct crypto_sha256) >= sizeof(crypto_hash_sha256_state), "room for it");
_Static_assert(CRYPTO_HASH_LEN == crypto_hash_sha256_BYTES, "length of the hash");

void crypto_sha256_start(struct crypto_sha256 *sha)
{
    crypto_hash_sha256_init((crypto_hash_sha256_state *)(void *)sha);
}

void crypto_sha256_add(struct crypto_sha256 *sha, const void *data, size_t len)
{
    crypto_hash_sha256_update((crypto_hash_sha256_state *)(void *)sha, data, len);
}

void crypto_sha256_end(struct crypto_sha256 *sha, uint8_t ret_hash[CRYPTO_HASH_LEN])
{
    crypto_hash_sha256_final((crypto_hash_sha256_state *)(void *)sha, ret_hash);
}

/* A sealed blob: a version byte, the nonce, the cipher text with its tag. */
#define SEAL_VERSION 1
#define NONCE_LEN ((size_t)crypto_aead_xchacha20poly1305_ietf_NPUBBYTES)
#define TAG_LEN ((size_t)crypto_aead_xchacha20poly1305_ietf_ABYTES)
#define SEAL_OVERHEAD (1 + NONCE_LEN + TAG_LEN)

/* What the seal is bound to, in a fixed size: the hash of the framed purpose and BOUND. */
static void bind_to(const struct crypto_key *key, const char *purpose, struct str bound,
                    uint8_t ret_hash[CRYPTO_HASH_LEN])
{
    const struct str parts[] = {str_of(purpose), bound};
    crypto_keyed_hash(key, "seal", parts, ARRAY_LEN(parts), ret_hash);
}

int crypto_seal(const struct crypto_key *key, const char *purpose, struct str bound,
                struct str plain, struct buf *out, struct err *err)
{
    uint8_t binding[CRYPTO_HASH_LEN];
    size_t len = plain.len + SEAL_OVERHEAD;
    char *room = plain.len <= out->max ? buf_reserve(out, len) : NULL;
    if (!room)
        return err_set(err, ERR_TOO_LARGE, "%zu bytes to seal do not fit into %zu", plain.len,
                       out->max);
    uint8_t *to = (uint8_t *)room;
    to[0] = SEAL_VERSION;
    crypto_random(to + 1, NONCE_LEN);
    bind_to(key, purpose, bound, binding);
    crypto_aead_xchacha20poly1305_ietf_encrypt(to + 1 + NONCE_LEN, NULL, (const uint8_t *)plain.ptr,
                                               plain.len, binding, sizeof(binding), NULL, to + 1,
                                               key->bytes);
    buf_grew(out, len);
    return 0;
}

int crypto_open(const struct crypto_key *key, const char *purpose, struct str bound,
                struct str sealed, struct buf *out, struct err *err)
{
    const uint8_t *from = (const uint8_t *)sealed.ptr;
    uint8_t binding[CRYPTO_HASH_LEN];
    if (sealed.len < SEAL_OVERHEAD || from[0] != SEAL_VERSION)
        return err_set(err, ERR_INTERNAL, "not a sealed blob of a version that is known");
    size_t len = sealed.len - SEAL_OVERHEAD;
    char *room = buf_reserve(out, len);
    if (!room)
        return err_set(err, ERR_TOO_LARGE, "a sealed blob holds %zu bytes, more than %zu", len,
                       out->max);
    bind_to(key, purpose, bound, binding);
    int rc = crypto_aead_xchacha20poly1305_ietf_decrypt(
        (uint8_t *)room, NULL, NULL, from + 1 + NONCE_LEN, len + TAG_LEN, binding, sizeof(binding),
        from + 1, key->bytes);
    buf_grew(out, rc == 0 ? len : 0); /* which puts the NUL back either way */
    if (rc != 0)
        return err_set(err, ERR_INTERNAL,
                       "a sealed blob does not open: another key, or it was changed");
    return 0;
}
