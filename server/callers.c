#include "server/callers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/str.h"

#define CAP_KEYS_FILE (8 * MIB)
#define OWNER_MAX 128
#define ADMIN_KEY_MIN 16
/* The file's change is looked for at most this often. */
#define LOOK_EVERY_MS 1000

struct key {
    uint8_t hash[CRYPTO_HASH_LEN];
    char *owner;
    bool admin;
};

struct keys {
    struct key *items; /* sorted by hash */
    size_t count;
};

/* A file that keys come from. */
struct source {
    char *path; /* NULL: not used */
    const char *what;
    int (*parse)(struct str text, struct keys *ret_keys, struct err *err);
    struct keys keys;
    struct stat seen;
};

enum { SOURCE_KEYS, SOURCE_ADMIN, SOURCES };

struct callers {
    pthread_mutex_t lock; /* guards what follows */
    struct source sources[SOURCES];
    int64_t looked_ms;
};

static void keys_done(struct keys *keys)
{
    for (size_t i = 0; i < keys->count; i++)
        free(keys->items[i].owner);
    free(keys->items);
    *keys = (struct keys){.count = 0};
}

/* --- reading the file ---------------------------------------------------------------------------
 */

static struct str next_word(struct str *line)
{
    while (line->len && strchr(" \t\r", line->ptr[0])) {
        line->ptr++;
        line->len--;
    }
    struct str word = {line->ptr, 0};
    while (word.len < line->len && !strchr(" \t\r", line->ptr[word.len]))
        word.len++;
    line->ptr += word.len;
    line->len -= word.len;
    return word;
}

static bool owner_valid(struct str owner)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-";

    if (!owner.len || owner.len > OWNER_MAX)
        return false;
    for (size_t i = 0; i < owner.len; i++) {
        if (!memchr(allowed, owner.ptr[i], sizeof(allowed) - 1))
            return false;
    }
    return true;
}

static int parse_line(struct str line, size_t number, struct keys *keys, struct err *err)
{
    struct str hash = next_word(&line), owner = next_word(&line), role = next_word(&line);
    cleanup_buf struct buf bytes = BUF_INIT(CRYPTO_HASH_LEN);

    if (!hash.len || hash.ptr[0] == '#')
        return 0;
    if (!hex_decode(&bytes, hash) || bytes.len != CRYPTO_HASH_LEN)
        return err_set(err, ERR_CONFIG, "line %zu: the hash is not 64 hex digits", number);
    if (!owner_valid(owner))
        return err_set(err, ERR_CONFIG, "line %zu: the owner must be of A-Za-z0-9._@-", number);
    bool admin = str_is(role, "admin");
    struct str rest = next_word(&line);
    if ((!admin && !str_is(role, "user")) || (rest.len && rest.ptr[0] != '#'))
        return err_set(err, ERR_CONFIG, "line %zu: the role must be user or admin", number);
    struct key key = {.owner = xstrndup(owner.ptr, owner.len), .admin = admin};
    memcpy(key.hash, bytes.ptr, sizeof(key.hash));
    if ((keys->count & (keys->count - 1)) == 0) /* at each power of two */
        keys->items = xrealloc(keys->items, (keys->count ? keys->count * 2 : 1) * sizeof(key));
    keys->items[keys->count++] = key;
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    return memcmp(((const struct key *)a)->hash, ((const struct key *)b)->hash, CRYPTO_HASH_LEN);
}

static int parse_keys(struct str text, struct keys *ret_keys, struct err *err)
{
    struct keys keys = {.count = 0};
    size_t number = 1;

    for (const char *at = text.ptr, *end = text.ptr + text.len; at < end; number++) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));

        if (!line_end)
            line_end = end;
        if (parse_line((struct str){at, (size_t)(line_end - at)}, number, &keys, err)) {
            keys_done(&keys);
            return -1;
        }
        at = line_end + 1;
    }
    if (keys.count)
        qsort(keys.items, keys.count, sizeof(*keys.items), compare_keys);
    for (size_t i = 1; i < keys.count; i++) {
        if (compare_keys(&keys.items[i - 1], &keys.items[i]) == 0) {
            keys_done(&keys);
            return err_set(err, ERR_CONFIG, "the same key is there twice");
        }
    }
    *ret_keys = keys;
    return 0;
}

/* One key, as it is sent; blanks and line ends behind it do not count. */
static int parse_admin_key(struct str text, struct keys *ret_keys, struct err *err)
{
    struct key key = {.admin = true};
    bool plain = true;

    while (text.len && strchr(" \t\r\n", text.ptr[text.len - 1]))
        text.len--;
    for (size_t i = 0; i < text.len; i++)
        plain = plain && text.ptr[i] > ' ' && text.ptr[i] <= '~';
    if (!plain || text.len < ADMIN_KEY_MIN)
        return err_set(err, ERR_CONFIG, "it must hold one word of at least %d characters",
                       ADMIN_KEY_MIN);
    crypto_digest(text.ptr, text.len, key.hash);
    key.owner = xstrdup("admin");
    *ret_keys = (struct keys){.items = xcalloc(1, sizeof(key)), .count = 1};
    ret_keys->items[0] = key;
    return 0;
}

