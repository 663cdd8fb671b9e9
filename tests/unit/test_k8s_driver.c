/* The driver's calls: B17, B42, B48, B49. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/k8s_boxes.h"

static const struct box_spec spec = {
    .id = "a",
    .uid = "life-1",
    .owner = "me",
    .created_ms = 1700000000000,
    .digest = "d",
    .image = "i",
    .run_as_user = 1000,
    .run_as_group = 1000,
    .workdir = "/w",
    .cpu_limit = "1",
    .memory_limit = "1Gi",
    .storage_limit = "1Gi",
    .max_lifetime_ms = 1000,
};

/* --- creating -----------------------------------------------------------------------------------
 */

static const struct create_row {
    const char *rules;
    enum err_code code; /* ERR_NONE: it is there */
    int posts;
    const char *words;
} creates[] = {
    {"[{'method':'POST','path':'" PODS "','status':201,'body':" POD("p1", "life-1", "{}") "}]",
     ERR_NONE, 1, ""},
    /* B17: it was made, but the answer was lost; or a repeated request finds it */
    {"[{'method':'POST','path':'" PODS "','drop':true},"
     "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD("p1", "life-1", "{}") "}]",
     ERR_NONE, 1, ""},
    {"[{'method':'POST','path':'" PODS "','status':409,'body':{'reason':'AlreadyExists'}},"
     "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD("p1", "life-1", "{}") "}]",
     ERR_NONE, 1, ""},
    {"[{'method':'POST','path':'" PODS "','status':409,'body':{'reason':'AlreadyExists'}},"
     "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD("p1", "life-0", "{}") "}]",
     ERR_ALREADY_EXISTS, 1, "exists already"},
    /* the same life, but nothing says that it is ours */
    {"[{'method':'POST','path':'" PODS "','status':409,'body':{'reason':'AlreadyExists'}},"
     "{'method':'GET','path':'" PODS
     "/sandbox-a','body':{'metadata':{'name':'sandbox-a','annotations':"
     "{'podsandbox.dev/uid':'life-1'}}}}]",
     ERR_ALREADY_EXISTS, 1, "exists already"},
    /* a conflict over the quota's counter, and a name that has just become free */
    {"[{'method':'POST','path':'" PODS "','times':1,'status':409,'body':{'reason':'Conflict',"
     "'message':'Operation cannot be fulfilled on resourcequotas'}},"
     "{'method':'POST','path':'" PODS "','times':1,'status':409,'body':{'reason':'AlreadyExists'}},"
     "{'method':'POST','path':'" PODS "','status':201,'body':" POD("p1", "life-1", "{}") "}]",
     ERR_NONE, 3, ""},
    {"[{'method':'POST','path':'" PODS
     "','status':409,'body':{'reason':'Conflict','message':'again'}}]",
     ERR_BACKEND_CONFLICT, 3, "again"},
    {"[{'method':'POST','path':'" PODS "','drop':true}]", ERR_BACKEND_UNAVAILABLE, 1, ""},
    {"[{'method':'POST','path':'" PODS "','drop':true},{'path':'/','drop':true}]",
     ERR_BACKEND_UNAVAILABLE, 1, ""},
    {"[{'method':'POST','path':'" PODS "','status':403,'body':{'message':'exceeded quota: q'}}]",
     ERR_QUOTA_EXCEEDED, 1, "exceeded quota: q"},
    {"[{'method':'POST','path':'" PODS
     "','status':404,'body':{'message':'namespaces ns not found'}}]",
     ERR_BACKEND, 1, "namespace 'ns' does not exist"},
    {"[{'method':'POST','path':'" PODS "','status':200,'body':'hm'}]", ERR_BACKEND, 1, "JSON"},
};

START_TEST(test_b17_create)
{
    boxes_begin();
    for (size_t i = 0; i < ARRAY_LEN(creates); i++) {
        struct box_info info = {.id = ""};
        struct err err = {.code = ERR_NONE};
        int rc;

        peer_script(&peer, creates[i].rules);
        rc = driver.ops->create(driver.self, &spec, &info, &err);
        if (creates[i].code == ERR_NONE) {
            ck_assert_msg(rc == 0, "row %zu: %s", i, err.msg);
            ck_assert_str_eq(info.box_uid, "p1");
            ck_assert_str_eq(info.uid, "life-1");
        } else {
            ck_assert_int_eq(rc, -1);
            ck_assert_msg(err.code == creates[i].code, "row %zu: %s", i, err_code_name(err.code));
            ck_assert_msg(strstr(err.msg, creates[i].words) != NULL, "row %zu: %s", i, err.msg);
        }
        ck_assert_msg(peer_count(&peer, "POST ") == creates[i].posts, "row %zu: %d", i,
                      peer_count(&peer, "POST "));
    }
    boxes_end();
}
END_TEST

