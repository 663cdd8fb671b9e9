/* What ends by time, what is cleaned up, and what is never touched. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

static struct json *reap(bool dry_run)
{
    struct json *report = NULL;
    struct err err = {0};
    ck_assert_msg(sandboxes_reap(world.all, dry_run, &report, &err) == 0, "%s", err.msg);
    return report;
}

static size_t reaped(bool dry_run)
{
    cleanup_json struct json *report = reap(dry_run);
    ck_assert(json_get_bool(report, "dry_run", !dry_run) == dry_run);
    return json_count(json_get(report, "items"));
}

/* --- time ------------------------------------------------------------------------------------ */

START_TEST(test_ttl_by_the_agent)
{
    (void)world_create(&world, "{\"id\":\"a\",\"ttl\":60}");
    world_advance(&world, 59000);
    world_expect(&world, "a", "running");
    world_advance(&world, 1500);
    world_expect(&world, "a", "gone: ttl");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* The agent does not keep its word: the server does. */
START_TEST(test_ttl_by_the_server)
{
    (void)world_create(&world, "{\"id\":\"a\",\"ttl\":60}");
    substrate_box(&world.substrate, "a")->deadline_ms = 0;
    world_advance(&world, 61000);
    world_expect(&world, "a", "running");
    ck_assert_uint_eq(reaped(false), 0); /* it is the agent's turn for a moment */
    world_advance(&world, 1500);
    ck_assert_uint_eq(reaped(true), 1);
    world_expect(&world, "a", "running");
    world_advance(&world, 31000); /* the sweep comes by itself */
    world_expect(&world, "a", "gone: ttl");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

START_TEST(test_max_lifetime)
{
    world_stop(&world);
    world.config.policy.max_lifetime_ms = 7200000;
    world_restart(&world);
    (void)world_create(&world, "{\"id\":\"a\",\"ttl\":7000}");
    substrate_box(&world.substrate, "a")->deadline_ms = clock_now_ms() + 99000000;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST); /* it says so in its next hello */
    world_advance(&world, 7100000);
    world_expect(&world, "a", "running");
    world_advance(&world, 140000);
    world_expect(&world, "a", "gone: max_lifetime");
}
END_TEST

/* B18(c): renewed, and the server was down. B18(a): the deadline that counts is the agent's. */
START_TEST(test_b18_renewed_over_a_restart)
{
    struct err err = {0};
    uint64_t seq = 0;
    (void)world_create(&world, "{\"id\":\"a\",\"ttl\":60}");
    const struct sandbox_update update = {.ttl_ms = 300000};
    ck_assert_int_eq(sandbox_update(world_get(&world, "a"), &update, &seq, &err), 0);
    world_run(&world);
    ck_assert(sandbox_update_done(world_get(&world, "a"), seq, &err));
    world_stop(&world);
    fake_clock_advance(100000);
    world_restart(&world);
    world_advance(&world, 60000);
    world_expect(&world, "a", "running");
    world_advance(&world, 141000);
    world_expect(&world, "a", "gone: ttl");
}
END_TEST

/* Past its ttl while the server was down: ended by the agent, or by the next start. */
START_TEST(test_ttl_while_down)
{
    (void)world_create(&world, "{\"id\":\"a\",\"ttl\":60}");
    (void)world_create(&world, "{\"id\":\"b\",\"ttl\":60}");
    (void)world_create(&world, "{\"id\":\"c\",\"ttl\":60}");
    world_stop(&world);
    fake_clock_advance(100000);
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    box->info.state = BOX_FAILED;
    box->info.ended_well = true;
    box->info.reason = ERR_CONTAINER_EXITED;
    substrate_remove(&world.substrate, "b", false);
    box = substrate_box(&world.substrate, "c");
    box->deadline_ms = 0;
    world.substrate.dumb = true;
    substrate_reset(&world.substrate);
    world.substrate.dumb = true; /* c's agent says nothing */
    world_start(&world);
    world_run(&world);
    world_expect(&world, "a", "gone: ttl");
    world_expect(&world, "b", "gone: ttl");
    world_expect(&world, "c", "running");
    world_advance(&world, 64000);
    world_expect(&world, "c", "gone: ttl");
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* B18(d): somebody sets the clock, while the server runs and while it does not. */
START_TEST(test_b18_wall_clock_is_set)
{
    for (int down = 0; down < 2; down++) {
        for (int day = -1; day <= 1; day += 2) {
            (void)world_create(&world, "{\"id\":\"a\",\"ttl\":600}");
            if (down) {
                world_stop(&world);
            }
            fake_clock_shift_wall(day * INT64_C(86400000));
            if (down) {
                world_restart(&world);
            }
            world_sweep(&world);
            world_advance(&world, 590000);
            world_expect(&world, "a", "running");
            world_advance(&world, 11000);
            world_expect(&world, "a", "gone: ttl");
        }
    }
}
END_TEST

/* B18(a): the renewal and the reaper, with a step of either between any two of the other's. */
START_TEST(test_b18_renewal_races_expiry)
{
    unsigned renewed = 0, too_late = 0;
    for (unsigned i = 0; i < 200; i++) {
        struct err err = {0};
        uint64_t seq = 0;
        stepper_shuffle(i + 1);
        struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\",\"ttl\":60}"));
        struct scripted_box *box = substrate_box(&world.substrate, "a");
        if (i % 2) { /* its agent would live on: the server is alone to decide */
            box->deadline_ms = 0;
        }
        int64_t until = i % 2 ? 62000 + (int64_t)(i % 7) - 3 : 60000 - 50 + (int64_t)(i % 100);
        while ((until -= stepper_advance(until)) > 0) {
            world_run(&world);
        }
        substrate_tick(&world.substrate);
        sweeper_wake(world.all);
        for (unsigned step = 0; step < i % 9; step++) {
            (void)stepper_step();
        }
        const struct sandbox_update update = {.ttl_ms = 600000};
        int result = sandbox_update(sandbox, &update, &seq, &err);
        world_run(&world);
        bool answered =
            result == 0 && sandbox_update_done(sandbox, seq, &err) && err.code == ERR_NONE;
        if (answered) {
            renewed++;
            world_advance(&world, 200000);
            world_expect(&world, "a", "running");
            ck_assert_ptr_eq(substrate_box(&world.substrate, "a"), box);
        } else {
            too_late++;
            ck_assert_int_eq(err.code, ERR_GONE);
            world_advance(&world, 10000);
            world_expect(&world, "a", "gone: ttl");
            ck_assert_ptr_null(substrate_box(&world.substrate, "a"));
        }
        sandbox_delete(sandbox, ERR_DELETED);
        world_run(&world);
        sandbox_unref(sandbox);
    }
    stepper_shuffle(0);
    ck_assert_uint_gt(renewed, 20);
    ck_assert_uint_gt(too_late, 20);
}
END_TEST