static int read_keys(const struct source *source, struct keys *ret_keys, struct stat *ret_seen,
                     struct err *err)
{
    const char *path = source->path;
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    cleanup_buf struct buf text = BUF_INIT(CAP_KEYS_FILE);

    if (fd < 0 || fstat(fd, ret_seen))
        return err_errno(err, ERR_CONFIG, errno, "%s %s", source->what, path);
    for (;;) {
        char *at = buf_reserve(&text, 4096);
        ssize_t len = at ? read(fd, at, 4096) : 0;

        if (!at)
            return err_set(err, ERR_CONFIG, "%s %s is too large", source->what, path);
        if (len < 0)
            return err_errno(err, ERR_CONFIG, errno, "read %s %s", source->what, path);
        if (len == 0)
            break;
        buf_grew(&text, (size_t)len);
    }
    if (source->parse((struct str){buf_text(&text), text.len}, ret_keys, err))
        return err_wrap(err, "%s %s", source->what, path);
    return 0;
}

/* --- callers ------------------------------------------------------------------------------------
 */

int callers_open(const char *keys_file, const char *admin_key_file, struct callers **ret_callers,
                 struct err *err)
{
    struct callers *callers = xcalloc(1, sizeof(*callers));
    const char *paths[SOURCES] = {keys_file, admin_key_file};

    (void)pthread_mutex_init(&callers->lock, NULL);
    callers->sources[SOURCE_KEYS] = (struct source){.what = "API keys file", .parse = parse_keys};
    callers->sources[SOURCE_ADMIN] =
        (struct source){.what = "admin key file", .parse = parse_admin_key};
    for (size_t i = 0; i < SOURCES; i++) {
        struct source *source = &callers->sources[i];

        if (!paths[i])
            continue;
        source->path = xstrdup(paths[i]);
        if (read_keys(source, &source->keys, &source->seen, err)) {
            callers_close(callers);
            return -1;
        }
    }
    callers->looked_ms = clock_now_ms();
    *ret_callers = callers;
    return 0;
}

void callers_close(struct callers *callers)
{
    if (!callers)
        return;
    for (size_t i = 0; i < SOURCES; i++) {
        keys_done(&callers->sources[i].keys);
        free(callers->sources[i].path);
    }
    (void)pthread_mutex_destroy(&callers->lock);
    free(callers);
}

bool callers_keyed(const struct callers *callers)
{
    return callers->sources[SOURCE_KEYS].path || callers->sources[SOURCE_ADMIN].path;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Under the lock. */
static void look_again(struct source *source)
{
    struct stat now;
    struct keys keys = {.count = 0};
    struct err err;

    /* Missing for a moment while it is replaced: the last good one stays. */
    if (!source->path || stat(source->path, &now) || is_same_file(&now, &source->seen))
        return;
    if (read_keys(source, &keys, &now, &err)) {
        log_event(LOG_LEVEL_ERROR, "a file of keys is broken, the last good one stays", "detail",
                  err.msg, NULL);
        source->seen = now; /* said once */
        return;
    }
    keys_done(&source->keys);
    source->keys = keys;
    source->seen = now;
    log_event(LOG_LEVEL_INFO, "a file of keys was read again", "file", source->path, NULL);
}

/* Under the lock. */
static void look_at_all(struct callers *callers)
{
    if (clock_now_ms() - callers->looked_ms < LOOK_EVERY_MS)
        return;
    callers->looked_ms = clock_now_ms();
    for (size_t i = 0; i < SOURCES; i++)
        look_again(&callers->sources[i]);
}

/* Under the lock; NULL: not there. A search by the hash tells by its time nothing that leads to a
 * key. */
static const struct key *find_key(const struct callers *callers, const struct key *wanted)
{
    for (size_t i = 0; i < SOURCES; i++) {
        const struct keys *keys = &callers->sources[i].keys;
        const struct key *item =
            keys->count ? bsearch(wanted, keys->items, keys->count, sizeof(*wanted), compare_keys)
                        : NULL;

        if (item)
            return item;
    }
    return NULL;
}

int callers_check(struct callers *callers, const char *key, char ret_owner[129], bool *ret_admin,
                  struct err *err)
{
    struct key wanted = {.owner = NULL};

    if (!callers_keyed(callers)) {
        memcpy(ret_owner, "local", sizeof("local"));
        *ret_admin = true;
        return 0;
    }
    crypto_digest(key, strlen(key), wanted.hash);
    pthread_mutex_lock(&callers->lock);
    look_at_all(callers);
    const struct key *item = find_key(callers, &wanted);
    if (item) {
        memcpy(ret_owner, item->owner, strlen(item->owner) + 1);
        *ret_admin = item->admin;
    }
    pthread_mutex_unlock(&callers->lock);
    return item ? 0 : err_set(err, ERR_UNAUTHENTICATED, "the API key is not known");
}
