/* Previews: their hosts, their records, what is published, and what is left when it fails. */
#include <string.h>

#include "tests/unit/suite.h"
#include "tests/unit/world.h"

static struct world world;
static struct sandbox *sandbox;

static void setup(void)
{
    world_init(&world);
    sandbox = world_create(&world, "{\"id\":\"a\"}");
}

static void teardown(void)
{
    world_done(&world);
}

static enum err_code host_of(struct sandbox *of, int64_t port, const char *subdomain,
                             char **ret_host, bool *ret_first)
{
    struct err err = {0};
    struct preview_request request = {.port = port, .subdomain = (char *)(uintptr_t)subdomain};
    *ret_host = NULL;
    return preview_host(of, &request, ret_host, ret_first, &err) == 0 ? ERR_NONE : err.code;
}

static void expect_host(int64_t port, const char *subdomain, const char *host, bool first)
{
    cleanup_free char *found = NULL;
    bool is_first = !first;
    ck_assert_int_eq(host_of(sandbox, port, subdomain, &found, &is_first), ERR_NONE);
    ck_assert_str_eq(found, host);
    ck_assert_int_eq(is_first, first);
}

static enum err_code publish(struct sandbox *of, int64_t port, const char *subdomain,
                             const char *command, struct exec **ret_exec)
{
    struct err err = {0};
    cleanup_free char *host = NULL;
    bool first = false;
    cleanup(preview_request_done) struct preview_request request = {
        .port = port, .subdomain = subdomain ? xstrdup(subdomain) : NULL};
    if (command) {
        text_list_add(&request.command, command);
    }
    *ret_exec = NULL;
    enum err_code code = host_of(of, port, subdomain, &host, &first);
    if (code) {
        return code;
    }
    return preview_begin(of, &request, host, first, ret_exec, &err) == 0 ? ERR_NONE : err.code;
}

static void must_publish(int64_t port, const char *subdomain)
{
    struct exec *exec = NULL;
    ck_assert_int_eq(publish(sandbox, port, subdomain, NULL, &exec), ERR_NONE);
    ck_assert_ptr_null(exec);
}

static struct json *shown(int64_t port, bool ready)
{
    struct json *json = NULL;
    struct err err = {0};
    ck_assert_msg(preview_json(sandbox, port, ready, &json, &err) == 0, "%s", err.msg);
    return json;
}

static size_t count_rows(void)
{
    cleanup_free int64_t *ports = NULL;
    size_t count = 0;
    struct err err = {0};
    ck_assert_int_eq(preview_ports(sandbox, &ports, &count, &err), 0);
    return count;
}

/* --- hosts ----------------------------------------------------------------------------------- */

START_TEST(test_hosts)
{
    expect_host(8000, NULL, "a.preview.example", true);
    expect_host(8000, "demo", "demo.preview.example", true);
    must_publish(8000, NULL);
    expect_host(9000, NULL, "9000-a.preview.example", false);
    expect_host(9000, "demo", "demo.preview.example", false);
    expect_host(8000, NULL, "a.preview.example", true); /* it stays the first */
    expect_host(8000, "other", "other.preview.example", true);
    must_publish(9000, NULL);
    struct err err = {0};
    ck_assert_int_eq(preview_remove(sandbox, 8000, &err), 0);
    expect_host(9000, NULL, "9000-a.preview.example", false);
    expect_host(7000, NULL, "a.preview.example", true); /* free again */
}
END_TEST

/* B54, B58: an allow-list, before anything is made. */
START_TEST(test_b54_b58_subdomains)
{
    static const char *const bad[] = {"A",
                                      "a_b",
                                      "-a",
                                      "a-",
                                      "xn--bcher-kva",
                                      "a.b",
                                      "a b",
                                      "a\nb",
                                      "\"; } location /x { # ",
                                      "${x}",
                                      "*",
                                      "(a|b)",
                                      "..",
                                      "",
                                      "b\xc3\xbc",
                                      "api",
                                      "www",
                                      "8000-x",
                                      "1-a"};
    char *host = NULL;
    bool first = false;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_msg(host_of(sandbox, 80, bad[i], &host, &first) == ERR_INVALID_FIELD, "%s",
                      bad[i]);
        ck_assert_ptr_null(host);
    }
    char label[80];
    memset(label, 'a', sizeof(label));
    label[64] = '\0';
    ck_assert_int_eq(host_of(sandbox, 80, label, &host, &first), ERR_INVALID_FIELD);
    label[63] = '\0';
    ck_assert_int_eq(host_of(sandbox, 80, label, &host, &first), ERR_NONE);
    free(host);
    static const char *const good[] = {"123", "b", "a-b", "123456-x"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ck_assert_int_eq(host_of(sandbox, 80, good[i], &host, &first), ERR_NONE);
        free(host);
    }
}
END_TEST

