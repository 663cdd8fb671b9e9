/* A sandbox as a row, as JSON, and as the blob that its agent keeps. */
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

static const char body[] =
    "{\"id\":\"a\",\"ttl\":600.5,\"ready_timeout\":30.25,\"labels\":{\"x\":\"1\",\"y\":\"\"},"
    "\"env\":{\"TOKEN\":\"env-secret-value\"},\"secrets\":[\"first-secret\",\"\\u0001\\\"x\"],"
    "\"resources\":{\"cpu\":\"500m\",\"memory\":\"1Gi\"},\"writable_mounts\":{\"cache\":\"/"
    "cache\"},"
    "\"runtime_class\":\"gvisor\"}";

START_TEST(test_row_and_back)
{
    struct err err = {0};
    struct sandbox *sandbox = world_create(&world, body);
    struct sandbox_row row;
    ck_assert_int_eq(store_get_sandbox_uid(world.store, sandbox->uid, &row, &err), 0);
    ck_assert_str_eq(row.owner, "me");
    ck_assert_str_eq(row.state, "running");
    ck_assert_str_eq(row.image, "image");
    ck_assert_str_eq(row.box_uid, sandbox->box.box_uid);
    ck_assert_int_eq(row.created, sandbox->created);
    ck_assert_ptr_null(memmem(row.sealed, row.sealed_len, "secret", 6));
    ck_assert_ptr_null(strstr(row.spec, "secret"));
    struct sandbox *read = record_load(world.all, &row);
    sandbox_row_done(&row);
    ck_assert_str_eq(read->id, "a");
    ck_assert_str_eq(read->uid, sandbox->uid);
    ck_assert_str_eq(read->public_spec, sandbox->public_spec);
    ck_assert_int_eq(read->state, SANDBOX_RUNNING);
    ck_assert_int_eq(read->spec.ttl_ms, 600500);
    ck_assert_int_eq(read->spec.ready_timeout_ms, 30250);
    ck_assert_str_eq(read->spec.cpu, "500m");
    ck_assert_str_eq(read->spec.runtime_class, "gvisor");
    ck_assert_str_eq(read->spec.writable_mounts.items[0], "/cache");
    ck_assert_str_eq(text_map_get(&read->spec.labels, "y"), "");
    ck_assert_str_eq(text_map_get(&read->spec.env, "TOKEN"), "env-secret-value");
    ck_assert_str_eq(read->spec.secrets.items[1], "\001\"x");
    ck_assert_int_eq(read->deadline_ms, sandbox->deadline_ms);
    ck_assert(!read->dirty && !read->making && !read->removing && !read->adopting);
    sandbox_unref(read);
}
END_TEST

START_TEST(test_json)
{
    struct sandbox *sandbox = world_create(&world, body);
    fake_clock_advance(2500);
    cleanup_json struct json *json = sandbox_json(sandbox);
    ck_assert_str_eq(json_get_text(json, "id"), "a");
    ck_assert_str_eq(json_get_text(json, "state"), "running");
    ck_assert(json_is_null(json_get(json, "reason")));
    ck_assert(json_get_number(json, "age", 0) == 2.5);
    ck_assert(json_get_number(json, "ttl", 0) == 600.5);
    ck_assert_str_eq(json_text(json_path(json, "labels.x")), "1");
    ck_assert_str_eq(json_text(json_path(json, "resources.memory")), "1Gi");
    ck_assert_str_eq(json_text(json_path(json, "backend.driver")), "scripted");
    ck_assert_str_eq(json_text(json_path(json, "backend.name")), "sandbox-a");
    ck_assert_int_eq(json_get_int(json_path(json, "limits.memory"), "value", 0), 1 << 30);
    ck_assert(json_is_null(json_path(json, "limits.pids.value")));
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);
    ck_assert(json_print(json, &text));
    ck_assert_ptr_null(strstr(buf_text(&text), "secret"));
    cleanup_json struct json *strict = NULL; /* no name twice */
    struct err err = {0};
    ck_assert_msg(json_parse(buf_text(&text), text.len, JSON_STRICT, &strict, &err) == 0, "%s",
                  err.msg);
}
END_TEST

