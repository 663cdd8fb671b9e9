/* What earlier servers have left. The record of a box is written before each step of its making, so
 * it says how far that came. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local/driver_impl.h"

#define END_MS 5000

/* bubblewrap ends, of the pipe that its server read from, before it has told its child to go on:
 * that one waits for ever. It still is in the session that began with bubblewrap. */
static void end_orphan(const struct box_record *record)
{
    struct process_id child;

    if (!process_in_session(&record->bwrap, &child))
        return;
    cleanup_fd int orphan = process_open(&child);
    process_signal(orphan, SIGKILL);
    (void)process_wait(orphan, END_MS);
}

/* bubblewrap was let go, but nobody has learned what it started. Stopped, it starts nothing more;
 * its child is the agent, or will be. */
void box_end_half_made(const struct box_record *record)
{
    cleanup_fd int bwrap = process_open(&record->bwrap), agent = -1;
    struct process_id child;

    if (bwrap < 0) {
        end_orphan(record);
        return;
    }
    process_stop(&record->bwrap, bwrap);
    if (process_child(record->bwrap.pid, &child))
        agent = process_open(&child);
    process_signal(agent, SIGKILL);
    process_signal(bwrap, SIGKILL);
    (void)process_wait(agent, END_MS);
    (void)process_wait(bwrap, END_MS);
}

static void add(struct local *local, const struct box_record *record, bool same_boot)
{
    struct box *box = xcalloc(1, sizeof(*box));

    box->record = *record;
    box->bwrap = same_boot ? process_open(&record->bwrap) : -1;
    box->agent = same_boot ? process_open(&record->agent) : -1;
    box->phase = PHASE_LIVE;
    if (box->agent < 0)
        process_signal(box->bwrap, SIGKILL); /* the watch sees it end */
    if (box->agent < 0 && box->bwrap < 0) {
        box->phase = PHASE_ENDED;
        ends_explain(local, box);
    } else {
        uids_mark(&local->uids, record->host_uid);
    }
    /* an operator's own directory needs no holding; a lost image harms only new boxes */
    if (local->images && record->image_digest[0] != '\0' &&
        image_hold(local->images, record->image_digest, &box->image, NULL) < 0)
        box->image = (struct image){.root = NULL};
    box->next = local->boxes;
    local->boxes = box;
}

static void load(struct local *local, const char *id)
{
    struct box_record record;
    cleanup_fd int dir = place_open_box(&local->place, id);
    bool known = dir >= 0 && record_read(dir, &record, NULL) == 0 && strcmp(record.id, id) == 0;
    bool same_boot = known && strcmp(record.boot, local->boot) == 0;

    if (known && record.agent.pid > 0) {
        add(local, &record, same_boot);
        return;
    }
    if (same_boot)
        box_end_half_made(&record);
    if (!known) {
        place_remove_box(&local->place, id); /* nothing else was made yet */
        return;
    }
    box_clear_soon(local, &record);
}

void boxes_load(struct local *local)
{
    struct text_list ids = {0};

    place_list(&local->place, &ids);
    for (size_t i = 0; i < ids.count; i++)
        load(local, ids.items[i]);
    text_list_done(&ids);
}
