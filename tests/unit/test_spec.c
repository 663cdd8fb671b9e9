#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "sandbox/spec.h"

static const struct policy policy = {
    .image = "default:1",
    .allow_images = "default:*,registry/*",
    .pull_policy = "IfNotPresent",
    .allow_pull_policies = "IfNotPresent,Always",
    .allow_users = "2000",
    .run_as_user = 1000,
    .run_as_group = 1000,
    .read_only_root = true,
    .workdir = "/workspace",
    .cpu = "2",
    .cpu_request = "250m",
    .memory = "2Gi",
    .memory_request = "512Mi",
    .storage = "4Gi",
    .max_cpu = "4",
    .max_memory = "4Gi",
    .network = "internet",
    .ready_timeout_ms = 120000,
    .max_ready_timeout_ms = 600000,
    .ttl_ms = 3600000,
    .max_lifetime_ms = 86400000,
};

static int parse_by(const struct policy *by, const char *text, struct sandbox_spec *ret_spec,
                    struct err *err)
{
    cleanup_json struct json *json = NULL;
    if (json_parse(text, strlen(text), JSON_STRICT, &json, err) < 0) {
        return -1;
    }
    return sandbox_spec_parse(json, by, ret_spec, err);
}

static int parse(const char *text, struct sandbox_spec *ret_spec, struct err *err)
{
    return parse_by(&policy, text, ret_spec, err);
}

START_TEST(defaults_are_filled_in)
{
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    struct err err = {0};
    ck_assert_int_eq(parse("{}", &spec, &err), 0);
    ck_assert_uint_eq(strlen(spec.id), strlen("run-") + 12);
    ck_assert(sandbox_id_valid(spec.id));
    ck_assert_str_eq(spec.image, "default:1");
    ck_assert_str_eq(spec.workdir, "/workspace");
    ck_assert_str_eq(spec.cpu, "2");
    ck_assert_str_eq(spec.memory_request, "512Mi");
    ck_assert_int_eq(spec.ttl_ms, 3600000);
    ck_assert(spec.wait);
    ck_assert(spec.read_only_root);
    ck_assert_ptr_null(spec.runtime_class);
}
END_TEST

/* What the operator has left empty: no ceiling, requests like the limits, nothing but the default.
 */
START_TEST(empty_settings)
{
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    struct policy empty = policy;
    struct err err = {0};
    empty.cpu_request = empty.memory_request = NULL;
    empty.max_cpu = empty.max_memory = empty.max_storage = NULL;
    empty.allow_images = empty.allow_pull_policies = "";
    empty.allow_users = NULL;
    ck_assert_msg(parse_by(&empty, "{\"resources\":{\"cpu\":64}}", &spec, &err) == 0, "%s",
                  err.msg);
    ck_assert_str_eq(spec.image, "default:1");
    ck_assert_str_eq(spec.cpu_request, "64");
    ck_assert_str_eq(spec.memory_request, "2Gi");
    static const char *const refused[] = {
        "{\"image\":\"other:1\"}", "{\"image_pull_policy\":\"Always\"}", "{\"run_as_user\":1234}"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        cleanup(sandbox_spec_done) struct sandbox_spec other = {0};
        ck_assert_int_eq(parse_by(&empty, refused[i], &other, &err), -1);
        ck_assert_msg(err.code == ERR_POLICY, "%s: %s", refused[i], err.msg);
    }
}
END_TEST

