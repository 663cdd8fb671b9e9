#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"

/* A listening socket (close-on-exec, not blocking) on ADDRESS: "127.0.0.1:8080", "[::1]:8080",
 * ":8080" for all. Another than a loopback address is ERR_CONFIG where LOCAL_ONLY. */
int listen_open(const char *address, bool local_only, int *ret_fd, int *ret_port,
                struct err *err) must_check;
