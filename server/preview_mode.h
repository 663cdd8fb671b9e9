#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"

struct driver;
struct options;

/* Who serves previews, and below which domain: from --preview-mode, --preview-domain and what
 * DRIVER can do. ERR_CONFIG. */
struct preview_mode {
    bool proxied; /* this server */
    const char *domain;
};
int preview_mode_choose(const struct options *options, const struct driver *driver,
                        struct preview_mode *ret_mode, struct err *err) must_check;
