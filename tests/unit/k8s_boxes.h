#pragma once

#include <pthread.h>

#include "base/event.h"
#include "k8s/k8s.h"
#include "net/loop.h"
#include "tests/unit/k8s_peer.h"

/* The driver against the scripted API server, and an observer that counts. In namespace "ns", with
 * instance "inst"; the agent is delivered by `init`, so that no probe is made. */
#define PODS "/api/v1/namespaces/ns/pods"
#define SERVICES "/api/v1/namespaces/ns/services"
#define NETWORKING "/apis/networking.k8s.io/v1/namespaces/ns/"
#define EMPTY "{'metadata':{'resourceVersion':'1'},'items':[]}"
#define LABELS                                                                                     \
    "'labels':{'podsandbox.dev/sandbox-id':'a','app.kubernetes.io/managed-by':'podsandbox',"       \
    "'podsandbox.dev/instance':'inst'}"
#define POD(uid, life, status)                                                                     \
    "{'metadata':{'name':'sandbox-a','uid':'" uid "','resourceVersion':'5'," LABELS ","            \
    "'annotations':{'podsandbox.dev/uid':'" life "'}},"                                            \
    "'spec':{'nodeName':'n1','containers':[{'name':'sandbox','image':'i','command':['/"            \
    "x','serve']}]},"                                                                              \
    "'status':" status "}"
#define NO_SIDES                                                                                   \
    "{'path':'" SERVICES "?','body':" EMPTY "},{'path':'" NETWORKING "','body':" EMPTY "}"

extern struct k8s_peer peer;
extern struct k8s_config config; /* may be changed between calls */
extern struct driver driver;

/* What the observer has heard; under its lock. */
struct seen {
    pthread_mutex_t lock;
    struct event changed;
    int listed, changes, outages, recoveries;
    size_t count; /* of the last list */
    struct box_info last;
    struct err why;
};
extern struct seen seen;

void boxes_begin(void);
void boxes_start(void); /* the watch */
void boxes_end(void);
/* Waits until *COUNT, of `seen`, is at least WANTED. */
void boxes_await(const int *count, int wanted);
