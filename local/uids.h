#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"

/* Host uids for sandboxes, one each, so that none can touch another's processes. Thread-safe. */
struct uids {
    pthread_mutex_t lock;
    uid_t first;
    size_t count; /* 0: everything runs as ourselves */
    size_t next;  /* where to look first */
    bool *taken;
};

/* RANGE: "FIRST-LAST"; used only when we are root. */
int uids_init(struct uids *uids, const char *range, struct err *err) must_check;
void uids_done(struct uids *uids);
int uids_take(struct uids *uids, uid_t *ret_uid, struct err *err) must_check;
void uids_mark(struct uids *uids, uid_t uid); /* one that a box found at start has */
void uids_give(struct uids *uids, uid_t uid);
