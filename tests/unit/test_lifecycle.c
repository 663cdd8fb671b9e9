/* The states of a sandbox, from its create to its tombstone, on a scripted substrate. */
#include <stdio.h>
#include <string.h>

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

/* --- the way of one that works --------------------------------------------------------------- */

START_TEST(test_runs_and_is_deleted)
{
    struct sandbox *sandbox =
        sandbox_ref(world_create(&world, "{\"id\":\"a\",\"env\":{\"A\":\"1\",\"B\":\"2\"}}"));
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    ck_assert_ptr_nonnull(box);
    ck_assert_uint_eq(box->envs, 2);
    ck_assert_int_eq(box->deadline_ms - clock_now_ms(), 3600000);
    sandbox_delete(sandbox, ERR_DELETED);
    ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_DELETING);
    ck_assert(!sandbox_settled(sandbox));
    world_run(&world);
    ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_GONE);
    ck_assert(sandbox_settled(sandbox));
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    world_expect(&world, "a", "gone: deleted");
    ck_assert_str_eq(world_events(&world, sandbox->uid), "created running deleting gone");
    sandbox_delete(sandbox, ERR_DELETED); /* again: nothing happens */
    world_run(&world);
    world_expect(&world, "a", "gone: deleted");
    ck_assert_uint_eq(atomic_load(&sandbox->refs), 1);
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_the_id_is_free_at_once)
{
    char before[UID_LEN] = "";
    for (int i = 0; i < 20; i++) {
        struct sandbox *sandbox = world_create(&world, "{\"id\":\"same\"}");
        ck_assert_str_ne(sandbox->uid, before);
        memcpy(before, sandbox->uid, sizeof(before));
        sandbox_delete(sandbox, ERR_DELETED);
        world_run(&world);
        world_expect(&world, "same", "gone: deleted");
    }
    ck_assert_uint_eq(world.substrate.world->created, 20);
}
END_TEST

/* The deletion is answered when the tombstone is on disk, not before. */
START_TEST(test_settled_means_written)
{
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    sandbox_delete(sandbox, ERR_DELETED);
    while (!(sandbox_state(sandbox) == SANDBOX_GONE && sandbox_settled(sandbox))) {
        ck_assert(stepper_step());
    }
    struct sandbox_row row;
    struct err err = {0};
    ck_assert_int_eq(store_get_sandbox_uid(world.store, sandbox->uid, &row, &err), 0);
    ck_assert_str_eq(row.state, "gone");
    ck_assert_ptr_null(row.sealed);
    sandbox_row_done(&row);
    sandbox_unref(sandbox);
}
END_TEST

/* --- while it starts ------------------------------------------------------------------------- */