/* The loop is still at it when the server has begun to stop. */
START_TEST(test_stop_while_a_sweep_is_due)
{
    world_create(&world, "{\"id\":\"a\",\"ttl\":86400}");
    for (int round = 0; round < 500; round++) {
        fake_clock_advance(30000);
        world_restart(&world);
    }
    world_expect(&world, "a", "running");
}
END_TEST

/* --- orphans --------------------------------------------------------------------------------- */

static void expect_kept(const char *id)
{
    ck_assert_ptr_nonnull(substrate_box(&world.substrate, id));
}

START_TEST(test_b49_orphans_and_strangers)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"mine\"}");
    char before[UID_LEN];
    memcpy(before, sandbox->uid, sizeof(before));
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    (void)substrate_add(&world.substrate, "mine", before, false); /* a life that is over */
    (void)substrate_add(&world.substrate, "my-job-1", "", true);
    (void)substrate_add(&world.substrate, "other", "of-another-instance", true);
    struct scripted_box *dead = substrate_add(&world.substrate, "dead", "unknown-dead", false);
    dead->info.state = BOX_FAILED;
    ck_assert_uint_eq(reaped(true), 2);
    ck_assert_uint_eq(substrate_count(&world.substrate), 4);
    ck_assert_uint_eq(reaped(false), 2);
    world_run(&world);
    ck_assert_uint_eq(substrate_count(&world.substrate), 2);
    expect_kept("my-job-1");
    expect_kept("other");
    ck_assert_uint_eq(reaped(false), 0);
}
END_TEST

