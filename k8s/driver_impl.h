#pragma once

#include <pthread.h>

#include "k8s/delivery.h"
#include "k8s/k8s.h"
#include "k8s/object.h"
#include "k8s/runtime.h"
#include "k8s/stream.h"
#include "k8s/tracker.h"
#include "k8s/watch.h"

/* Between driver.c and capabilities.c. */
struct k8s {
    const struct k8s_config *config;
    struct space space;
    struct tracker *tracker;
    struct runtimes *runtimes;
    struct delivery *delivery;
    struct streams *streams;
    struct watch *watch;
    pthread_t starter;
    bool has_starter;

    pthread_mutex_t lock;      /* the three below */
    struct json *capabilities; /* as last asked; may be NULL */
    bool asking;               /* a thread asks the cluster just now */
    int64_t capabilities_until_ms;
};

void k8s_capabilities(void *self, struct json *object);
