#include "server/snapshots.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/crypto.h"

struct snapshot {
    struct snapshot *next; /* used before this one */
    char token[SNAPSHOT_TOKEN_LEN];
    char *about; /* the sandbox and the root */
    char *bytes;
    size_t len;
};

struct snapshots {
    pthread_mutex_t lock;
    struct snapshot *newest;
    size_t bytes;
};

struct snapshots *snapshots_new(void)
{
    struct snapshots *snapshots = xcalloc(1, sizeof(*snapshots));
    pthread_mutex_init(&snapshots->lock, NULL);
    return snapshots;
}

static size_t cost(const struct snapshot *snapshot)
{
    return sizeof(*snapshot) + strlen(snapshot->about) + snapshot->len;
}

static void drop(struct snapshots *snapshots, struct snapshot *snapshot)
{
    snapshots->bytes -= cost(snapshot);
    free(snapshot->about);
    free(snapshot->bytes);
    free(snapshot);
}

void snapshots_free(struct snapshots *snapshots)
{
    if (!snapshots) {
        return;
    }
    while (snapshots->newest) {
        struct snapshot *snapshot = snapshots->newest;
        snapshots->newest = snapshot->next;
        drop(snapshots, snapshot);
    }
    pthread_mutex_destroy(&snapshots->lock);
    free(snapshots);
}

/* Those that are too many, but not the newest. */
static void make_room(struct snapshots *snapshots)
{
    while (snapshots->bytes > CAP_SNAPSHOTS && snapshots->newest->next) {
        struct snapshot **link = &snapshots->newest;
        while ((*link)->next) {
            link = &(*link)->next;
        }
        struct snapshot *oldest = *link;
        *link = NULL;
        drop(snapshots, oldest);
    }
}

void snapshots_add(struct snapshots *snapshots, const char *uid, const char *root,
                   struct buf *entries, char ret_token[SNAPSHOT_TOKEN_LEN])
{
    uint8_t random[(SNAPSHOT_TOKEN_LEN - 1) / 2];
    cleanup_buf struct buf hex = BUF_INIT(2 * SNAPSHOT_TOKEN_LEN);
    struct snapshot *snapshot = xcalloc(1, sizeof(*snapshot));
    crypto_random(random, sizeof(random));
    (void)hex_encode(&hex, random, sizeof(random)); /* it has room for them */
    memcpy(snapshot->token, buf_text(&hex), SNAPSHOT_TOKEN_LEN);
    memcpy(ret_token, snapshot->token, SNAPSHOT_TOKEN_LEN);
    snapshot->about = xasprintf("%s %s", uid, root);
    snapshot->len = entries->len;
    snapshot->bytes = xmalloc(entries->len);
    if (entries->len) {
        memcpy(snapshot->bytes, entries->ptr, entries->len);
    }
    buf_done(entries);
    pthread_mutex_lock(&snapshots->lock);
    snapshot->next = snapshots->newest;
    snapshots->newest = snapshot;
    snapshots->bytes += cost(snapshot);
    make_room(snapshots);
    pthread_mutex_unlock(&snapshots->lock);
}

char *snapshots_get(struct snapshots *snapshots, const char *uid, const char *root,
                    struct str token, size_t *ret_len)
{
    cleanup_free char *about = xasprintf("%s %s", uid, root);
    char *copy = NULL;
    pthread_mutex_lock(&snapshots->lock);
    struct snapshot **link = &snapshots->newest;
    while (*link && !str_is(token, (*link)->token)) {
        link = &(*link)->next;
    }
    struct snapshot *found = *link;
    if (found && strcmp(found->about, about) == 0) {
        *link = found->next;
        found->next = snapshots->newest;
        snapshots->newest = found;
        copy = xmalloc(found->len);
        memcpy(copy, found->bytes, found->len);
        *ret_len = found->len;
    }
    pthread_mutex_unlock(&snapshots->lock);
    return copy;
}
