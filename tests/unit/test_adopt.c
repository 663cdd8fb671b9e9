/* A server that has lost its store: the substrate and the agents tell what there is. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/suite.h"
#include "tests/unit/world.h"

static struct world world;

static void setup(void)
{
    world_init(&world);
}

static void teardown(void)
{
    world_done(&world);
}

static void lose_store(void)
{
    world_lose_store(&world);
    world_start(&world);
    world_run(&world);
}

static struct exec *start_exec(struct sandbox *sandbox)
{
    struct err err = {0};
    struct exec *exec = NULL;
    cleanup(exec_spec_done) struct exec_spec spec = {.max_output = 1000, .keep = true};
    text_list_add(&spec.cmd, "sleep");
    buf_init(&spec.stdin_bytes, 1);
    ck_assert_msg(exec_start(sandbox, &spec, &exec, &err) == 0, "%s", err.msg);
    return exec;
}

START_TEST(test_adopted)
{
    struct err err = {0};
    uint64_t seq = 0;
    char uid[UID_LEN], digest[72];
    struct sandbox *sandbox =
        world_create(&world, "{\"id\":\"a\",\"ttl\":600,\"labels\":{\"team\":\"x\"},"
                             "\"secrets\":[\"hunter2hunter2\"],\"runtime_class\":\"gvisor\"}");
    struct text_list more = {0};
    text_list_add(&more, "another-secret");
    const struct sandbox_update update = {.ttl_ms = 900000, .secrets = &more};
    ck_assert_int_eq(sandbox_update(sandbox, &update, &seq, &err), 0);
    text_list_done(&more);
    world_run(&world);
    ck_assert(sandbox_update_done(sandbox, seq, &err));
    int64_t created = sandbox->created, deadline = sandbox->deadline;
    memcpy(uid, sandbox->uid, sizeof(uid));
    memcpy(digest, sandbox->digest, sizeof(digest));
    cleanup_free char *spec = xstrdup(sandbox->public_spec);
    fake_clock_advance(100000);
    lose_store();
    world_expect(&world, "a", "running");
    sandbox = world_get(&world, "a");
    ck_assert_str_eq(sandbox->uid, uid);
    ck_assert_str_eq(sandbox->owner, "me");
    ck_assert_str_eq(sandbox->digest, digest);
    ck_assert_str_eq(sandbox->public_spec, spec);
    ck_assert_str_eq(sandbox->spec.runtime_class, "gvisor");
    ck_assert_str_eq(text_map_get(&sandbox->spec.labels, "team"), "x");
    ck_assert_int_eq(sandbox->created, created);
    ck_assert_int_eq(sandbox->deadline, deadline);
    cleanup_free char *masked = sandbox_mask_text(sandbox, "hunter2hunter2 another-secret",
                                                  strlen("hunter2hunter2 another-secret"));
    ck_assert_str_eq(masked, "*** ***");
    ck_assert_str_eq(world_events(&world, uid), "adopted running");
    ck_assert_uint_eq(substrate_box(&world.substrate, "a")->envs, 0);
    world_restart(&world); /* and it is on record again */
    world_expect(&world, "a", "running");
    ck_assert(sandbox_has_secrets(world_get(&world, "a")));
    world_advance(&world, 790000);
    world_expect(&world, "a", "running");
    world_advance(&world, 11000);
    world_expect(&world, "a", "gone: ttl");
}
END_TEST

