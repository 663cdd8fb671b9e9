#include "local/uids.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#define UID_MAX 4000000000U
#define COUNT_MAX 1000000

static int parse(const char *range, uint64_t *ret_first, uint64_t *ret_last, struct err *err)
{
    const char *dash = strchr(range, '-');

    if (!dash || !str_to_u64((struct str){range, (size_t)(dash - range)}, UID_MAX, ret_first) ||
        !str_to_u64(str_of(dash + 1), UID_MAX, ret_last) || *ret_first == 0 ||
        *ret_last < *ret_first || *ret_last - *ret_first >= COUNT_MAX)
        return err_set(err, ERR_CONFIG,
                       "--local-uids must be FIRST-LAST, without 0 and at most %d of them",
                       COUNT_MAX);
    return 0;
}

int uids_init(struct uids *uids, const char *range, struct err *err)
{
    uint64_t first = 0, last = 0;

    if (parse(range, &first, &last, err) < 0)
        return -1;
    *uids = (struct uids){.first = (uid_t)first};
    pthread_mutex_init(&uids->lock, NULL);
    if (geteuid() == 0) {
        uids->count = (size_t)(last - first + 1);
        uids->taken = xcalloc(uids->count, sizeof(*uids->taken));
    }
    return 0;
}

void uids_done(struct uids *uids)
{
    pthread_mutex_destroy(&uids->lock);
    free(uids->taken);
}

/* Round and round, so that a uid rests before it is used again. */
int uids_take(struct uids *uids, uid_t *ret_uid, struct err *err)
{
    if (uids->count == 0) {
        *ret_uid = geteuid();
        return 0;
    }
    pthread_mutex_lock(&uids->lock);
    for (size_t tried = 0; tried < uids->count; tried++) {
        size_t at = uids->next;
        uids->next = (at + 1) % uids->count;
        if (uids->taken[at])
            continue;
        uids->taken[at] = true;
        pthread_mutex_unlock(&uids->lock);
        *ret_uid = uids->first + (uid_t)at;
        return 0;
    }
    pthread_mutex_unlock(&uids->lock);
    return err_set(err, ERR_BUSY, "all %zu uids of --local-uids are in use", uids->count);
}

static void set(struct uids *uids, uid_t uid, bool taken)
{
    if (uid < uids->first || uid - uids->first >= uids->count)
        return;
    pthread_mutex_lock(&uids->lock);
    uids->taken[uid - uids->first] = taken;
    pthread_mutex_unlock(&uids->lock);
}

void uids_mark(struct uids *uids, uid_t uid)
{
    set(uids, uid, true);
}

void uids_give(struct uids *uids, uid_t uid)
{
    set(uids, uid, false);
}