static void text_says_the_same(struct sandbox *sandbox)
{
    struct err err = {0};
    cleanup_buf struct buf text = BUF_INIT(CAP_REPLY);
    cleanup_buf struct buf printed = BUF_INIT(CAP_REPLY);
    cleanup_json struct json *parsed = NULL;
    cleanup_json struct json *json = sandbox_json(sandbox);
    ck_assert(sandbox_record_text(sandbox, &text));
    ck_assert_msg(json_parse(buf_text(&text), text.len, JSON_STRICT, &parsed, &err) == 0, "%s",
                  err.msg);
    ck_assert(json_print(json, &printed));
    ck_assert_str_eq(buf_text(&printed), buf_text(&text));
}

START_TEST(test_text_follows_every_change)
{
    struct err err = {0};
    struct sandbox *sandbox = sandbox_ref(world_create(&world, body));
    uint64_t seq = 0;
    text_says_the_same(sandbox);
    fake_clock_advance(2500);
    text_says_the_same(sandbox); /* its age */
    struct text_map labels = {0};
    text_map_set(&labels, "z", "masked-from-now-on");
    struct text_list secrets = {0};
    text_list_add(&secrets, "masked-from-now-on");
    struct sandbox_update update = {.ttl_ms = 300000, .labels = &labels};
    ck_assert_int_eq(sandbox_update(sandbox, &update, &seq, &err), 0);
    text_says_the_same(sandbox); /* labels and ttl */
    world_run(&world);
    text_says_the_same(sandbox); /* acknowledged: it expires at another time */
    update = (struct sandbox_update){.ttl_ms = -1, .secrets = &secrets};
    ck_assert_int_eq(sandbox_update(sandbox, &update, &seq, &err), 0);
    text_says_the_same(sandbox);
    cleanup_buf struct buf text = BUF_INIT(CAP_REPLY);
    ck_assert(sandbox_record_text(sandbox, &text));
    ck_assert_ptr_null(strstr(buf_text(&text), "masked-from"));
    sandbox->running_execs++;
    text_says_the_same(sandbox);
    sandbox->running_execs--;
    text_says_the_same(sandbox);
    memcpy(sandbox->box.node, "another", sizeof("another"));
    text_says_the_same(sandbox);
    sandbox_delete(sandbox, ERR_DELETED);
    text_says_the_same(sandbox); /* on its way */
    world_run(&world);
    fake_clock_advance(1000);
    text_says_the_same(sandbox); /* gone: it has an age at its end */
    text_map_done(&labels);
    text_list_done(&secrets);
    sandbox_unref(sandbox);
}
END_TEST

