#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "driver/driver.h"

/* What a pod's status and events mean for the box: its state, and why it cannot start or has ended,
 * in the cluster's own words. No I/O, no clock. */

/* Something that may pass by itself, and counts as a failure when it lasts. */
struct trouble {
    enum err_code code; /* ERR_NONE: none */
    int64_t since_ms;
    int64_t count;
    bool fatal;    /* does not pass */
    bool specific; /* `message` is the cause, not the cluster's "back-off" about it */
    char message[BOX_MESSAGE_LEN];
};

/* What has to be remembered of a pod from one look to the next. Zero at first. */
struct pod_history {
    struct trouble *status; /* malloc'd when needed */
    struct trouble *event;
    char container_id[128]; /* has run */
    char version[32];       /* the last one looked at: the same again is not another observation */
};
void pod_history_done(struct pod_history *history);

#define TROUBLE_PATIENCE_MS 20000
#define TROUBLE_PATIENCE_COUNT 3

/* Fills all of RET_INFO but `foreign`. */
void reason_of_pod(const struct json *pod, struct pod_history *history, int64_t now_ms,
                   struct box_info *ret_info);
/* Takes note of an Event about the pod; true when it says something new of why it does not start.
 */
bool reason_note_event(const struct json *event, struct pod_history *history, int64_t now_ms);
/* Applies troubles to INFO of a box that is still starting, as time passes. Returns when it has to
 * be looked at again (0: nothing is due). */
int64_t reason_apply(const struct pod_history *history, int64_t now_ms, struct box_info *info);
