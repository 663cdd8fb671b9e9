#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "driver/driver.h"

/* What we know of each of our pods: enough to judge the next event by, and to open a stream without
 * asking the cluster. Thread-safe; never blocks for long. */
struct tracker;

struct tracker *tracker_new(void);
void tracker_free(struct tracker *tracker);

/* A pod of ours as the cluster shows it now. */
void tracker_note_pod(struct tracker *tracker, const struct json *pod, int64_t now_ms,
                      struct box_info *ret_info);
/* An Event; true when RET_INFO (of the pod it is about) has changed by it. What it says of a pod
 * that has not been noted yet counts when it is. */
bool tracker_note_event(struct tracker *tracker, const struct json *event, int64_t now_ms,
                        struct box_info *ret_info);
/* A pod whose troubles have lasted too long by now: true for each, and RET_INFO. Before it returns
 * false it sets RET_NEXT_MS to the time at which the next will (0: none is in trouble). */
bool tracker_next_due(struct tracker *tracker, int64_t now_ms, struct box_info *ret_info,
                      int64_t *ret_next_ms);
void tracker_forget(struct tracker *tracker, const char *id, const char *box_uid);
/* Forgets every pod that was not noted since the call of tracker_mark(). */
void tracker_mark(struct tracker *tracker);
void tracker_sweep(struct tracker *tracker);

struct tracked {
    char box_uid[UID_LEN];
    char agent[64]; /* path of the agent inside */
    bool has_run;   /* our container has been seen running */
};
bool tracker_find(struct tracker *tracker, const char *id, struct tracked *ret_tracked);
