/* Opening and closing. The order of the steps matters: the lock is taken before the database file
 * is touched (closing a second descriptor of a file drops the POSIX locks that SQLite holds on it),
 * and a file is not written to before it is known to be ours. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/query.h"

#define BUSY_TIMEOUT_MS 5000

/* Follows links, so that one file has one lock whatever name it is given. The file may be missing.
 * Malloc'd; NULL on failure. */
static char *resolve(const char *path, struct err *err)
{
    char *whole = realpath(path, NULL);
    if (whole != NULL)
        return whole;
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    if (errno != ENOENT || name[0] == '\0') {
        err_errno(err, ERR_CONFIG, errno, "open the store '%s'", path);
        return NULL;
    }
    cleanup_free char *parent =
        slash == NULL ? xstrdup(".") : xstrndup(path, (size_t)(name - path));
    cleanup_free char *dir = realpath(parent, NULL);
    if (dir == NULL) {
        err_errno(err, ERR_CONFIG, errno, "open the directory of the store '%s'", path);
        return NULL;
    }
    return xasprintf("%s/%s", dir, name);
}

/* Before anything is made beside it. SQLite takes a file of one byte for an empty one and would
 * overwrite it. */
static int check_kind(const char *path, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno == ENOENT ? 0
                               : err_errno(err, ERR_CONFIG, errno, "look at the store '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_CONFIG, "'%s' is not a regular file", path);
    if (st.st_size > 0 && st.st_size < 100)
        return err_set(err, ERR_CONFIG, "'%s' is not a database; give another --store", path);
    return 0;
}

/* Makes PATH readable by nobody else; FD is open on it. */
static int restrict_mode(const char *path, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(err, ERR_CONFIG, errno, "look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_CONFIG, "'%s' is not a regular file", path);
    if ((st.st_mode & 07777) != 0600 && fchmod(fd, 0600) < 0)
        return err_errno(err, ERR_CONFIG, errno,
                         "'%s' has mode %03o and cannot be made private (0600)", path,
                         (unsigned)st.st_mode & 07777);
    return 0;
}

static int take_lock(const char *path, int *ret_fd, struct err *err)
{
    cleanup_free char *lock_path = xasprintf("%s.lock", path);
    cleanup_fd int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "open the store's lock '%s'", lock_path);
    if (restrict_mode(lock_path, fd, err) < 0)
        return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            return err_set(
                err, ERR_CONFIG,
                "the store '%s' is in use by another podsandboxd; stop that one, or give "
                "this one its own --store",
                path);
        return err_errno(err, ERR_CONFIG, errno, "lock the store '%s'", path);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* SQLite gives its side files the mode of the main one; those a crash left behind are ours to set.
 */
static int prepare_file(const char *path, const char *suffix, int flags, struct err *err)
{
    cleanup_free char *name = xasprintf("%s%s", path, suffix);
    cleanup_fd int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK | flags, 0600);
    if (fd < 0 && errno == ENOENT && flags == 0)
        return 0;
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "open the store '%s'", name);
    return restrict_mode(name, fd, err);
}

static int set_up(struct store *store, struct err *err)
{
    static const char *const pragmas[] = {
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "PRAGMA foreign_keys=ON",
        "PRAGMA journal_size_limit=8388608",
    };
    for (size_t i = 0; i < ARRAY_LEN(pragmas); i++) {
        if (store_exec(store, pragmas[i], err) < 0)
            return -1;
    }
    return 0;
}

static int open_database(struct store *store, const char *path, struct err *err)
{
    int code = sqlite3_open_v2(path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK)
        return err_set(err, ERR_CONFIG, "open the store '%s': %s", path, sqlite3_errstr(code));
    (void)sqlite3_extended_result_codes(store->db, 1);
    (void)sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
    /* The file may have been made by somebody else to do harm. */
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (schema_check(store, path, err) < 0 || set_up(store, err) < 0)
        return -1;
    return schema_migrate(store, err);
}

static void close_store(struct store **store)
{
    store_close(*store);
}

int store_open(const char *path, struct store **ret_store, struct err *err)
{
    cleanup_free char *whole = resolve(path, err);
    if (whole == NULL || check_kind(whole, err) < 0)
        return -1;
    cleanup(close_store) struct store *store = xcalloc(1, sizeof(*store));
    pthread_mutex_init(&store->lock, NULL);
    store->lock_fd = -1;
    if (take_lock(whole, &store->lock_fd, err) < 0 || prepare_file(whole, "", O_CREAT, err) < 0 ||
        prepare_file(whole, "-wal", 0, err) < 0 || prepare_file(whole, "-shm", 0, err) < 0 ||
        open_database(store, whole, err) < 0)
        return -1;
    *ret_store = TAKE_PTR(store);
    return 0;
}

void store_close(struct store *store)
{
    if (store == NULL)
        return;
    for (size_t i = 0; i < store->kept_count; i++)
        sqlite3_finalize(store->kept[i]);
    (void)sqlite3_close(store->db);
    if (store->lock_fd >= 0)
        (void)close(store->lock_fd);
    pthread_mutex_destroy(&store->lock);
    free(store);
}