START_TEST(test_check)
{
    cleanup_free char *log = NULL;
    struct err err;

    boxes_begin();
    peer_script(&peer, "[{'method':'POST','path':'" PODS "?dryRun=All','body':{}}]");
    ck_assert_int_eq(driver.ops->check(driver.self, &spec, &err), 0);
    log = peer_log(&peer);
    ck_assert_int_eq(
        strncmp(log, "POST " PODS "?dryRun=All\t", strlen("POST " PODS "?dryRun=All\t")), 0);
    peer_script(&peer, "[{'path':'" PODS "','status':400,'body':"
                       "{'message':'admission webhook w denied the request: why'}}]");
    ck_assert_int_eq(driver.ops->check(driver.self, &spec, &err), -1);
    ck_assert_int_eq(err.code, ERR_ADMISSION_DENIED);
    boxes_end();
}
END_TEST

#define CLASSES "/apis/node.k8s.io/v1/runtimeclasses/"

START_TEST(test_runtime_class)
{
    struct box_spec wants = spec;
    struct box_info info;
    cleanup_free char *log = NULL;
    struct err err;

    boxes_begin();
    wants.runtime_class = "gvisor";
    peer_script(&peer, "[{'path':'" CLASSES "','status':404,'body':{'message':'no'}}]");
    ck_assert_int_eq(driver.ops->create(driver.self, &wants, &info, &err), -1);
    ck_assert_int_eq(err.code, ERR_RUNTIME_CLASS_MISSING);
    ck_assert_ptr_nonnull(strstr(err.msg, "'gvisor'"));
    ck_assert_int_eq(peer_count(&peer, "POST "), 0);
    /* Without the right to look the cluster decides. */
    peer_script(&peer, "[{'path':'" CLASSES "','status':403,'body':{'message':'no'}},"
                       "{'method':'POST','path':'" PODS
                       "','status':403,'body':{'message':'pods is forbidden:"
                       " pod rejected: RuntimeClass gvisor not found'}}]");
    ck_assert_int_eq(driver.ops->create(driver.self, &wants, &info, &err), -1);
    ck_assert_int_eq(err.code, ERR_RUNTIME_CLASS_MISSING);
    /* What is there is not asked for each time. */
    peer_script(&peer, "[{'path':'" CLASSES "gvisor','body':{'handler':'runsc'}},"
                       "{'method':'POST','path':'" PODS
                       "','status':201,'body':" POD("p1", "life-1", "{}") "}]");
    ck_assert_int_eq(driver.ops->create(driver.self, &wants, &info, &err), 0);
    ck_assert_int_eq(driver.ops->create(driver.self, &wants, &info, &err), 0);
    ck_assert_int_eq(peer_count(&peer, "GET " CLASSES), 1);
    log = peer_log(&peer);
    ck_assert_ptr_nonnull(strstr(log, "\"runtimeClassName\":\"gvisor\""));
    boxes_end();
}
END_TEST

/* --- destroying, listing ------------------------------------------------------------------------
 */

#define SIDE(name, uid)                                                                            \
    "{'metadata':{'name':'" name "','uid':'" uid "'," LABELS ",'ownerReferences':[{'uid':'p1'}]}," \
    "'spec':{'ports':[{'port':8000}]}}"

START_TEST(test_destroy)
{
    cleanup_free char *log = NULL;
    struct err err;

    boxes_begin();
    peer_script(
        &peer, "[{'method':'GET','path':'" SERVICES "?','body':{'metadata':{'resourceVersion':'1'},"
               "'items':[" SIDE("preview-a", "s1") "," SIDE(
                   "preview9000-a",
                   "s2") "]}},"
                         "{'method':'GET','path':'" NETWORKING "','body':" EMPTY "},"
                         "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD(
                             "p1", "life-1", "{}") "},"
                                                   "{'method':'DELETE','path':'/','body':{}}]");
    ck_assert_int_eq(driver.ops->destroy(driver.self, "a", "p1", &err), 0);
    log = peer_log(&peer);
    ck_assert_ptr_nonnull(strstr(log, "DELETE " SERVICES "/preview-a\t"));
    ck_assert_ptr_nonnull(strstr(log, "\"uid\":\"s1\""));
    ck_assert_ptr_nonnull(strstr(log, "DELETE " SERVICES "/preview9000-a\t"));
    ck_assert_ptr_nonnull(strstr(log, "DELETE " PODS "/sandbox-a\t"));
    ck_assert_ptr_nonnull(strstr(log, "\"uid\":\"p1\""));
    ck_assert_ptr_nonnull(strstr(log, "sandbox-id%3Da")); /* asked by label, and by our instance */
    ck_assert_ptr_nonnull(strstr(log, "instance%3Dinst"));
    boxes_end();
}
END_TEST

