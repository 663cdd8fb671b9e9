/* What a container is made of, and what the engine says of it. */
#include <string.h>

#include "docker/container.h"
#include "tests/unit/suite.h"

static const struct container_plan plan = {
    .instance = "ours", .runtime = "runsc", .network = "none", .pids = 100};

static struct box_spec spec_of_test(void)
{
    return (struct box_spec){
        .id = "demo",
        .uid = "u-1",
        .owner = "alice",
        .created_ms = 1700000000123,
        .digest = "d",
        .image = "python:3",
        .run_as_user = 1000,
        .run_as_group = 1001,
        .read_only_root = true,
        .workdir = "/workspace",
        .cpu_limit = "1500m",
        .memory_limit = "1Gi",
        .storage_limit = "4Gi",
        .network = "none",
    };
}

static const char *text_at(const struct json *list, size_t index)
{
    return json_text(json_at(list, index));
}

START_TEST(test_hardened)
{
    struct box_spec spec = spec_of_test();
    cleanup_json struct json *container = NULL;
    struct err err;

    ck_assert_int_eq(container_build(&plan, &spec, &container, &err), 0);
    const struct json *host = json_get(container, "HostConfig");
    ck_assert_str_eq(json_get_text(container, "User"), "1000:1001");
    ck_assert(json_get_bool(host, "ReadonlyRootfs", false));
    ck_assert_str_eq(text_at(json_get(host, "CapDrop"), 0), "ALL");
    ck_assert_str_eq(text_at(json_get(host, "SecurityOpt"), 0), "no-new-privileges");
    ck_assert_uint_eq(json_count(json_get(host, "SecurityOpt")), 1); /* the default seccomp stays */
    ck_assert_int_eq(json_get_int(host, "Memory", 0), 1 << 30);
    ck_assert_int_eq(json_get_int(host, "MemorySwap", 0), 1 << 30);
    ck_assert_int_eq(json_get_int(host, "NanoCpus", 0), 1500000000);
    ck_assert_int_eq(json_get_int(host, "PidsLimit", 0), 100);
    ck_assert_str_eq(json_get_text(host, "NetworkMode"), "none");
    ck_assert_str_eq(json_get_text(host, "Runtime"), "runsc");
    ck_assert(!json_get_bool(host, "Privileged", true));
    ck_assert_str_eq(json_get_text(json_get(host, "Tmpfs"), "/tmp"),
                     "rw,exec,nosuid,nodev,size=536870912,mode=1777,uid=1000,gid=1001");
    ck_assert_uint_eq(json_count(json_get(host, "Tmpfs")), 3);
}
END_TEST

START_TEST(test_writable_places)
{
    static const struct {
        char path[32];
        enum err_code code;
        size_t count;
    } cases[] = {
        {"/data", ERR_NONE, 4},
        {"/tmp", ERR_NONE, 3},
        {"/opt/podsandbox", ERR_INVALID_FIELD, 0},
        {"/opt/podsandbox/x", ERR_INVALID_FIELD, 0},
        {"/opt/podsandboxes", ERR_NONE, 4},
        {"/", ERR_INVALID_FIELD, 0},
        {"/a:b", ERR_INVALID_FIELD, 0},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct text_list mounts = {0};
        struct box_spec spec = spec_of_test();
        cleanup_json struct json *container = NULL;
        struct err err = {.code = ERR_NONE};

        text_list_add(&mounts, cases[i].path);
        spec.writable_mounts = &mounts;
        int result = container_build(&plan, &spec, &container, &err);
        ck_assert_int_eq(result, cases[i].code == ERR_NONE ? 0 : -1);
        ck_assert_msg(err.code == cases[i].code, "%s", cases[i].path);
        ck_assert_uint_eq(json_count(json_path(container, "HostConfig.Tmpfs")), cases[i].count);
        text_list_done(&mounts);
    }
}
END_TEST

/* What a list tells is what was asked for. */
START_TEST(test_labels_back)
{
    struct box_spec spec = spec_of_test();
    cleanup_json struct json *container = NULL;
    struct box_info info;
    struct err err;
    char id[65];

    memset(id, 'a', 64);
    id[64] = '\0';
    ck_assert_int_eq(container_build(&plan, &spec, &container, &err), 0);
    container_describe(json_get(container, "Labels"), id, "ours", &info);
    ck_assert(!info.foreign);
    ck_assert_str_eq(info.id, "demo");
    ck_assert_str_eq(info.uid, "u-1");
    ck_assert_str_eq(info.owner, "alice");
    ck_assert_str_eq(info.name, "sandbox-demo");
    ck_assert_str_eq(info.workdir, "/workspace");
    ck_assert_str_eq(info.runtime_class, "runsc");
    ck_assert_str_eq(info.container_id, id);
    ck_assert_uint_eq(strlen(info.box_uid), 48);
    ck_assert_int_eq(info.created_ms, 1700000000123);
    ck_assert_uint_eq(info.pids_limit, 100);
    ck_assert_uint_eq(info.storage_limit, 1 << 29);
    container_describe(json_get(container, "Labels"), id, "another", &info);
    ck_assert(info.foreign);
    ck_assert_str_eq(info.uid, "");
}
END_TEST

START_TEST(test_states)
{
    static const struct {
        const char *state;
        enum box_state box;
        enum err_code reason;
        bool ended_well;
    } cases[] = {
        {"{\"Status\":\"created\"}", BOX_STARTING, ERR_NONE, false},
        {"{\"Status\":\"running\"}", BOX_ATTACHABLE, ERR_NONE, false},
        {"{\"Status\":\"paused\"}", BOX_ATTACHABLE, ERR_NONE, false},
        {"{\"Status\":\"exited\",\"ExitCode\":3}", BOX_FAILED, ERR_CONTAINER_EXITED, true},
        {"{\"Status\":\"exited\",\"ExitCode\":4}", BOX_FAILED, ERR_CONTAINER_EXITED, true},
        {"{\"Status\":\"exited\",\"ExitCode\":137}", BOX_FAILED, ERR_CONTAINER_EXITED, false},
        {"{\"Status\":\"exited\",\"ExitCode\":137,\"OOMKilled\":true}", BOX_FAILED, ERR_OOM_KILLED,
         false},
        /* a command alone was killed before, and then the deadline passed */
        {"{\"Status\":\"exited\",\"ExitCode\":3,\"OOMKilled\":true}", BOX_FAILED,
         ERR_CONTAINER_EXITED, true},
        {"{\"Status\":\"removing\",\"ExitCode\":137}", BOX_GONE, ERR_NONE, false},
        {"{\"Status\":\"dead\",\"ExitCode\":1}", BOX_FAILED, ERR_CONTAINER_EXITED, false},
        {"{\"Status\":\"exited\",\"ExitCode\":null}", BOX_FAILED, ERR_CONTAINER_EXITED, false},
        {"{}", BOX_FAILED, ERR_CONTAINER_EXITED, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cleanup_json struct json *state = NULL;
        struct box_info info = {.state = BOX_STARTING};
        struct err err;

        ck_assert_int_eq(
            json_parse(cases[i].state, strlen(cases[i].state), JSON_LENIENT, &state, &err), 0);
        container_judge(state, &info);
        ck_assert_msg(info.state == cases[i].box, "%s", cases[i].state);
        ck_assert_msg(info.reason == cases[i].reason, "%s", cases[i].state);
        ck_assert_msg(info.ended_well == cases[i].ended_well, "%s", cases[i].state);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_hardened, test_writable_places, test_labels_back,
                                  test_states, NULL};

    return run_suite("docker_container", tests, NULL, NULL);
}
