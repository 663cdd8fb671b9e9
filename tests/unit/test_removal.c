/* What cannot be removed at once: it is told, the record stays true, and it is tried again. */
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

/* B48: an error of the cluster is told, the record stays, and it is tried again. */
START_TEST(test_b48_destroy_fails)
{
    struct err err = {0};
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    world.substrate.fail_destroy = ERR_BACKEND;
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    world_expect(&world, "a", "deleting: deleted");
    ck_assert(sandbox_delete_error(sandbox, &err));
    ck_assert_int_eq(err.code, ERR_BACKEND);
    sandbox_delete(sandbox, ERR_DELETED); /* the error of before is not its answer */
    ck_assert(!sandbox_delete_error(sandbox, &err));
    world_run(&world);
    ck_assert(sandbox_delete_error(sandbox, &err));
    world.substrate.fail_destroy = ERR_NONE;
    world_advance(&world, 10000); /* by itself, well before the sweep */
    world_expect(&world, "a", "gone: deleted");
    ck_assert(!sandbox_delete_error(sandbox, &err));
    sandbox_unref(sandbox);
}
END_TEST

/* B48: the box is gone, and the watch says so, but what stands beside it could not be removed: it
 * is not gone before that is. */
START_TEST(test_b48_left_beside)
{
    struct err err = {0};
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    substrate_add_object(&world.substrate, "Service", "preview-a", "a", 80);
    world.substrate.fail_beside = ERR_BACKEND;
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    ck_assert_ptr_null(substrate_box(&world.substrate, "a"));
    world_expect(&world, "a", "deleting: deleted");
    ck_assert(sandbox_delete_error(sandbox, &err));
    ck_assert_int_eq(err.code, ERR_BACKEND);
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    world_expect(&world, "a", "deleting: deleted");
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 1);
    sandbox_unref(sandbox);
    world_restart(&world); /* the next server has no such trouble */
    world_expect(&world, "a", "gone: deleted");
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
}
END_TEST

/* The same of one that has failed. */
START_TEST(test_b48_left_beside_a_failed_one)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    substrate_add_object(&world.substrate, "Service", "preview-a", "a", 80);
    world.substrate.fail_beside = ERR_BACKEND;
    substrate_fail(&world.substrate, "a", ERR_EVICTED, false, "no room");
    world_run(&world);
    ck_assert(!sandbox_settled(sandbox));
    world.substrate.fail_beside = ERR_NONE;
    world_advance(&world, 10000);
    ck_assert(sandbox_settled(sandbox));
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    world_expect(&world, "a", "failed: evicted");
}
END_TEST

/* B50: stuck in Terminating. */
START_TEST(test_b50_lingers)
{
    struct err err = {0};
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    world.substrate.linger = true;
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    world_expect(&world, "a", "deleting: deleted");
    ck_assert(!sandbox_delete_error(sandbox, &err));
    ck_assert_int_eq(sandbox_check_running(sandbox, &err), -1);
    ck_assert_int_eq(err.code, ERR_GONE);
    ck_assert_ptr_null(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    ck_assert_int_eq(err.code, ERR_ALREADY_EXISTS);
    world_advance(&world, 200000);
    world_expect(&world, "a", "deleting: deleted");
    world.substrate.linger = false;
    world_advance(&world, 61000);
    world_expect(&world, "a", "gone: deleted");
    sandbox_unref(sandbox);
}
END_TEST

/* The end is told by the watch, between two tries. */
START_TEST(test_b50_watch_tells)
{
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    world.substrate.linger = true;
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    substrate_remove(&world.substrate, "a", true);
    world_run(&world);
    world_expect(&world, "a", "gone: deleted");
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_outage_ends)
{
    struct err err;
    (void)world_create(&world, "{\"id\":\"a\"}");
    substrate_health(&world.substrate, ERR_BACKEND_UNAVAILABLE);
    world.substrate.fail_destroy = world.substrate.fail_inspect = ERR_BACKEND_UNAVAILABLE;
    world_run(&world);
    ck_assert(!sandboxes_ready(world.all, &err));
    ck_assert_ptr_null(world_try(&world, "{\"id\":\"b\"}", NULL, NULL, &err));
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE);
    sandbox_delete(world_get(&world, "a"), ERR_DELETED);
    world_advance(&world, 100000);
    world_expect(&world, "a", "deleting: deleted");
    world.substrate.fail_destroy = world.substrate.fail_inspect = ERR_NONE;
    substrate_health(&world.substrate, ERR_NONE);
    world_run(&world); /* not at the next try, but now */
    world_expect(&world, "a", "gone: deleted");
    ck_assert(sandboxes_ready(world.all, &err));
    (void)world_create(&world, "{\"id\":\"b\"}");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_b48_destroy_fails,
                                  test_b48_left_beside,
                                  test_b48_left_beside_a_failed_one,
                                  test_b50_lingers,
                                  test_b50_watch_tells,
                                  test_outage_ends,
                                  NULL};
    return run_suite("removal", tests, setup, teardown);
}
