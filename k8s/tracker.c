#include "k8s/tracker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "k8s/object.h"
#include "k8s/pod.h"
#include "k8s/reason.h"

#define BUCKETS 1024
#define EARLY_EVENTS 256

struct entry {
    struct entry *next;
    char id[ID_LEN];
    struct tracked known;
    struct pod_history history;
    struct box_info *info; /* the last one, kept while the pod starts */
    int64_t due_ms;        /* 0: nothing is due */
    bool marked;
};

/* What events said of a pod that is not known yet: theirs is another watch, which may be quicker.
 */
struct early {
    char id[ID_LEN];
    char box_uid[UID_LEN];
    struct pod_history history;
};

struct tracker {
    pthread_mutex_t lock;
    struct entry *buckets[BUCKETS];
    struct early early[EARLY_EVENTS]; /* a ring: of pods that never become known, too */
    size_t next_early;
};

struct tracker *tracker_new(void)
{
    struct tracker *tracker = xcalloc(1, sizeof(*tracker));

    pthread_mutex_init(&tracker->lock, NULL);
    return tracker;
}

static void entry_free(struct entry *entry)
{
    pod_history_done(&entry->history);
    free(entry->info);
    free(entry);
}

void tracker_free(struct tracker *tracker)
{
    if (tracker == NULL)
        return;
    for (size_t i = 0; i < BUCKETS; i++) {
        while (tracker->buckets[i] != NULL) {
            struct entry *entry = tracker->buckets[i];

            tracker->buckets[i] = entry->next;
            entry_free(entry);
        }
    }
    for (size_t i = 0; i < EARLY_EVENTS; i++)
        pod_history_done(&tracker->early[i].history);
    pthread_mutex_destroy(&tracker->lock);
    free(tracker);
}

static struct entry **find_slot(struct tracker *tracker, const char *id)
{
    uint32_t hash = 2166136261u;
    struct entry **slot;

    for (const char *c = id; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    slot = &tracker->buckets[hash % BUCKETS];
    while (*slot != NULL && strcmp((*slot)->id, id) != 0)
        slot = &(*slot)->next;
    return slot;
}

static struct early *find_early(struct tracker *tracker, const char *id, const char *box_uid)
{
    for (size_t i = 0; i < EARLY_EVENTS; i++) {
        struct early *early = &tracker->early[i];

        if (strcmp(early->box_uid, box_uid) == 0 && strcmp(early->id, id) == 0)
            return early;
    }
    return NULL;
}

static struct early *find_or_add_early(struct tracker *tracker, const char *id, const char *box_uid)
{
    struct early *early = find_early(tracker, id, box_uid);

    if (early != NULL)
        return early;
    early = &tracker->early[tracker->next_early++ % EARLY_EVENTS];
    pod_history_done(&early->history);
    *early = (struct early){.history = {.status = NULL}};
    (void)snprintf(early->id, sizeof(early->id), "%s", id);
    (void)snprintf(early->box_uid, sizeof(early->box_uid), "%s", box_uid);
    return early;
}

/* The entry of this very pod; another life of the id is forgotten. */
static struct entry *find_or_add(struct tracker *tracker, const char *id, const char *box_uid)
{
    struct entry **slot = find_slot(tracker, id);
    struct entry *entry = *slot;
    struct early *early;

    if (entry != NULL && strcmp(entry->known.box_uid, box_uid) == 0)
        return entry;
    if (entry != NULL) {
        *slot = entry->next;
        entry_free(entry);
        slot = find_slot(tracker, id);
    }
    entry = xcalloc(1, sizeof(*entry));
    (void)snprintf(entry->id, sizeof(entry->id), "%s", id);
    (void)snprintf(entry->known.box_uid, sizeof(entry->known.box_uid), "%s", box_uid);
    early = find_early(tracker, id, box_uid);
    if (early != NULL && box_uid[0] != '\0') {
        entry->history = early->history;
        *early = (struct early){.history = {.status = NULL}};
    }
    *slot = entry;
    return entry;
}

static void note_agent(struct entry *entry, const struct json *pod)
{
    const struct json *list = json_path(pod, "spec.containers");

    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        const char *name = json_get_text(item, "name");
        const char *path = json_text(json_at(json_get(item, "command"), 0));

        if (name != NULL && strcmp(name, POD_CONTAINER) == 0 && path != NULL)
            (void)snprintf(entry->known.agent, sizeof(entry->known.agent), "%s", path);
    }
}

/* Keeps INFO as long as time or an event can still change it. */
static void keep(struct entry *entry, const struct box_info *info, int64_t due_ms)
{
    bool starting =
        !entry->known.has_run && (info->state == BOX_STARTING || info->state == BOX_ATTACHABLE);

    entry->due_ms = due_ms;
    if (!starting) {
        free(entry->info);
        entry->info = NULL;
        return;
    }
    if (entry->info == NULL)
        entry->info = xmalloc(sizeof(*entry->info));
    *entry->info = *info;
}