/* B58: the whole name, too. */
START_TEST(test_b58_length)
{
    char domain[256], *host = NULL;
    bool first = false;
    memset(domain, 'd', sizeof(domain));
    domain[60] = domain[120] = domain[180] = '.';
    domain[251] = '\0'; /* "a." and 251 are 253 */
    world.all->config.preview_domain = domain;
    ck_assert_int_eq(host_of(sandbox, 80, NULL, &host, &first), ERR_NONE);
    ck_assert_uint_eq(strlen(host), 253);
    free(host);
    ck_assert_int_eq(host_of(sandbox, 80, "ab", &host, &first), ERR_INVALID_FIELD);
    world.all->config.preview_domain = "preview.example";
}
END_TEST

START_TEST(test_host_taken)
{
    struct exec *exec = NULL;
    struct sandbox *other = world_create(&world, "{\"id\":\"b\"}");
    must_publish(8000, "demo");
    ck_assert_int_eq(publish(other, 80, "demo", "serve", &exec), ERR_HOST_TAKEN);
    ck_assert_int_eq(publish(other, 80, "a", "serve", &exec), ERR_HOST_TAKEN); /* a live id */
    ck_assert_int_eq(publish(sandbox, 9000, "demo", "serve", &exec), ERR_HOST_TAKEN);
    ck_assert_uint_eq(count_rows(), 1);
    ck_assert(!substrate_has_exec(&world.substrate, "b", 1)); /* nothing was started */
    world_run(&world);
    ck_assert(!substrate_has_exec(&world.substrate, "b", 1));
    sandbox_delete(sandbox, ERR_DELETED);
    world_run(&world);
    ck_assert_int_eq(publish(other, 80, "demo", NULL, &exec), ERR_NONE);
}
END_TEST

/* --- records --------------------------------------------------------------------------------- */

START_TEST(test_states)
{
    struct exec *exec = NULL;
    ck_assert_int_eq(publish(sandbox, 8000, NULL, "serve", &exec), ERR_NONE);
    ck_assert_ptr_nonnull(exec);
    world_run(&world);
    cleanup_json struct json *starting = shown(8000, false);
    ck_assert_str_eq(json_get_text(starting, "state"), "starting");
    ck_assert_str_eq(json_get_text(starting, "url"), "http://a.preview.example/");
    ck_assert_str_eq(json_get_text(starting, "service"), "preview-a");
    ck_assert_int_eq(json_get_int(starting, "exec", 0), 1);
    ck_assert(json_is_null(json_get(starting, "exit_code")));
    cleanup_json struct json *ready = shown(8000, true);
    ck_assert_str_eq(json_get_text(ready, "state"), "ready");
    substrate_end_exec(&world.substrate, "a", 1, 3);
    world_run(&world);
    cleanup_json struct json *exited = shown(8000, true);
    ck_assert_str_eq(json_get_text(exited, "state"), "exited");
    ck_assert_int_eq(json_get_int(exited, "exit_code", -1), 3);
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);
    cleanup_json struct json *strict = NULL; /* no name twice */
    struct err err = {0};
    ck_assert(json_print(exited, &text));
    ck_assert_msg(json_parse(buf_text(&text), text.len, JSON_STRICT, &strict, &err) == 0, "%s",
                  err.msg);
    ck_assert_str_eq(world_events(&world, sandbox->uid), "created running preview");
    exec_unref(exec);
}
END_TEST

