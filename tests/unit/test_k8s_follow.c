/* The watch: resuming, starting again, outages (B43), and events. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/k8s_boxes.h"

#define NO_EVENTS "{'path':'/api/v1/namespaces/ns/events','status':403,'body':{'message':'no'}}"
#define LIST(items)                                                                                \
    "{'path':'" PODS "?limit','body':{'metadata':{'resourceVersion':'1'},'items':[" items "]}}"

START_TEST(test_watch)
{
    boxes_begin();
    peer_script(
        &peer,
        "[" NO_EVENTS "," LIST(
            POD("p1", "life-1",
                "{'phase':'Pending'}")) ","
                                        "{'path':'" PODS "?watch','times':1,'then':'end','lines':["
                                        "{'type':'BOOKMARK','object':{'metadata':{"
                                        "'resourceVersion':'3'}}},"
                                        "{'type':'MODIFIED','object':" POD(
                                            "p1", "life-1",
                                            "{'phase':'Failed','reason':'Evicted'"
                                            "}") "}]},"
                                                 "{'path':'" PODS "?watch','times':1,'then':'hang',"
                                                 "'lines':["
                                                 "{'type':'DELETED','object':" POD(
                                                     "p1", "life-1", "{'phase':'Running'}") "}]}"
                                                                                            "]");
    boxes_start();
    boxes_await(&seen.listed, 1);
    ck_assert_uint_eq(seen.count, 1);
    boxes_await(&seen.changes, 1);
    boxes_await(&seen.changes, 2);
    ck_assert_int_eq(seen.last.state, BOX_GONE);
    ck_assert_str_eq(seen.last.box_uid, "p1");
    ck_assert_int_eq(seen.recoveries, 1);
    ck_assert_int_eq(seen.outages, 0);
    {
        cleanup_free char *log = peer_log(&peer);

        /* The second watch goes on from the last version seen, without a new list. */
        ck_assert_ptr_nonnull(strstr(log, "resourceVersion=1&"));
        ck_assert_ptr_nonnull(strstr(log, "resourceVersion=5&"));
        ck_assert_ptr_nonnull(strstr(log, "allowWatchBookmarks=true"));
        ck_assert_int_eq(peer_count(&peer, "GET " PODS "?limit"), 2); /* one of them of probes */
        /* A server that answers with more than it was asked for makes us delete nothing. */
        ck_assert_int_eq(peer_count(&peer, "DELETE "), 0);
    }
    boxes_end();
}
END_TEST

/* Both ways in which a server says that it has forgotten the version. */
START_TEST(test_watch_expired)
{
    boxes_begin();
    peer_script(
        &peer,
        "[" NO_EVENTS
        "," LIST("") ","
                     "{'path':'" PODS "?watch','times':1,'then':'end','lines':["
                     "{'type':'ERROR','object':{'kind':'Status','code':410,'message':'too old'}}]},"
                     "{'path':'" PODS
                     "?watch','times':1,'status':410,'body':{'code':410,'message':'too old'}},"
                     "{'path':'" PODS "?watch','then':'hang','lines':[]}]");
    boxes_start();
    boxes_await(&seen.listed, 3);
    ck_assert_int_eq(seen.outages, 0);
    boxes_end();
}
END_TEST

/* An outage is told once, its end too, and a new list follows. */
START_TEST(test_watch_outage)
{
    boxes_begin();
    peer_script(&peer, "[" NO_EVENTS
                       "," LIST("") ",{'path':'" PODS "?watch','times':1,'then':'cut','lines':[]},"
                                    "{'path':'" PODS "?watch','times':1,'drop':true},"
                                    "{'path':'" PODS "?watch','then':'hang','lines':[]}]");
    boxes_start();
    boxes_await(&seen.outages, 1);
    ck_assert_int_eq(seen.why.code, ERR_BACKEND_UNAVAILABLE);
    boxes_await(&seen.recoveries, 2);
    boxes_await(&seen.listed, 2);
    ck_assert_int_eq(seen.outages, 1);
    boxes_end();
}
END_TEST

/* B43: a server that lets nobody in is told as such, and not asked in a loop. */
START_TEST(test_b43_no_hot_loop)
{
    boxes_begin();
    peer_script(&peer,
                "[" NO_EVENTS ",{'path':'" PODS "','status':401,'body':{'message':'who?'}}]");
    boxes_start();
    boxes_await(&seen.outages, 1);
    ck_assert_int_eq(seen.why.code, ERR_BACKEND_UNAUTHORIZED);
    ck_assert_int_eq(seen.listed, 0);
    ck_assert_int_le(peer_count(&peer, "GET " PODS), 8);
    boxes_end();
}
END_TEST

/* An event that says why a pod does not start reaches the observer. */
START_TEST(test_event)
{
    boxes_begin();
    peer_script(
        &peer,
        "[{'path':'/api/v1/namespaces/ns/events?limit','body':" EMPTY "},"
        "{'path':'/api/v1/namespaces/ns/events?watch','times':1,'then':'hang','lines':["
        "{'type':'ADDED','object':{'involvedObject':{'name':'sandbox-a','uid':'p1'},"
        "'reason':'FailedCreatePodSandBox','message':'no runtime for x is configured'}}]}," LIST(
            POD("p1", "life-1", "{'phase':'Pending'}")) ","
                                                        "{'path':'" PODS
                                                        "?watch','then':'hang','lines':[]}]");
    boxes_start();
    boxes_await(&seen.changes, 1);
    ck_assert_int_eq(seen.last.state, BOX_FAILED);
    ck_assert_int_eq(seen.last.reason, ERR_RUNTIME_HANDLER_MISSING);
    boxes_end();
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_watch,           test_watch_expired, test_watch_outage,
                                test_b43_no_hot_loop, test_event,         NULL};

    return run_tests("k8s_follow", all);
}
