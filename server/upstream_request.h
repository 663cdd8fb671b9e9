#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "server/framing.h"

#define PREVIEW_COOKIE "podsandbox-preview"

/* The head of a request as the program behind a preview gets it. The target and the headers are the
 * client's, byte for byte, but for what is about the connection or only ours. */
struct upstream_request {
    const char *method, *target;
    const struct text_field *headers;
    size_t header_count;
    int64_t body_length;  /* -1: chunked; 0 without a Content-Length: none */
    bool upgrade;         /* Connection and Upgrade are passed on */
    bool own_credentials; /* its Authorization is a key of the API */
    const char *client_address, *scheme;
};

/* Does the client ask to go on with another protocol, on a request without a body? */
bool upstream_wants_upgrade(const struct text_field *headers, size_t count, int64_t body_length);
/* ERR_TOO_LARGE when it does not fit. */
int upstream_request_write(const struct upstream_request *request, struct buf *out,
                           struct err *err) must_check;
/* Is NAME a header of one connection only, or named so by CONNECTION (values of such headers, comma
 * lists; NULL: none)? */
bool upstream_is_hop(const char *name, const struct text_field *headers, size_t count);
