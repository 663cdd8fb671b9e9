#include "tests/unit/world.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct owner_view view_me = {.owner = "me", .failed_too = true};
const struct owner_view view_admin = {.owner = "root", .admin = true, .failed_too = true};

static const struct sandboxes_config defaults = {
    .policy = {.image = "image",
               .pull_policy = "IfNotPresent",
               .run_as_user = 1000,
               .run_as_group = 1000,
               .read_only_root = true,
               .workdir = "/workspace",
               .cpu = "2",
               .cpu_request = "250m",
               .memory = "2Gi",
               .memory_request = "512Mi",
               .storage = "1Gi",
               .network = "internet",
               .ready_timeout_ms = 20000,
               .max_ready_timeout_ms = 60000,
               .ttl_ms = 3600000,
               .max_lifetime_ms = INT64_C(24) * 3600000,
               .unschedulable_after_ms = 5000},
    .instance = "test",
    .exec_timeout_ms = 60000,
    .max_exec_timeout_ms = 600000,
    .max_output = 1 << 20,
    .output_quota = 16 << 20,
    .max_sandboxes = 20,
    .max_execs = 100,
    .tombstone_ms = 3600000,
    .reap_every_ms = 30000,
    .preview_domain = "preview.example",
    .preview_scheme = "http",
    .preview_port = 80,
};

void world_start(struct world *world)
{
    struct err err = {0};
    cleanup_free char *path = temp_path(&world->dir, "store.db");
    ck_assert_msg(store_open(path, &world->store, &err) == 0, "%s", err.msg);
    const struct sandboxes_parts parts = {.key = &world->key,
                                          .driver = &world->substrate.driver,
                                          .store = world->store,
                                          .loop = world->substrate.loop};
    ck_assert_int_eq(sandboxes_new(&world->config, &parts, &world->all, &err), 0);
    ck_assert_msg(sandboxes_start(world->all, &err) == 0, "%s", err.msg);
}

void world_init(struct world *world)
{
    struct err err = {0};
    *world = (struct world){.config = defaults};
    ck_assert_int_eq(crypto_start(&err), 0);
    memset(world->key.bytes, 7, sizeof(world->key.bytes));
    temp_dir_make(&world->dir);
    world->config.data_dir = temp_path(&world->dir, "data");
    ck_assert_int_eq(mkdir(world->config.data_dir, 0700), 0);
    substrate_init(&world->substrate, stepper_loop());
    world_start(world);
    world_run(world);
}

void world_stop(struct world *world)
{
    if (!world->all) {
        return;
    }
    stepper_background();
    sandboxes_stop(TAKE_PTR(world->all));
    stepper_foreground();
    stepper_run();
    store_close(world->store);
}

void world_done(struct world *world)
{
    world_stop(world);
    substrate_done(&world->substrate);
    temp_dir_remove(&world->dir);
    free((char *)(uintptr_t)world->config.data_dir);
}

void world_restart(struct world *world)
{
    world_stop(world);
    substrate_reset(&world->substrate);
    world_start(world);
    world_run(world);
}

void world_lose_store(struct world *world)
{
    static const char *const names[] = {"store.db", "store.db-wal", "store.db-shm"};
    world_stop(world);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        cleanup_free char *path = temp_path(&world->dir, names[i]);
        (void)unlink(path); /* the last two are there only after a crash */
    }
    substrate_reset(&world->substrate);
}

/* The number that is kept is that of those who are there. */
static void check_living(const struct world *world)
{
    int64_t living = 0;
    for (size_t i = 0; i < SANDBOX_BUCKETS; i++) {
        for (const struct sandbox *at = world->all->table[i]; at; at = at->next) {
            living += at->state != SANDBOX_FAILED || at->removing;
        }
    }
    ck_assert_int_eq(world->all->living, living);
}

void world_run(struct world *world)
{
    stepper_run();
    if (world->all) {
        check_living(world);
    }
}

void world_advance(struct world *world, int64_t ms)
{
    world_run(world);
    while (ms > 0) {
        int64_t next = substrate_next_deadline(&world->substrate);
        ms -= stepper_advance(next < ms ? next : ms);
        substrate_tick(&world->substrate);
        world_run(world);
    }
}

void world_sweep(struct world *world)
{
    struct json *report = NULL;
    struct err err = {0};
    ck_assert_msg(sandboxes_reap(world->all, false, &report, &err) == 0, "%s", err.msg);
    json_free(report);
    world_run(world);
}

struct json *world_json(const char *text)
{
    struct json *json = NULL;
    struct err err = {0};
    ck_assert_msg(json_parse(text, strlen(text), JSON_STRICT, &json, &err) == 0, "%s", err.msg);
    return json;
}

struct sandbox *world_try(struct world *world, const char *text, const char *key, bool *ret_found,
                          struct err *err)
{
    cleanup_json struct json *json = world_json(text);
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    struct idempotency_claim claim = {.key = key, .digest = text};
    struct sandbox *sandbox = NULL;
    *err = (struct err){0};
    ck_assert_msg(sandbox_spec_parse(json, &world->config.policy, &spec, err) == 0, "%s", err->msg);
    if (sandbox_create(world->all, &view_me, &spec, &claim, &sandbox, err) < 0) {
        ck_assert_ptr_null(sandbox);
        return NULL;
    }
    if (ret_found) {
        *ret_found = claim.found;
    }
    return sandbox;
}

struct sandbox *world_create(struct world *world, const char *json)
{
    struct err err = {0};
    struct sandbox *sandbox = world_try(world, json, NULL, NULL, &err);
    ck_assert_msg(sandbox != NULL, "%s", err.msg);
    world_run(world);
    ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_RUNNING);
    ck_assert(sandbox_settled(sandbox));
    sandbox_unref(sandbox);
    return sandbox;
}

struct sandbox *world_get(struct world *world, const char *id)
{
    struct sandbox *sandbox = sandboxes_lookup(world->all, id);
    sandbox_unref(sandbox);
    return sandbox;
}

const char *world_state(struct world *world, const char *id)
{
    static char text[128];
    struct sandbox_row row;
    struct err err = {0};
    struct sandbox *sandbox = world_get(world, id);
    if (sandbox) {
        struct err why = {0};
        sandbox_why(sandbox, &why);
        (void)snprintf(text, sizeof(text), "%s%s%s", sandbox_state_name(sandbox_state(sandbox)),
                       why.code ? ": " : "", why.code ? err_code_name(why.code) : "");
        return text;
    }
    if (store_get_sandbox(world->store, id, &row, &err) < 0) {
        return err_code_name(err.code);
    }
    (void)snprintf(text, sizeof(text), "%s%s%s", row.state, row.reason ? ": " : "",
                   row.reason ? row.reason : "");
    sandbox_row_done(&row);
    return text;
}

void world_expect(struct world *world, const char *id, const char *state)
{
    ck_assert_str_eq(world_state(world, id), state);
}

const char *world_events(struct world *world, const char *uid)
{
    static char text[1024];
    struct event_row *rows = NULL;
    size_t count = 0;
    struct err err = {0};
    text[0] = '\0';
    ck_assert_int_eq(store_list_events(world->store, uid, 0, 0, &rows, &count, &err), 0);
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof(text) - used, "%s%s", used ? " " : "", rows[i].type);
    }
    event_rows_free(rows, count);
    return text;
}
