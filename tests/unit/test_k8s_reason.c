/* B38, B39, B40: what pods and events of real clusters mean. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/reason.h"
#include "k8s/tracker.h"
#include "tests/unit/k8s_support.h"

#define POD(node, status)                                                                          \
    "{'metadata':{'name':'sandbox-a','uid':'pod-1','labels':{'podsandbox.dev/sandbox-id':'a'},"    \
    "'creationTimestamp':'2024-01-01T00:00:00Z','annotations':{'podsandbox.dev/uid':'u1'}},"       \
    "'spec':{'nodeName':'" node "','containers':[{'name':'istio','image':'other'},"                \
    "{'name':'sandbox','image':'img:1','workingDir':'/w','command':['/opt/a','serve'],"            \
    "'resources':{'limits':{'cpu':'2','memory':'1Gi'}}}]},'status':" status "}"
#define OURS(state)                                                                                \
    "'containerStatuses':[{'name':'istio','state':{'running':{}}},{'name':'sandbox'," state "}]"
#define WAITING(reason, message)                                                                   \
    "{'phase':'Pending'," OURS("'state':{'waiting':{'reason':'" reason "','message':'" message     \
                               "'}}") "}"
#define RUNNING(id)                                                                                \
    "{'phase':'Running'," OURS("'containerID':'" id "','restartCount':0,'state':{'running':{}}") "}"

static struct box_info look(struct pod_history *history, const char *text, int64_t now_ms)
{
    cleanup_json struct json *pod = json_of(text);
    struct box_info info;

    reason_of_pod(pod, history, now_ms, &info);
    return info;
}

static struct box_info look_once(const char *text)
{
    struct pod_history history = {.status = NULL};
    struct box_info info = look(&history, text, 1000);

    pod_history_done(&history);
    return info;
}

START_TEST(test_identity)
{
    struct box_info info = look_once(
        "{'metadata':{'name':'sandbox-a','uid':'pod-1','labels':{'podsandbox.dev/sandbox-id':'a'},"
        "'annotations':{'podsandbox.dev/uid':'u1','podsandbox.dev/owner':'o','podsandbox.dev/"
        "digest':'d',"
        "'podsandbox.dev/created':'2023-11-14T22:13:20.123Z'}},"
        "'spec':{'nodeName':'n1','runtimeClassName':'gvisor','containers':[{'name':'sandbox',"
        "'image':'img:1','workingDir':'/w','resources':{'limits':{'cpu':'2','memory':'1Gi'}}}]},"
        "'status':{'phase':'Running'," OURS(
            "'containerID':'containerd://c','state':{'running':{}}") "}}");

    ck_assert_str_eq(info.id, "a");
    ck_assert_str_eq(info.uid, "u1");
    ck_assert_str_eq(info.owner, "o");
    ck_assert_str_eq(info.digest, "d");
    ck_assert_str_eq(info.box_uid, "pod-1");
    ck_assert_str_eq(info.name, "sandbox-a");
    ck_assert_str_eq(info.node, "n1");
    ck_assert_str_eq(info.container_id, "containerd://c");
    ck_assert_str_eq(info.image, "img:1");
    ck_assert_str_eq(info.cpu_limit, "2");
    ck_assert_str_eq(info.memory_limit, "1Gi");
    ck_assert_str_eq(info.runtime_class, "gvisor");
    ck_assert_str_eq(info.workdir, "/w");
    ck_assert_int_eq(info.created_ms, 1700000000123);
    ck_assert_int_eq(info.state, BOX_ATTACHABLE);
    ck_assert_int_eq(info.reason, ERR_NONE);
}
END_TEST

/* A pod of the Python package: no annotations. */
START_TEST(test_bare_pod)
{
    struct box_info info =
        look_once("{'metadata':{'name':'x','creationTimestamp':'2024-01-01T00:00:00Z'},"
                  "'spec':{'containers':[]}}");

    ck_assert_str_eq(info.uid, "");
    ck_assert_int_eq(info.created_ms, 1704067200000);
    ck_assert_int_eq(info.state, BOX_STARTING);
    info = look_once("{}");
    ck_assert_int_eq(info.created_ms, 0);
}
END_TEST

