/* Creating: ids, keys, what fails, and a server that is killed between any two steps. */
#include <stdio.h>
#include <string.h>
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

static void expect_error(const char *json, const char *key, enum err_code code)
{
    struct err err;
    ck_assert_ptr_null(world_try(&world, json, key, NULL, &err));
    ck_assert_str_eq(err_code_name(err.code), err_code_name(code));
}

/* Creates on a thread that may block, while the stepper works in the background. */
static struct sandbox *create_blocking(const char *json, struct err *err)
{
    stepper_background();
    struct sandbox *sandbox = world_try(&world, json, NULL, NULL, err);
    stepper_foreground();
    stepper_run();
    return sandbox;
}

/* --- the id ---------------------------------------------------------------------------------- */

START_TEST(test_id_is_taken)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    expect_error("{\"id\":\"a\"}", NULL, ERR_ALREADY_EXISTS);
    ck_assert_ptr_eq(world_get(&world, "a"), sandbox);
    ck_assert_uint_eq(world.substrate.world->created, 1);
}
END_TEST

/* A failed create gives its id up as soon as its box is gone. */
START_TEST(test_after_a_failure)
{
    struct err err;
    world.substrate.fail_create = ERR_QUOTA_EXCEEDED;
    struct sandbox *first = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
    world_run(&world);
    world_expect(&world, "a", "failed: quota_exceeded");
    ck_assert(sandbox_settled(first));
    world.substrate.fail_create = ERR_NONE;
    struct sandbox *second = create_blocking("{\"id\":\"a\"}", &err);
    ck_assert_msg(second != NULL, "%s", err.msg);
    world_expect(&world, "a", "running");
    ck_assert_int_eq(sandbox_state(first), SANDBOX_GONE);
    struct sandbox_row row;
    ck_assert_int_eq(store_get_sandbox_uid(world.store, first->uid, &row, &err), 0);
    ck_assert_str_eq(row.state, "gone");
    ck_assert_str_eq(row.reason, "quota_exceeded");
    sandbox_row_done(&row);
    sandbox_unref(first);
    sandbox_unref(second);
}
END_TEST

/* Whoever reads that it is gone may take its id, though the tombstone is just being written. */
START_TEST(test_gone_a_moment_ago)
{
    struct err err;
    struct sandbox *first = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    substrate_remove(&world.substrate, "a", true);
    while (sandbox_state(first) != SANDBOX_GONE) {
        ck_assert(stepper_step());
    }
    ck_assert(!sandbox_settled(first));
    struct sandbox *second = create_blocking("{\"id\":\"a\"}", &err);
    ck_assert_msg(second != NULL, "%s", err.msg);
    world_expect(&world, "a", "running");
    sandbox_unref(first);
    sandbox_unref(second);
}
END_TEST

START_TEST(test_while_the_failed_ones_box_remains)
{
    struct err err;
    world.substrate.hold_start = world.substrate.linger = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    substrate_fail(&world.substrate, "a", ERR_IMAGE_PULL_FAILED, false, "no such image");
    world_run(&world);
    world_expect(&world, "a", "failed: image_pull_failed");
    expect_error("{\"id\":\"a\"}", NULL, ERR_ALREADY_EXISTS);
}
END_TEST

/* The name is somebody else's: that box is not touched. */
START_TEST(test_box_of_another)
{
    struct err err;
    (void)substrate_add(&world.substrate, "a", "", true);
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "a", "failed: already_exists");
    world_sweep(&world);
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    world.substrate.fail_destroy = ERR_NONE;
    ck_assert_uint_eq(substrate_count(&world.substrate), 1);
}
END_TEST

