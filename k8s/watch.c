#include "k8s/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/event.h"
#include "k8s/reflector.h"

#define TICK_IDLE_MS 60000

struct watch {
    const struct space *space;
    struct tracker *tracker;
    struct box_observer observer;
    struct watch_events events;
    char *selector;
    _Atomic bool stop;
    struct event known; /* the first list is there: events can be matched with pods */
    _Atomic bool is_known;
    struct event tick; /* a pod is in trouble: the ticker looks when its time is up */

    /* Held while a pod is judged and the observer told, so that it hears things in their order.
     * Taken before the tracker's lock. */
    pthread_mutex_t report;
    pthread_mutex_t lock; /* events_problem */
    char events_problem[512];

    pthread_t threads[3];
    int started;

    /* of the list that is being made; the pods thread's own */
    struct box_info *infos;
    size_t count, room;
};

/* With `report` held. */
static void tell(struct watch *watch, const struct box_info *info)
{
    if (!watch->stop)
        watch->observer.changed(watch->observer.arg, info);
    if (info->state == BOX_FAILED && info->container_id[0] == '\0' &&
        watch->events.start_failed != NULL)
        watch->events.start_failed(watch->events.arg, info);
}

/* --- pods ---------------------------------------------------------------------------------------
 */

static void pods_begin(void *arg)
{
    struct watch *watch = arg;

    watch->count = 0;
    tracker_mark(watch->tracker);
}

static void pods_add(void *arg, const struct json *pod)
{
    struct watch *watch = arg;

    if (watch->count == watch->room) {
        watch->room = watch->room * 2 + 64;
        watch->infos = xrealloc(watch->infos, watch->room * sizeof(*watch->infos));
    }
    tracker_note_pod(watch->tracker, pod, clock_now_ms(), &watch->infos[watch->count++]);
}

static void pods_listed(void *arg)
{
    struct watch *watch = arg;

    tracker_sweep(watch->tracker);
    pthread_mutex_lock(&watch->report);
    if (!watch->stop)
        watch->observer.listed(watch->observer.arg, watch->infos, watch->count);
    pthread_mutex_unlock(&watch->report);
    free(watch->infos);
    watch->infos = NULL;
    watch->count = watch->room = 0;
    watch->is_known = true;
    event_fire(&watch->known);
    event_fire(&watch->tick);
}

static void pods_event(void *arg, const char *type, const struct json *pod)
{
    struct watch *watch = arg;
    struct box_info info;

    pthread_mutex_lock(&watch->report);
    tracker_note_pod(watch->tracker, pod, clock_now_ms(), &info);
    if (strcmp(type, "DELETED") == 0) {
        info.state = BOX_GONE;
        tracker_forget(watch->tracker, info.id, info.box_uid);
    }
    tell(watch, &info);
    pthread_mutex_unlock(&watch->report);
    if (info.waiting)
        event_fire(&watch->tick);
}

static void pods_health(void *arg, const struct err *why)
{
    struct watch *watch = arg;

    pthread_mutex_lock(&watch->report);
    if (!watch->stop)
        watch->observer.health(watch->observer.arg, why);
    pthread_mutex_unlock(&watch->report);
}

static void *run_pods(void *arg)
{
    struct watch *watch = arg;
    struct reflector reflector = {
        .space = watch->space,
        .kind = KIND_POD,
        .selector = {.labels = watch->selector},
        .stop = &watch->stop,
        .listing = {.begin = pods_begin, .add = pods_add, .arg = watch},
        .listed = pods_listed,
        .event = pods_event,
        .health = pods_health,
        .arg = watch,
    };

    reflector_run(&reflector);
    free(watch->infos);
    return NULL;
}

/* --- events -------------------------------------------------------------------------------------
 */

static void events_add(void *arg, const struct json *event)
{
    struct watch *watch = arg;
    struct box_info info;

    bool changed;

    pthread_mutex_lock(&watch->report);
    changed = tracker_note_event(watch->tracker, event, clock_now_ms(), &info);
    if (changed)
        tell(watch, &info);
    pthread_mutex_unlock(&watch->report);
    if (changed)
        event_fire(&watch->tick);
}

