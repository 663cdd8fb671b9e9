#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* Everything main() wires together; handlers reach it by request_app(). */
struct options;
struct sandboxes;
struct callers;
struct http;
struct fake;
struct snapshots;

struct app {
    const struct options *options;
    struct sandboxes *sandboxes;
    struct callers *callers;
    struct http *http;
    struct snapshots *snapshots;
    struct fake *fake;          /* NULL: the driver is another one */
    atomic_int archive_uploads; /* at work */
    int64_t started_ms;         /* clock_now_ms */
};