START_TEST(test_maximum)
{
    struct err err;
    world_stop(&world);
    world.config.max_sandboxes = 2;
    world_restart(&world);
    (void)world_create(&world, "{\"id\":\"a\"}");
    world.substrate.fail_create = ERR_ADMISSION_DENIED;
    sandbox_unref(world_try(&world, "{\"id\":\"b\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "b", "failed: admission_denied"); /* has nothing there: does not count */
    world.substrate.fail_create = ERR_NONE;
    (void)world_create(&world, "{\"id\":\"c\"}");
    expect_error("{\"id\":\"d\"}", NULL, ERR_BUSY);
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    expect_error("{\"id\":\"d\"}", NULL, ERR_BUSY); /* until it is gone */
    world_run(&world);
    (void)world_create(&world, "{\"id\":\"d\"}");
}
END_TEST

/* --- what fails ------------------------------------------------------------------------------ */

START_TEST(test_failures)
{
    static const enum err_code codes[] = {ERR_QUOTA_EXCEEDED,        ERR_ADMISSION_DENIED,
                                          ERR_RUNTIME_CLASS_MISSING, ERR_BACKEND_UNAVAILABLE,
                                          ERR_BACKEND_FORBIDDEN,     ERR_INVALID_IMAGE};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct err err, why = {0};
        world.substrate.fail_create = codes[i];
        cleanup_free char *json = xasprintf("{\"id\":\"a%zu\"}", i);
        struct sandbox *sandbox = world_try(&world, json, NULL, NULL, &err);
        world_run(&world);
        ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_FAILED);
        ck_assert(sandbox_settled(sandbox));
        sandbox_why(sandbox, &why);
        ck_assert_str_eq(err_code_name(why.code), err_code_name(codes[i]));
        ck_assert_str_eq(why.msg, "the test says no");
        sandbox_unref(sandbox);
    }
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* B17: it was done although the answer says otherwise; nothing is left of it. */
START_TEST(test_b17_answer_is_lost)
{
    struct err err;
    world.substrate.fail_create = ERR_BACKEND_UNAVAILABLE;
    world.substrate.lose_answer = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "a", "failed: backend_unavailable");
    ck_assert_uint_eq(world.substrate.world->created, 1);
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_before_the_first_list)
{
    world_stop(&world);
    substrate_reset(&world.substrate);
    world.substrate.hold_list = true;
    world_start(&world);
    world_run(&world);
    expect_error("{\"id\":\"a\"}", NULL, ERR_BACKEND_UNAVAILABLE);
    struct sandbox *sandbox = NULL;
    struct err err = {0};
    ck_assert_int_eq(sandboxes_find(world.all, &view_me, "a", &sandbox, NULL, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE); /* it may be in the substrate */
    substrate_list(&world.substrate);
    world_run(&world);
    ck_assert_int_eq(sandboxes_find(world.all, &view_me, "a", &sandbox, NULL, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    (void)world_create(&world, "{\"id\":\"a\"}");
}
END_TEST

START_TEST(test_dry_run)
{
    struct err err = {0};
    cleanup_json struct json *json = world_json("{\"id\":\"a\"}");
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    ck_assert_int_eq(sandbox_spec_parse(json, &world.config.policy, &spec, &err), 0);
    ck_assert_int_eq(sandbox_dry_run(world.all, &view_me, &spec, &err), 0);
    world.substrate.fail_create = ERR_QUOTA_EXCEEDED;
    ck_assert_int_eq(sandbox_dry_run(world.all, &view_me, &spec, &err), -1);
    ck_assert_int_eq(err.code, ERR_QUOTA_EXCEEDED);
    world_run(&world);
    ck_assert_ptr_null(world_get(&world, "a"));
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    world_expect(&world, "a", "not_found");
}
END_TEST

/* All that a spec may hold can be kept by the agent, whatever its bytes. */
START_TEST(test_largest_secrets)
{
    struct err err;
    struct buf json = BUF_INIT(2 * MIB);
    ck_assert(buf_append_str(&json, "{\"id\":\"a\",\"secrets\":["));
    for (int i = 0; i < 255; i++) {
        ck_assert(buf_printf(&json, "%s\"%03d", i ? "," : "", i));
        for (int j = 0; j < 500; j++) {
            ck_assert(buf_append_str(&json, "\\u0001"));
        }
        ck_assert(buf_append_str(&json, "\""));
    }
    ck_assert(buf_append_str(&json, "]}"));
    sandbox_unref(world_try(&world, buf_text(&json), NULL, NULL, &err));
    buf_done(&json);
    world_run(&world);
    world_expect(&world, "a", "running");
    ck_assert_uint_gt(substrate_box(&world.substrate, "a")->blob_len, 128000);
}
END_TEST

/* --- keys ------------------------------------------------------------------------------------ */

START_TEST(test_b17_same_key)
{
    struct err err;
    bool found = true;
    struct sandbox *first = world_try(&world, "{}", "k", &found, &err);
    ck_assert(first && !found);
    struct sandbox *second = world_try(&world, "{}", "k", &found, &err);
    ck_assert_ptr_eq(first, second);
    ck_assert(found);
    sandbox_unref(second);
    world_run(&world);
    second = world_try(&world, "{}", "k", &found, &err);
    ck_assert_ptr_eq(first, second);
    sandbox_unref(second);
    expect_error("{\"ttl\":60}", "k", ERR_IDEMPOTENCY_CONFLICT);
    char uid[UID_LEN];
    memcpy(uid, first->uid, sizeof(uid));
    sandbox_unref(first);
    world_restart(&world);
    second = world_try(&world, "{}", "k", &found, &err);
    ck_assert(second && found);
    ck_assert_str_eq(second->uid, uid);
    sandbox_delete(second, ERR_DELETED);
    sandbox_unref(second);
    world_run(&world);
    expect_error("{}", "k", ERR_GONE);
    ck_assert_uint_eq(world.substrate.world->created, 1);
}
END_TEST

/* What failed does not hold its key, and the key is then that of the next. */
START_TEST(test_key_after_a_failure)
{
    struct err err;
    bool found = true;
    world.substrate.fail_create = ERR_BACKEND_UNAVAILABLE;
    struct sandbox *first = world_try(&world, "{}", "k", &found, &err);
    world_run(&world);
    world.substrate.fail_create = ERR_NONE;
    struct sandbox *second = world_try(&world, "{}", "k", &found, &err);
    ck_assert(second && !found);
    ck_assert_ptr_ne(first, second);
    world_run(&world);
    struct sandbox *third = world_try(&world, "{}", "k", &found, &err);
    ck_assert_ptr_eq(second, third);
    ck_assert(found);
    sandbox_unref(first);
    sandbox_unref(second);
    sandbox_unref(third);
}
END_TEST

START_TEST(test_key_is_released)
{
    struct err err;
    bool found = true;
    (void)world_create(&world, "{\"id\":\"a\"}");
    expect_error("{\"id\":\"a\"}", "k", ERR_ALREADY_EXISTS);
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    world_run(&world);
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", "k", &found, &err));
    ck_assert(!found);
}
END_TEST

static void *create_same(void *arg)
{
    struct err err;
    struct sandbox **ret_sandbox = arg;
    *ret_sandbox = world_try(&world, "{}", "parallel", NULL, &err);
    return NULL;
}

/* B17: in parallel, too. */
START_TEST(test_b17_same_key_in_parallel)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct sandbox *made[THREADS];
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, create_same, &made[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_ptr_nonnull(made[i]);
        ck_assert_ptr_eq(made[i], made[0]);
    }
    world_run(&world);
    ck_assert_uint_eq(world.substrate.world->created, 1);
    for (int i = 0; i < THREADS; i++) {
        sandbox_unref(made[i]);
    }
}
END_TEST

/* --- killed ---------------------------------------------------------------------------------- */

enum { FINISHED = 3 };
static int steps_left;

static void count_down(void)
{
    if (steps_left-- == 0) {
        _exit(0);
    }
}

/* In a process of its own, which ends after STEPS steps, without a farewell. False: the scene was
 * over before. */
static bool killed_after(int steps, void (*scene)(void))
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        steps_left = steps;
        stepper_watch(count_down);
        substrate_reset(&world.substrate);
        world_start(&world);
        scene();
        _exit(FINISHED);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == FINISHED);
    return WEXITSTATUS(status) != FINISHED;
}

