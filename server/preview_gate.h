#pragma once

#include "base/buf.h"
#include "sandbox/preview_access.h"
#include "server/framing.h"

/* Whether a request may see a private preview: pure, by its target and its cookies. A link carries
 * a ticket in the query parameter LINK_PARAMETER; it is exchanged for a cookie, and the ticket
 * taken out of the address. */
#define LINK_PARAMETER "podsandbox-link"

enum preview_verdict {
    PREVIEW_PASS,
    PREVIEW_REFUSE,
    PREVIEW_REDIRECT, /* to the clean target, with a new cookie if it was set */
};

struct preview_visit {
    const char *target; /* of the request */
    const struct text_field *headers;
    size_t header_count;
    int64_t now_s;
    bool secure; /* the browser speaks https */
};

/* CLEAN: the target without the ticket; COOKIE: the value of a Set-Cookie. Both are filled for
 * PREVIEW_REDIRECT only. */
enum preview_verdict preview_gate_look(const struct preview_target *preview,
                                       const struct preview_visit *visit, struct buf *clean,
                                       struct buf *cookie);
