#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local/driver_impl.h"

struct box *boxes_find_locked(struct local *local, const char *id)
{
    struct box *box = local->boxes;

    while (box && strcmp(box->record.id, id) != 0)
        box = box->next;
    return box;
}

void boxes_remove_locked(struct local *local, struct box *box)
{
    struct box **at = &local->boxes;

    while (*at != box)
        at = &(*at)->next;
    *at = box->next;
}

void box_free(struct local *local, struct box *box)
{
    if (box->image.root)
        image_release(local->images, &box->image);
    free(box);
}

static void copy(char *ret_text, size_t size, const char *text)
{
    (void)snprintf(ret_text, size, "%s", text);
}

void box_describe_locked(const struct local *local, const struct box *box,
                         struct box_info *ret_info)
{
    const struct box_record *record = &box->record;
    bool ended = box->phase == PHASE_ENDED;

    *ret_info = (struct box_info){
        .created_ms = record->created_ms,
        .storage_limit = record->storage,
        .pids_limit = record->pids,
        .state = ended ? BOX_FAILED : BOX_ATTACHABLE,
        .ended_well = ended && box->ended_well,
        .reason = ended ? box->reason : ERR_NONE,
        .foreign = strcmp(record->instance, local->config->instance) != 0,
    };
    copy(ret_info->id, sizeof(ret_info->id), record->id);
    copy(ret_info->uid, sizeof(ret_info->uid), ret_info->foreign ? "" : record->uid);
    copy(ret_info->owner, sizeof(ret_info->owner), record->owner);
    copy(ret_info->digest, sizeof(ret_info->digest), record->digest);
    copy(ret_info->box_uid, sizeof(ret_info->box_uid), record->uid);
    copy(ret_info->name, sizeof(ret_info->name), record->id);
    copy(ret_info->image, sizeof(ret_info->image), record->image);
    copy(ret_info->workdir, sizeof(ret_info->workdir), record->workdir);
    copy(ret_info->cpu_limit, sizeof(ret_info->cpu_limit), record->cpu_limit);
    copy(ret_info->memory_limit, sizeof(ret_info->memory_limit), record->memory_limit);
    if (ended)
        copy(ret_info->message, sizeof(ret_info->message), box->message);
}

struct box_info *boxes_describe(struct local *local, bool foreign, size_t *ret_count)
{
    size_t count = 0, room = 0;
    struct box_info *infos = NULL;

    pthread_mutex_lock(&local->lock);
    for (const struct box *box = local->boxes; box; box = box->next) {
        if (box->phase == PHASE_MAKING)
            continue;
        if (count == room) {
            room = room * 2 + 64;
            infos = xrealloc(infos, room * sizeof(*infos));
        }
        box_describe_locked(local, box, &infos[count]);
        count += foreign || !infos[count].foreign;
    }
    pthread_mutex_unlock(&local->lock);
    *ret_count = count;
    return infos;
}
