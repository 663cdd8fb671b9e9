#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/pipe.h"
#include "sandbox/tunnel.h"
#include "server/upstream_head.h"

/* One exchange with the program behind a preview, on a tunnel. One thread at a time: the handler
 * until its answer is set, then libmicrohttpd's, which reads the body as the client takes it. */
struct upstream;

/* Takes TUNNEL. REUSED: it has served a request before. TO_HEAD: the request is a HEAD. */
struct upstream *upstream_new(struct tunnel *tunnel, bool reused, bool to_head);
bool upstream_reused(const struct upstream *upstream);
/* 1: the head is there (for upstream_head), 0: not yet, wait for upstream_readable. ERR_BAD_ANSWER,
 * or why the tunnel failed; then RET_SILENT says whether nothing had come at all. */
int upstream_receive(struct upstream *upstream, bool *ret_silent, struct err *err) must_check;
const struct upstream_head *upstream_head(const struct upstream *upstream);

/* The whole body, when it has a length of at most MAX and is there already: malloc'd. NULL: read it
 * as it comes. */
char *upstream_small_body(struct upstream *upstream, size_t max, size_t *ret_len);
/* The body, like a pipe's reading side. */
size_t upstream_read(struct upstream *upstream, void *data, size_t max);
enum pipe_state upstream_state(const struct upstream *upstream);
struct event *upstream_readable(const struct upstream *upstream);

/* Ends it. WHOLE: the request was sent and the answer read to its end, so that the tunnel may serve
 * another request. NULL is allowed. */
void upstream_done(struct upstream *upstream, bool whole);
/* Ends it, and hands over the tunnel with what was read beyond the head (malloc'd). */
struct tunnel *upstream_take(struct upstream *upstream, char **ret_data, size_t *ret_len);