START_TEST(test_ready_timeout)
{
    struct err err;
    world.substrate.dumb = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\",\"ready_timeout\":15}", NULL, NULL, &err));
    world_advance(&world, 14000);
    world_expect(&world, "a", "creating");
    world_advance(&world, 1500);
    world_expect(&world, "a", "failed: ready_timeout");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_unschedulable)
{
    struct err err;
    world.substrate.hold_start = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    struct box_info *info = &substrate_box(&world.substrate, "a")->info;
    info->waiting = true;
    info->reason = ERR_UNSCHEDULABLE;
    (void)snprintf(info->message, sizeof(info->message), "0/1 nodes are available");
    substrate_tell(&world.substrate, "a");
    world_run(&world);
    cleanup_json struct json *json = sandbox_json(world_get(&world, "a"));
    ck_assert_str_eq(json_get_text(json, "state"), "creating");
    ck_assert_str_eq(json_get_text(json, "reason"), "unschedulable");
    world_advance(&world, 4500);
    world_expect(&world, "a", "creating");
    world_advance(&world, 1000);
    world_expect(&world, "a", "failed: unschedulable");
    struct err why = {0};
    sandbox_why(world_get(&world, "a"), &why);
    ck_assert_str_eq(why.msg, "0/1 nodes are available");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_a_node_is_found)
{
    struct err err;
    world.substrate.hold_start = true;
    struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
    world_run(&world);
    struct box_info *info = &substrate_box(&world.substrate, "a")->info;
    info->waiting = true;
    info->reason = ERR_UNSCHEDULABLE;
    substrate_tell(&world.substrate, "a");
    world_advance(&world, 3000);
    info->waiting = false;
    info->reason = ERR_NONE;
    substrate_tell(&world.substrate, "a");
    world_advance(&world, 6000);
    world_expect(&world, "a", "creating");
    info->state = BOX_ATTACHABLE;
    (void)snprintf(info->node, sizeof(info->node), "node-2");
    substrate_tell(&world.substrate, "a");
    world_run(&world);
    world_expect(&world, "a", "running");
    cleanup_json struct json *json = sandbox_json(sandbox);
    ck_assert_str_eq(json_text(json_path(json, "backend.node")), "node-2");
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_fails_while_starting)
{
    struct err err;
    world.substrate.hold_start = true;
    struct sandbox *sandbox =
        world_try(&world, "{\"id\":\"a\",\"secrets\":[\"hunter2hunter2\"]}", NULL, NULL, &err);
    world_run(&world);
    substrate_fail(&world.substrate, "a", ERR_IMAGE_PULL_FAILED, false,
                   "no image hunter2hunter2 there");
    world_run(&world);
    world_expect(&world, "a", "failed: image_pull_failed");
    struct err why = {0};
    sandbox_why(sandbox, &why);
    ck_assert_str_eq(why.msg, "no image *** there");
    ck_assert(sandbox_settled(sandbox));
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    sandbox_unref(sandbox);
    cleanup_json struct json *page = NULL;
    ck_assert_int_eq(sandbox_events(world.all, sandbox->uid, 0, 10, &page, &err), 0);
    cleanup_buf struct buf text = BUF_INIT(4096);
    ck_assert(json_print(page, &text));
    ck_assert_ptr_null(strstr(buf_text(&text), "hunter2"));
}
END_TEST

START_TEST(test_stream_is_forbidden)
{
    struct err err;
    world.substrate.refuse_stream = ERR_BACKEND_FORBIDDEN;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "a", "failed: backend_forbidden");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_agent_refuses_the_configuration)
{
    struct err err;
    world.substrate.refuse_config = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "a", "failed: agent_failed");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* The stream breaks between the configuration and its acknowledgement. */
START_TEST(test_configured_again)
{
    struct err err;
    world.substrate.hold_ack = true;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_run(&world);
    world_expect(&world, "a", "creating");
    world.substrate.hold_ack = false;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
    world_advance(&world, 1000);
    world_expect(&world, "a", "running");
    ck_assert_uint_eq(substrate_box(&world.substrate, "a")->configurations, 1);
}
END_TEST

START_TEST(test_deleted_while_starting)
{
    struct err err;
    struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
    for (int steps = 0; steps < 40; steps++) {
        for (int i = 0; i < steps; i++) {
            (void)stepper_step();
        }
        sandbox_delete(sandbox, ERR_DELETED);
        world_run(&world);
        world_expect(&world, "a", "gone: deleted");
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
        sandbox_unref(sandbox);
        sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
        ck_assert_ptr_nonnull(sandbox);
    }
    sandbox_unref(sandbox);
}
END_TEST

/* --- while it runs --------------------------------------------------------------------------- */

static struct exec *start_exec(struct sandbox *sandbox)
{
    struct err err = {0};
    struct exec *exec = NULL;
    cleanup(exec_spec_done) struct exec_spec spec = {.max_output = 1000};
    text_list_add(&spec.cmd, "sleep");
    buf_init(&spec.stdin_bytes, 1);
    ck_assert_msg(exec_start(sandbox, &spec, &exec, &err) == 0, "%s", err.msg);
    return exec;
}

/* B38: the pod goes while a command runs. */
START_TEST(test_b38_removed_during_an_exec)
{
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    struct exec *exec = start_exec(sandbox);
    world_run(&world);
    ck_assert(substrate_has_exec(&world.substrate, "a", 1));
    substrate_remove(&world.substrate, "a", true);
    world_run(&world);
    world_expect(&world, "a", "gone: removed_externally");
    ck_assert(exec_ended(exec));
    cleanup_json struct json *json = NULL;
    struct err err = {0};
    ck_assert_int_eq(exec_json(world.all, sandbox->uid, 1, false, &json, &err), 0);
    ck_assert_str_eq(json_text(json_path(json, "error.code")), "sandbox_gone");
    ck_assert_ptr_nonnull(
        strstr(json_text(json_path(json, "error.message")), "removed_externally"));
    ck_assert(json_is_null(json_get(json, "exit_code")));
    exec_unref(exec);
    sandbox_unref(sandbox);
}
END_TEST