START_TEST(test_owner_sees_it)
{
    struct err err = {0};
    struct sandbox *sandbox = NULL;
    const struct owner_view stranger = {.owner = "you"};
    (void)world_create(&world, "{\"id\":\"a\"}");
    lose_store();
    ck_assert_int_eq(sandboxes_find(world.all, &view_me, "a", &sandbox, NULL, &err), 0);
    sandbox_unref(sandbox);
    ck_assert_int_eq(sandboxes_find(world.all, &stranger, "a", &sandbox, NULL, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
}
END_TEST

/* Whoever asks as soon as the server is ready finds it, though its agent has not answered yet. */
START_TEST(test_found_at_once)
{
    struct err err = {0};
    struct sandbox *sandbox = NULL;
    (void)world_create(&world, "{\"id\":\"a\"}");
    world_lose_store(&world);
    world_start(&world);
    while (!sandboxes_ready(world.all, &err)) {
        ck_assert(stepper_step());
    }
    ck_assert_int_eq(sandboxes_find(world.all, &view_me, "a", &sandbox, NULL, &err), 0);
    ck_assert_str_eq(sandbox_workdir(sandbox), "/workspace");
    sandbox_unref(sandbox);
}
END_TEST

/* Its executions too, with numbers that go on. */
START_TEST(test_execs_are_found)
{
    struct err err = {0};
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    exec_unref(start_exec(sandbox));
    exec_unref(start_exec(sandbox));
    world_run(&world);
    world_stop(&world);
    substrate_end_exec(&world.substrate, "a", 1, 7);
    lose_store();
    sandbox = world_get(&world, "a");
    cleanup_json struct json *json = NULL;
    ck_assert_msg(exec_json(world.all, sandbox->uid, 1, false, &json, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 7);
    struct exec *running = exec_find(sandbox, 2);
    ck_assert(running && !exec_ended(running));
    exec_unref(running);
    struct exec *next = start_exec(sandbox);
    ck_assert_int_eq(exec_number(next), 3);
    exec_unref(next);
    world_run(&world);
    ck_assert(substrate_has_exec(&world.substrate, "a", 3));
}
END_TEST

START_TEST(test_previews_are_found)
{
    struct err err = {0};
    struct exec *exec = NULL;
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    struct preview_request request = {.port = 8000};
    ck_assert_int_eq(preview_begin(sandbox, &request, "a.preview.example", true, &exec, &err), 0);
    request.port = 9000;
    ck_assert_int_eq(preview_begin(sandbox, &request, "9000-a.preview.example", false, &exec, &err),
                     0);
    lose_store();
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 6);
    cleanup_json struct json *json = NULL;
    ck_assert_int_eq(preview_json(world_get(&world, "a"), 8000, true, &json, &err), 0);
    ck_assert_str_eq(json_get_text(json, "url"), "http://a.preview.example/");
    ck_assert_str_eq(json_get_text(json, "service"), "preview-a");
    ck_assert_str_eq(json_get_text(json, "state"), "ready");
    cleanup_free int64_t *ports = NULL;
    size_t count = 0;
    ck_assert_int_eq(preview_ports(world_get(&world, "a"), &ports, &count, &err), 0);
    ck_assert_uint_eq(count, 2);
}
END_TEST

/* Their list cannot be had yet: nothing is taken for an orphan. */
START_TEST(test_previews_are_found_later)
{
    struct err err = {0};
    struct exec *exec = NULL;
    struct preview_request request = {.port = 8000};
    ck_assert_int_eq(preview_begin(world_create(&world, "{\"id\":\"a\"}"), &request,
                                   "a.preview.example", true, &exec, &err),
                     0);
    world_lose_store(&world);
    world.substrate.fail_objects = ERR_BACKEND_UNAVAILABLE;
    world_start(&world);
    world_advance(&world, 100000);
    world.substrate.fail_objects = ERR_NONE;
    world_sweep(&world);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 3);
    cleanup_free int64_t *ports = NULL;
    size_t count = 0;
    ck_assert_int_eq(preview_ports(world_get(&world, "a"), &ports, &count, &err), 0);
    ck_assert_uint_eq(count, 1);
}
END_TEST

/* --- what cannot be adopted ------------------------------------------------------------------ */

START_TEST(test_unreadable_blob)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    box->blob[box->blob_len / 2] ^= 1;
    lose_store();
    world_expect(&world, "a", "failed: lost");
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, "a"));
    world_sweep(&world);
    world_restart(&world); /* kept over a restart, too */
    world_sweep(&world);
    world_expect(&world, "a", "failed: lost");
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, "a"));
    world_advance(&world, 3700000); /* its agent's deadline */
    world_expect(&world, "a", "gone: lost");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_unreadable_blob_is_deleted)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    substrate_box(&world.substrate, "a")->blob_len = 3;
    lose_store();
    world_expect(&world, "a", "failed: lost");
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    world_run(&world);
    world_expect(&world, "a", "gone: lost");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* The longest lifetime is over, and its agent has not seen to it. */
