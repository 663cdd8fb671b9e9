#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/object.h"
#include "k8s/pod.h"
#include "tests/unit/k8s_support.h"

static const struct k8s_config plain = {.instance = "inst", .agent_image = "reg/agent:1"};

static struct box_spec spec_of_test(void)
{
    return (struct box_spec){
        .id = "run-1",
        .uid = "uid-1",
        .owner = "me <x@y>",
        .created_ms = 1700000000123,
        .digest = "abcd",
        .image = "img:1",
        .run_as_user = 1000,
        .run_as_group = 1001,
        .read_only_root = true,
        .workdir = "/workspace",
        .cpu_limit = "2",
        .cpu_request = "250m",
        .memory_limit = "2Gi",
        .memory_request = "512Mi",
        .storage_limit = "4Gi",
        .network = "internet",
        .max_lifetime_ms = 86400000,
    };
}

static struct json *build(const struct k8s_config *config, enum agent_delivery delivery,
                          const char *runtime_class, bool readable, const struct box_spec *spec)
{
    struct pod_plan plan = {config, "ns", runtime_class, delivery, readable};
    struct json *pod = NULL;
    struct err err;

    ck_assert_msg(pod_build(&plan, spec, &pod, &err) == 0, "%s", err.msg);
    return pod;
}

/* The whole of it, once: what is in here is what makes a sandbox hard. B47 is in it too. */
START_TEST(test_whole)
{
    struct box_spec spec = spec_of_test();
    cleanup_json struct json *pod = build(&plain, DELIVERY_IMAGE_VOLUME, NULL, false, &spec);

    assert_json_eq(
        pod,
        "{'apiVersion':'v1','kind':'Pod','metadata':{'name':'sandbox-run-1','namespace':'ns',"
        "'labels':{'podsandbox.dev/sandbox-id':'run-1','app.kubernetes.io/managed-by':'podsandbox',"
        "'podsandbox.dev/instance':'inst','podsandbox.dev/network':'internet'},"
        "'annotations':{'podsandbox.dev/owner':'me <x@y>','podsandbox.dev/uid':'uid-1',"
        "'podsandbox.dev/created':'2023-11-14T22:13:20.123Z','podsandbox.dev/digest':'abcd'}},"
        "'spec':{'restartPolicy':'Never','terminationGracePeriodSeconds':1,"
        "'automountServiceAccountToken':false,'enableServiceLinks':false,"
        "'activeDeadlineSeconds':86460,"
        "'securityContext':{'runAsNonRoot':true,'runAsUser':1000,'runAsGroup':1001,'fsGroup':1001,"
        "'seccompProfile':{'type':'RuntimeDefault'}},"
        "'volumes':[{'name':'workspace','emptyDir':{'sizeLimit':'4Gi'}},"
        "{'name':'tmp','emptyDir':{'sizeLimit':'4Gi'}},"
        "{'name':'home','emptyDir':{'sizeLimit':'4Gi'}},"
        "{'name':'podsandbox-agent','image':{'reference':'reg/"
        "agent:1','pullPolicy':'IfNotPresent'}}],"
        "'containers':[{'name':'sandbox','image':'img:1','imagePullPolicy':'IfNotPresent',"
        "'command':['/opt/podsandbox/podsandbox-agent','serve','--uid','uid-1'],'workingDir':'/"
        "workspace',"
        "'env':[{'name':'HOME','value':'/home/sandbox'}],"
        "'volumeMounts':[{'name':'workspace','mountPath':'/workspace'},"
        "{'name':'tmp','mountPath':'/tmp'},{'name':'home','mountPath':'/home/sandbox'},"
        "{'name':'podsandbox-agent','mountPath':'/opt/podsandbox','readOnly':true}],"
        "'resources':{'limits':{'cpu':'2','memory':'2Gi','ephemeral-storage':'4Gi'},"
        "'requests':{'cpu':'250m','memory':'512Mi','ephemeral-storage':'64Mi'}},"
        "'securityContext':{'allowPrivilegeEscalation':false,'readOnlyRootFilesystem':true,"
        "'capabilities':{'drop':['ALL']}}}]}}");
}
END_TEST