/* An earlier life of an id that is used again. */
START_TEST(test_earlier_life)
{
    struct err err;
    (void)substrate_add(&world.substrate, "a", "earlier", false)->info.state;
    substrate_box(&world.substrate, "a")->info.state = BOX_FAILED;
    world.substrate.fail_destroy = ERR_BACKEND;
    struct sandbox *sandbox = world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err);
    world_run(&world);
    ck_assert_int_eq(sandbox_state(sandbox), SANDBOX_FAILED);
    sandbox_unref(sandbox);
    world.substrate.fail_destroy = ERR_NONE;
    world_sweep(&world);
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* The watch has missed it. */
START_TEST(test_gone_without_a_word)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    (void)world_create(&world, "{\"id\":\"b\"}");
    substrate_box(&world.substrate, "a")->there = false;
    world_sweep(&world);
    world_expect(&world, "a", "gone: removed_externally");
    world_expect(&world, "b", "running");
}
END_TEST

START_TEST(test_row_without_a_box)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    world_stop(&world);
    substrate_remove(&world.substrate, "a", false);
    world_restart(&world);
    world_expect(&world, "a", "gone: lost");
}
END_TEST

/* --- beside the boxes ------------------------------------------------------------------------ */

static void put_preview(struct sandbox *sandbox, int64_t port, const char *subdomain)
{
    struct err err = {0};
    struct exec *exec = NULL;
    cleanup_free char *host = NULL;
    bool first = false;
    struct preview_request request = {.port = port,
                                      .subdomain = subdomain ? xstrdup(subdomain) : NULL};
    ck_assert_msg(preview_host(sandbox, &request, &host, &first, &err) == 0, "%s", err.msg);
    ck_assert_msg(preview_begin(sandbox, &request, host, first, &exec, &err) == 0, "%s", err.msg);
    preview_request_done(&request);
}

START_TEST(test_b48_side_objects)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    put_preview(sandbox, 8000, NULL);
    put_preview(sandbox, 9000, NULL);
    substrate_add_object(&world.substrate, "Service", "preview-x", "x", 80);
    substrate_add_object(&world.substrate, "NetworkPolicy", "preview7-a", "a", 0);
    substrate_add_object(&world.substrate, "Ingress", "preview7-a", "a", 7);
    ck_assert_uint_eq(reaped(true), 3);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 8);
    ck_assert_uint_eq(reaped(false), 3);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 6);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "x"), 0);
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
}
END_TEST

/* Those of an earlier life of the id. */
START_TEST(test_b48_earlier_life)
{
    (void)world_create(&world, "{\"id\":\"a\"}");
    substrate_add_object(&world.substrate, "Service", "preview-a", "a", 8000);
    struct side_object *object = &world.substrate.world->objects[0];
    (void)snprintf(object->box_uid, sizeof(object->box_uid), "box-of-before");
    put_preview(world_get(&world, "a"), 9000, "name");
    world.substrate.world->objects[0].port = 9000;
    ck_assert_uint_eq(reaped(false), 0); /* publishing had taken the name over already */
    substrate_add_object(&world.substrate, "Service", "preview9-a", "a", 9);
    ck_assert_uint_eq(reaped(false), 1);
}
END_TEST

