#pragma once

#include <stdbool.h>

#include "base/json.h"
#include "docker/docker.h"
#include "driver/driver.h"

/* The container of a sandbox. Everything that makes it hardened stands here. */
#define CONTAINER_HOME "/home/sandbox"

#define LABEL_MANAGED_BY "app.kubernetes.io/managed-by"
#define MANAGED_BY "podsandbox"
#define LABEL_ID "podsandbox.dev/sandbox-id"
#define LABEL_INSTANCE "podsandbox.dev/instance"
#define LABEL_UID "podsandbox.dev/uid"
#define LABEL_OWNER "podsandbox.dev/owner"
#define LABEL_CREATED "podsandbox.dev/created"
#define LABEL_DIGEST "podsandbox.dev/digest"
#define LABEL_IMAGE "podsandbox.dev/image"
#define LABEL_WORKDIR "podsandbox.dev/workdir"
#define LABEL_CPU "podsandbox.dev/cpu"
#define LABEL_MEMORY "podsandbox.dev/memory"
#define LABEL_PIDS "podsandbox.dev/pids"
#define LABEL_STORAGE "podsandbox.dev/storage"
#define LABEL_RUNTIME "podsandbox.dev/runtime"

/* What the spec does not say. Borrowed. */
struct container_plan {
    const char *instance;
    const char *runtime; /* NULL: the engine's default */
    const char *network; /* the engine's name of it */
    int64_t pids;
    bool podman;
};

/* "sandbox-<id>" into RET_NAME, at least 64 bytes. */
void container_name(const char *id, char *ret_name);

/* The body of a create. */
int container_build(const struct container_plan *plan, const struct box_spec *spec,
                    struct json **ret_container, struct err *err) must_check;

/* What a container's labels say of it: of one in a list, in an inspection, or in an event.
 * CONTAINER_ID in full. The state is left to the caller. */
void container_describe(const struct json *labels, const char *container_id, const char *instance,
                        struct box_info *ret_info);

/* The state of an inspection's "State", with the reason of an end. BOX_GONE: just being removed. */
void container_judge(const struct json *state, struct box_info *info);