static void scene_create(void)
{
    struct err err;
    stepper_run();
    ck_assert_ptr_nonnull(
        world_try(&world, "{\"id\":\"a\",\"env\":{\"A\":\"1\"}}", "k", NULL, &err));
    stepper_run();
}

static void scene_delete(void)
{
    stepper_run();
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    stepper_run();
}

static void scene_failure(void)
{
    struct err err;
    stepper_run();
    world.substrate.hold_start = true;
    ck_assert_ptr_nonnull(world_try(&world, "{\"id\":\"f\"}", NULL, NULL, &err));
    stepper_run();
    substrate_fail(&world.substrate, "f", ERR_IMAGE_PULL_FAILED, false, "no such image");
    stepper_run();
}

/* B49: each ends as exactly one known living sandbox or none, and the store agrees. */
START_TEST(test_b49_killed_during_a_create)
{
    bool killed = true;
    world_stop(&world);
    for (int steps = 0; killed; steps++) {
        killed = killed_after(steps, scene_create);
        substrate_reset(&world.substrate);
        world_start(&world);
        world_sweep(&world);
        struct sandbox *sandbox = world_get(&world, "a");
        ck_assert_uint_eq(substrate_count(&world.substrate), sandbox != NULL);
        if (sandbox) {
            world_expect(&world, "a", "running");
            ck_assert_uint_eq(substrate_box(&world.substrate, "a")->envs, 1);
            ck_assert_int_gt(substrate_box(&world.substrate, "a")->deadline_ms, 0);
            struct err err;
            bool found = false;
            struct sandbox *same =
                world_try(&world, "{\"id\":\"a\",\"env\":{\"A\":\"1\"}}", "k", &found, &err);
            ck_assert_ptr_eq(same, sandbox);
            ck_assert(found);
            sandbox_delete(same, ERR_DELETED);
            world_run(&world);
            struct idempotency_row row = {
                .owner = "me", .route = "POST /v1/sandboxes", .key = "k", .digest = ""};
            memcpy(row.uid, same->uid, sizeof(row.uid));
            sandbox_unref(same);
            ck_assert_int_eq(store_release_key(world.store, &row, &err), 0);
        }
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
        world_stop(&world);
    }
}
END_TEST