START_TEST(what_is_given_is_taken)
{
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    struct err err = {0};
    const char *body =
        "{\"id\":\"a-1\",\"image\":\"registry/x\",\"env\":{\"A\":\"$(B)\",\"EMPTY\":\"\"},"
        "\"labels\":{\"team\":\"x\",\"example.com/a\":\"b\"},\"secrets\":[\"\",\"s\"],"
        "\"workdir\":\"/w\",\"resources\":{\"cpu\":1,\"memory\":\"256Mi\"},"
        "\"runtime_class\":\"gvisor\",\"writable_mounts\":{\"cache\":\"/var/cache\",\"tmp\":\"/"
        "tmp\"},"
        "\"ttl\":90.5,\"ready_timeout\":5,\"wait\":false,\"run_as_user\":2000}";
    ck_assert_int_eq(parse(body, &spec, &err), 0);
    ck_assert_str_eq(text_map_get(&spec.env, "A"), "$(B)");
    ck_assert_str_eq(text_map_get(&spec.env, "EMPTY"), "");
    ck_assert_str_eq(spec.cpu, "1");
    ck_assert_str_eq(spec.memory, "256Mi");
    ck_assert_str_eq(spec.memory_request, "256Mi"); /* the default was above the limit */
    ck_assert_uint_eq(spec.writable_mounts.count, 2);
    ck_assert_int_eq(spec.ttl_ms, 90500);
    ck_assert(!spec.wait);
    ck_assert_int_eq(spec.run_as_user, 2000);
    ck_assert_uint_eq(spec.secrets.count, 2);
}
END_TEST

#define LONG_NAME "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" /* 64 */

