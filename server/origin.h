#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"

/* Against pages in a browser: HOST must name this machine where LOCAL_ONLY (a name that was rebound
 * to 127.0.0.1 is ERR_MISDIRECTED), and ORIGIN, when there is one, must be the page's own server
 * (ERR_FORBIDDEN). Each may be NULL. */
int origin_check(const char *host, const char *origin, bool local_only, struct err *err) must_check;
/* True for localhost, 127.0.0.0/8 and [::1], each with or without a port. */
bool origin_is_loopback(const char *host);