START_TEST(test_lost_one_ends_at_last)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    box->blob_len = 3;
    box->deadline_ms = 0;
    lose_store();
    world_advance(&world, INT64_C(23) * 3600000);
    world_expect(&world, "a", "failed: lost");
    world_advance(&world, 3700000);
    world_expect(&world, "a", "gone: lost");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_other_key)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    world_lose_store(&world);
    world.key.bytes[0] ^= 1;
    world_start(&world);
    world_run(&world);
    world_expect(&world, "a", "failed: lost");
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, "a"));
}
END_TEST

/* With its store, but another key: nothing is masked by guess, and the record stays as it is. */
START_TEST(test_other_key_and_the_store)
{
    (void)world_create(&world, "{\"id\":\"a\",\"secrets\":[\"hunter2hunter2\"]}");
    world_stop(&world);
    world.key.bytes[0] ^= 1;
    world_restart(&world);
    world_expect(&world, "a", "failed: lost");
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, "a"));
    world_stop(&world);
    world.key.bytes[0] ^= 1;
    world_restart(&world);
    world_expect(&world, "a", "running");
    ck_assert(sandbox_has_secrets(world_get(&world, "a")));
}
END_TEST

START_TEST(test_never_configured)
{
    (void)substrate_add(&world.substrate, "a", "u-1", false);
    lose_store();
    world_expect(&world, "a", "failed: lost");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_agent_says_nothing)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    world_lose_store(&world);
    world.substrate.dumb = true;
    world_start(&world);
    world_advance(&world, 55000);
    world_expect(&world, "a", "creating");
    world_advance(&world, 6000);
    world_expect(&world, "a", "failed: lost");
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, "a"));
}
END_TEST

START_TEST(test_dead_ones_are_removed)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    world_stop(&world);
    substrate_box(&world.substrate, "a")->info.state = BOX_FAILED;
    lose_store();
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    world_expect(&world, "a", "not_found");
}
END_TEST

/* Our labels and instance, but not our annotations: nobody can know it, it has no right to live. */
START_TEST(test_labels_only)
{
    (void)substrate_add(&world.substrate, "a", "", false);
    substrate_add(&world.substrate, "b", "no-owner", false)->info.owner[0] = '\0';
    lose_store();
    world_sweep(&world);
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    world_expect(&world, "a", "not_found");
    world_expect(&world, "b", "not_found");
}
END_TEST

START_TEST(test_strangers_are_not_adopted)
{
    (void)substrate_add(&world.substrate, "f", "u-9", true);
    lose_store();
    world_sweep(&world);
    world_expect(&world, "f", "not_found");
    ck_assert_uint_eq(substrate_count(&world.substrate), 1);
    cleanup_json struct json *page = NULL;
    struct err err = {0};
    ck_assert_int_eq(sandboxes_foreign(world.all, &page, &err), 0);
    ck_assert_uint_eq(json_count(json_get(page, "items")), 1);
}
END_TEST

/* --- two sources ----------------------------------------------------------------------------- */

/* The record is older than what the agent keeps: a copy of the store was put back. */
START_TEST(test_store_is_older)
{
    struct err err = {0};
    uint64_t seq = 0;
    (void)world_create(&world, "{\"id\":\"a\",\"labels\":{\"x\":\"1\"}}");
    cleanup_free char *path = temp_path(&world.dir, "store.db");
    cleanup_free char *copy = xasprintf("%s.copy", path);
    world_stop(&world);
    ck_assert_int_eq(link(path, copy), 0);
    ck_assert_int_eq(unlink(path), 0);
    FILE *from = fopen(copy, "rb"), *to = fopen(path, "wb");
    ck_assert(from && to);
    for (int c = fgetc(from); c != EOF; c = fgetc(from)) {
        ck_assert_int_ne(fputc(c, to), EOF);
    }
    ck_assert_int_eq(fclose(from), 0);
    ck_assert_int_eq(fclose(to), 0);
    world_restart(&world);
    struct sandbox *sandbox = world_get(&world, "a");
    struct text_list more = {0};
    text_list_add(&more, "added-later");
    struct text_map labels = {0};
    text_map_set(&labels, "y", "2");
    const struct sandbox_update update = {.ttl_ms = 7200000, .secrets = &more, .labels = &labels};
    ck_assert_int_eq(sandbox_update(sandbox, &update, &seq, &err), 0);
    text_list_done(&more);
    world_run(&world);
    world_stop(&world);
    ck_assert_int_eq(rename(copy, path), 0);
    world_restart(&world);
    world_expect(&world, "a", "running");
    sandbox = world_get(&world, "a");
    ck_assert_uint_eq(sandbox->blob_version, 2);
    ck_assert(text_list_has(&sandbox->spec.secrets, "added-later"));
    ck_assert_ptr_null(text_map_get(&sandbox->spec.labels, "x"));
    ck_assert_str_eq(text_map_get(&sandbox->spec.labels, "y"), "2");
    ck_assert_int_gt(sandbox->deadline_ms - clock_now_ms(), 7000000);
}
END_TEST