static const struct row {
    const char *pod;
    enum box_state state;
    enum err_code reason;
    bool waiting, well;
    const char *words;
} rows[] = {
    {POD("", "{'phase':'Pending'}"), BOX_STARTING, ERR_NONE, false, false, ""},
    {POD("n1", "{'phase':'Pending'}"), BOX_ATTACHABLE, ERR_NONE, false, false, ""},
    {POD("", "{'phase':'Pending','conditions':[{'type':'PodScheduled','status':'False',"
             "'reason':'Unschedulable','message':'0/1 nodes are available'}]}"),
     BOX_STARTING, ERR_UNSCHEDULABLE, true, false, "0/1 nodes"},
    {POD("n1", WAITING("ContainerCreating", "")), BOX_ATTACHABLE, ERR_NONE, false, false, ""},
    {POD("n1", WAITING("ErrImagePull", "no such host")), BOX_ATTACHABLE, ERR_IMAGE_PULL_FAILED,
     true, false, "no such host"},
    {POD("n1", WAITING("ErrImageNeverPull", "not present")), BOX_FAILED, ERR_IMAGE_PULL_FAILED,
     false, false, "not present"},
    {POD("n1", WAITING("InvalidImageName", "bad name")), BOX_FAILED, ERR_INVALID_IMAGE, false,
     false, "bad name"},
    {POD("n1", WAITING("CreateContainerConfigError", "image will run as root")), BOX_FAILED,
     ERR_CONTAINER_CONFIG, false, false, "as root"},
    {POD("n1", WAITING("CreateContainerError", "failed to mount")), BOX_FAILED, ERR_CONTAINER_START,
     false, false, "failed to mount"},
    {POD("n1", WAITING("CreateContainerError", "name x is reserved for y")), BOX_ATTACHABLE,
     ERR_CONTAINER_START, true, false, "reserved"},
    {POD("n1", WAITING("RunContainerError", "exec failed")), BOX_FAILED, ERR_CONTAINER_START, false,
     false, "exec failed"},
    {POD("n1", WAITING("CrashLoopBackOff", "back-off")), BOX_FAILED, ERR_CONTAINER_EXITED, false,
     false, "back-off"},
    {POD("n1", "{'phase':'Pending','initContainerStatuses':[{'name':'agent','state':{'waiting':{"
               "'reason':'ErrImageNeverPull','message':'agent image'}}}]," OURS(
                   "'state':{'waiting':{'reason':'PodInitializing'}}") "}"),
     BOX_FAILED, ERR_IMAGE_PULL_FAILED, false, false, "agent image"},
    {POD("n1", "{'phase':'Failed','initContainerStatuses':[{'name':'agent','state':{'terminated':{"
               "'exitCode':1,'reason':'Error'}}}]}"),
     BOX_FAILED, ERR_AGENT_FAILED, false, false, "init container 'agent' ended with exit code 1"},
    {POD("n1", "{'phase':'Failed','reason':'Evicted','message':'Usage of EmptyDir volume "
               "\\\"tmp\\\" exceeds the limit'," OURS("'state':{'running':{}}") "}"),
     BOX_FAILED, ERR_EVICTED, false, false, "Usage of EmptyDir"},
    {POD("n1",
         "{'phase':'Failed','reason':'DeadlineExceeded','message':'Pod was active too long'}"),
     BOX_FAILED, ERR_MAX_LIFETIME, false, false, "too long"},
    {POD("n1", "{'phase':'Failed','reason':'NodeLost'}"), BOX_FAILED, ERR_NODE_LOST, false, false,
     "NodeLost"},
    {POD("n1", "{'phase':'Failed','reason':'OutOfcpu','message':'Node did not have enough'}"),
     BOX_FAILED, ERR_UNSCHEDULABLE, false, false, "enough"},
    {POD("n1", "{'phase':'Failed'," OURS(
                   "'state':{'terminated':{'exitCode':137,'reason':'OOMKilled'}}") "}"),
     BOX_FAILED, ERR_OOM_KILLED, false, false, "137"},
    {POD("n1",
         "{'phase':'Failed'," OURS("'state':{'terminated':{'exitCode':128,'reason':'StartError',"
                                   "'message':'no such file'}}") "}"),
     BOX_FAILED, ERR_CONTAINER_START, false, false, "no such file"},
    {POD("n1",
         "{'phase':'Failed'," OURS("'state':{'terminated':{'exitCode':3,'reason':'Error'}}") "}"),
     BOX_FAILED, ERR_CONTAINER_EXITED, false, true, "deadline"},
    {POD("n1",
         "{'phase':'Failed'," OURS("'state':{'terminated':{'exitCode':1,'reason':'Error'}}") "}"),
     BOX_FAILED, ERR_CONTAINER_EXITED, false, false, "exit code 1"},
    {POD("n1", "{'phase':'Succeeded'," OURS(
                   "'state':{'terminated':{'exitCode':0,'reason':'Completed'}}") "}"),
     BOX_FAILED, ERR_CONTAINER_EXITED, false, true, "exit code 0"},
    /* told to end, by somebody who does not delete the pod: no good end */
    {POD("n1",
         "{'phase':'Failed'," OURS("'state':{'terminated':{'exitCode':143,'reason':'Error'}}") "}"),
     BOX_FAILED, ERR_CONTAINER_EXITED, false, false, "told to end"},
    {POD("n1",
         "{'phase':'Failed','reason':'Evicted','message':'The node was low on resource'," OURS(
             "'state':{'terminated':{'exitCode':143,'reason':'Error'}}") "}"),
     BOX_FAILED, ERR_EVICTED, false, false, "low on resource"},
    {POD("n1",
         "{'phase':'Running','reason':'Evicted','message':'The node was low on resource'," OURS(
             "'state':{'terminated':{'exitCode':143,'reason':'Error'}}") "}"),
     BOX_FAILED, ERR_EVICTED, false, false, "low on resource"},
    {POD("n1", "{'phase':'Failed'}"), BOX_FAILED, ERR_CONTAINER_EXITED, false, false, "ended"},
    /* the other containers of the pod run on */
    {POD("n1", "{'phase':'Running'," OURS(
                   "'state':{'terminated':{'exitCode':137,'reason':'OOMKilled'}}") "}"),
     BOX_FAILED, ERR_OOM_KILLED, false, false, "137"},
    {POD("n1", "{'phase':'Running'," OURS(
                   "'restartCount':1,'state':{'running':{}},"
                   "'lastState':{'terminated':{'exitCode':137,'reason':'OOMKilled'}}") "}"),
     BOX_FAILED, ERR_OOM_KILLED, false, false, "137"},
    {POD("n1", "{'phase':'Running'," OURS("'restartCount':1,'state':{'running':{}}") "}"),
     BOX_FAILED, ERR_CONTAINER_EXITED, false, false, "started again"},
    {POD("n1", "{'phase':'Failed','conditions':[{'type':'DisruptionTarget','status':'True',"
               "'reason':'DeletionByPodGC','message':'node is gone'}]}"),
     BOX_FAILED, ERR_NODE_LOST, false, false, "node is gone"},
};

