#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "sandbox/call.h"
#include "sandbox/exec.h"

/* A preview publishes one port of a sandbox under a host name, with the command that serves it when
 * one is given. Its row in the store is its record; whether it is ready is asked of the agent each
 * time. The calls here that ask the substrate block; one preview of a sandbox is changed at a time.
 */
struct sandbox;
struct sandboxes;

struct preview_request {
    struct text_list command; /* empty: something serves the port already, or will */
    struct text_map env;
    int64_t port;
    bool is_private; /* only where this server serves it */
    char *subdomain; /* NULL: the sandbox's id, or <port>-<id> for further ports */
};
void preview_request_done(struct preview_request *request);

/* From the choice of the host to the end of the change, one preview of a sandbox at a time: false
 * when another is being changed; `sandbox_changed` fires when that is over. */
bool preview_claim(struct sandbox *sandbox);
void preview_release(struct sandbox *sandbox);

/* The host for REQUEST and whether it is the sandbox's first preview; labels and lengths are
 * checked. ERR_HOST_TAKEN. */
int preview_host(struct sandbox *sandbox, const struct preview_request *request, char **ret_host,
                 bool *ret_first, struct err *err) must_check;
/* The running command of the preview that this port has now, referenced, its tree being killed;
 * NULL: none. */
struct exec *preview_end_command(struct sandbox *sandbox, int64_t port);
/* Records it, starts its command (RET_EXEC NULL without one), and publishes it. On failure nothing
 * is left, of a preview that this port had before neither. */
int preview_begin(struct sandbox *sandbox, struct preview_request *request, const char *host,
                  bool first, struct exec **ret_exec, struct err *err) must_check;
/* Takes it down: what is published, the record; not its command. ERR_NOT_FOUND. */
int preview_remove(struct sandbox *sandbox, int64_t port, struct err *err) must_check;
/* The same for one whose command has ended; what cannot be removed now the sweep removes. */
void preview_withdraw(struct sandbox *sandbox, int64_t port);
/* A started call that waits until the port answers (at most TIMEOUT_MS), forwarding to loopback. */
int preview_probe(struct sandbox *sandbox, int64_t port, int64_t timeout_ms, struct call **ret_call,
                  struct err *err) must_check;

/* The ports of the previews, malloc'd. */
int preview_ports(struct sandbox *sandbox, int64_t **ret_ports, size_t *ret_count,
                  struct err *err) must_check;
/* The record; READY is what the last probe said. ERR_NOT_FOUND. */
int preview_json(struct sandbox *sandbox, int64_t port, bool ready, struct json **ret_json,
                 struct err *err) must_check;
/* Number of its command's exec; 0: it has none. ERR_NOT_FOUND. */
int preview_exec(struct sandbox *sandbox, int64_t port, int64_t *ret_number,
                 struct err *err) must_check;

/* For the sweep. Rows for what is published (OBJECTS: all there is) for an adopted sandbox. */
struct side_object;
int previews_restore(struct sandbox *sandbox, const struct side_object *objects, size_t count,
                     struct err *err) must_check;
/* Completes, or takes down, what a server that ended was publishing. Blocks. */
void previews_finish(struct sandbox *sandbox);
/* Is it of a preview on record? True also when that cannot be told now. */
bool previews_own(struct sandbox *sandbox, const struct side_object *object);
