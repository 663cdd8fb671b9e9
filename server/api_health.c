/* Probes, metrics, the version, and the contract itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/sandboxes.h"
#include "server/app.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openapi.h"
#include "server/route.h"
#include "server/routes.h"

static enum verdict get_healthz(struct request *request)
{
    return reply_bytes(request, 200, "text/plain; charset=utf-8", "ok\n", 3);
}

static enum verdict get_readyz(struct request *request)
{
    struct app *app = request_app(request);
    struct err err = {0};
    if (http_stopping(app->http)) {
        err_set(&err, ERR_STOPPING, "the server is stopping");
        return reply_problem(request, &err);
    }
    if (!sandboxes_ready(app->sandboxes, &err)) {
        err.code = ERR_BACKEND_UNAVAILABLE; /* whatever it waits for: a probe wants 503 */
        return reply_problem(request, &err);
    }
    return reply_bytes(request, 200, "text/plain; charset=utf-8", "ready\n", 6);
}

static enum verdict get_version(struct request *request)
{
    struct json *json = json_new_object();
    json_set_text(json, "version", PODSANDBOX_VERSION);
    json_set_text(json, "api", "v1");
    return reply_json(request, 200, json);
}

static enum verdict get_openapi(struct request *request)
{
    return reply_bytes(request, 200, "application/yaml", openapi_yaml, openapi_yaml_len);
}

/* --- metrics
 * ---------------------------------------------------------------------------------------------- */

/* From the second number of /proc/self/statm; 0 when that cannot be read. */
static long long resident_bytes(void)
{
    char text[128] = "";
    uint64_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) {
        return 0;
    }
    if (!fgets(text, sizeof(text), file)) {
        text[0] = '\0';
    }
    (void)fclose(file); /* it was only read */
    const char *resident = text + strcspn(text, " ");
    resident += strspn(resident, " ");
    (void)str_to_u64((struct str){resident, strcspn(resident, " ")}, INT32_MAX, &pages);
    return (long long)pages * sysconf(_SC_PAGESIZE);
}

static void metric(struct buf *out, const char *name, const char *type, const char *help,
                   long long value)
{
    (void)buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %lld\n", name, help, name, type, name,
                     value);
}

static void metrics_of_http(struct app *app, struct buf *out)
{
    const struct metrics *metrics = http_metrics(app->http);
    (void)buf_append_str(out,
                         "# HELP podsandbox_http_replies_total Replies by status; 0: the client "
                         "left before one.\n# TYPE podsandbox_http_replies_total counter\n");
    for (size_t i = 0; i < METRICS_STATUSES; i++) {
        unsigned long long count = atomic_load(&metrics->replies[i]);
        if (count) {
            (void)buf_printf(out, "podsandbox_http_replies_total{status=\"%zu\"} %llu\n", i, count);
        }
    }
    (void)buf_printf(out,
                     "# HELP podsandbox_http_request_seconds_total Time of all requests.\n"
                     "# TYPE podsandbox_http_request_seconds_total counter\n"
                     "podsandbox_http_request_seconds_total %.6f\n",
                     (double)atomic_load(&metrics->request_us) / 1e6);
    histogram_print(&metrics->queue, "podsandbox_http_queue_seconds",
                    "How long requests waited for a thread.", out);
    metric(out, "podsandbox_http_running", "gauge", "Requests in progress.",
           (long long)atomic_load(&metrics->running));
    metric(out, "podsandbox_http_queued", "gauge", "Requests waiting for a thread.",
           (long long)http_queued(app->http));
}

static void metric_by_code(struct buf *out, const char *name, const char *help, const char *label,
                           const atomic_uint_fast64_t *counts)
{
    (void)buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (size_t i = 0; i < ERR_COUNT; i++) {
        unsigned long long count = atomic_load(&counts[i]);

        if (count)
            (void)buf_printf(out, "%s{%s=\"%s\"} %llu\n", name, label,
                             err_code_name((enum err_code)i), count);
    }
}

static void metrics_of_domain(const struct tally *tally, struct buf *out)
{
    histogram_print(&tally->create, "podsandbox_create_seconds",
                    "From the request for a sandbox until it runs.", out);
    histogram_print(&tally->exec, "podsandbox_exec_seconds", "How long commands ran.", out);
    metric_by_code(out, "podsandbox_sandboxes_failed_total", "Sandboxes that failed, by reason.",
                   "reason", tally->failed);
    metric_by_code(out, "podsandbox_driver_errors_total",
                   "Requests to the substrate that failed, by code.", "code", tally->driver_errors);
    (void)buf_printf(out,
                     "# HELP podsandbox_reaped_total What sweeps ended: expired and orphaned.\n"
                     "# TYPE podsandbox_reaped_total counter\npodsandbox_reaped_total %llu\n",
                     (unsigned long long)atomic_load(&tally->reaped));
}

static enum verdict get_metrics(struct request *request)
{
    struct app *app = request_app(request);
    cleanup_buf struct buf out = BUF_INIT(CAP_SMALL);
    struct err err = {0};
    cleanup_json struct json *stats = NULL;
    if (sandboxes_stats(app->sandboxes, &stats, &err) < 0) {
        return reply_problem(request, &err);
    }
    (void)buf_append_str(&out,
                         "# HELP podsandbox_sandboxes Sandboxes by state, gone ones included.\n"
                         "# TYPE podsandbox_sandboxes gauge\n");
    const struct json *states = json_get(stats, "sandboxes");
    for (const struct json *item = json_first(states); item; item = json_next(item)) {
        (void)buf_printf(&out, "podsandbox_sandboxes{state=\"%s\"} %lld\n", json_key(item),
                         (long long)json_get_int(states, json_key(item), 0));
    }
    metric(&out, "podsandbox_running_execs", "gauge", "Commands that run.",
           (long long)json_get_int(stats, "running_execs", 0));
    metric(&out, "podsandbox_backend_up", "gauge", "1 when the cluster answers.",
           json_get_bool(json_get(stats, "backend"), "ready", false));
    metrics_of_domain(sandboxes_tally(app->sandboxes), &out);
    metrics_of_http(app, &out);
    metric(&out, "process_resident_memory_bytes", "gauge", "Memory of this process.",
           resident_bytes());
    return reply_bytes(request, 200, "text/plain; version=0.0.4", buf_text(&out), out.len);
}

static const struct route routes[] = {
    {"GET", "/healthz", get_healthz, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
    {"GET", "/readyz", get_readyz, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
    {"GET", "/metrics", get_metrics, ROUTE_PUBLIC, NULL},
    {"GET", "/openapi.yaml", get_openapi, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
    {"GET", "/v1/version", get_version, ROUTE_PUBLIC | ROUTE_QUICK, NULL},
};

const struct route_table health_routes = {routes, ARRAY_LEN(routes)};
