#pragma once

#include "sandbox/sandbox.h"

/* The states of a sandbox and what is owed to the substrate and the store because of them. Every
 * change goes through here; each function may be called again without harm, from any thread,
 * without the lock.
 *
 *   creating → running → deleting → gone
 *        └────────┴→ failed ──┘
 *
 * A failed one keeps its record (state, reason, message) until it is deleted or forgotten; its box
 * is removed at once. A gone one is a row of the store only. */

bool sandbox_state_lives(enum sandbox_state state); /* creating or running */
void sandbox_made_running(struct sandbox *sandbox);
void sandbox_fail(struct sandbox *sandbox, enum err_code reason, const char *message);
/* Failed, but the box stays: nobody can speak to its agent, and it may matter to someone. */
void sandbox_give_up(struct sandbox *sandbox, enum err_code reason, const char *message);
/* Its create could not be recorded: nothing was made, and nothing of it is written. */
void sandbox_never_was(struct sandbox *sandbox);
/* The substrate has no such box (any more). One that is being removed is gone only with all that
 * stands beside it: its removal goes on at once. */
void sandbox_box_gone(struct sandbox *sandbox);
/* The removal is done: the box and what stood beside it. */
void sandbox_removed(struct sandbox *sandbox);
/* Deletes it if its time is over at this moment; the reason, or ERR_NONE. DRY: only looks. */
enum err_code sandbox_expire(struct sandbox *sandbox, bool dry);
/* A failed one with nothing left in the substrate becomes a tombstone; false: it is not such a one.
 */
bool sandbox_bury(struct sandbox *sandbox);
/* Its box has ended by itself: is that because its ttl was over? */
bool sandbox_due(struct sandbox *sandbox);
/* The record has changed; it is written soon. */
void sandbox_save(struct sandbox *sandbox);
/* Does what is owed now (create, destroy, write), on a worker. */
void sandbox_settle(struct sandbox *sandbox);
/* What failed before is tried again now. */
void sandbox_retry(struct sandbox *sandbox);
/* Asks the substrate about the box, on a worker, and acts on the answer. */
void sandbox_verify(struct sandbox *sandbox);
/* ERR_GONE and why. */
int sandbox_dead_error_locked(const struct sandbox *sandbox, struct err *err);

/* sandbox.c: one reference, in no table. */
struct sandbox *sandbox_new(struct sandboxes *all, const char *id, const char *uid,
                            const char *owner);
/* A copy of TEXT with the sandbox's secrets masked, cut to SIZE. */
void sandbox_mask_locked(const struct sandbox *sandbox, const char *text, char *ret_text,
                         size_t size);

/* sandboxes.c: the collection. */
struct sandbox *sandboxes_find_locked(const struct sandboxes *all, const char *id); /* borrowed */
struct sandbox *sandboxes_lookup_uid(struct sandboxes *all, const char *uid); /* ref'd or NULL */
void sandboxes_insert_locked(struct sandboxes *all, struct sandbox *sandbox); /* a reference more */
void sandboxes_remove(struct sandboxes *all, struct sandbox *sandbox);
/* After a change of its state or of `removing`: keeps all->living true. */
void sandboxes_recount_locked(struct sandbox *sandbox);
/* All of them, each referenced; malloc'd. Takes the lock. */
struct sandbox **sandboxes_snapshot(struct sandboxes *all, size_t *ret_count);
/* Like sandboxes_work for what asks the substrate. */
void sandboxes_ask(struct sandboxes *all, void (*fn)(void *arg), void *arg);

/* create.c */
void sandbox_box_spec(const struct sandbox *sandbox, struct box_spec *ret_spec); /* borrows */

/* update.c: its spec has changed. Records show it, the store and the agent keep it. The digest
 * stays: it tells what was created. */
void sandbox_describe_locked(struct sandbox *sandbox);

/* observe.c: what the substrate says of a box, known or not. */
void sandboxes_observe(struct sandboxes *all, const struct box_info *info);
extern const struct box_observer sandboxes_observer; /* its `arg` is to be set */
/* INFOS are all boxes of ours: those of our sandboxes that are not among them are asked for. */
void sandboxes_compare(struct sandboxes *all, const struct box_info *infos, size_t count);
/* A box of ours without a living record: adopts it, or tells that it has no right to live. */
enum adoption { ADOPTION_KNOWN, ADOPTION_BEGUN, ADOPTION_ORPHAN, ADOPTION_LATER };
enum adoption sandboxes_adopt(struct sandboxes *all, const struct box_info *info, bool dry_run);

/* attach.c: opens the link when the box is attachable; closes it when the sandbox ended. */
void sandbox_attach(struct sandbox *sandbox);
void sandbox_detach(struct sandbox *sandbox, const struct err *why);
/* The server stops: the sandbox lives on. Nothing of it is on the loop any more, then. */
void sandbox_leave(struct sandbox *sandbox);
/* Sends what the agent must know when it has not acknowledged the newest. */
void sandbox_configure(struct sandbox *sandbox);

/* events.c: writes what is there of its history. Blocks. */
void sandbox_write_events(struct sandbox *sandbox);
void history_free(struct history *history);

/* forgotten.c, at start: removes the journals that belong to no record. */
void execs_sweep(struct sandboxes *all);

/* sweep.c; its timer is the loop's. */
void sweeper_new(struct sandboxes *all);
void sweeper_start(struct sandboxes *all);
void sweeper_stop(struct sandboxes *all);
void sweeper_free(struct sandboxes *all);
void sweeper_wake(struct sandboxes *all);