START_TEST(test_b48_removal_fails)
{
    struct err err = {0};
    struct json *report = NULL;
    substrate_add_object(&world.substrate, "Service", "preview-x", "x", 80);
    world.substrate.fail_remove = ERR_BACKEND;
    ck_assert_uint_eq(reaped(false), 1);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "x"), 1);
    world.substrate.fail_remove = ERR_NONE;
    world.substrate.fail_objects = ERR_BACKEND_UNAVAILABLE;
    ck_assert_int_eq(sandboxes_reap(world.all, false, &report, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE);
    world.substrate.fail_objects = ERR_NONE;
    ck_assert_uint_eq(reaped(false), 1);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "x"), 0);
}
END_TEST

/* --- records --------------------------------------------------------------------------------- */

static char *journal_dir(const char *uid)
{
    return xasprintf("%s/%s", world.config.data_dir, uid);
}

static void make_journal(const char *uid)
{
    cleanup_free char *dir = journal_dir(uid);
    cleanup_free char *path = xasprintf("%s/1.out", dir);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fclose(file), 0);
}

static bool has_journal(const char *uid)
{
    cleanup_free char *dir = journal_dir(uid);
    return access(dir, F_OK) == 0;
}

START_TEST(test_tombstones)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    char uid[UID_LEN];
    memcpy(uid, sandbox->uid, sizeof(uid));
    make_journal(uid);
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    world_advance(&world, 3500000);
    world_expect(&world, "a", "gone: deleted");
    ck_assert(has_journal(uid));
    world_advance(&world, 140000);
    world_expect(&world, "a", "not_found");
    ck_assert(!has_journal(uid));
}
END_TEST

/* Of a server that was killed between forgetting and removing. */
START_TEST(test_forgotten_journals)
{
    struct sandbox *sandbox = world_create(&world, "{\"id\":\"a\"}");
    char uid[UID_LEN];
    memcpy(uid, sandbox->uid, sizeof(uid));
    make_journal(uid);
    make_journal("of-nobody");
    world_restart(&world);
    ck_assert(has_journal(uid));
    ck_assert(!has_journal("of-nobody"));
}
END_TEST

START_TEST(test_failed_ones_are_forgotten)
{
    struct err err;
    world.substrate.fail_create = ERR_QUOTA_EXCEEDED;
    sandbox_unref(world_try(&world, "{\"id\":\"a\"}", NULL, NULL, &err));
    world_advance(&world, 3500000);
    world_expect(&world, "a", "failed: quota_exceeded");
    world_advance(&world, 200000);
    world_expect(&world, "a", "gone: quota_exceeded");
}
END_TEST

/* A client that fails all day does not fill the memory. */
START_TEST(test_too_many_failed)
{
    struct err err;
    world.substrate.fail_create = ERR_QUOTA_EXCEEDED;
    for (int i = 0; i < 1010; i++) {
        cleanup_free char *json = xasprintf("{\"id\":\"f%d\"}", i);
        sandbox_unref(world_try(&world, json, NULL, NULL, &err));
        if (i % 10 == 0) {
            world_run(&world);
            fake_clock_advance(1);
        }
    }
    world_run(&world);
    ck_assert_uint_eq(world.all->count, 1010);
    world_sweep(&world);
    ck_assert_uint_eq(world.all->count, 1000);
    world_expect(&world, "f0", "gone: quota_exceeded");
    world_expect(&world, "f1009", "failed: quota_exceeded");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_ttl_by_the_agent,
                                  test_ttl_by_the_server,
                                  test_max_lifetime,
                                  test_b18_renewed_over_a_restart,
                                  test_ttl_while_down,
                                  test_b18_wall_clock_is_set,
                                  test_b18_renewal_races_expiry,
                                  test_stop_while_a_sweep_is_due,
                                  test_b49_orphans_and_strangers,
                                  test_earlier_life,
                                  test_gone_without_a_word,
                                  test_row_without_a_box,
                                  test_b48_side_objects,
                                  test_b48_earlier_life,
                                  test_b48_removal_fails,
                                  test_tombstones,
                                  test_forgotten_journals,
                                  test_failed_ones_are_forgotten,
                                  test_too_many_failed,
                                  NULL};
    return run_suite("sweep", tests, setup, teardown);
}
