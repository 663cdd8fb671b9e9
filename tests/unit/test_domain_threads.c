/* The same domain with its real workers, and callers on many threads: for the sanitizers above all.
 */
#include <stdatomic.h>
#include <string.h>

#include "sandbox/pump.h"
#include "tests/unit/suite.h"
#include "tests/unit/world.h"

#define THREADS 6

static struct world world;
static atomic_bool over;

static void wait_ready(void)
{
    struct err err = {0};
    while (!sandboxes_ready(world.all, &err)) {
        stepper_wait_idle();
    }
}

static void setup(void)
{
    world_init(&world);
    stepper_background();
    wait_ready();
}

static void teardown(void)
{
    stepper_foreground();
    world_done(&world);
}

/* Blocks until FN(SANDBOX), looking again when it changes. */
static void wait_until(struct sandbox *sandbox, bool (*fn)(struct sandbox *sandbox))
{
    for (;;) {
        uint64_t seen = event_count(sandbox_changed(sandbox));
        if (fn(sandbox)) {
            return;
        }
        (void)event_block(sandbox_changed(sandbox), seen, INT64_MAX);
    }
}

static bool is_decided(struct sandbox *sandbox)
{
    return sandbox_state(sandbox) != SANDBOX_CREATING;
}

static bool is_gone(struct sandbox *sandbox)
{
    return sandbox_state(sandbox) == SANDBOX_GONE && sandbox_settled(sandbox);
}

static void run_exec(struct sandbox *sandbox)
{
    struct err err = {0};
    struct exec *exec = NULL;
    cleanup(exec_spec_done) struct exec_spec spec = {.max_output = 1000};
    text_list_add(&spec.cmd, "sleep");
    buf_init(&spec.stdin_bytes, 1);
    if (exec_start(sandbox, &spec, &exec, &err) < 0) {
        return; /* it has ended meanwhile */
    }
    exec_kill(exec, 100);
    for (;;) {
        uint64_t seen = event_count(exec_changed(exec));
        if (exec_done(exec)) {
            break;
        }
        (void)event_block(exec_changed(exec), seen, INT64_MAX);
    }
    exec_unref(exec);
}

static void change(struct sandbox *sandbox)
{
    struct err err = {0};
    uint64_t seq = 0;
    struct text_list secrets = {0};
    text_list_add(&secrets, "some-secret");
    const struct sandbox_update update = {.ttl_ms = 1000000, .secrets = &secrets};
    int result = sandbox_update(sandbox, &update, &seq, &err);
    text_list_done(&secrets);
    while (result == 0) {
        uint64_t seen = event_count(sandbox_changed(sandbox));
        if (sandbox_update_done(sandbox, seq, &err)) {
            break;
        }
        (void)event_block(sandbox_changed(sandbox), seen, INT64_MAX);
    }
}

/* A life: created, used, deleted. */
static void live(unsigned thread)
{
    struct err err;
    cleanup_free char *json = xasprintf("{\"id\":\"t%u\"}", thread);
    struct sandbox *sandbox = world_try(&world, json, NULL, NULL, &err);
    ck_assert_msg(sandbox != NULL, "%s", err.msg);
    wait_until(sandbox, is_decided);
    if (sandbox_state(sandbox) == SANDBOX_RUNNING) {
        run_exec(sandbox);
        change(sandbox);
        json_free(sandbox_json(sandbox));
    }
    sandbox_delete(sandbox, ERR_DELETED);
    wait_until(sandbox, is_gone);
    sandbox_unref(sandbox);
}

static void *lives(void *arg)
{
    unsigned thread = *(unsigned *)arg;
    for (int i = 0; i < 15; i++) {
        live(thread);
    }
    return NULL;
}

/* Meanwhile: sweeps, lists, questions, and the world around. */
static void *disturb(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        struct err err = {0};
        struct json *json = NULL;
        const struct list_query query = {.limit = 50, .state = "all"};
        if (sandboxes_reap(world.all, false, &json, &err) == 0) {
            json_free(json);
        }
        if (sandboxes_list(world.all, &query, &json, &err) == 0) {
            json_free(json);
        }
        if (sandboxes_stats(world.all, &json, &err) == 0) {
            json_free(json);
        }
        substrate_list(&world.substrate);
        stepper_wait_idle();
    }
    return NULL;
}