/* B38: evicted, while the stream says nothing. */
START_TEST(test_b38_evicted)
{
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    struct exec *exec = start_exec(sandbox);
    world_run(&world);
    substrate_fail(&world.substrate, "a", ERR_EVICTED, false, "Usage of EmptyDir exceeds");
    world_run(&world);
    world_expect(&world, "a", "failed: evicted");
    ck_assert(exec_ended(exec));
    cleanup_json struct json *json = NULL;
    struct err err = {0};
    ck_assert_int_eq(exec_record(exec, false, &json, &err), 0);
    ck_assert_ptr_nonnull(
        strstr(json_text(json_path(json, "error.message")), "Usage of EmptyDir exceeds"));
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    exec_unref(exec);
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    world_expect(&world, "a", "gone: evicted"); /* it keeps why it failed */
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_told_to_end_by_somebody)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    substrate_fail(&world.substrate, "a", ERR_CONTAINER_EXITED, true, "exit code 0");
    world_run(&world);
    world_expect(&world, "a", "gone: removed_externally");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* What is seen of a box while we remove it changes nothing of why it failed. */
START_TEST(test_failed_box_is_going)
{
    struct err err;
    world.substrate.hold_start = world.substrate.linger = true;
    struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\",\"ttl\":60}", NULL, NULL, &err);
    world_run(&world);
    substrate_fail(&world.substrate, "a", ERR_IMAGE_PULL_FAILED, false, "no such image");
    world_run(&world);
    static const enum err_code seen[] = {ERR_REMOVED_EXTERNALLY, ERR_MAX_LIFETIME, ERR_TTL,
                                         ERR_CONTAINER_EXITED, ERR_EVICTED};
    for (size_t i = 0; i < ARRAY_LEN(seen); i++) {
        fake_clock_advance(20000); /* past its ttl, too */
        substrate_fail(&world.substrate, "a", seen[i], i % 2, "it is being deleted");
        world_run(&world);
        world_expect(&world, "a", "failed: image_pull_failed");
    }
    world.substrate.linger = false;
    substrate_remove(&world.substrate, "a", true);
    world_run(&world);
    world_expect(&world, "a", "failed: image_pull_failed");
    ck_assert(sandbox_settled(sandbox));
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_agent_was_restarted)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    box->token_set = box->configured = false;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
    world_advance(&world, 1000);
    world_expect(&world, "a", "failed: agent_failed");
}
END_TEST

/* The link gives up on a box that is there all the same: a new one is tried, not without a pause.
 */
START_TEST(test_attached_again)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    unsigned before = world.substrate.opens;
    substrate_cut(&world.substrate, "a", ERR_SANDBOX_GONE);
    world_run(&world);
    world_expect(&world, "a", "running");
    ck_assert_ptr_null(sandbox->link);
    ck_assert_uint_eq(world.substrate.opens, before);
    world_advance(&world, 2500);
    ck_assert_ptr_nonnull(sandbox->link);
    ck_assert(link_is_up(sandbox->link));
    ck_assert_uint_eq(world.substrate.opens, before + 1);
}
END_TEST

START_TEST(test_degraded)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    for (int i = 0; i < 12; i++) {
        substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
        world_advance(&world, 3000);
        ck_assert(link_is_up(sandbox->link));
    }
    ck_assert_str_eq(world_events(&world, sandbox->uid),
                     "created running degraded degraded degraded"); /* 3, 6 and 12 cuts */
    world.substrate.refuse_stream = ERR_BACKEND_UNAVAILABLE;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
    world_advance(&world, 60000); /* tries that fail are no cuts */
    ck_assert_str_eq(world_events(&world, sandbox->uid),
                     "created running degraded degraded degraded");
}
END_TEST

