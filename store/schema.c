/* The tables, and how a file of an older server becomes one of this server. A migration only adds
 * tables, indexes and columns that are NULL or have a default, so that a server that was rolled
 * back still works with the file; it leaves alone what it does not know. */
#include <stdio.h>
#include <string.h>

#include "store/query.h"

/* In the header of every file of ours; SQLite reserves the field for telling programs apart. */
#define APPLICATION_ID 0x50534258 /* "PSBX" */

/* A larger file is not looked through at the start: it takes 1 ms for a MiB. */
#define CHECKED_BYTES ((int64_t)256 << 20)

static const char *const migrations[] = {
    /* 1 */
    "CREATE TABLE sandboxes ("
    " uid TEXT NOT NULL PRIMARY KEY, id TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,"
    " reason TEXT, message TEXT, image TEXT, spec TEXT, labels TEXT,"
    " sealed BLOB, sealed_version INTEGER NOT NULL, digest TEXT,"
    " box_uid TEXT, node TEXT, container_id TEXT,"
    " created INTEGER NOT NULL, since INTEGER NOT NULL, ready INTEGER NOT NULL,"
    " ended INTEGER NOT NULL, deadline INTEGER NOT NULL, last_exec INTEGER NOT NULL);"
    "CREATE UNIQUE INDEX sandboxes_living_id ON sandboxes(id) WHERE state <> 'gone';"
    "CREATE INDEX sandboxes_id ON sandboxes(id, created);"
    "CREATE INDEX sandboxes_created ON sandboxes(created, uid);"
    "CREATE INDEX sandboxes_owner ON sandboxes(owner, created, uid);"
    "CREATE INDEX sandboxes_living ON sandboxes(created, uid) WHERE state <> 'gone';"
    "CREATE INDEX sandboxes_living_owner ON sandboxes(owner, created, uid) WHERE state <> 'gone';"
    "CREATE INDEX sandboxes_state ON sandboxes(state);"
    "CREATE INDEX sandboxes_ended ON sandboxes(max(ended, since)) WHERE state = 'gone';"
    "CREATE TABLE states ("
    " seq INTEGER PRIMARY KEY,"
    " uid TEXT NOT NULL REFERENCES sandboxes(uid) ON DELETE CASCADE,"
    " state TEXT NOT NULL, reason TEXT, message TEXT, at INTEGER NOT NULL);"
    "CREATE INDEX states_uid ON states(uid, seq);"
    "CREATE TABLE execs ("
    " uid TEXT NOT NULL REFERENCES sandboxes(uid) ON DELETE CASCADE, number INTEGER NOT NULL,"
    " state TEXT NOT NULL, spec TEXT, result TEXT, created INTEGER NOT NULL,"
    " ended INTEGER NOT NULL, committed INTEGER NOT NULL, UNIQUE (uid, number));"
    "CREATE TABLE previews ("
    " uid TEXT NOT NULL REFERENCES sandboxes(uid) ON DELETE CASCADE, port INTEGER NOT NULL,"
    " first INTEGER NOT NULL, host TEXT COLLATE NOCASE, service TEXT, ingress TEXT,"
    " exec INTEGER NOT NULL, spec TEXT, created INTEGER NOT NULL, UNIQUE (uid, port));"
    "CREATE INDEX previews_host ON previews(host);"
    "CREATE TABLE events ("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    " uid TEXT REFERENCES sandboxes(uid) ON DELETE CASCADE,"
    " type TEXT NOT NULL, detail TEXT, at INTEGER NOT NULL);"
    "CREATE INDEX events_uid ON events(uid, seq);"
    "CREATE TABLE idempotency ("
    " owner TEXT NOT NULL, route TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL,"
    " uid TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL,"
    " PRIMARY KEY (owner, route, key));"
    "CREATE INDEX idempotency_at ON idempotency(at);",
    /* 2 */
    "CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL);",
    /* 3 */
    "CREATE INDEX execs_running ON execs(uid, number) WHERE state = 'running';",
    /* 4: shell sessions */
    ("ALTER TABLE execs ADD COLUMN session INTEGER NOT NULL DEFAULT 0;"
     "CREATE INDEX execs_sessions ON execs(uid, number) WHERE session = number;"),
};
#define SCHEMA_VERSION ((int64_t)ARRAY_LEN(migrations))

/* What this program reads and writes. A newer file must have it all, and what else it has must not
 * ask for a value that we would not give. */
static const struct table {
    const char *name, *columns;
} tables[] = {
    {"sandboxes",
     "uid,id,owner,state,reason,message,image,spec,labels,sealed,sealed_version,digest,"
     "box_uid,node,container_id,created,since,ready,ended,deadline,last_exec"},
    {"states", "seq,uid,state,reason,message,at"},
    {"execs", "uid,number,state,spec,result,created,ended,committed,session"},
    {"previews", "uid,port,first,host,service,ingress,exec,spec,created"},
    {"events", "seq,uid,type,detail,at"},
    {"idempotency", "owner,route,key,digest,uid,number,at"},
    {"facts", "name,value"},
};

