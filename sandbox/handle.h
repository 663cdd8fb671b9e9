#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/event.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"

/* What may be asked of one sandbox that is held by reference. Thread-safe. */
struct sandbox;

struct sandbox *sandbox_ref(struct sandbox *sandbox);
void sandbox_unref(struct sandbox *sandbox); /* NULL is allowed */
void sandbox_unrefp(struct sandbox **sandbox);

enum sandbox_state {
    SANDBOX_CREATING,
    SANDBOX_RUNNING,
    SANDBOX_DELETING,
    SANDBOX_FAILED,
    SANDBOX_GONE,
};
enum sandbox_state sandbox_state(struct sandbox *sandbox);
/* Why a failed or gone one is so: its code and the substrate's words. */
void sandbox_why(struct sandbox *sandbox, struct err *ret_why);
/* Masks the sandbox's secrets in a message. */
void sandbox_scrub_err(struct sandbox *sandbox, struct err *err);
/* The same for bytes in place (same length, returns how many were masked), and as a copy with ***.
 */
size_t sandbox_mask(struct sandbox *sandbox, char *data, size_t len);
char *sandbox_mask_text(struct sandbox *sandbox, const char *data, size_t len);
char *sandbox_mask_text_len(struct sandbox *sandbox, const char *data, size_t len, size_t *ret_len);
bool sandbox_has_secrets(struct sandbox *sandbox);
size_t sandbox_longest_secret(struct sandbox *sandbox); /* in any encoding */
/* Masks what comes from FROM (reference taken) on its way to OUT. */
struct pump_range;
struct pipe;
void sandbox_pump(struct sandbox *sandbox, struct pipe *from, const struct pump_range *range,
                  struct pipe *out);
struct event *sandbox_changed(struct sandbox *sandbox);
const char *sandbox_id(const struct sandbox *sandbox);
const char *sandbox_uid(const struct sandbox *sandbox);
const char *sandbox_owner(const struct sandbox *sandbox);
const char *sandbox_workdir(const struct sandbox *sandbox);
/* Its workdir was an empty directory when it was made; else it is as the image has it. */
bool sandbox_began_empty(const struct sandbox *sandbox);
int64_t sandbox_ready_deadline(const struct sandbox *sandbox); /* clock_now_ms */
struct json *sandbox_json(struct sandbox *sandbox);
/* Appends the same as text, which is kept while nothing changes; false: OUT is full. */
bool sandbox_record_text(struct sandbox *sandbox, struct buf *out) must_check;

/* Begins; `sandbox_changed` fires until the state is SANDBOX_GONE. REASON: ERR_DELETED, ERR_TTL… An
 * error of the substrate is told by sandbox_delete_error until the next try by the sweeper. */
void sandbox_delete(struct sandbox *sandbox, enum err_code reason);
bool sandbox_delete_error(struct sandbox *sandbox, struct err *ret_err);
/* The first try to remove what it has in the substrate has not done it. */
bool sandbox_lingers(struct sandbox *sandbox);

/* PATCH: begins; done when sandbox_update_done says so (false: still waiting). TTL_MS -1: leave. */
struct sandbox_update {
    int64_t ttl_ms;
    struct text_map *labels;   /* NULL: leave; taken */
    struct text_list *secrets; /* added; NULL: none; taken */
};
int sandbox_update(struct sandbox *sandbox, const struct sandbox_update *update, uint64_t *ret_seq,
                   struct err *err) must_check;
/* A failed or deleted sandbox whose box is still being removed is not settled yet. */
bool sandbox_settled(struct sandbox *sandbox);
/* True when the agent has acknowledged and it is on record (RET_ERR->code ERR_NONE), or it failed.
 */
bool sandbox_update_done(struct sandbox *sandbox, uint64_t seq, struct err *ret_err);
