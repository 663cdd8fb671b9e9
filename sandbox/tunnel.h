#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/pipe.h"

/* A TCP connection to a port inside a sandbox, over the stream to its agent: two pipes. Nothing
 * here waits; who uses it waits for the pipes' events. */
struct tunnel;
struct sandbox;
struct sandboxes;

/* Begins to connect; what is written meanwhile goes first. OUT (NULL: one of its own; else another
 * reference is taken) holds what goes to the program. ERR_GONE, ERR_NOT_READY. */
int tunnel_open(struct sandbox *sandbox, int64_t port, struct pipe *out, struct tunnel **ret_tunnel,
                struct err *err) must_check;
/* One that was kept and is open still, or NULL. */
struct tunnel *tunnel_reuse(struct sandbox *sandbox, int64_t port);

/* From the program: ends at its half close, fails with why: ERR_PORT_CLOSED when nobody listens on
 * the port, ERR_STREAM_LOST, ERR_GONE… */
struct pipe *tunnel_in(const struct tunnel *tunnel);
/* To the program: finished means a half close, finished with an error closes it. */
struct pipe *tunnel_out(const struct tunnel *tunnel);

/* Nothing is under way on it: kept for a while, for another request to the same port. */
void tunnel_keep(struct tunnel *tunnel);
void tunnel_close(struct tunnel *tunnel); /* NULL is allowed */

/* The kept ones. */
void tunnels_init(struct sandboxes *all);
void tunnels_close(struct sandboxes *all); /* all of them */
/* When they are closed, and neither a task nor a timer of the loop is left that looks for them. */
void tunnels_done(struct sandboxes *all);
void tunnels_sweep(struct sandboxes *all);
