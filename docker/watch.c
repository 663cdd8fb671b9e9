#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "docker/driver_impl.h"

/* Events are silent while nothing happens: then the list is taken anew, in case the connection is
 * dead without telling. */
#define IDLE_MS 300000
#define BACKOFF_MIN_MS 200
#define BACKOFF_MAX_MS 10000
#define INFO_TIMEOUT_MS 15000
#define LONG_MS 1000

struct watch {
    struct docker *docker;
    bool told, healthy; /* what `health` was told last, if anything */
    bool listed;        /* in this connection */
    int failures;       /* in a row */
    struct err list_error;
};

static bool may_tell(const struct watch *watch)
{
    return !engine_is_stopping(watch->docker->engine);
}

static void tell_health(struct watch *watch, const struct err *why)
{
    const struct box_observer *observer = &watch->docker->observer;
    bool healthy = !why;

    if ((watch->told && watch->healthy == healthy) || !may_tell(watch))
        return;
    watch->told = true;
    watch->healthy = healthy;
    observer->health(observer->arg, why);
}

/* --- events -------------------------------------------------------------------------------------
 */

static void tell_changed(struct watch *watch, const struct box_info *info)
{
    const struct box_observer *observer = &watch->docker->observer;

    if (may_tell(watch))
        observer->changed(observer->arg, info);
}

/* How it has ended. When it is going or gone already, its removal follows as an event. */
static void tell_end(struct watch *watch, const char *container)
{
    struct box_info info;
    struct err why;

    if (find_box(watch->docker, container, &info, &why) == 0 && info.state != BOX_GONE)
        tell_changed(watch, &info);
}

static bool on_event(void *arg, const char *text, size_t len)
{
    struct watch *watch = arg;
    cleanup_json struct json *event = NULL;
    struct box_info info;

    if (len == 0 || json_parse(text, len, JSON_LENIENT, &event, NULL) < 0)
        return true;
    const struct json *labels = json_path(event, "Actor.Attributes");
    const char *action = json_get_text(event, "Action");
    const char *container = json_get_text(json_get(event, "Actor"), "ID");
    if (!action || !container || !json_get_text(labels, LABEL_ID))
        return true;
    container_describe(labels, container, watch->docker->config->instance, &info);
    if (strcmp(action, "start") == 0) {
        info.state = BOX_ATTACHABLE;
        tell_changed(watch, &info);
    } else if (strcmp(action, "destroy") == 0 || strcmp(action, "remove") == 0) {
        info.state = BOX_GONE;
        tell_changed(watch, &info);
    } else if (strcmp(action, "die") == 0 || strcmp(action, "died") == 0) {
        tell_end(watch, container);
    }
    return true;
}

/* Only now, when no event is missed any more. */
static bool on_opened(void *arg)
{
    struct watch *watch = arg;
    struct docker *docker = watch->docker;
    const struct box_observer *observer = &docker->observer;
    struct box_info *infos = NULL;
    size_t count = 0;

    if (find_boxes(docker, false, &infos, &count, &watch->list_error) < 0)
        return false;
    pending_list(docker, &infos, &count);
    watch->listed = true;
    tell_health(watch, NULL);
    if (may_tell(watch))
        observer->listed(observer->arg, infos, count);
    free(infos);
    return true;
}

/* --- one connection -----------------------------------------------------------------------------
 */

/* What the engine says of itself; its clock, since the first events may come before they are
 * subscribed to. */
static int ask_facts(struct docker *docker, int64_t *ret_now_ms, struct err *err)
{
    struct engine_request request = {
        .path = "/info",
        .about = "ask the engine what it is",
        .timeout_ms = INFO_TIMEOUT_MS,
    };
    struct json *facts = NULL;

    if (engine_call(docker->engine, &request, &facts, err) < 0)
        return -1;
    const char *now = json_get_text(facts, "SystemTime");
    *ret_now_ms = now ? time_parse(now) : -1;
    pthread_mutex_lock(&docker->lock);
    json_free(docker->facts);
    docker->facts = facts;
    docker->has_network = false;
    pthread_mutex_unlock(&docker->lock);
    return 0;
}

static char *events_path(const struct docker *docker, int64_t since_ms)
{
    cleanup_free char *filters = find_filters(docker, false, "container");
    cleanup_buf struct buf path = BUF_INIT(CAP_SMALL);

    (void)buf_printf(&path, "/events?%s", filters); /* all of it is short */
    if (since_ms > 0)
        (void)buf_printf(&path, "&since=%lld.%09lld", (long long)(since_ms / 1000),
                         (long long)(since_ms % 1000) * 1000000);
    return xstrdup(buf_text(&path));
}

static int follow(struct watch *watch, struct err *err)
{
    struct docker *docker = watch->docker;
    int64_t now_ms = -1;

    engine_forget_version(docker->engine);
    if (ask_facts(docker, &now_ms, err) < 0)
        return -1;
    cleanup_free char *path = events_path(docker, now_ms);
    struct engine_request request = {.path = path, .about = "follow the engine's events"};
    struct http_lines lines = {
        .line = on_event,
        .opened = on_opened,
        .arg = watch,
        .idle_ms = IDLE_MS,
        .max_line = CAP_ENGINE_LINE,
        .stop = engine_stop_flag(docker->engine),
    };

    watch->listed = false;
    watch->list_error.code = ERR_NONE;
    int result = engine_lines(docker->engine, &request, &lines, err);
    if (watch->list_error.code != ERR_NONE)
        return err_set(err, watch->list_error.code, "%s", watch->list_error.msg);
    return result;
}

static void back_off(struct watch *watch)
{
    int64_t ms = BACKOFF_MIN_MS;

    for (int i = 1; i < watch->failures && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    (void)engine_sleep(watch->docker->engine, ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS);
}

/* A connection that was cut is made again at once; it is an outage when that fails. */
static void *run(void *arg)
{
    struct watch watch = {.docker = arg};

    while (!engine_is_stopping(watch.docker->engine)) {
        int64_t began_ms = clock_now_ms();
        struct err why = {.code = ERR_NONE};
        int result = follow(&watch, &why);

        if (watch.listed && clock_now_ms() - began_ms > LONG_MS)
            watch.failures = 0;
        watch.failures++;
        if (result < 0 && !watch.listed)
            tell_health(&watch, &why);
        if (watch.failures > 1 || !watch.listed)
            back_off(&watch);
    }
    return NULL;
}

int docker_watch_start(struct docker *docker, struct err *err)
{
    int errnum = pthread_create(&docker->watcher, NULL, run, docker);

    if (errnum != 0)
        return err_errno(err, ERR_INTERNAL, errnum, "cannot start a thread");
    docker->has_watcher = true;
    return 0;
}

void docker_watch_stop(struct docker *docker)
{
    if (docker->has_watcher)
        pthread_join(docker->watcher, NULL);
    docker->has_watcher = false;
}
