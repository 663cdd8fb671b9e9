#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

/* podsandbox-agent as the tar that puts it into a container. */
#define AGENT_DIR "/opt/podsandbox" /* a volume of the container's own */
#define AGENT_NAME "podsandbox-agent"
#define AGENT_PATH AGENT_DIR "/" AGENT_NAME

/* The file belongs to root. READABLE: for runtimes that run no file which its user cannot read
 * (gVisor); otherwise the kernel keeps its memory from the user's other processes. */
int agent_tar(const char *path, bool readable, struct buf *ret_tar, struct err *err) must_check;