START_TEST(test_b39_states)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct box_info info = look_once(rows[i].pod);

        ck_assert_msg(info.state == rows[i].state && info.reason == rows[i].reason &&
                          info.waiting == rows[i].waiting && info.ended_well == rows[i].well,
                      "row %zu: state %d, reason %s, waiting %d, well %d: %s", i, (int)info.state,
                      err_code_name(info.reason), info.waiting, info.ended_well, info.message);
        ck_assert_msg(strstr(info.message, rows[i].words) != NULL, "row %zu: %s", i, info.message);
    }
}
END_TEST

START_TEST(test_deleting)
{
    struct box_info info = look_once(
        "{'metadata':{'deletionTimestamp':'2024-01-01T00:00:00Z'},'spec':{'nodeName':'n'},"
        "'status':{'phase':'Running'}}");

    ck_assert_int_eq(info.state, BOX_FAILED);
    ck_assert_int_eq(info.reason, ERR_REMOVED_EXTERNALLY);
    info = look_once("{'metadata':{'deletionTimestamp':'2024-01-01T00:00:00Z'},'status':{"
                     "'phase':'Running','conditions':[{'type':'DisruptionTarget','status':'True',"
                     "'reason':'DeletionByTaintManager','message':'node not ready'}]}}");
    ck_assert_int_eq(info.reason, ERR_NODE_LOST);
    ck_assert_str_eq(info.message, "node not ready");
    info = look_once(
        "{'metadata':{'deletionTimestamp':'2024-01-01T00:00:00Z'},'status':{"
        "'phase':'Failed'," OURS("'state':{'terminated':{'exitCode':143,'reason':'Error'}}") "}}");
    ck_assert_int_eq(info.reason, ERR_CONTAINER_EXITED);
    ck_assert(info.ended_well);
    info = look_once("{'metadata':{'deletionTimestamp':'2024-01-01T00:00:00Z'},'status':{"
                     "'phase':'Failed','reason':'Evicted','message':'disk pressure'," OURS(
                         "'state':{'terminated':{'exitCode':143,'reason':'Error'}}") "}}");
    ck_assert_int_eq(info.reason, ERR_EVICTED);
    ck_assert_str_eq(info.message, "disk pressure");
    ck_assert(!info.ended_well);
}
END_TEST

