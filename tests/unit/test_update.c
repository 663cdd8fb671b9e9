/* PATCH and new secrets: what the agent must acknowledge and the store must have. */
#include <string.h>

#include "tests/unit/fault_vfs.h"
#include "tests/unit/suite.h"
#include "tests/unit/world.h"

static struct world world;
static struct sandbox *sandbox;

static void setup(void)
{
    fault_vfs_install();
    world_init(&world);
    sandbox = sandbox_ref(world_create(
        &world,
        "{\"id\":\"a\",\"ttl\":600,\"labels\":{\"x\":\"1\"},\"secrets\":[\"first-secret\"]}"));
}

static void teardown(void)
{
    sandbox_unref(sandbox);
    world_done(&world);
}

static struct sandbox_row read_row(void)
{
    struct sandbox_row row;
    struct err err = {0};
    ck_assert_int_eq(store_get_sandbox_uid(world.store, sandbox->uid, &row, &err), 0);
    return row;
}

static uint64_t begin(int64_t ttl_ms, const char *label, const char *secret)
{
    struct err err = {0};
    uint64_t seq = 0;
    struct text_map labels = {0};
    struct text_list secrets = {0};
    if (label) {
        text_map_set(&labels, label, "1");
    }
    if (secret) {
        text_list_add(&secrets, secret);
    }
    const struct sandbox_update update = {
        .ttl_ms = ttl_ms, .labels = label ? &labels : NULL, .secrets = secret ? &secrets : NULL};
    ck_assert_msg(sandbox_update(sandbox, &update, &seq, &err) == 0, "%s", err.msg);
    text_map_done(&labels);
    text_list_done(&secrets);
    return seq;
}

static void refuse(const struct sandbox_update *update, enum err_code code)
{
    struct err err = {0};
    uint64_t seq = 0;
    ck_assert_int_eq(sandbox_update(sandbox, update, &seq, &err), -1);
    ck_assert_str_eq(err_code_name(err.code), err_code_name(code));
}

static bool done(uint64_t seq)
{
    struct err err = {0};
    bool over = sandbox_update_done(sandbox, seq, &err);
    ck_assert_int_eq(err.code, ERR_NONE);
    return over;
}

START_TEST(test_ttl)
{
    uint64_t seq = begin(1200000, NULL, NULL);
    ck_assert(!done(seq));
    ck_assert_int_eq(sandbox->deadline_ms - clock_now_ms(), 600000); /* not before it is so */
    world_run(&world);
    ck_assert(done(seq));
    ck_assert_int_eq(sandbox->deadline_ms - clock_now_ms(), 1200000);
    ck_assert_int_eq(sandbox->deadline - clock_wall_ms(), 1200000);
    ck_assert_int_eq(substrate_box(&world.substrate, "a")->deadline_ms - clock_now_ms(), 1200000);
    struct sandbox_row row = read_row();
    ck_assert_int_eq(row.deadline, sandbox->deadline);
    ck_assert_ptr_nonnull(strstr(row.spec, "\"ttl\":1200"));
    sandbox_row_done(&row);
    ck_assert_str_eq(text_map_get(&sandbox->spec.labels, "x"), "1");
    /* and shorter */
    seq = begin(1000, NULL, NULL);
    world_run(&world);
    ck_assert(done(seq));
    world_advance(&world, 1500);
    world_expect(&world, "a", "gone: ttl");
}
END_TEST

/* It is answered when the agent has it and the store has it: every step before the end is one at
 * which either may be missing. */
START_TEST(test_done_means_kept)
{
    uint64_t seq = begin(1200000, "y", "second-secret");
    while (!done(seq)) {
        ck_assert(stepper_step());
    }
    ck_assert_uint_eq(substrate_box(&world.substrate, "a")->blob_version, seq);
    struct sandbox_row row = read_row();
    ck_assert_str_eq(row.labels, "{\"y\":\"1\"}");
    ck_assert_int_eq(row.sealed_version, (int64_t)seq);
    struct sandbox *read = record_load(world.all, &row);
    ck_assert_uint_eq(read->spec.secrets.count, 2);
    sandbox_unref(read);
    sandbox_row_done(&row);
}
END_TEST

START_TEST(test_secrets_count_at_once)
{
    (void)begin(-1, NULL, "second-secret");
    cleanup_free char *masked = sandbox_mask_text(sandbox, "first-secret second-secret", 26);
    ck_assert_str_eq(masked, "*** ***");
}
END_TEST

START_TEST(test_secrets_are_added)
{
    world_run(&world);
    uint64_t first = begin(-1, NULL, "first-secret"); /* known already */
    uint64_t second = begin(-1, NULL, "second-secret");
    (void)begin(-1, NULL, ""); /* matches nothing */
    world_run(&world);
    ck_assert(done(first) && done(second));
    ck_assert_uint_eq(sandbox->spec.secrets.count, 2);
}
END_TEST

