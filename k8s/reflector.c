#include "k8s/reflector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"

#define BACKOFF_MIN_MS 200
#define BACKOFF_MAX_MS 10000
#define BACKOFF_FORBIDDEN_MS 30000
#define WATCH_SECONDS 290
/* The server sends a bookmark a minute: a longer silence is a dead connection. */
#define WATCH_IDLE_MS 100000
#define WATCH_SHORT_MS 1000

struct run {
    const struct reflector *reflector;
    char *version;      /* where to watch from; NULL: list first */
    bool healthy, told; /* what `health` was told last, if anything */
    int failures;       /* in a row */
    struct err line_error;
};

static const struct reflector *of(const struct run *run)
{
    return run->reflector;
}

int reflector_line(const struct reflector *reflector, const char *text, size_t len, char **version,
                   struct err *err)
{
    cleanup_json struct json *json = NULL;
    const struct json *object;
    const char *type, *seen;

    if (json_parse(text, len, JSON_LENIENT, &json, err) < 0)
        return err_wrap(err, "watch %s", kinds[reflector->kind].resource);
    type = json_get_text(json, "type");
    object = json_get(json, "object");
    if (type == NULL || !json_is_object(object))
        return err_set(err, ERR_BACKEND, "watch %s: a line that is no event",
                       kinds[reflector->kind].resource);
    if (strcmp(type, "ERROR") == 0) {
        struct status_request about = {"watch", kinds[reflector->kind].resource, NULL};
        cleanup_buf struct buf status = BUF_INIT(CAP_WATCH_LINE);

        (void)json_print(object, &status);
        return status_error(&about, 200, buf_text(&status), status.len, err);
    }
    seen = json_get_text(json_get(object, "metadata"), "resourceVersion");
    if (seen != NULL && seen[0] != '\0') {
        free(*version);
        *version = xstrdup(seen);
    }
    if (strcmp(type, "ADDED") == 0 || strcmp(type, "MODIFIED") == 0 || strcmp(type, "DELETED") == 0)
        reflector->event(reflector->arg, type, object);
    return 0;
}

static bool on_line(void *arg, const char *text, size_t len)
{
    struct run *run = arg;

    if (len == 0)
        return true;
    return reflector_line(of(run), text, len, &run->version, &run->line_error) == 0;
}

static char *watch_path(const struct run *run)
{
    cleanup_buf struct buf query = BUF_INIT(CAP_SMALL);
    char seconds[24];
    bool ok;

    (void)snprintf(seconds, sizeof(seconds), "%d", (int)api_jitter(WATCH_SECONDS));
    ok = url_append_query(&query, "watch", STR("1")) &&
         url_append_query(&query, "allowWatchBookmarks", STR("true")) &&
         url_append_query(&query, "timeoutSeconds", str_of(seconds)) &&
         url_append_query(&query, "resourceVersion", str_of(run->version));
    if (of(run)->selector.labels != NULL)
        ok = ok && url_append_query(&query, "labelSelector", str_of(of(run)->selector.labels));
    if (of(run)->selector.fields != NULL)
        ok = ok && url_append_query(&query, "fieldSelector", str_of(of(run)->selector.fields));
    return ok ? object_path(of(run)->space, of(run)->kind, NULL, buf_text(&query) + 1) : NULL;
}

static int watch(struct run *run, struct err *err)
{
    cleanup_free char *path = watch_path(run);
    struct api_request request = {
        .path = path,
        .about = {"watch", kinds[of(run)->kind].resource, NULL},
    };
    struct http_lines lines = {
        .line = on_line,
        .arg = run,
        .idle_ms = WATCH_IDLE_MS,
        .max_line = CAP_WATCH_LINE,
        .stop = of(run)->stop,
    };

    if (path == NULL)
        return err_set(err, ERR_INTERNAL, "the selector of a watch is too long");
    run->line_error.code = ERR_NONE;
    if (api_watch(of(run)->space->api, &request, &lines, err) < 0)
        return -1;
    if (run->line_error.code != ERR_NONE)
        return err_set(err, run->line_error.code, "%s", run->line_error.msg);
    return 0;
}

static void tell(struct run *run, const struct err *why)
{
    bool healthy = why == NULL;

    if (run->told && run->healthy == healthy)
        return;
    run->told = true;
    run->healthy = healthy;
    if (of(run)->health != NULL && !*of(run)->stop)
        of(run)->health(of(run)->arg, why);
}

static void back_off(struct run *run, const struct err *why)
{
    int64_t ms = BACKOFF_MIN_MS;

    for (int i = 1; i < run->failures && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    if (why->code == ERR_BACKEND_FORBIDDEN)
        ms = BACKOFF_FORBIDDEN_MS; /* needs a person; yet it should heal without a restart */
    (void)api_sleep(of(run)->space->api, api_jitter(ms));
}

static void list_once(struct run *run)
{
    struct err why;

    if (object_list(of(run)->space, of(run)->kind, of(run)->selector, &of(run)->listing,
                    &run->version, &why) < 0) {
        run->failures++;
        tell(run, &why);
        back_off(run, &why);
        return;
    }
    tell(run, NULL);
    of(run)->listed(of(run)->arg);
}

static void watch_once(struct run *run)
{
    int64_t began_ms = clock_now_ms();
    struct err why;
    int rc = watch(run, &why);
    bool was_short = clock_now_ms() - began_ms < WATCH_SHORT_MS;

    if (!was_short)
        run->failures = 0;
    if (rc == 0 && !was_short)
        return;
    if (rc < 0 && why.code == ERR_BACKEND_EXPIRED) {
        free(run->version);
        run->version = NULL;
        if (was_short && ++run->failures > 1) /* a server that forgets at once */
            back_off(run, &why);
        return;
    }
    run->failures++;
    if (rc == 0) {
        why = (struct err){.code = ERR_NONE};
    } else if (run->failures > 1) {
        /* Once is a cut connection; twice is an outage, and only a list shows its end. */
        tell(run, &why);
        free(run->version);
        run->version = NULL;
    }
    if (run->failures > 1)
        back_off(run, &why);
    else
        (void)api_sleep(of(run)->space->api, api_jitter(BACKOFF_MIN_MS / 4));
}

void reflector_run(const struct reflector *reflector)
{
    struct run run = {.reflector = reflector};

    while (!*reflector->stop) {
        if (run.version == NULL)
            list_once(&run);
        else
            watch_once(&run);
    }
    free(run.version);
}
