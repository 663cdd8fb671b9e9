#pragma once

#include "sandbox/exec_lookup.h"
#include "sandbox/lifecycle.h"
#include "sandbox/previews.h"
#include "sandbox/record.h"
#include "tests/unit/stepper.h"
#include "tests/unit/substrate.h"
#include "tests/unit/temp_dir.h"

/* A whole domain on a scripted substrate, driven step by step; its store outlives it. */
struct world {
    struct temp_dir dir;
    struct substrate substrate;
    struct sandboxes_config config;
    struct crypto_key key;
    struct store *store;
    struct sandboxes *all; /* NULL: the server is down */
};

extern const struct owner_view view_me, view_admin;

void world_init(struct world *world); /* and starts it */
void world_done(struct world *world);
void world_start(struct world *world);
void world_stop(struct world *world);
/* A server that was down for a moment, or that has lost its store. */
void world_restart(struct world *world);
void world_lose_store(struct world *world);

void world_run(struct world *world);
/* Time passes, with all that is due meanwhile. */
void world_advance(struct world *world, int64_t ms);
void world_sweep(struct world *world);

/* A spec as a request body ("{}": all defaults); a failure is in ERR. Does not run. */
struct sandbox *world_try(struct world *world, const char *text, const char *key, bool *ret_found,
                          struct err *err);
/* Must succeed; running in the end. The table holds it: no reference. */
struct sandbox *world_create(struct world *world, const char *json);
/* From memory; NULL: none. No reference. */
struct sandbox *world_get(struct world *world, const char *id);
/* "running", or "gone: ttl" from the store; static. */
const char *world_state(struct world *world, const char *id);
void world_expect(struct world *world, const char *id, const char *state);
/* Types of the sandbox's events, by spaces; static. */
const char *world_events(struct world *world, const char *uid);
struct json *world_json(const char *text);
