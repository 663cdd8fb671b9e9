#pragma once

#include <stdbool.h>

#include "base/json.h"
#include "driver/driver.h"
#include "k8s/k8s.h"

/* The manifest of a sandbox's pod. Everything that makes it hardened stands here. */
#define POD_CONTAINER "sandbox"
#define POD_INIT_CONTAINER "agent"
#define POD_HOME "/home/sandbox"
#define AGENT_DIR "/opt/podsandbox" /* where the agent appears in every sandbox */
#define AGENT_NAME "podsandbox-agent"
/* In the image beside the real one, readable: for gVisor, which does not run a file that its user
 * cannot read, and for the init container, which copies itself. */
#define AGENT_READABLE_NAME "podsandbox-agent.0755"
#define AGENT_VOLUME "podsandbox-agent"

#define ANNOTATION_OWNER "podsandbox.dev/owner"
#define ANNOTATION_UID "podsandbox.dev/uid"
#define ANNOTATION_CREATED "podsandbox.dev/created"
#define ANNOTATION_DIGEST "podsandbox.dev/digest"

enum agent_delivery { DELIVERY_IMAGE_VOLUME, DELIVERY_INIT };

/* What the spec does not say. Borrowed. */
struct pod_plan {
    const struct k8s_config *config;
    const char *namespace_;
    const char *runtime_class; /* NULL: none */
    enum agent_delivery delivery;
    bool readable_agent; /* the runtime wants AGENT_READABLE_NAME of an image volume */
};

/* "sandbox-<id>" into RET_NAME, at least 64 bytes. */
void pod_name(const char *id, char *ret_name);

int pod_build(const struct pod_plan *plan, const struct box_spec *spec, struct json **ret_pod,
              struct err *err) must_check;

/* A pod of NAME that runs the agent's `--version` out of an image volume, to learn whether the
 * cluster can do that. */
struct json *pod_build_probe(const struct pod_plan *plan, const char *name);

/* Checks what the operator wrote. */
int pod_check_config(const struct k8s_config *config, struct err *err) must_check;
