#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "driver/driver.h"

struct loop;

/* Sandboxes on this machine: podsandbox-agent as PID 1 of namespaces that bubblewrap makes. */

/* What the operator sets. The driver keeps the pointers, so all must outlive it. NULL: not set. */
struct local_config {
    const char *dir;                       /* state: one server's own; made 0700; required */
    const char *instance;                  /* names what is ours; required */
    const char *bwrap;                     /* the program; default: found in PATH */
    const char *agent;                     /* podsandbox-agent; default: near our own program */
    int64_t without_server_ms;             /* then a box ends by itself; 0: it does not */
    int64_t pids;                          /* processes and threads of a box; 0: 1024 */
    const struct text_list *image_folders; /* where images may lie; empty: only `host` */
    const char *image_cache;               /* for unpacked ones; required with folders */
    uint64_t image_cache_bytes;
    bool host_network; /* a box may ask for it */
    const char *uids;  /* "FIRST-LAST": host uids for sandboxes when we are root */
};

int local_driver_new(const struct local_config *config, struct loop *loop,
                     struct driver *ret_driver, struct err *err) must_check;