void tracker_note_pod(struct tracker *tracker, const struct json *pod, int64_t now_ms,
                      struct box_info *ret_info)
{
    const struct json *metadata = json_get(pod, "metadata");
    const char *id = json_get_text(json_get(metadata, "labels"), LABEL_ID);
    const char *uid = json_get_text(metadata, "uid");
    struct entry *entry;

    pthread_mutex_lock(&tracker->lock);
    entry = find_or_add(tracker, id != NULL ? id : "", uid != NULL ? uid : "");
    entry->marked = false;
    note_agent(entry, pod);
    reason_of_pod(pod, &entry->history, now_ms, ret_info);
    entry->known.has_run = entry->history.container_id[0] != '\0';
    keep(entry, ret_info, reason_apply(&entry->history, now_ms, ret_info));
    pthread_mutex_unlock(&tracker->lock);
}

/* Time or an event: what the pod looked like last, with its troubles as they are now. */
static void reapply(struct entry *entry, int64_t now_ms, struct box_info *ret_info)
{
    int64_t due_ms;

    *ret_info = *entry->info;
    due_ms = reason_apply(&entry->history, now_ms, ret_info);
    keep(entry, ret_info, due_ms);
}

/* Most are of no interest: they take no place. */
static void note_early(struct tracker *tracker, const char *id, const char *box_uid,
                       const struct json *event, int64_t now_ms)
{
    struct pod_history probe = {.status = NULL};
    bool counts = strlen(id) < ID_LEN && strlen(box_uid) < UID_LEN && box_uid[0] != '\0' &&
                  reason_note_event(event, &probe, now_ms);

    pod_history_done(&probe);
    if (counts)
        (void)reason_note_event(event, &find_or_add_early(tracker, id, box_uid)->history, now_ms);
}

bool tracker_note_event(struct tracker *tracker, const struct json *event, int64_t now_ms,
                        struct box_info *ret_info)
{
    const struct json *about = json_get(event, "involvedObject");
    const char *name = json_get_text(about, "name");
    const char *uid = json_get_text(about, "uid");
    static const char prefix[] = "sandbox-";
    struct entry *entry;
    const char *id;
    bool changed = false;

    if (name == NULL || uid == NULL || strncmp(name, prefix, sizeof(prefix) - 1) != 0)
        return false;
    id = name + sizeof(prefix) - 1;
    pthread_mutex_lock(&tracker->lock);
    entry = *find_slot(tracker, id);
    if (entry == NULL || strcmp(entry->known.box_uid, uid) != 0) {
        note_early(tracker, id, uid, event, now_ms);
    } else if (entry->info != NULL && reason_note_event(event, &entry->history, now_ms)) {
        reapply(entry, now_ms, ret_info);
        changed = true;
    }
    pthread_mutex_unlock(&tracker->lock);
    return changed;
}

bool tracker_next_due(struct tracker *tracker, int64_t now_ms, struct box_info *ret_info,
                      int64_t *ret_next_ms)
{
    bool found = false;

    *ret_next_ms = 0;
    pthread_mutex_lock(&tracker->lock);
    for (size_t i = 0; i < BUCKETS && !found; i++) {
        for (struct entry *entry = tracker->buckets[i]; entry != NULL; entry = entry->next) {
            if (entry->due_ms == 0 || entry->info == NULL)
                continue;
            if (entry->due_ms <= now_ms) {
                reapply(entry, now_ms, ret_info);
                found = true;
                break;
            }
            if (*ret_next_ms == 0 || entry->due_ms < *ret_next_ms)
                *ret_next_ms = entry->due_ms;
        }
    }
    pthread_mutex_unlock(&tracker->lock);
    return found;
}

void tracker_forget(struct tracker *tracker, const char *id, const char *box_uid)
{
    struct entry **slot;

    pthread_mutex_lock(&tracker->lock);
    slot = find_slot(tracker, id);
    if (*slot != NULL && (box_uid[0] == '\0' || strcmp((*slot)->known.box_uid, box_uid) == 0)) {
        struct entry *entry = *slot;

        *slot = entry->next;
        entry_free(entry);
    }
    pthread_mutex_unlock(&tracker->lock);
}

void tracker_mark(struct tracker *tracker)
{
    pthread_mutex_lock(&tracker->lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct entry *entry = tracker->buckets[i]; entry != NULL; entry = entry->next)
            entry->marked = true;
    }
    pthread_mutex_unlock(&tracker->lock);
}

void tracker_sweep(struct tracker *tracker)
{
    pthread_mutex_lock(&tracker->lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        struct entry **slot = &tracker->buckets[i];

        while (*slot != NULL) {
            struct entry *entry = *slot;

            if (!entry->marked) {
                slot = &entry->next;
                continue;
            }
            *slot = entry->next;
            entry_free(entry);
        }
    }
    pthread_mutex_unlock(&tracker->lock);
}

bool tracker_find(struct tracker *tracker, const char *id, struct tracked *ret_tracked)
{
    const struct entry *entry;
    bool found;

    pthread_mutex_lock(&tracker->lock);
    entry = *find_slot(tracker, id);
    found = entry != NULL;
    if (found)
        *ret_tracked = entry->known;
    pthread_mutex_unlock(&tracker->lock);
    return found;
}
