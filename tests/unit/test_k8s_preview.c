#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/preview.h"
#include "tests/unit/k8s_support.h"

static const struct space space = {.namespace_ = "ns", .instance = "inst"};
static const struct preview_spec first = {
    .id = "run-1",
    .uid = "u",
    .owner = "me",
    .box_uid = "pod-uid",
    .port = 8000,
    .first = true,
    .host = "run-1.example.test",
};

#define METADATA(name, port)                                                                       \
    "'metadata':{'name':'" name "','namespace':'ns','labels':{"                                    \
    "'podsandbox.dev/sandbox-id':'run-1','app.kubernetes.io/managed-by':'podsandbox',"             \
    "'podsandbox.dev/instance':'inst','podsandbox.dev/port':'" port "'},"                          \
    "'ownerReferences':[{'apiVersion':'v1','kind':'Pod','name':'sandbox-run-1','uid':'pod-uid',"   \
    "'blockOwnerDeletion':false}]}"

START_TEST(test_names)
{
    char name[64];

    preview_name("run-1", 8000, true, name);
    ck_assert_str_eq(name, "preview-run-1");
    preview_name("run-1", 9000, false, name);
    ck_assert_str_eq(name, "preview9000-run-1");
    preview_name("0123456789012345678901234567890123456789", 65535, false, name);
    ck_assert_str_eq(name, "preview65535-0123456789012345678901234567890123456789");
}
END_TEST

START_TEST(test_service)
{
    cleanup_json struct json *service = preview_service(&space, &first);

    assert_json_eq(
        service,
        "{'apiVersion':'v1','kind':'Service'," METADATA(
            "preview-run-1",
            "8000") ","
                    "'spec':{'type':'ClusterIP','selector':{'podsandbox.dev/sandbox-id':'run-1',"
                    "'podsandbox.dev/instance':'inst'},'ports':[{'name':'preview','protocol':'TCP',"
                    "'port':8000,'targetPort':8000}],'publishNotReadyAddresses':true}}");
}
END_TEST

/* B54: a golden body; nothing in it comes from the caller but the checked host, id and port. */
START_TEST(test_b54_ingress)
{
    struct k8s_config config = {.tls_secret = ""};
    struct preview_spec second = first;

    second.first = false;
    second.port = 9000;
    {
        cleanup_json struct json *ingress = preview_ingress(&space, &config, &second);

        assert_json_eq(
            ingress,
            "{'apiVersion':'networking.k8s.io/v1','kind':'Ingress'," METADATA(
                "preview9000-run-1",
                "9000") ",'spec':{"
                        "'ingressClassName':'nginx','rules':[{'host':'run-1.example.test','http':{"
                        "'paths':[{'path':'/','pathType':'Prefix','backend':{'service':{"
                        "'name':'preview9000-run-1','port':{'number':9000}}}}]}}]}}");
    }
    config.ingress_class = "";
    config.tls_secret = "wildcard";
    text_map_set(&config.ingress_annotations, "nginx.ingress.kubernetes.io/proxy-read-timeout",
                 "3600");
    {
        cleanup_json struct json *ingress = preview_ingress(&space, &config, &first);

        assert_json_eq(json_path(ingress, "metadata.annotations"),
                       "{'nginx.ingress.kubernetes.io/proxy-read-timeout':'3600'}");
        assert_json_eq(json_path(ingress, "spec.tls"),
                       "[{'hosts':['run-1.example.test'],'secretName':'wildcard'}]");
        ck_assert_ptr_null(json_path(ingress, "spec.ingressClassName"));
    }
    text_map_done(&config.ingress_annotations);
}
END_TEST

