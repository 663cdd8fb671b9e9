/* Requests to the API server: B17, B42, B43 as far as one request shows them, and paging. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "k8s/object.h"
#include "tests/unit/k8s_peer.h"

static struct k8s_peer peer;
static struct space space;

static void begin(void)
{
    struct access access;
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    peer_start(&peer);
    ck_assert_int_eq(access_from_kubeconfig(peer.kubeconfig, NULL, false, &access, &err), 0);
    space = (struct space){api_new(&access, &err), "ns", "inst"};
    ck_assert_msg(space.api != NULL, "%s", err.msg);
}

static void end(void)
{
    api_free(space.api);
    peer_stop(&peer);
}

static int get(const char *name, struct err *err)
{
    cleanup_json struct json *pod = NULL;

    *err = (struct err){.code = ERR_NONE};
    return object_get(&space, KIND_POD, name, &pod, err);
}

START_TEST(test_plain)
{
    struct err err;

    begin();
    peer_script(&peer,
                "[{'path':'/api/v1/namespaces/ns/pods/a','auth':'Bearer T1','body':{}},"
                "{'path':'/api/v1/namespaces/ns/pods/bad','body':'no JSON'},"
                "{'path':'/api/v1/namespaces/ns/pods/html','status':502,'body':'<p>hm</p>'}]");
    ck_assert_int_eq(get("a", &err), 0);
    ck_assert_int_eq(get("bad", &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND);
    ck_assert_int_eq(get("html", &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_int_eq(get("missing", &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_NOT_FOUND);
    ck_assert_int_eq(get("..", &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_REQUEST);
    ck_assert_int_eq(peer_count(&peer, "GET "), 4);
    end();
}
END_TEST

/* One 401 leads to one look at the file and one more try. */
START_TEST(test_b43_rotated)
{
    struct err err;

    begin();
    peer_script(&peer,
                "[{'path':'/api','auth':'Bearer T2','body':{}},{'path':'/api','status':401}]");
    free(write_file(&peer.dir, "token", "T2\n", 0600));
    ck_assert_int_eq(get("a", &err), 0);
    ck_assert_int_le(peer_count(&peer, "GET "), 2);
    end();
}
END_TEST