static int read_number(struct store *store, const char *sql, int64_t *ret_value, struct err *err)
{
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    int rc = query_next(&query, err);
    if (rc == 1)
        *ret_value = query_int(&query);
    return rc < 0 ? -1 : 0;
}

/* The columns of TABLE that we do not know and that must be given at an insert, and those that are
 * missing, counted. */
static int count_unusable(struct store *store, const struct table *table, int64_t *ret_count,
                          struct err *err)
{
    static const char sql[] =
        "WITH ours(name) AS (SELECT value FROM json_each('[\"' || replace(?1, ',', '\",\"') || "
        "'\"]')),"
        " there AS (SELECT name, \"notnull\" AS must, dflt_value AS fallback, pk"
        "           FROM pragma_table_info(?2))"
        "SELECT (SELECT count(*) FROM ours WHERE name NOT IN (SELECT name FROM there))"
        " + (SELECT count(*) FROM there WHERE name NOT IN (SELECT name FROM ours)"
        "    AND ((must AND fallback IS NULL) OR pk))";
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, sql, &query, err) < 0)
        return -1;
    query_bind_text(&query, table->columns);
    query_bind_text(&query, table->name);
    int rc = query_next(&query, err);
    if (rc == 1)
        *ret_count = query_int(&query);
    return rc < 0 ? -1 : 0;
}

static int check_newer(struct store *store, const char *path, int64_t version, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        int64_t unusable = 0;
        if (count_unusable(store, &tables[i], &unusable, err) < 0)
            return -1;
        if (unusable > 0)
            return err_set(
                err, ERR_CONFIG,
                "'%s' was written by a newer podsandboxd (schema %lld, table %s) in a way "
                "that this one cannot use; run the newer one, or give another --store",
                path, (long long)version, tables[i].name);
    }
    return 0;
}

static int check_identity(struct store *store, const char *path, struct err *err)
{
    int64_t application = 0, version = 0, objects = 0;
    if (read_number(store, "PRAGMA application_id", &application, err) < 0 ||
        read_number(store, "PRAGMA user_version", &version, err) < 0 ||
        read_number(store, "SELECT count(*) FROM sqlite_master", &objects, err) < 0)
        return -1;
    bool empty = application == 0 && version == 0 && objects == 0;
    if (!empty && application != APPLICATION_ID)
        return err_set(err, ERR_CONFIG,
                       "'%s' is a database of another program; give another --store", path);
    if (version > SCHEMA_VERSION)
        return check_newer(store, path, version, err);
    return 0;
}

/* A damaged file is better noticed now than in the middle of a request. */
static int check_intact(struct store *store, const char *path, struct err *err)
{
    int64_t pages = 0, page_size = 0;
    if (read_number(store, "PRAGMA page_count", &pages, err) < 0 ||
        read_number(store, "PRAGMA page_size", &page_size, err) < 0)
        return -1;
    if (pages * page_size > CHECKED_BYTES)
        return 0;
    cleanup_query struct query query = QUERY_INIT;
    if (query_open(store, "PRAGMA quick_check(1)", &query, err) < 0 || query_next(&query, err) < 0)
        return -1;
    cleanup_free char *verdict = query_text(&query);
    if (verdict != NULL && strcmp(verdict, "ok") == 0)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "the store '%s' is damaged (%s); move it away and start with an empty one, which "
        "adopts the sandboxes that live",
        path, verdict == NULL ? "unreadable" : verdict);
}

int schema_check(struct store *store, const char *path, struct err *err)
{
    struct err why;
    if (check_identity(store, path, &why) == 0 && check_intact(store, path, &why) == 0)
        return 0;
    int code = sqlite3_errcode(store->db) & 0xff;
    if (code == SQLITE_NOTADB)
        return err_set(
            err, ERR_CONFIG,
            "'%s' is not a database, or is damaged; give another --store, or move it away", path);
    return err_set(err, code == SQLITE_CORRUPT ? ERR_CONFIG : why.code, "'%s': %s", path, why.msg);
}

static int migrate_step(struct store *store, int64_t version, struct err *err)
{
    char number[96];
    (void)snprintf(number, sizeof(number), "PRAGMA application_id=%d;PRAGMA user_version=%lld",
                   APPLICATION_ID, (long long)version + 1);
    if (write_begin(store, true, err) < 0)
        return -1;
    int rc = store_exec(store, migrations[version], err);
    if (rc == 0)
        rc = store_exec(store, number, err);
    return write_end(store, rc, err);
}

int schema_migrate(struct store *store, struct err *err)
{
    int64_t version = 0;
    if (read_number(store, "PRAGMA user_version", &version, err) < 0)
        return -1;
    for (; version < SCHEMA_VERSION; version++) {
        if (migrate_step(store, version, err) < 0)
            return err_wrap(err, "migrate the store to schema %lld", (long long)version + 1);
    }
    return 0;
}