/* B48, B49: gone already; another life; not ours; what fails is said, and the pod goes all the
 * same. */
START_TEST(test_b48_destroy)
{
    static const struct {
        const char *rules, *box_uid;
        enum err_code code;
        int deletes;
    } rows[] = {
        {"[" NO_SIDES "]", "", ERR_NONE, 0},
        {"[" NO_SIDES ",{'method':'GET','path':'" PODS
         "/sandbox-a','body':" POD("p2", "l", "{}") "}]",
         "p1", ERR_NONE, 0},
        {"[" NO_SIDES ",{'method':'GET','path':'" PODS
         "/sandbox-a','body':{'metadata':{'name':'sandbox-a',"
         "'uid':'p1','labels':{'podsandbox.dev/sandbox-id':'a','app.kubernetes.io/"
         "managed-by':'podsandbox'}}}}]",
         "p1", ERR_NONE, 0},
        {"[" NO_SIDES ",{'method':'GET','path':'" PODS
         "/sandbox-a','body':" POD("p1", "l", "{}") "},"
                                                    "{'method':'DELETE','path':'" PODS
                                                    "','status':500,'body':{'message':'x'}}]",
         "p1", ERR_BACKEND, 1},
        {"[" NO_SIDES ",{'method':'GET','path':'" PODS "/sandbox-a','drop':true}]", "",
         ERR_BACKEND_UNAVAILABLE, 0},
        {"[{'method':'GET','path':'" SERVICES "?','body':{'metadata':{},'items':[" SIDE(
             "preview-a", "s1") "]}},"
                                "{'path':'" NETWORKING "','body':" EMPTY "},"
                                "{'method':'DELETE','path':'" SERVICES
                                "','status':403,'body':{'message':'cannot delete services'}},"
                                "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD(
                                    "p1", "l", "{}") "},"
                                                     "{'method':'DELETE','path':'" PODS
                                                     "','body':{}}]",
         "p1", ERR_BACKEND_FORBIDDEN, 2},
        /* no right to previews at all: there are none */
        {"[{'path':'" SERVICES "','status':403,'body':{}},{'path':'" NETWORKING
         "','status':403,'body':{}},"
         "{'method':'GET','path':'" PODS "/sandbox-a','body':" POD(
             "p1", "l", "{}") "},"
                              "{'method':'DELETE','path':'" PODS "','body':{}}]",
         "p1", ERR_NONE, 1},
    };

    boxes_begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err err = {.code = ERR_NONE};
        int rc;

        peer_script(&peer, rows[i].rules);
        rc = driver.ops->destroy(driver.self, "a", rows[i].box_uid, &err);
        ck_assert_msg(err.code == rows[i].code, "row %zu: %s: %s", i, err_code_name(err.code),
                      err.msg);
        ck_assert_int_eq(rc, rows[i].code == ERR_NONE ? 0 : -1);
        ck_assert_msg(peer_count(&peer, "DELETE ") == rows[i].deletes, "row %zu", i);
    }
    boxes_end();
}
END_TEST