/* The record is newer: the agent gets it. */
START_TEST(test_agent_is_behind)
{
    struct err err = {0};
    uint64_t seq = 0;
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    world.substrate.hold_ack = true;
    struct text_list more = {0};
    text_list_add(&more, "added-later");
    const struct sandbox_update update = {.ttl_ms = -1, .secrets = &more};
    ck_assert_int_eq(sandbox_update(sandbox, &update, &seq, &err), 0);
    text_list_done(&more);
    world_run(&world);
    ck_assert(!sandbox_update_done(sandbox, seq, &err));
    world_restart(&world);
    ck_assert_uint_eq(substrate_box(&world.substrate, "a")->blob_version, 2);
    lose_store();
    ck_assert(text_list_has(&world_get(&world, "a")->spec.secrets, "added-later"));
}
END_TEST

/* --- killed while it adopts ------------------------------------------------------------------ */

static int steps_left;

static void count_down(void)
{
    if (steps_left-- == 0) {
        _exit(0);
    }
}

/* A server that ends after STEPS steps of its start; false: it got through. */
static bool run_killed(int steps)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        steps_left = steps;
        stepper_watch(count_down);
        world_start(&world);
        stepper_run();
        _exit(3);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

START_TEST(test_killed_during_the_adoption)
{
    bool killed = true;
    (void)world_create(&world, "{\"id\":\"a\",\"secrets\":[\"hunter2hunter2\"]}");
    for (int steps = 0; killed; steps++) {
        world_lose_store(&world);
        killed = run_killed(steps);
        world_start(&world);
        world_run(&world);
        world_expect(&world, "a", "running");
        ck_assert(sandbox_has_secrets(world_get(&world, "a")));
        ck_assert_str_eq(world_get(&world, "a")->spec.image, "image");
        ck_assert_uint_eq(substrate_count(&world.substrate), 1);
        world_stop(&world);
    }
}
END_TEST

static void publish_with_command(void)
{
    struct err err = {0};
    struct exec *exec = NULL;
    cleanup(preview_request_done) struct preview_request request = {.port = 8000};
    text_list_add(&request.command, "serve");
    ck_assert_int_eq(
        preview_begin(world_get(&world, "a"), &request, "a.preview.example", true, &exec, &err), 0);
    exec_unref(exec);
}

/* Wherever the adoption is cut off, the preview is found by the next server. */
START_TEST(test_killed_before_previews_are_found)
{
    bool killed = true;
    (void)world_create(&world, "{\"id\":\"a\"}");
    publish_with_command();
    world_run(&world);
    for (int steps = 0; killed; steps++) {
        struct err err = {0};
        cleanup_free int64_t *ports = NULL;
        size_t count = 0;
        world_lose_store(&world);
        killed = run_killed(steps);
        world_start(&world);
        world_run(&world);
        world_sweep(&world);
        ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 3);
        ck_assert_int_eq(preview_ports(world_get(&world, "a"), &ports, &count, &err), 0);
        ck_assert_uint_eq(count, 1);
        world_stop(&world);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_adopted,
                                  test_owner_sees_it,
                                  test_found_at_once,
                                  test_execs_are_found,
                                  test_previews_are_found,
                                  test_previews_are_found_later,
                                  test_unreadable_blob,
                                  test_unreadable_blob_is_deleted,
                                  test_lost_one_ends_at_last,
                                  test_other_key,
                                  test_other_key_and_the_store,
                                  test_never_configured,
                                  test_agent_says_nothing,
                                  test_dead_ones_are_removed,
                                  test_labels_only,
                                  test_strangers_are_not_adopted,
                                  test_store_is_older,
                                  test_agent_is_behind,
                                  test_killed_during_the_adoption,
                                  test_killed_before_previews_are_found,
                                  NULL};
    return run_suite("adopt", tests, setup, teardown);
}