START_TEST(test_lives_in_parallel)
{
    pthread_t threads[THREADS], disturber;
    unsigned numbers[THREADS];
    atomic_store(&over, false);
    ck_assert_int_eq(pthread_create(&disturber, NULL, disturb, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, lives, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    atomic_store(&over, true);
    ck_assert_int_eq(pthread_join(disturber, NULL), 0);
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* The same id from all threads: one has it. */
static void *fight(void *arg)
{
    atomic_uint *won = arg;
    for (int i = 0; i < 20; i++) {
        struct err err;
        struct sandbox *sandbox = world_try(&world, "{\"id\":\"same\"}", NULL, NULL, &err);
        if (!sandbox) {
            ck_assert_int_eq(err.code, ERR_ALREADY_EXISTS);
            continue;
        }
        atomic_fetch_add(won, 1);
        sandbox_delete(sandbox, ERR_DELETED);
        wait_until(sandbox, is_gone);
        sandbox_unref(sandbox);
    }
    return NULL;
}

START_TEST(test_one_id)
{
    pthread_t threads[THREADS];
    atomic_uint won = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fight, &won), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    ck_assert_uint_gt(atomic_load(&won), 0);
    ck_assert_uint_eq(substrate_count(&world.substrate), 0);
}
END_TEST

/* --- pumps ----------------------------------------------------------------------------------- */

struct transfer {
    struct pipe *from, *to;
    size_t total;
};

static void *send_all(void *arg)
{
    struct transfer *transfer = arg;
    char piece[1000];
    memset(piece, 'x', sizeof(piece));
    for (size_t sent = 0; sent < transfer->total;) {
        uint64_t seen = event_count(pipe_writable(transfer->from));
        size_t left = transfer->total - sent;
        size_t took =
            pipe_write(transfer->from, piece, left < sizeof(piece) ? left : sizeof(piece));
        sent += took;
        if (pipe_state(transfer->from, NULL) == PIPE_ABANDONED) {
            return NULL;
        }
        if (!took) {
            (void)event_block(pipe_writable(transfer->from), seen, INT64_MAX);
        }
    }
    pipe_finish(transfer->from, NULL);
    return NULL;
}

/* Reads LIMIT bytes, then leaves. */
static size_t read_some(struct transfer *transfer, size_t limit)
{
    char piece[700];
    size_t got = 0;
    while (got < limit) {
        uint64_t seen = event_count(pipe_readable(transfer->to));
        size_t took = pipe_read(transfer->to, piece, sizeof(piece));
        got += took;
        if (!took && pipe_state(transfer->to, NULL) != PIPE_OPEN) {
            return got;
        }
        if (!took) {
            (void)event_block(pipe_readable(transfer->to), seen, INT64_MAX);
        }
    }
    pipe_abandon(transfer->to, NULL);
    return got;
}

static void *transfer_many(void *arg)
{
    struct scrubber *scrubber = arg;
    for (size_t i = 0; i < 40; i++) {
        const struct pump_range whole = {.length = -1};
        struct transfer transfer = {pipe_new(4096), pipe_new(4096), 100000};
        pthread_t sender;
        pump_start(world.all, &pump_pipe_source, pipe_ref(transfer.from), scrubber, &whole,
                   transfer.to);
        ck_assert_int_eq(pthread_create(&sender, NULL, send_all, &transfer), 0);
        if (i % 2) {
            (void)read_some(&transfer, i * 1000);
        } else {
            ck_assert_uint_eq(read_some(&transfer, SIZE_MAX), transfer.total);
        }
        ck_assert_int_eq(pthread_join(sender, NULL), 0);
        pipe_unref(transfer.from);
        pipe_unref(transfer.to);
    }
    return NULL;
}

START_TEST(test_pumps)
{
    pthread_t threads[THREADS];
    struct text_list secrets = {0};
    text_list_add(&secrets, "some-secret");
    struct scrubber *scrubber = scrubber_new(&secrets);
    text_list_done(&secrets);
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, transfer_many, scrubber), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    scrubber_unref(scrubber);
}
END_TEST

static void *delete_whatever_is_there(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        struct sandbox *sandbox = sandboxes_lookup(world.all, "x");
        if (sandbox) {
            sandbox_delete(sandbox, ERR_DELETED);
            sandbox_unref(sandbox);
        }
    }
    return NULL;
}

static void *ask_the_store(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        struct sandbox_row row;
        struct err err = {0};
        if (store_get_sandbox(world.store, "x", &row, &err) == 0) {
            sandbox_row_done(&row);
        }
    }
    return NULL;
}

/* Deleted before the create has its record on disk: that record must not come behind the tombstone,
 * where nobody could remove it and the id would be taken for good. */
START_TEST(test_deleted_while_it_is_recorded)
{
    pthread_t threads[THREADS];
    atomic_store(&over, false);
    for (int i = 0; i < THREADS; i++) { /* most of them keep the store busy */
        void *(*fn)(void *) = i == 0 ? delete_whatever_is_there : ask_the_store;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fn, NULL), 0);
    }
    for (int i = 0; i < 50; i++) {
        struct err err;
        struct sandbox *sandbox = world_try(&world, "{\"id\":\"x\"}", NULL, NULL, &err);
        ck_assert_msg(sandbox != NULL, "round %d: %s", i, err.msg);
        wait_until(sandbox, is_gone);
        sandbox_unref(sandbox);
    }
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    ck_assert_str_eq(world_state(&world, "x"), "gone: deleted");
}
END_TEST

/* --- stopping -------------------------------------------------------------------------------- */

/* In the middle of everything; the next server finds all that was accepted. */
START_TEST(test_stop)
{
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 8; i++) {
            struct err err;
            cleanup_free char *json = xasprintf("{\"id\":\"s%d-%d\"}", round, i);
            struct sandbox *sandbox = world_try(&world, json, NULL, NULL, &err);
            ck_assert_msg(sandbox != NULL, "%s", err.msg);
            if (i % 2) {
                sandbox_delete(sandbox, ERR_DELETED);
            }
            sandbox_unref(sandbox);
        }
        sandboxes_stop(TAKE_PTR(world.all));
        stepper_wait_idle();
        store_close(world.store);
        substrate_reset(&world.substrate);
        world_start(&world);
        wait_ready();
        for (int i = 0; i < 8; i++) {
            cleanup_free char *id = xasprintf("s%d-%d", round, i);
            struct sandbox *sandbox = sandboxes_lookup(world.all, id);
            ck_assert(sandbox || i % 2);
            if (sandbox) {
                wait_until(sandbox, is_decided);
                sandbox_delete(sandbox, ERR_DELETED);
                wait_until(sandbox, is_gone);
                sandbox_unref(sandbox);
            }
        }
        ck_assert_uint_eq(substrate_count(&world.substrate), 0);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_lives_in_parallel,
                                  test_one_id,
                                  test_deleted_while_it_is_recorded,
                                  test_pumps,
                                  test_stop,
                                  NULL};
    return run_suite("domain_threads", tests, setup, teardown);
}