START_TEST(test_b49_foreign)
{
    struct box_info *infos = NULL;
    size_t count = 0;
    struct box_info info;
    struct err err;

    boxes_begin();
    peer_script(
        &peer,
        "[{'path':'" PODS "?','body':{'metadata':{},'items':[" POD(
            "p1", "life-1",
            "{}") ","
                  "{'metadata':{'name':'sandbox-b','uid':'p2','labels':{'podsandbox.dev/"
                  "sandbox-id':'b',"
                  "'app.kubernetes.io/managed-by':'podsandbox','podsandbox.dev/instance':'other'},"
                  "'annotations':{'podsandbox.dev/uid':'theirs'}}},"
                  "{'metadata':{'name':'sandbox-c','uid':'p3','labels':{'podsandbox.dev/"
                  "sandbox-id':'c',"
                  "'app.kubernetes.io/managed-by':'podsandbox'}}}]}},"
                  "{'path':'" PODS "/sandbox-b','body':{'metadata':{'name':'sandbox-b'}}}]");
    ck_assert_int_eq(driver.ops->list(driver.self, true, &infos, &count, &err), 0);
    ck_assert_uint_eq(count, 3);
    ck_assert(!infos[0].foreign && infos[1].foreign && infos[2].foreign);
    ck_assert_str_eq(infos[0].uid, "life-1");
    ck_assert_str_eq(infos[1].uid, "");
    ck_assert_str_eq(infos[2].id, "c");
    free(infos);
    ck_assert_int_eq(driver.ops->inspect(driver.self, "b", &info, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_NOT_FOUND);
    boxes_end();
}
END_TEST

/* --- previews -----------------------------------------------------------------------------------
 */

static const struct preview_spec preview = {.id = "a",
                                            .uid = "life-1",
                                            .owner = "me",
                                            .box_uid = "p1",
                                            .port = 8000,
                                            .first = true,
                                            .host = "a.test"};

#define MADE(uid) "{'metadata':{'uid':'" uid "'}}"
#define OWNED(uid, owner, port)                                                                    \
    "{'metadata':{'name':'preview-a','uid':'" uid "','labels':{'podsandbox.dev/sandbox-id':'a',"   \
    "'app.kubernetes.io/managed-by':'podsandbox','podsandbox.dev/instance':'inst',"                \
    "'podsandbox.dev/port':'" port "'},'ownerReferences':[{'uid':'" owner "'}]}}"

/* B42, B48: whatever step fails, what was made before is taken back. */
START_TEST(test_b48_publish)
{
    static const struct {
        const char *rules;
        enum err_code code;
        int posts, deletes;
    } rows[] = {
        {"[{'method':'POST','path':'/','status':201,'body':" MADE("u") "}]", ERR_NONE, 3, 0},
        {"[{'method':'POST','path':'" SERVICES "','status':500,'body':{}}]", ERR_BACKEND, 1, 0},
        {"[{'method':'POST','path':'" SERVICES "','status':201,'body':" MADE(
             "s") "},"
                  "{'method':'POST','path':'" NETWORKING
                  "networkpolicies','status':201,'body':" MADE(
                      "n") "},"
                           "{'method':'POST','path':'" NETWORKING
                           "ingresses','status':403,'body':{'message':'exceeded quota: q'}},"
                           "{'method':'DELETE','path':'/','body':{}}]",
         ERR_QUOTA_EXCEEDED, 3, 2},
        {"[{'method':'POST','path':'" SERVICES "','status':201,'body':" MADE(
             "s") "},"
                  "{'method':'POST','path':'" NETWORKING "networkpolicies','drop':true},"
                  "{'method':'DELETE','path':'/','status':500,'body':{}}]",
         ERR_BACKEND_UNAVAILABLE, 2, 1},
        /* as wanted already */
        {"[{'method':'POST','path':'" SERVICES "','status':409,'body':{'reason':'AlreadyExists'}},"
         "{'method':'GET','path':'" SERVICES "','body':" OWNED(
             "s", "p1", "8000") "},"
                                "{'method':'POST','path':'/','status':201,'body':" MADE("u") "}]",
         ERR_NONE, 3, 0},
        /* of an earlier life: replaced */
        {"[{'method':'POST','path':'" SERVICES
         "','times':1,'status':409,'body':{'reason':'AlreadyExists'}},"
         "{'method':'GET','path':'" SERVICES "','body':" OWNED(
             "s", "p0", "8000") "},"
                                "{'method':'DELETE','path':'/','body':{}},"
                                "{'method':'POST','path':'/','status':201,'body':" MADE("u") "}]",
         ERR_NONE, 4, 1},
        /* somebody else's */
        {"[{'method':'POST','path':'" SERVICES "','status':409,'body':{'reason':'AlreadyExists'}},"
         "{'method':'GET','path':'" SERVICES
         "','body':{'metadata':{'name':'preview-a','uid':'x'}}}]",
         ERR_ALREADY_EXISTS, 1, 0},
    };

    boxes_begin();
    config.ingress_from = "edge:app=proxy";
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct preview_names names = {.service = ""};
        struct err err = {.code = ERR_NONE};
        int rc;

        peer_script(&peer, rows[i].rules);
        rc = driver.ops->publish(driver.self, &preview, &names, &err);
        ck_assert_msg(err.code == rows[i].code, "row %zu: %s: %s", i, err_code_name(err.code),
                      err.msg);
        ck_assert_int_eq(rc, rows[i].code == ERR_NONE ? 0 : -1);
        ck_assert_str_eq(names.ingress, rc == 0 ? "preview-a" : "");
        ck_assert_msg(peer_count(&peer, "POST ") == rows[i].posts, "row %zu", i);
        ck_assert_msg(peer_count(&peer, "DELETE ") == rows[i].deletes, "row %zu", i);
    }
    boxes_end();
}
END_TEST