START_TEST(test_init_delivery)
{
    struct box_spec spec = spec_of_test();
    cleanup_json struct json *pod = build(&plain, DELIVERY_INIT, "gvisor", true, &spec);
    const struct json *body = json_get(pod, "spec");

    ck_assert_str_eq(json_get_text(body, "runtimeClassName"), "gvisor");
    assert_json_eq(json_get(body, "initContainers"),
                   "[{'name':'agent','image':'reg/agent:1','imagePullPolicy':'IfNotPresent',"
                   "'command':['/podsandbox-agent.0755','install','/opt/podsandbox'],"
                   "'volumeMounts':[{'name':'podsandbox-agent','mountPath':'/opt/podsandbox'}],"
                   "'resources':{'limits':{'cpu':'2','memory':'2Gi','ephemeral-storage':'4Gi'},"
                   "'requests':{'cpu':'250m','memory':'512Mi','ephemeral-storage':'64Mi'}},"
                   "'securityContext':{'allowPrivilegeEscalation':false,"
                   "'readOnlyRootFilesystem':true,'capabilities':{'drop':['ALL']}}}]");
    assert_json_eq(json_at(json_get(body, "volumes"), 3),
                   "{'name':'podsandbox-agent','emptyDir':{'sizeLimit':'64Mi'}}");
    /* What install has copied belongs to the sandbox's user, who can read it: the usual name. */
    assert_json_eq(json_get(json_at(json_get(body, "containers"), 0), "command"),
                   "['/opt/podsandbox/podsandbox-agent','serve','--uid','uid-1']");
}
END_TEST

START_TEST(test_readable_agent)
{
    struct box_spec spec = spec_of_test();
    cleanup_json struct json *pod = build(&plain, DELIVERY_IMAGE_VOLUME, "gvisor", true, &spec);

    assert_json_eq(json_get(json_at(json_path(pod, "spec.containers"), 0), "command"),
                   "['/opt/podsandbox/podsandbox-agent.0755','serve','--uid','uid-1']");
}
END_TEST

/* What is built in is not mounted twice, whatever way it is written. */
START_TEST(test_writable_places)
{
    struct text_list mounts = {.items = NULL};
    struct box_spec spec = spec_of_test();

    text_list_add(&mounts, "/tmp/");
    text_list_add(&mounts, "/var/cache");
    text_list_add(&mounts, "/home/sandbox");
    text_list_add(&mounts, "/data");
    text_list_add(&mounts, "/data/");
    spec.writable_mounts = &mounts;
    spec.workdir = "/tmp";
    spec.storage_limit = "16Mi";
    {
        cleanup_json struct json *pod = build(&plain, DELIVERY_IMAGE_VOLUME, NULL, false, &spec);
        const struct json *container = json_at(json_path(pod, "spec.containers"), 0);

        assert_json_eq(
            json_get(container, "volumeMounts"),
            "[{'name':'workspace','mountPath':'/tmp'},"
            "{'name':'home','mountPath':'/home/sandbox'},"
            "{'name':'mount-2','mountPath':'/var/cache'},"
            "{'name':'mount-4','mountPath':'/data'},"
            "{'name':'podsandbox-agent','mountPath':'/opt/podsandbox','readOnly':true}]");
        ck_assert_uint_eq(json_count(json_path(pod, "spec.volumes")), 5);
        ck_assert_str_eq(
            json_get_text(json_path(container, "resources.requests"), "ephemeral-storage"), "16Mi");
    }
    text_list_done(&mounts);
}
END_TEST