START_TEST(test_limits)
{
    struct text_list secrets = {0};
    struct buf text = BUF_INIT(MIB);
    for (size_t i = 0; i <= CAP_SECRET; i++) {
        ck_assert(buf_append_char(&text, 'x'));
    }
    text_list_add(&secrets, buf_text(&text));
    refuse(&(struct sandbox_update){.ttl_ms = -1, .secrets = &secrets}, ERR_INVALID_FIELD);
    text_list_done(&secrets);
    for (int i = 0; i < 3; i++) {
        text.len = CAP_SECRET - 1;
        text.ptr[0] = (char)('a' + i);
        text.ptr[text.len] = '\0';
        text_list_add(&secrets, buf_text(&text));
    }
    refuse(&(struct sandbox_update){.ttl_ms = -1, .secrets = &secrets}, ERR_TOO_LARGE);
    text_list_done(&secrets);
    for (int i = 0; i < CAP_SECRETS; i++) {
        cleanup_free char *one = xasprintf("secret-%d", i);
        text_list_add(&secrets, one);
    }
    refuse(&(struct sandbox_update){.ttl_ms = -1, .secrets = &secrets}, ERR_TOO_LARGE);
    text_list_done(&secrets);
    buf_done(&text);
    refuse(&(struct sandbox_update){.ttl_ms = INT64_C(25) * 3600000}, ERR_INVALID_FIELD);
    ck_assert_uint_eq(sandbox->blob_version, 1);
    ck_assert_uint_eq(sandbox->spec.secrets.count, 1);
}
END_TEST

START_TEST(test_not_acknowledged)
{
    world.substrate.hold_ack = true;
    uint64_t seq = begin(1200000, NULL, NULL);
    world_run(&world);
    ck_assert(!done(seq));
    world.substrate.hold_ack = false;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
    world_advance(&world, 1000); /* it is sent again; the ttl counts from the request */
    ck_assert(done(seq));
    ck_assert_int_eq(sandbox->deadline_ms - clock_now_ms(), 1199000);
}
END_TEST

/* The agent took it, and the acknowledgement was lost. */
START_TEST(test_acknowledgement_is_lost)
{
    uint64_t seq = begin(1200000, NULL, "second-secret");
    struct scripted_box *box = substrate_box(&world.substrate, "a");
    world.substrate.hold_ack = true;
    world_run(&world);
    world.substrate.hold_ack = false;
    box->blob_version = seq; /* what it keeps is not looked at: the record is as new */
    box->deadline_ms = clock_now_ms() + 1200000;
    ck_assert(!done(seq));
    unsigned before = substrate_box(&world.substrate, "a")->configurations;
    substrate_cut(&world.substrate, "a", ERR_STREAM_LOST);
    world_advance(&world, 1000);
    ck_assert(done(seq));
    ck_assert_uint_eq(substrate_box(&world.substrate, "a")->configurations, before);
    ck_assert_int_eq(sandbox->deadline_ms - clock_now_ms(), 1199000);
}
END_TEST

START_TEST(test_ended_meanwhile)
{
    struct err err = {0};
    world.substrate.hold_ack = true;
    uint64_t seq = begin(1200000, NULL, NULL);
    substrate_remove(&world.substrate, "a", true);
    world_run(&world);
    ck_assert(sandbox_update_done(sandbox, seq, &err));
    ck_assert_int_eq(err.code, ERR_GONE);
    refuse(&(struct sandbox_update){.ttl_ms = 1000}, ERR_GONE);
}
END_TEST

START_TEST(test_while_creating)
{
    struct err err = {0};
    uint64_t seq = 0;
    world.substrate.dumb = true;
    struct sandbox *young = world_try(&world, "{\"id\":\"b\"}", NULL, NULL, &err);
    world_run(&world);
    const struct sandbox_update update = {.ttl_ms = 1000};
    ck_assert_int_eq(sandbox_update(young, &update, &seq, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_READY);
    sandbox_unref(young);
}
END_TEST

START_TEST(test_two_at_once)
{
    for (unsigned seed = 1; seed < 60; seed++) {
        stepper_shuffle(seed);
        uint64_t first = begin(1000000 + seed, NULL, NULL);
        for (unsigned i = 0; i < seed % 5; i++) {
            (void)stepper_step();
        }
        uint64_t second = begin(2000000 + seed, "z", NULL);
        world_run(&world);
        ck_assert(done(first) && done(second));
        ck_assert_int_eq(sandbox->deadline_ms - clock_now_ms(), 2000000 + seed);
        ck_assert_int_eq(sandbox->wanted_ms, 0);
    }
    stepper_shuffle(0);
}
END_TEST

/* The agent has it, the store has no room: that is said at once, and made good later. */
START_TEST(test_the_store_is_full)
{
    struct err err = {0};
    fault_set(1, FAULT_FULL);
    uint64_t seq = begin(100, NULL, NULL);
    world_run(&world);
    ck_assert(sandbox_update_done(sandbox, seq, &err));
    ck_assert_str_eq(err_code_name(err.code), "store_full");
    ck_assert_ptr_nonnull(strstr(err.msg, "in effect"));
    fault_set(0, FAULT_FULL);
    seq = begin(200, NULL, NULL); /* what failed before is not its answer */
    ck_assert(!sandbox_update_done(sandbox, seq, &err));
    world_run(&world);
    ck_assert(sandbox_update_done(sandbox, seq, &err));
    ck_assert_int_eq(err.code, ERR_NONE);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_ttl,
                                  test_done_means_kept,
                                  test_secrets_count_at_once,
                                  test_secrets_are_added,
                                  test_limits,
                                  test_not_acknowledged,
                                  test_acknowledgement_is_lost,
                                  test_ended_meanwhile,
                                  test_while_creating,
                                  test_two_at_once,
                                  test_the_store_is_full,
                                  NULL};
    return run_suite("update", tests, setup, teardown);
}