/* B38: another container under the same name has lost what was in it. */
START_TEST(test_b38_container_replaced)
{
    struct pod_history history = {.status = NULL};

    ck_assert_int_eq(look(&history, POD("n1", RUNNING("c1")), 0).state, BOX_ATTACHABLE);
    ck_assert_int_eq(look(&history, POD("n1", RUNNING("c1")), 1).state, BOX_ATTACHABLE);
    ck_assert_int_eq(look(&history, POD("n1", RUNNING("c2")), 2).state, BOX_FAILED);
    pod_history_done(&history);
}
END_TEST

#define PULL(reason, message, version)                                                             \
    "{'metadata':{'resourceVersion':'" version "'},'spec':{'nodeName':'n1'},"                      \
    "'status':" WAITING(reason, message) "}"

/* B39: an error once is none; three back-offs or 20 s are, with the first message that says why. */
START_TEST(test_b39_pull)
{
    struct pod_history history = {.status = NULL};
    struct box_info info;

    info = look(&history, PULL("ErrImagePull", "no such host", "1"), 0);
    ck_assert(info.state == BOX_ATTACHABLE && info.waiting);
    ck_assert_int_eq(look(&history, POD("n1", RUNNING("c1")), 5000).state, BOX_ATTACHABLE);
    ck_assert_ptr_null(history.status);
    pod_history_done(&history);

    (void)look(&history, PULL("ErrImagePull", "no such host", "1"), 0);
    (void)look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "2"), 1000);
    (void)look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "2"), 1001);
    (void)look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "2"), 1002);
    (void)look(&history, PULL("ErrImagePull", "another message", "3"), 2000);
    info = look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "4"), 3000);
    ck_assert_int_eq(info.state, BOX_ATTACHABLE);
    ck_assert_str_eq(info.message, "no such host");
    info = look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "5"), 4000);
    ck_assert_int_eq(info.state, BOX_FAILED);
    ck_assert_int_eq(info.reason, ERR_IMAGE_PULL_FAILED);
    ck_assert_str_eq(info.message, "no such host");
    pod_history_done(&history);

    (void)look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "1"), 0);
    (void)look(&history, PULL("ErrImagePull", "the cause", "2"), 10);
    info = look(&history, PULL("ImagePullBackOff", "Back-off pulling image", "3"),
                TROUBLE_PATIENCE_MS - 1);
    ck_assert_int_eq(info.state, BOX_ATTACHABLE);
    ck_assert_int_eq(reason_apply(&history, TROUBLE_PATIENCE_MS - 1, &info), TROUBLE_PATIENCE_MS);
    ck_assert_int_eq(reason_apply(&history, TROUBLE_PATIENCE_MS, &info), 0);
    ck_assert_int_eq(info.state, BOX_FAILED);
    ck_assert_str_eq(info.message, "the cause");
    pod_history_done(&history);
}
END_TEST

/* --- events, through the tracker ----------------------------------------------------------------
 */

#define EVENT(reason, message, count)                                                              \
    "{'involvedObject':{'kind':'Pod','name':'sandbox-a','uid':'pod-1'},'type':'Warning',"          \
    "'reason':'" reason "','message':'" message "','count':" count "}"

#define FAILED(field, message)                                                                     \
    "{'involvedObject':{'name':'sandbox-a','uid':'pod-1','fieldPath':'spec." field                 \
    "'},'reason':'Failed','message':'" message "'}"

static bool note(struct tracker *tracker, const char *text, int64_t now_ms, struct box_info *info)
{
    cleanup_json struct json *event = json_of(text);

    return tracker_note_event(tracker, event, now_ms, info);
}

static struct box_info note_pod(struct tracker *tracker, const char *text, int64_t now_ms)
{
    cleanup_json struct json *pod = json_of(text);
    struct box_info info;

    tracker_note_pod(tracker, pod, now_ms, &info);
    return info;
}