START_TEST(test_reserved_places)
{
    static const char *const bad[] = {"/", "relative", "/opt/podsandbox", "/opt/podsandbox/x",
                                      "/a:b"};
    struct pod_plan plan = {&plain, "ns", NULL, DELIVERY_INIT, false};

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct box_spec spec = spec_of_test();
        struct json *pod = NULL;
        struct err err = {.code = ERR_NONE};

        spec.workdir = bad[i];
        ck_assert_int_eq(pod_build(&plan, &spec, &pod, &err), -1);
        ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
        ck_assert_ptr_null(pod);
    }
}
END_TEST

START_TEST(test_operator_settings)
{
    struct k8s_config config = plain;
    struct box_spec spec = spec_of_test();
    struct err err;

    config.priority_class = "low";
    config.tolerations = "[{\"key\":\"sandbox\",\"operator\":\"Exists\"}]";
    text_map_set(&config.node_selector, "pool", "sandboxes");
    text_list_add(&config.image_pull_secrets, "regcred");
    ck_assert_int_eq(pod_check_config(&config, &err), 0);
    spec.pull_policy = "Always";
    spec.read_only_root = false;
    spec.max_lifetime_ms = INT64_MAX / 2;
    {
        cleanup_json struct json *pod = build(&config, DELIVERY_IMAGE_VOLUME, NULL, false, &spec);
        const struct json *body = json_get(pod, "spec");
        const struct json *container = json_at(json_get(body, "containers"), 0);

        ck_assert_str_eq(json_get_text(body, "priorityClassName"), "low");
        assert_json_eq(json_get(body, "tolerations"), "[{'key':'sandbox','operator':'Exists'}]");
        assert_json_eq(json_get(body, "nodeSelector"), "{'pool':'sandboxes'}");
        assert_json_eq(json_get(body, "imagePullSecrets"), "[{'name':'regcred'}]");
        ck_assert_str_eq(json_get_text(container, "imagePullPolicy"), "Always");
        ck_assert(
            !json_get_bool(json_get(container, "securityContext"), "readOnlyRootFilesystem", true));
        ck_assert_int_eq(json_get_int(body, "activeDeadlineSeconds", 0), INT32_MAX);
    }
    text_map_done(&config.node_selector);
    text_list_done(&config.image_pull_secrets);
}
END_TEST

START_TEST(test_config_refusals)
{
    static const struct {
        const char *instance, *image, *tolerations;
    } rows[] = {
        {NULL, "i", NULL}, {"", "i", NULL},   {"a b", "i", NULL},
        {"-a", "i", NULL}, {"a", NULL, NULL}, {"a", "", NULL},
        {"a", "i", "{}"},  {"a", "i", "[1"},  {"a,b=c", "i", NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct k8s_config config = {.instance = rows[i].instance,
                                    .agent_image = rows[i].image,
                                    .tolerations = rows[i].tolerations};
        struct err err = {.code = ERR_NONE};

        ck_assert_int_eq(pod_check_config(&config, &err), -1);
        ck_assert_int_eq(err.code, ERR_CONFIG);
    }
}
END_TEST

/* A probe is no sandbox: no listing of ours may find it. */
START_TEST(test_probe)
{
    struct pod_plan plan = {&plain, "ns", NULL, DELIVERY_IMAGE_VOLUME, false};
    cleanup_json struct json *pod = pod_build_probe(&plan, "probe-1");

    assert_json_eq(json_path(pod, "metadata.labels"),
                   "{'app.kubernetes.io/managed-by':'podsandbox','podsandbox.dev/instance':'inst',"
                   "'podsandbox.dev/probe':'agent'}");
    assert_json_eq(json_get(json_at(json_path(pod, "spec.containers"), 0), "command"),
                   "['/opt/podsandbox/podsandbox-agent','--version']");
    assert_json_eq(json_path(pod, "spec.volumes"),
                   "[{'name':'podsandbox-agent','image':{'reference':'reg/agent:1',"
                   "'pullPolicy':'IfNotPresent'}}]");
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_whole,           test_init_delivery,   test_readable_agent,
                                test_writable_places, test_reserved_places, test_operator_settings,
                                test_config_refusals, test_probe,           NULL};

    return run_tests("k8s_pod", all);
}