START_TEST(test_side_objects)
{
    struct side_object *objects = NULL;
    size_t count = 0;
    struct err err;

    boxes_begin();
    peer_script(&peer,
                "[{'method':'GET','path':'" SERVICES "?','body':{'metadata':{},'items':[" SIDE(
                    "preview-a", "s1") ","
                                       "{'metadata':{'name':'other','uid':'x'}}]}},"
                                       "{'method':'GET','path':'" NETWORKING
                                       "ingresses','body':{'metadata':{},'items':[{'metadata':{"
                                       "'name':'preview-a','uid':'i1'," LABELS
                                       ",'ownerReferences':[{'uid':'p1'}]},'spec':{'rules':[{"
                                       "'host':'a.test','http':{'paths':[{'backend':{'service':{'"
                                       "port':{'number':8000}}}}]}}]}}]}},"
                                       "{'method':'GET','path':'" NETWORKING
                                       "networkpolicies','body':" EMPTY "},"
                                       "{'method':'DELETE','path':'/','body':{}}]");
    ck_assert_msg(driver.ops->side_objects(driver.self, &objects, &count, &err) == 0, "%s",
                  err.msg);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(objects[0].kind, "Ingress");
    ck_assert_str_eq(objects[0].host, "a.test");
    ck_assert_int_eq(objects[0].port, 8000);
    ck_assert_str_eq(objects[0].box_uid, "p1");
    ck_assert_str_eq(objects[1].kind, "Service");
    ck_assert_int_eq(objects[1].port, 8000);
    ck_assert_int_eq(driver.ops->remove_side_object(driver.self, &objects[1], &err), 0);
    ck_assert_int_eq(peer_count(&peer, "DELETE " SERVICES "/preview-a\t"), 1);
    free(objects);
    ck_assert_int_eq(driver.ops->unpublish(driver.self, "a", 9000, false, &err), 0);
    ck_assert_int_eq(peer_count(&peer, "DELETE "), 1); /* none of that name */
    ck_assert_int_eq(driver.ops->unpublish(driver.self, "a", 8000, true, &err), 0);
    ck_assert_int_eq(peer_count(&peer, "DELETE "), 3);
    /* One verb taken away is named; all of them are the absence of a feature. */
    peer_script(&peer, "[{'path':'" SERVICES "','body':" EMPTY "},{'path':'" NETWORKING
                       "ingresses','body':" EMPTY "},"
                       "{'path':'" NETWORKING "','status':403,'body':{'message':'no'}}]");
    ck_assert_int_eq(driver.ops->side_objects(driver.self, &objects, &count, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_FORBIDDEN);
    ck_assert_ptr_nonnull(strstr(err.msg, "list networkpolicies"));
    boxes_end();
}
END_TEST

START_TEST(test_capabilities)
{
    cleanup_json struct json *object = json_of("{}");
    const struct json *kubernetes;

    boxes_begin();
    config.network_check = true;
    peer_script(&peer,
                "[{'path':'/version','body':{'gitVersion':'v1.99'}},"
                "{'path':'" NETWORKING "networkpolicies','body':{'metadata':{},'items':[{'spec':{"
                "'podSelector':{},'policyTypes':['Ingress']}}]}}]");
    driver.ops->capabilities(driver.self, object);
    kubernetes = json_get(object, "kubernetes");
    ck_assert_str_eq(json_get_text(kubernetes, "server_version"), "v1.99");
    ck_assert(json_is_null(json_get(kubernetes, "pod_security")));
    assert_json_eq(json_get(kubernetes, "network_policy"),
                   "{'default_deny_ingress':true,'default_deny_egress':false}");
    assert_json_eq(json_get(kubernetes, "agent_delivery"), "{'mode':'init','reason':null}");
    ck_assert_uint_eq(json_count(json_get(object, "warnings")), 1);
    boxes_end();
}
END_TEST

int main(void)
{
    const TTest *const all[] = {
        test_b17_create,  test_check,       test_runtime_class, test_destroy,      test_b48_destroy,
        test_b49_foreign, test_b48_publish, test_side_objects,  test_capabilities, NULL};

    return run_tests("k8s_driver", all);
}