static const struct {
    const char *body;
    enum err_code code;
    const char *field;
} bad_specs[] = {
    {"{\"id\":\"Abc\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"-a\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"a-\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"8080-a\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", ERR_INVALID_FIELD, "id"},
    {"{\"id\":\"a\\\"; } location /x { #\"}", ERR_INVALID_FIELD, "id"},
    {"{\"image\":\"a b\"}", ERR_INVALID_FIELD, "image"},
    {"{\"image\":\"other:1\"}", ERR_POLICY, "image"},
    {"{\"image_pull_policy\":\"Sometimes\"}", ERR_INVALID_FIELD, "image_pull_policy"},
    {"{\"image_pull_policy\":\"Never\"}", ERR_POLICY, "image_pull_policy"},
    {"{\"env\":{\"A; touch /tmp/pwn #\":\"\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"env\":{\"A=B\":\"\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"env\":{\"\":\"\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"env\":{\"1BAD\":\"\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"env\":{\"A\\nB\":\"\"}}", ERR_INVALID_FIELD, "env"},
    {"{\"env\":{\"A\":1}}", ERR_INVALID_FIELD, "env.A"},
    {"{\"labels\":{\"podsandbox.dev/owner\":\"x\"}}", ERR_INVALID_FIELD, "labels"},
    {"{\"labels\":{\"app.kubernetes.io/name\":\"x\"}}", ERR_INVALID_FIELD, "labels"},
    {"{\"labels\":{\"a b\":\"x\"}}", ERR_INVALID_FIELD, "labels"},
    {"{\"labels\":{\"a\":\"x y\"}}", ERR_INVALID_FIELD, "labels.a"},
    {"{\"workdir\":\"relative\"}", ERR_INVALID_FIELD, "workdir"},
    {"{\"workdir\":\"/a/../b\"}", ERR_INVALID_FIELD, "workdir"},
    {"{\"workdir\":\"/proc/x\"}", ERR_INVALID_FIELD, "workdir"},
    {"{\"workdir\":\"/\"}", ERR_INVALID_FIELD, "workdir"},
    {"{\"writable_mounts\":{\"workspace\":\"/x\"}}", ERR_INVALID_FIELD,
     "writable_mounts.workspace"},
    {"{\"writable_mounts\":{\"tmp\":\"/x\"}}", ERR_INVALID_FIELD, "writable_mounts.tmp"},
    {"{\"writable_mounts\":{\"x\":\"/etc\"}}", ERR_INVALID_FIELD, "writable_mounts.x"},
    {"{\"writable_mounts\":{\"x\":\"/a\\nb\"}}", ERR_INVALID_FIELD, "writable_mounts.x"},
    {"{\"writable_mounts\":{\"x\":\"/" LONG_NAME LONG_NAME LONG_NAME LONG_NAME "\"}}",
     ERR_INVALID_FIELD, "writable_mounts.x"},
    {"{\"resources\":{\"cpu\":\"lots\"}}", ERR_INVALID_FIELD, "resources.cpu"},
    {"{\"resources\":{\"cpu\":-1}}", ERR_INVALID_FIELD, "resources.cpu"},
    {"{\"resources\":{\"cpu\":8}}", ERR_POLICY, "resources.cpu"},
    {"{\"resources\":{\"memory\":\"8Gi\"}}", ERR_POLICY, "resources.memory"},
    {"{\"resources\":{\"gpu\":1}}", ERR_INVALID_FIELD, "resources.gpu"},
    {"{\"resources\":{\"cpu\":1,\"cpu_request\":2}}", ERR_INVALID_FIELD, "resources.cpu_request"},
    {"{\"network\":\"none\"}", ERR_NOT_SUPPORTED, "network"},
    {"{\"run_as_user\":0}", ERR_INVALID_FIELD, "run_as_user"},
    {"{\"run_as_user\":1234}", ERR_POLICY, "run_as_user"},
    {"{\"read_only_root\":false}", ERR_POLICY, "read_only_root"},
    {"{\"ttl\":0}", ERR_INVALID_FIELD, "ttl"},
    {"{\"ttl\":86401}", ERR_INVALID_FIELD, "ttl"},
    {"{\"ttl\":\"1h\"}", ERR_INVALID_FIELD, "ttl"},
    {"{\"ready_timeout\":601}", ERR_INVALID_FIELD, "ready_timeout"},
    {"{\"wait\":1}", ERR_INVALID_FIELD, "wait"},
    {"{\"surprise\":1}", ERR_INVALID_FIELD, "surprise"},
};

START_TEST(bad_specs_name_their_field)
{
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    struct err err = {0};
    ck_assert_int_eq(parse(bad_specs[_i].body, &spec, &err), -1);
    ck_assert_msg(err.code == bad_specs[_i].code, "%s: %s: %s", bad_specs[_i].body,
                  err_code_name(err.code), err.msg);
    ck_assert_msg(strstr(err.msg, bad_specs[_i].field) != NULL, "%s: %s", bad_specs[_i].body,
                  err.msg);
}
END_TEST

START_TEST(public_part_survives_the_round_trip)
{
    cleanup(sandbox_spec_done) struct sandbox_spec spec = {0};
    cleanup(sandbox_spec_done) struct sandbox_spec again = {0};
    struct err err = {0};
    ck_assert_int_eq(parse("{\"writable_mounts\":{\"c\":\"/c\"},\"env\":{\"TOKEN\":\"hush\"},"
                           "\"secrets\":[\"hush\"],\"runtime_class\":\"gvisor\"}",
                           &spec, &err),
                     0);
    cleanup_json struct json *json = sandbox_spec_public(&spec);
    cleanup_buf struct buf text = BUF_INIT(65536);
    ck_assert(json_print(json, &text));
    ck_assert_ptr_null(strstr(buf_text(&text), "hush"));
    sandbox_spec_restore(json, &again);
    ck_assert_str_eq(again.image, spec.image);
    ck_assert_str_eq(again.runtime_class, "gvisor");
    ck_assert_str_eq(again.cpu_request, spec.cpu_request);
    ck_assert_int_eq(again.ttl_ms, spec.ttl_ms);
    ck_assert_uint_eq(again.writable_mounts.count, 1);
    ck_assert_str_eq(again.writable_mounts.items[0], "/c");
}
END_TEST

int main(void)
{
    struct err err = {0};
    if (crypto_start(&err) < 0) {
        return EXIT_FAILURE;
    }
    Suite *suite = suite_create("spec");
    TCase *tcase = tcase_create("spec");
    tcase_add_test(tcase, defaults_are_filled_in);
    tcase_add_test(tcase, empty_settings);
    tcase_add_test(tcase, what_is_given_is_taken);
    tcase_add_loop_test(tcase, bad_specs_name_their_field, 0,
                        (int)(sizeof(bad_specs) / sizeof(bad_specs[0])));
    tcase_add_test(tcase, public_part_survives_the_round_trip);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