static void events_listed(void *arg)
{
    (void)arg;
}

static void events_event(void *arg, const char *type, const struct json *event)
{
    if (strcmp(type, "DELETED") != 0)
        events_add(arg, event);
}

static void events_health(void *arg, const struct err *why)
{
    struct watch *watch = arg;

    pthread_mutex_lock(&watch->lock);
    (void)snprintf(watch->events_problem, sizeof(watch->events_problem), "%.500s",
                   why != NULL ? why->msg : "");
    pthread_mutex_unlock(&watch->lock);
}

static void *run_events(void *arg)
{
    struct watch *watch = arg;
    struct reflector reflector = {
        .space = watch->space,
        .kind = KIND_EVENT,
        .selector = {.fields = "involvedObject.kind=Pod,type=Warning"},
        .stop = &watch->stop,
        .listing = {.add = events_add, .arg = watch},
        .listed = events_listed,
        .event = events_event,
        .health = events_health,
        .arg = watch,
    };

    while (!watch->is_known && !watch->stop) {
        uint64_t seen = event_count(&watch->known);

        if (!watch->is_known && !watch->stop)
            (void)event_block(&watch->known, seen, clock_now_ms() + TICK_IDLE_MS);
    }
    reflector_run(&reflector);
    return NULL;
}

void watch_events_problem(struct watch *watch, char *ret_text, size_t size)
{
    pthread_mutex_lock(&watch->lock);
    (void)snprintf(ret_text, size, "%s", watch->events_problem);
    pthread_mutex_unlock(&watch->lock);
}

/* --- time ---------------------------------------------------------------------------------------
 */

static void *run_ticks(void *arg)
{
    struct watch *watch = arg;

    while (!watch->stop) {
        uint64_t seen = event_count(&watch->tick);
        struct box_info info;
        int64_t next_ms;

        pthread_mutex_lock(&watch->report);
        while (tracker_next_due(watch->tracker, clock_now_ms(), &info, &next_ms))
            tell(watch, &info);
        pthread_mutex_unlock(&watch->report);
        if (!watch->stop)
            (void)event_block(&watch->tick, seen,
                              next_ms != 0 ? next_ms : clock_now_ms() + TICK_IDLE_MS);
    }
    return NULL;
}

/* --- start and stop -----------------------------------------------------------------------------
 */

struct watch *watch_start(const struct space *space, struct tracker *tracker,
                          const struct box_observer *observer, const struct watch_events *events,
                          struct err *err)
{
    struct watch *watch = xcalloc(1, sizeof(*watch));
    void *(*const runs[])(void *arg) = {run_pods, run_events, run_ticks};

    watch->space = space;
    watch->tracker = tracker;
    watch->observer = *observer;
    watch->events = *events;
    watch->selector = object_selector(space, NULL);
    event_init(&watch->tick);
    event_init(&watch->known);
    pthread_mutex_init(&watch->report, NULL);
    pthread_mutex_init(&watch->lock, NULL);
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        int rc = pthread_create(&watch->threads[i], NULL, runs[i], watch);

        if (rc != 0) {
            (void)err_errno(err, ERR_INTERNAL, rc, "cannot start a thread");
            watch_stop(watch);
            return NULL;
        }
        watch->started++;
    }
    return watch;
}

void watch_stop(struct watch *watch)
{
    if (watch == NULL)
        return;
    watch->stop = true;
    api_stop(watch->space->api);
    event_fire(&watch->tick);
    event_fire(&watch->known);
    for (int i = 0; i < watch->started; i++)
        pthread_join(watch->threads[i], NULL);
    event_done(&watch->tick);
    event_done(&watch->known);
    pthread_mutex_destroy(&watch->report);
    pthread_mutex_destroy(&watch->lock);
    free(watch->selector);
    free(watch);
}