START_TEST(test_tombstone)
{
    struct err err = {0};
    struct sandbox *sandbox = NULL;
    cleanup_json struct json *json = NULL;
    sandbox_delete(world_create(&world, body), ERR_DELETED);
    fake_clock_advance(1000);
    world_run(&world);
    ck_assert_int_eq(sandboxes_find(world.all, &view_me, "a", &sandbox, &json, &err), -1);
    ck_assert_int_eq(err.code, ERR_GONE);
    ck_assert_str_eq(err.msg, "sandbox 'a' is gone: deleted");
    ck_assert_str_eq(json_get_text(json, "state"), "gone");
    ck_assert_str_eq(json_get_text(json, "reason"), "deleted");
    ck_assert_str_eq(json_text(json_path(json, "labels.x")), "1");
    cleanup_json struct json *none = NULL;
    const struct owner_view stranger = {.owner = "you"};
    ck_assert_int_eq(sandboxes_find(world.all, &stranger, "a", &sandbox, &none, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(sandboxes_find(world.all, &view_admin, "a", &sandbox, &none, &err), -1);
    ck_assert_int_eq(err.code, ERR_GONE);
    ck_assert_ptr_nonnull(none);
}
END_TEST

START_TEST(test_blob)
{
    struct err err = {0};
    uint64_t version = 0;
    struct sandbox *sandbox = world_create(&world, body);
    cleanup_buf struct buf sealed = BUF_INIT(CAP_STATE_BLOB);
    ck_assert_int_eq(record_seal_blob(sandbox, &sealed, &version, &err), 0);
    ck_assert_uint_eq(version, 1);
    ck_assert_ptr_null(memmem(sealed.ptr, sealed.len, "label", 5));
    struct blob blob = {0};
    ck_assert_int_eq(record_open_blob(sandbox, sealed.ptr, sealed.len, &blob, &err), 0);
    ck_assert_str_eq(blob.spec, sandbox->public_spec);
    ck_assert_str_eq(text_map_get(&blob.labels, "x"), "1");
    ck_assert_uint_eq(blob.secrets.count, 2);
    ck_assert_str_eq(blob.secrets.items[1], "\001\"x");
    ck_assert_int_eq(blob.created, sandbox->created);
    blob_done(&blob);
    /* cut, changed, or of another box */
    for (size_t len = 0; len < sealed.len; len += 7) {
        ck_assert_int_eq(record_open_blob(sandbox, sealed.ptr, len, &blob, &err), -1);
    }
    sandbox->box.box_uid[0] = 'x';
    ck_assert_int_eq(record_open_blob(sandbox, sealed.ptr, sealed.len, &blob, &err), -1);
}
END_TEST

START_TEST(test_states)
{
    for (int state = SANDBOX_CREATING; state <= SANDBOX_GONE; state++) {
        enum sandbox_state back = SANDBOX_GONE;
        ck_assert(sandbox_state_from_name(sandbox_state_name((enum sandbox_state)state), &back));
        ck_assert_int_eq(back, state);
    }
    enum sandbox_state none;
    ck_assert(!sandbox_state_from_name("all", &none));
    ck_assert(!sandbox_state_from_name(NULL, &none));
}
END_TEST

/* --- listings -------------------------------------------------------------------------------- */

static size_t listed(const struct list_query *query)
{
    cleanup_json struct json *page = NULL;
    struct err err = {0};
    ck_assert_msg(sandboxes_list(world.all, query, &page, &err) == 0, "%s", err.msg);
    ck_assert(json_is_null(json_get(page, "next")));
    return json_count(json_get(page, "items"));
}

START_TEST(test_list)
{
    struct err err = {0};
    cleanup_json struct json *page = NULL;
    struct text_map labels = {0};
    (void)world_create(&world, "{\"id\":\"a\",\"labels\":{\"t\":\"1\"}}");
    (void)world_create(&world, "{\"id\":\"b\"}");
    sandbox_delete(world_create(&world, "{\"id\":\"c\"}"), ERR_DELETED);
    world_run(&world);
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10}), 2);
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10, .owner = "me"}), 2);
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10, .owner = "you"}), 0);
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10, .state = "gone"}), 1);
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10, .state = "all"}), 3);
    text_map_set(&labels, "t", "1");
    ck_assert_uint_eq(listed(&(struct list_query){.limit = 10, .labels = labels}), 1);
    text_map_done(&labels);
    const struct list_query bad = {.limit = 10, .state = "dead"};
    ck_assert_int_eq(sandboxes_list(world.all, &bad, &page, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
    ck_assert_int_eq(sandboxes_stats(world.all, &page, &err), 0);
    ck_assert_int_eq(json_get_int(json_get(page, "sandboxes"), "running", 0), 2);
    ck_assert_int_eq(json_get_int(json_get(page, "sandboxes"), "gone", 0), 1);
}
END_TEST

START_TEST(test_event_pages)
{
    struct err err = {0};
    struct sandbox *sandbox = sandbox_ref(world_create(&world, "{\"id\":\"a\"}"));
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    int64_t after = 0;
    static const char *const types[] = {"created", "running", "deleting", "gone"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        cleanup_json struct json *page = NULL;
        ck_assert_int_eq(sandbox_events(world.all, sandbox->uid, after, 1, &page, &err), 0);
        const struct json *item = json_at(json_get(page, "items"), 0);
        ck_assert_str_eq(json_get_text(item, "type"), types[i]);
        ck_assert(json_is_null(json_get(page, "next")) == (i == ARRAY_LEN(types) - 1));
        after = json_get_int(item, "id", 0);
    }
    sandbox_unref(sandbox);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        test_row_and_back, test_json,        test_text_follows_every_change,
        test_tombstone,    test_blob,        test_states,
        test_list,         test_event_pages, NULL};
    return run_suite("record", tests, setup, teardown);
}
