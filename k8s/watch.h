#pragma once

#include "driver/driver.h"
#include "k8s/object.h"
#include "k8s/tracker.h"

/* Tells the observer what becomes of our pods: follows the pods, and the events that say why one
 * does not start, and counts the time that a passing trouble is given. Callbacks come from threads
 * of its own, one at a time. */
struct watch;

struct watch_events {
    /* A pod has failed before its agent ran; for what can be learned from that. */
    void (*start_failed)(void *arg, const struct box_info *info);
    void *arg;
};

struct watch *watch_start(const struct space *space, struct tracker *tracker,
                          const struct box_observer *observer, const struct watch_events *events,
                          struct err *err) must_check;
void watch_stop(struct watch *watch); /* after api_stop(); joins */

/* What keeps us from following events, or "" (copied). */
void watch_events_problem(struct watch *watch, char *ret_text, size_t size);