START_TEST(test_urls)
{
    must_publish(8000, NULL);
    static const struct {
        const char *scheme;
        int64_t port;
        const char *url;
    } cases[] = {{"http", 80, "http://a.preview.example/"},
                 {"http", 8080, "http://a.preview.example:8080/"},
                 {"https", 443, "https://a.preview.example/"},
                 {"https", 80, "https://a.preview.example:80/"},
                 {"http", 0, "http://a.preview.example/"},
                 {"https", 0, "https://a.preview.example/"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        world.all->config.preview_scheme = cases[i].scheme;
        world.all->config.preview_port = cases[i].port;
        sandboxes_listens(world.all, 8080);
        cleanup_json struct json *json = shown(8000, true);
        ck_assert_str_eq(json_get_text(json, "url"), cases[i].url);
    }
}
END_TEST

START_TEST(test_unknown)
{
    struct err err = {0};
    struct json *json = NULL;
    int64_t number = 0;
    ck_assert_int_eq(preview_json(sandbox, 1, true, &json, &err), -1);
    ck_assert_int_eq(err.code, ERR_NOT_FOUND);
    ck_assert_int_eq(preview_remove(sandbox, 1, &err), -1);
    ck_assert_int_eq(preview_exec(sandbox, 1, &number, &err), -1);
    ck_assert_ptr_null(preview_end_command(sandbox, 1));
}
END_TEST

/* --- changes --------------------------------------------------------------------------------- */

START_TEST(test_removed)
{
    struct err err = {0};
    struct exec *exec = NULL;
    ck_assert_int_eq(publish(sandbox, 8000, NULL, "serve", &exec), ERR_NONE);
    world_run(&world);
    struct exec *before = preview_end_command(sandbox, 8000);
    ck_assert_ptr_eq(before, exec);
    ck_assert_int_eq(preview_remove(sandbox, 8000, &err), 0);
    world_run(&world);
    ck_assert(exec_ended(exec));
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    ck_assert_uint_eq(count_rows(), 0);
    ck_assert_ptr_null(preview_end_command(sandbox, 8000));
    exec_unref(before);
    exec_unref(exec);
}
END_TEST

START_TEST(test_removal_fails)
{
    struct err err = {0};
    must_publish(8000, NULL);
    world.substrate.fail_unpublish = ERR_BACKEND;
    ck_assert_int_eq(preview_remove(sandbox, 8000, &err), -1);
    ck_assert_uint_eq(count_rows(), 1); /* it is there still, and says so */
    world.substrate.fail_unpublish = ERR_NONE;
    ck_assert_int_eq(preview_remove(sandbox, 8000, &err), 0);
    ck_assert_uint_eq(count_rows(), 0);
}
END_TEST

/* The sweep removes what could not be when its command had ended, and until then only that. */
START_TEST(test_withdrawn_by_the_sweep)
{
    struct exec *exec = NULL;
    ck_assert_int_eq(publish(sandbox, 8000, NULL, "serve", &exec), ERR_NONE);
    must_publish(9000, "other");
    world_run(&world);
    exec_unref(preview_end_command(sandbox, 8000));
    world_run(&world);
    ck_assert(exec_ended(exec));
    world.substrate.fail_unpublish = ERR_BACKEND;
    preview_withdraw(sandbox, 8000);
    ck_assert_uint_eq(count_rows(), 2);
    world.substrate.fail_unpublish = ERR_NONE;
    world_sweep(&world);
    ck_assert_uint_eq(count_rows(), 1);
    cleanup_json struct json *json = shown(9000, true);
    ck_assert_str_eq(json_get_text(json, "host"), "other.preview.example");
    preview_withdraw(sandbox, 9000); /* at once */
    ck_assert_uint_eq(count_rows(), 0);
    preview_withdraw(sandbox, 9000); /* nothing is there */
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    exec_unref(exec);
}
END_TEST

START_TEST(test_replaced)
{
    struct exec *exec = NULL;
    must_publish(8000, NULL);
    must_publish(8000, "demo");
    ck_assert_uint_eq(count_rows(), 1);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 3);
    cleanup_json struct json *json = shown(8000, true);
    ck_assert_str_eq(json_get_text(json, "host"), "demo.preview.example");
    ck_assert_int_eq(publish(sandbox, 9000, "a", NULL, &exec), ERR_NONE); /* free again */
}
END_TEST

