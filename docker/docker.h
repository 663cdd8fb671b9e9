#pragma once

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "driver/driver.h"

struct loop;

/* Sandboxes as containers of a Docker Engine, or of Podman's service. */

/* What the operator sets. The driver keeps the pointers, so all must outlive it. NULL: not set. */
struct docker_config {
    const char *host;     /* unix:// or tcp://; NULL: DOCKER_HOST, else the usual sockets */
    const char *instance; /* names what is ours; required */
    const char *agent;    /* podsandbox-agent; NULL: near our own program */
    const char *runtime;  /* of containers whose spec names none; NULL: the engine's default */
    const char *network;  /* what `internet` means; NULL: a network of our own */
    int64_t pids;         /* processes and threads of a container */
};

/* Looks at the settings; does not talk to the engine. LOOP runs the attacher and must outlive the
 * driver. */
int docker_driver_new(const struct docker_config *config, struct loop *loop,
                      struct driver *ret_driver, struct err *err) must_check;