START_TEST(test_b49_killed_during_a_deletion)
{
    bool killed = true;
    for (int steps = 0; killed; steps++) {
        (void)world_create(&world, "{\"id\":\"a\"}");
        world_stop(&world);
        killed = killed_after(steps, scene_delete);
        substrate_reset(&world.substrate);
        world_start(&world);
        world_sweep(&world);
        bool lives = substrate_count(&world.substrate) > 0;
        world_expect(&world, "a", lives ? "running" : "gone: deleted");
        if (lives) {
            sandbox_delete(world_get(&world, "a"), ERR_DELETED);
            world_run(&world);
        }
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    }
}
END_TEST

START_TEST(test_b49_killed_during_a_failure)
{
    bool killed = true;
    for (int steps = 0; killed; steps++) {
        world_stop(&world);
        killed = killed_after(steps, scene_failure);
        substrate_reset(&world.substrate);
        world.substrate.hold_start = true;
        world_start(&world);
        world_sweep(&world);
        world_advance(&world, 30000); /* what still waited is over, too */
        struct sandbox *sandbox = world_get(&world, "f");
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
        if (sandbox) {
            ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_FAILED);
            ck_assert(sandbox_bury(sandbox));
            world_run(&world);
        }
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_id_is_taken,
                                  test_after_a_failure,
                                  test_gone_a_moment_ago,
                                  test_while_the_failed_ones_box_remains,
                                  test_box_of_another,
                                  test_maximum,
                                  test_failures,
                                  test_b17_answer_is_lost,
                                  test_before_the_first_list,
                                  test_dry_run,
                                  test_largest_secrets,
                                  test_b17_same_key,
                                  test_key_after_a_failure,
                                  test_key_is_released,
                                  test_b17_same_key_in_parallel,
                                  test_b49_killed_during_a_create,
                                  test_b49_killed_during_a_deletion,
                                  test_b49_killed_during_a_failure,
                                  NULL};
    return run_suite("create", tests, setup, teardown);
}