/* --- a stop ---------------------------------------------------------------------------------- */

/* In the middle of whatever: nothing is lost, and the next server goes on. */
START_TEST(test_stop_anywhere)
{
    for (int steps = 0; steps < 30; steps++) {
        struct err err;
        struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
        ck_assert_msg(sandbox != NULL, "%s", err.msg);
        sandbox_unref(sandbox);
        for (int i = 0; i < steps; i++) {
            (void)stepper_step();
        }
        world_restart(&world);
        world_expect(&world, "a", "running");
        ck_assert_uint_eq(substrate_count(&world.substrate), 1);
        sandbox_delete(world_get(&world, "a"), ERR_DELETED);
        for (int i = 0; i < steps; i++) {
            (void)stepper_step();
        }
        world_restart(&world);
        world_expect(&world, "a", "gone: deleted");
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    }
}
END_TEST

START_TEST(test_stop_with_execs)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    for (int i = 0; i < 3; i++) {
        exec_unref(start_exec(sandbox));
    }
    world_run(&world);
    world_stop(&world);
    substrate_end_exec(&world.substrate, "a", 2, 5);
    world_restart(&world);
    sandbox = world_get(&world, "a");
    cleanup_json struct json *json = NULL;
    struct err err = {0};
    ck_assert_int_eq(exec_json(world.all, sandbox->uid, 2, false, &json, &err), 0);
    ck_assert_int_eq(json_get_int(json, "exit_code", -1), 5);
    struct exec *running = exec_find(sandbox, 3);
    ck_assert(running && !exec_ended(running));
    exec_unref(running);
}
END_TEST

/* Many interleavings of a create, a cut, a removal by somebody else and a deletion. */
START_TEST(test_any_order)
{
    for (unsigned seed = 1; seed <= 200; seed++) {
        struct err err;
        stepper_shuffle(seed);
        struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
        ck_assert_msg(sandbox != NULL, "%s", err.msg);
        for (unsigned i = 0; i < seed % 23; i++) {
            (void)stepper_step();
        }
        if (seed % 3 == 0 && substrate_box(&world.substrate, "a")) {
            substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
        }
        if (seed % 5 == 0 && substrate_box(&world.substrate, "a")) {
            substrate_remove(&world.substrate, "a", seed % 2);
        }
        substrate_list(&world.substrate);
        sandbox_delete(sandbox, ERR_DELETED);
        world_advance(&world, 5000);
        ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_GONE);
        ck_assert(sandbox_settled(sandbox));
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
        ck_assert_ptr_null(world_get(&world, "a"));
        ck_assert_uint_eq(atomic_load(&sandbox->refs), 1);
        sandbox_unref(sandbox);
    }
    stepper_shuffle(0);
}
END_TEST

/* The watch's list was taken before the box was made, and is told after: it must not be taken for
 * the box's end. */
START_TEST(test_list_older_than_the_box)
{
    for (unsigned seed = 1; seed <= 100; seed++) {
        struct err err;
        stepper_shuffle(seed);
        substrate_list(&world.substrate);
        sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
        substrate_list(&world.substrate);
        world_run(&world);
        world_expect(&world, "a", "running");
        sandbox_delete(world_get(&world, "a"), ERR_DELETED);
        world_run(&world);
    }
    stepper_shuffle(0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_runs_and_is_deleted,
                                  test_the_id_is_free_at_once,
                                  test_settled_means_written,
                                  test_ready_timeout,
                                  test_unschedulable,
                                  test_a_node_is_found,
                                  test_fails_while_starting,
                                  test_stream_is_forbidden,
                                  test_agent_refuses_the_configuration,
                                  test_configured_again,
                                  test_deleted_while_starting,
                                  test_b38_removed_during_an_exec,
                                  test_b38_evicted,
                                  test_told_to_end_by_somebody,
                                  test_failed_box_is_going,
                                  test_agent_was_restarted,
                                  test_attached_again,
                                  test_degraded,
                                  test_stop_anywhere,
                                  test_stop_with_execs,
                                  test_any_order,
                                  test_list_older_than_the_box,
                                  NULL};
    return run_suite("lifecycle", tests, setup, teardown);
}