/* B48: each step fails in turn; nothing is left, of the command neither. */
START_TEST(test_b48_publishing_fails)
{
    struct exec *exec = NULL;
    world.substrate.fail_publish = ERR_BACKEND;
    ck_assert_int_eq(publish(sandbox, 8000, NULL, "serve", &exec), ERR_BACKEND);
    ck_assert_ptr_null(exec);
    world_run(&world);
    ck_assert_uint_eq(count_rows(), 0);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    ck_assert_uint_eq(sandbox->running_execs, 0);
    ck_assert(!substrate_has_exec(&world.substrate, "a", 1));
    /* in the place of another */
    world.substrate.fail_publish = ERR_NONE;
    must_publish(8000, NULL);
    world.substrate.fail_publish = ERR_BACKEND;
    ck_assert_int_eq(publish(sandbox, 8000, "demo", NULL, &exec), ERR_BACKEND);
    ck_assert_uint_eq(count_rows(), 0);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    /* and nothing can be removed either: the sweep does it */
    world.substrate.fail_publish = ERR_NONE;
    must_publish(8000, NULL);
    world.substrate.fail_publish = world.substrate.fail_unpublish = ERR_BACKEND;
    ck_assert_int_eq(publish(sandbox, 8000, "demo", NULL, &exec), ERR_BACKEND);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 3);
    world_sweep(&world);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
}
END_TEST

START_TEST(test_not_running)
{
    struct exec *exec = NULL;
    struct err err = {0};
    struct sandbox *held = sandbox_ref(sandbox);
    sandbox_delete(held, ERR_DELETED);
    ck_assert_int_eq(publish(held, 8000, NULL, "serve", &exec), ERR_GONE);
    world_run(&world);
    struct preview_row *rows = NULL;
    size_t count = 0;
    ck_assert_int_eq(store_list_previews(world.store, held->uid, &rows, &count, &err), 0);
    ck_assert_uint_eq(count, 0);
    preview_rows_free(rows, count);
    sandbox_unref(held);
}
END_TEST

/* While one is being changed the sweep leaves its objects alone, and no other change begins. */
START_TEST(test_one_at_a_time)
{
    uint64_t seen = event_count(sandbox_changed(sandbox));
    ck_assert(preview_claim(sandbox));
    ck_assert(!preview_claim(sandbox));
    substrate_add_object(&world.substrate, "Service", "preview5-a", "a", 5);
    world_sweep(&world);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 1);
    preview_release(sandbox);
    ck_assert_uint_ne(event_count(sandbox_changed(sandbox)), seen);
    world_sweep(&world);
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 0);
    ck_assert(preview_claim(sandbox));
}
END_TEST

/* What a server that was killed leaves: a row, whose command never began, or that has none. */
START_TEST(test_cut_off_while_publishing)
{
    struct err err = {0};
    char host[] = "a.preview.example", other[] = "b.preview.example", spec[] = "{}";
    struct preview_row row = {
        .uid = sandbox->uid, .port = 8000, .first = true, .host = host, .exec = 77, .spec = spec};
    ck_assert_int_eq(store_put_preview(world.store, &row, &err), 0);
    row = (struct preview_row){.uid = sandbox->uid, .port = 9000, .host = other, .spec = spec};
    ck_assert_int_eq(store_put_preview(world.store, &row, &err), 0);
    world_restart(&world);
    sandbox = world_get(&world, "a");
    world_sweep(&world);
    ck_assert_uint_eq(count_rows(), 1);
    cleanup_json struct json *json = shown(9000, true);
    ck_assert_str_eq(json_get_text(json, "state"), "ready");
    ck_assert_str_eq(json_get_text(json, "service"), "preview9000-a");
    ck_assert_uint_eq(substrate_objects(&world.substrate, "a"), 3);
    ck_assert_int_eq(exec_reserve(sandbox), 78); /* no number twice */
}
END_TEST

START_TEST(test_probe)
{
    struct err err = {0};
    struct call *call = NULL;
    uint64_t ready = 0;
    must_publish(8000, NULL);
    for (int listens = 0; listens < 2; listens++) {
        world.substrate.port_ready = listens;
        ck_assert_int_eq(preview_probe(sandbox, 8000, 1000, &call, &err), 0);
        world_run(&world);
        ck_assert_int_eq(call_state(call, &err), CALL_DONE);
        ck_assert(call_result_u64(call, TAG_READY, &ready));
        ck_assert_uint_eq(ready, (uint64_t)listens);
        call_unref(call);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_hosts,
                                  test_b54_b58_subdomains,
                                  test_b58_length,
                                  test_host_taken,
                                  test_states,
                                  test_urls,
                                  test_unknown,
                                  test_removed,
                                  test_removal_fails,
                                  test_withdrawn_by_the_sweep,
                                  test_replaced,
                                  test_b48_publishing_fails,
                                  test_not_running,
                                  test_one_at_a_time,
                                  test_cut_off_while_publishing,
                                  test_probe,
                                  NULL};
    return run_suite("previews", tests, setup, teardown);
}