START_TEST(test_policy)
{
    static const struct {
        const char *from, *peers;
    } rows[] = {
        {"ingress-nginx:app.kubernetes.io/name=ingress-nginx,a=b",
         "[{'namespaceSelector':{'matchLabels':{'kubernetes.io/metadata.name':'ingress-nginx'}},"
         "'podSelector':{'matchLabels':{'app.kubernetes.io/name':'ingress-nginx','a':'b'}}}]"},
        {"edge:", "[{'namespaceSelector':{'matchLabels':{'kubernetes.io/metadata.name':'edge'}}}]"},
        {"app=proxy", "[{'podSelector':{'matchLabels':{'app':'proxy'}}}]"},
        {"[{\"ipBlock\":{\"cidr\":\"10.0.0.0/8\"}}]", "[{'ipBlock':{'cidr':'10.0.0.0/8'}}]"},
        {"{\"ipBlock\":{\"cidr\":\"10.0.0.0/8\"}}", "[{'ipBlock':{'cidr':'10.0.0.0/8'}}]"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct k8s_config config = {.ingress_from = rows[i].from};
        cleanup_json struct json *policy = preview_policy(&space, &config, &first);
        cleanup_free char *wanted = xasprintf(
            "{'apiVersion':'networking.k8s.io/v1','kind':'NetworkPolicy'," METADATA(
                "preview-run-1",
                "8000") ",'spec':{'podSelector':{'matchLabels':{"
                        "'podsandbox.dev/sandbox-id':'run-1','podsandbox.dev/instance':'inst'}},"
                        "'policyTypes':['Ingress'],'ingress':[{'from':%s,"
                        "'ports':[{'protocol':'TCP','port':8000}]}]}}",
            rows[i].peers);
        struct err err;

        ck_assert_int_eq(preview_check_config(&config, &err), 0);
        assert_json_eq(policy, wanted);
    }
}
END_TEST

START_TEST(test_no_policy)
{
    struct k8s_config config = {.ingress_from = NULL};
    struct err err;

    ck_assert_ptr_null(preview_policy(&space, &config, &first));
    ck_assert_int_eq(preview_check_config(&config, &err), 0);
}
END_TEST

START_TEST(test_bad_ingress_from)
{
    static const char *const bad[] = {":a=b", "ns:a", "a", "ns:=b", "[]", "[1", "{"};

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct k8s_config config = {.ingress_from = bad[i]};
        struct err err = {.code = ERR_NONE};

        ck_assert_int_eq(preview_check_config(&config, &err), -1);
        ck_assert_int_eq(err.code, ERR_CONFIG);
    }
}
END_TEST

START_TEST(test_b54_hosts)
{
    static const char *const bad[] = {NULL,
                                      "",
                                      "a\"; } location /x { #",
                                      "a\nb",
                                      "${x}.example",
                                      "*.example",
                                      "(a|b).example",
                                      "..",
                                      "a..b",
                                      ".a",
                                      "a.",
                                      "-a.b",
                                      "a-.b",
                                      "UPPER.example",
                                      "a_b.example",
                                      "a/b",
                                      "a b"};
    char large[10241], label[70];
    struct err err;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct preview_spec spec = first;

        spec.host = bad[i];
        ck_assert_msg(preview_check(&spec, &err) == -1, "row %zu", i);
    }
    memset(large, 'a', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    (void)snprintf(label, sizeof(label), "%.64s.x", large);
    for (int i = 0; i < 4; i++) {
        static const int64_t ports[] = {0, -1, 65536, 80};
        struct preview_spec spec = first;

        spec.port = ports[i];
        if (i == 3)
            spec.host = large;
        ck_assert_int_eq(preview_check(&spec, &err), -1);
        ck_assert_int_eq(err.code, ERR_INVALID_FIELD);
        spec.port = 80;
        spec.host = label;
        ck_assert_int_eq(preview_check(&spec, &err), -1);
        spec.host = label + 1; /* 63 */
        ck_assert_int_eq(preview_check(&spec, &err), 0);
    }
}
END_TEST

int main(void)
{
    const TTest *const all[] = {
        test_names,     test_service,          test_b54_ingress, test_policy,
        test_no_policy, test_bad_ingress_from, test_b54_hosts,   NULL};

    return run_tests("k8s_preview", all);
}