START_TEST(test_events)
{
    static const struct {
        const char *event;
        enum err_code code; /* ERR_NONE: says nothing */
        bool at_once;
    } events[] = {
        {EVENT("FailedCreatePodSandBox",
               "Failed to create pod sandbox: no runtime for \\\"x\\\" is configured", "1"),
         ERR_RUNTIME_HANDLER_MISSING, true},
        {EVENT("FailedCreatePodSandBox", "plugin type=\\\"bridge\\\" failed (add): cni says no",
               "1"),
         ERR_NETWORK_SETUP, false},
        {EVENT("FailedCreatePodSandBox", "cni says no", "3"), ERR_NETWORK_SETUP, true},
        {EVENT("FailedCreatePodSandBox", "something else", "1"), ERR_CONTAINER_START, false},
        {EVENT("FailedMount", "MountVolume.SetUp failed", "1"), ERR_VOLUME_MOUNT, false},
        {EVENT("ErrImageNeverPull", "Container image x is not present with pull policy of Never",
               "1"),
         ERR_IMAGE_PULL_FAILED, true},
        {FAILED("containers{sandbox}", "Error: failed to create containerd container: x"),
         ERR_CONTAINER_START, true},
        {FAILED("containers{sandbox}",
                "Error: failed to reserve container name x: is reserved for y"),
         ERR_CONTAINER_START, false},
        {FAILED("containers{sandbox}",
                "Error: container has runAsNonRoot and image will run as root"),
         ERR_CONTAINER_CONFIG, true},
        {FAILED("containers{sandbox}", "Failed to pull image x: not found"), ERR_IMAGE_PULL_FAILED,
         false},
        {FAILED("initContainers{agent}", "Error: ErrImagePull"), ERR_NONE, false},
        {FAILED("containers{sandbox}", "Error: ImagePullBackOff"), ERR_NONE, false},
        {FAILED("containers{sandbox}", "Error: ErrImageNeverPull"), ERR_IMAGE_PULL_FAILED, true},
        {FAILED("containers{sandbox}", "Error: InvalidImageName"), ERR_INVALID_IMAGE, true},
        {EVENT("InspectFailed", "Failed to apply default image tag: invalid reference format", "1"),
         ERR_INVALID_IMAGE, true},
        {EVENT("InspectFailed", "Failed to inspect image: timeout", "1"), ERR_NONE, false},
        {FAILED("initContainers{agent}", "Error: no such file"), ERR_CONTAINER_START, true},
        {FAILED("containers{istio}", "Error: no such file"), ERR_NONE, false},
        {EVENT("FailedScheduling", "0/1 nodes", "1"), ERR_NONE, false},
        {EVENT("BackOff", "Back-off", "9"), ERR_NONE, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        struct tracker *tracker = tracker_new();
        struct box_info info = {.state = BOX_STARTING};
        int64_t next_ms;

        (void)note_pod(tracker, POD("n1", "{'phase':'Pending'}"), 0);
        ck_assert_int_eq(note(tracker, events[i].event, 1000, &info), events[i].code != ERR_NONE);
        if (events[i].code != ERR_NONE) {
            ck_assert_msg(info.reason == events[i].code, "row %zu: %s", i,
                          err_code_name(info.reason));
            ck_assert_int_eq(info.state, events[i].at_once ? BOX_FAILED : BOX_ATTACHABLE);
            ck_assert_str_eq(info.id, "a");
        }
        if (info.waiting) {
            ck_assert(!tracker_next_due(tracker, 20999, &info, &next_ms));
            ck_assert_int_eq(next_ms, 21000);
            ck_assert(tracker_next_due(tracker, 21000, &info, &next_ms));
            ck_assert_int_eq(info.state, BOX_FAILED);
        }
        ck_assert(!tracker_next_due(tracker, 100000, &info, &next_ms));
        ck_assert_int_eq(next_ms, 0);
        tracker_free(tracker);
    }
}
END_TEST

/* Events of a running pod, of another pod, of an earlier life: nothing. */
START_TEST(test_events_elsewhere)
{
    struct tracker *tracker = tracker_new();
    struct box_info info;
    struct tracked known;

    ck_assert(!note(tracker, EVENT("FailedMount", "x", "1"), 0, &info));
    (void)note_pod(tracker, POD("n1", RUNNING("c1")), 0);
    ck_assert(!note(tracker, EVENT("FailedMount", "x", "1"), 0, &info));
    ck_assert(tracker_find(tracker, "a", &known));
    ck_assert(known.has_run);
    ck_assert_str_eq(known.agent, "/opt/a");
    ck_assert_str_eq(known.box_uid, "pod-1");
    tracker_forget(tracker, "a", "pod-2");
    ck_assert(tracker_find(tracker, "a", &known));
    tracker_forget(tracker, "a", "pod-1");
    ck_assert(!tracker_find(tracker, "a", &known));
    (void)note_pod(tracker,
                   "{'metadata':{'uid':'pod-9','labels':{'podsandbox.dev/sandbox-id':'a'}}}", 0);
    ck_assert(!note(tracker, EVENT("FailedMount", "x", "1"), 0, &info));
    tracker_free(tracker);
}
END_TEST

/* Events come by another watch than the pods, which may be quicker: what they say is not lost. */
START_TEST(test_an_event_before_its_pod)
{
    struct tracker *tracker = tracker_new();
    struct box_info info;
    int64_t next_ms;

    ck_assert(!note(tracker, EVENT("FailedCreatePodSandBox", "no runtime for x", "1"), 0, &info));
    info = note_pod(tracker, POD("n1", "{'phase':'Pending'}"), 10);
    ck_assert_int_eq(info.state, BOX_FAILED);
    ck_assert_int_eq(info.reason, ERR_RUNTIME_HANDLER_MISSING);
    ck_assert_str_eq(info.message, "no runtime for x");
    tracker_free(tracker);

    /* One that may pass counts from when it came; the earlier life of the id does not matter. */
    tracker = tracker_new();
    (void)note_pod(tracker,
                   "{'metadata':{'uid':'pod-0','labels':{'podsandbox.dev/sandbox-id':'a'}}}", 0);
    for (int count = 1; count <= 3; count++)
        ck_assert(!note(tracker, EVENT("FailedMount", "x", "1"), 0, &info));
    info = note_pod(tracker, POD("n1", "{'phase':'Pending'}"), 10);
    ck_assert_int_eq(info.state, BOX_ATTACHABLE);
    ck_assert_int_eq(info.reason, ERR_VOLUME_MOUNT);
    ck_assert(!tracker_next_due(tracker, 19999, &info, &next_ms));
    ck_assert_int_eq(next_ms, 20000);
    ck_assert(note(tracker, EVENT("FailedMount", "x", "3"), 20, &info));
    ck_assert_int_eq(info.state, BOX_FAILED);
    tracker_free(tracker);
}
END_TEST

/* However many events there are of pods that are not ours. */
START_TEST(test_early_events_are_bounded)
{
    struct tracker *tracker = tracker_new();
    struct box_info info;

    ck_assert(!note(tracker, EVENT("FailedMount", "x", "9"), 0, &info));
    for (int i = 0; i < 2000; i++) {
        cleanup_free char *text =
            xasprintf("{'involvedObject':{'name':'sandbox-b%d','uid':'u%d'},'reason':'%s',"
                      "'message':'x','count':9}",
                      i, i, i % 2 ? "FailedMount" : "Unhealthy");

        ck_assert(!note(tracker, text, 0, &info));
    }
    info = note_pod(tracker, POD("n1", "{'phase':'Pending'}"), 10); /* pushed out */
    ck_assert_int_eq(info.state, BOX_ATTACHABLE);
    info = note_pod(
        tracker, "{'metadata':{'uid':'u1999','labels':{'podsandbox.dev/sandbox-id':'b1999'}}}", 10);
    ck_assert_int_eq(info.state, BOX_FAILED);
    tracker_free(tracker);
}
END_TEST

/* A new list forgets what is not in it, but not what was made meanwhile. */
START_TEST(test_mark_and_sweep)
{
    struct tracker *tracker = tracker_new();
    struct tracked known;
    char text[200];

    for (int i = 0; i < 3000; i++) {
        (void)snprintf(text, sizeof(text),
                       "{'metadata':{'uid':'p%d','labels':{'podsandbox.dev/sandbox-id':'s%d'}}}", i,
                       i);
        if (i == 2000)
            tracker_mark(tracker);
        (void)note_pod(tracker, text, 0);
    }
    (void)note_pod(tracker, "{'metadata':{'uid':'p7','labels':{'podsandbox.dev/sandbox-id':'s7'}}}",
                   0);
    tracker_sweep(tracker);
    ck_assert(!tracker_find(tracker, "s6", &known));
    ck_assert(tracker_find(tracker, "s7", &known));
    ck_assert(!tracker_find(tracker, "s1999", &known));
    ck_assert(tracker_find(tracker, "s2000", &known));
    ck_assert(tracker_find(tracker, "s2999", &known));
    tracker_free(tracker);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {test_identity,
                                test_bare_pod,
                                test_b39_states,
                                test_deleting,
                                test_b38_container_replaced,
                                test_b39_pull,
                                test_events,
                                test_events_elsewhere,
                                test_an_event_before_its_pod,
                                test_early_events_are_bounded,
                                test_mark_and_sweep,
                                NULL};

    return run_tests("k8s_reason", all);
}