START_TEST(test_b43_permanent_401)
{
    struct err err;

    begin();
    free(write_file(&peer.dir, "token", "a-long-secret-token", 0600));
    peer_script(&peer, "[{'path':'/api','status':401,'body':"
                       "{'message':'who is a-long-secret-token?','reason':'Unauthorized'}}]");
    ck_assert_int_eq(get("a", &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAUTHORIZED);
    ck_assert_ptr_null(strstr(err.msg, "secret"));
    ck_assert_ptr_nonnull(strstr(err.msg, "***"));
    ck_assert_int_eq(peer_count(&peer, "GET "), 2);
    end();
}
END_TEST

/* Not before the time that the server asks for, and once. */
START_TEST(test_b42_throttled)
{
    int64_t before_ms;
    struct err err;

    begin();
    peer_script(&peer, "[{'path':'/api','times':1,'status':429,'headers':{'Retry-After':'1'}},"
                       "{'path':'/api','body':{}}]");
    before_ms = clock_now_ms();
    ck_assert_int_eq(get("a", &err), 0);
    ck_assert_int_ge(clock_now_ms() - before_ms, 1000);
    peer_script(&peer, "[{'path':'/api','status':429,'headers':{'Retry-After':'0'}}]");
    ck_assert_int_eq(get("a", &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_THROTTLED);
    ck_assert_int_eq(peer_count(&peer, "GET "), 2);
    end();
}
END_TEST

/* Longer than we hold a client: it is told, and nobody else asks meanwhile. */
START_TEST(test_b42_throttled_long)
{
    struct err err;

    begin();
    peer_script(&peer, "[{'path':'/api','status':429,'headers':{'Retry-After':'60'}}]");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(get("a", &err), -1);
        ck_assert_int_eq(err.code, ERR_BACKEND_THROTTLED);
    }
    ck_assert_int_eq(peer_count(&peer, "GET "), 1);
    end();
}
END_TEST

START_TEST(test_stopping)
{
    struct err err;

    begin();
    peer_script(&peer, "[{'path':'/api','status':429,'headers':{'Retry-After':'9'}}]");
    api_stop(space.api);
    ck_assert_int_eq(get("a", &err), -1);
    ck_assert_int_eq(err.code, ERR_STOPPING);
    end();
}
END_TEST

/* B17: a create whose connection breaks is not sent again by itself. */
START_TEST(test_b17_post_once)
{
    cleanup_json struct json *body = json_of("{'metadata':{'name':'a'}}");
    struct err err;

    begin();
    peer_script(&peer, "[{'path':'/api','method':'GET','body':{}},{'path':'/api','drop':true}]");
    ck_assert_int_eq(get("a", &err), 0);
    ck_assert_int_eq(object_create(&space, KIND_POD, body, false, NULL, &err), -1);
    ck_assert_int_eq(err.code, ERR_BACKEND_UNAVAILABLE);
    ck_assert_int_eq(peer_count(&peer, "POST "), 1);
    end();
}
END_TEST

/* --- lists --------------------------------------------------------------------------------------
 */

struct collected {
    int begun, count;
};

static void on_begin(void *arg)
{
    struct collected *collected = arg;

    collected->begun++;
    collected->count = 0;
}

static void on_add(void *arg, const struct json *object)
{
    struct collected *collected = arg;

    ck_assert_ptr_nonnull(json_get_text(json_get(object, "metadata"), "name"));
    collected->count++;
}

#define ITEM "{'metadata':{'name':'x'}}"

START_TEST(test_pages)
{
    struct collected collected = {.begun = 0};
    struct object_sink sink = {on_begin, on_add, &collected};
    cleanup_free char *version = NULL;
    struct err err;

    begin();
    /* The second page expires once: the list starts again. */
    peer_script(
        &peer, "[{'path':'/api/v1/namespaces/ns/pods?limit=100&labelSelector=a%3Db&continue=c%2F1',"
               "'times':1,'status':410,'body':{'code':410,'message':'too old'}},"
               "{'path':'/api/v1/namespaces/ns/pods?limit=100&labelSelector=a%3Db&continue=c%2F1',"
               "'body':{'metadata':{'resourceVersion':'8'},'items':[" ITEM "]}},"
               "{'path':'/api/v1/namespaces/ns/pods?limit=100&labelSelector=a%3Db',"
               "'body':{'metadata':{'continue':'c/1','resourceVersion':'7'},'items':[" ITEM "," ITEM
               "]}}]");
    ck_assert_msg(
        object_list(&space, KIND_POD, (struct selector){"a=b", NULL}, &sink, &version, &err) == 0,
        "%s", err.msg);
    ck_assert_int_eq(collected.begun, 2);
    ck_assert_int_eq(collected.count, 3);
    ck_assert_str_eq(version, "8");
    end();
}
END_TEST

START_TEST(test_list_errors)
{
    static const struct {
        const char *rule;
        enum err_code code;
        int requests;
    } rows[] = {
        {"[{'path':'/api','body':{'metadata':{'resourceVersion':'1'}}}]", ERR_BACKEND, 1},
        {"[{'path':'/api','body':{'items':[]}}]", ERR_BACKEND, 1},
        {"[{'path':'/api','status':410,'body':{}}]", ERR_BACKEND_EXPIRED, 3},
        {"[{'path':'/api','status':403,'body':{'message':'no'}}]", ERR_BACKEND_FORBIDDEN, 1},
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct collected collected = {.begun = 0};
        struct object_sink sink = {on_begin, on_add, &collected};
        char *version = NULL;
        struct err err = {.code = ERR_NONE};

        peer_script(&peer, rows[i].rule);
        ck_assert_int_eq(
            object_list(&space, KIND_POD, (struct selector){NULL, NULL}, &sink, &version, &err),
            -1);
        ck_assert_int_eq(err.code, rows[i].code);
        ck_assert_ptr_null(version);
        ck_assert_int_eq(peer_count(&peer, "GET "), rows[i].requests);
    }
    end();
}
END_TEST

START_TEST(test_delete)
{
    static const struct {
        const char *rule;
        enum err_code code; /* ERR_NONE: done */
    } rows[] = {
        {"[{'path':'/api','method':'DELETE','body':{}}]", ERR_NONE},
        {"[]", ERR_NONE},
        {"[{'path':'/api','status':409,'body':{'reason':'Conflict','message':'uid'}}]", ERR_NONE},
        {"[{'path':'/api','status':500,'body':{'message':'x'}}]", ERR_BACKEND},
        {"[{'path':'/api','status':403,'body':{'message':'x'}}]", ERR_BACKEND_FORBIDDEN},
        {"[{'path':'/api','drop':true}]", ERR_BACKEND_UNAVAILABLE},
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err err = {.code = ERR_NONE};
        cleanup_free char *log = NULL;

        peer_script(&peer, rows[i].rule);
        ck_assert_int_eq(object_delete(&space, KIND_POD, "a", "uid-1", &err),
                         rows[i].code == ERR_NONE ? 0 : -1);
        ck_assert_int_eq(err.code, rows[i].code);
        log = peer_log(&peer);
        ck_assert_ptr_nonnull(strstr(log, "DELETE /api/v1/namespaces/ns/pods/a\t"));
        ck_assert_ptr_nonnull(strstr(log, "\"gracePeriodSeconds\":0"));
        ck_assert_ptr_nonnull(strstr(log, "\"preconditions\":{\"uid\":\"uid-1\"}"));
    }
    end();
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_plain,
                                test_b43_rotated,
                                test_b43_permanent_401,
                                test_b42_throttled,
                                test_b42_throttled_long,
                                test_stopping,
                                test_b17_post_once,
                                test_pages,
                                test_list_errors,
                                test_delete,
                                NULL};

    return run_tests("k8s_api", all);
}
