#pragma once

#include "k8s/object.h"
#include "k8s/pod.h"

/* How the agent gets into a pod: out of an image volume where the cluster can do that, else by an
 * init container (a second slower). `auto` finds out by trying, never by version: an API server
 * without the feature drops the volume silently, and a runtime without it fails the mount. One
 * answer for each runtime class, kept in memory. Thread-safe. */
struct delivery;

struct delivery *delivery_new(const struct space *space, const struct k8s_config *config);
void delivery_free(struct delivery *delivery); /* after api_stop(), no call running */

/* The first call for a class makes a probe pod and waits for it (some seconds); others meanwhile
 * wait a little and then take the init container. Never fails: what cannot be found out is `init`.
 */
enum agent_delivery delivery_choose(struct delivery *delivery, const char *runtime_class,
                                    bool readable_agent);

/* A pod with an image volume did not start: `auto` uses the init container from now on. */
void delivery_failed(struct delivery *delivery, const char *runtime_class);

/* "image-volume", "init", or "undecided" for the class, and why, or "". */
const char *delivery_describe(struct delivery *delivery, const char *runtime_class, char *ret_why,
                              size_t size);

/* What a probe pod says by now: 1 image volumes work, 0 they do not, -1 not known yet, -2 this
 * probe will not tell. RET_WHY gets the cluster's words for 0 and -2. */
int delivery_judge(const struct json *pod, char *ret_why, size_t size);

/* Deletes probe pods that a crash has left. */
void delivery_sweep(struct delivery *delivery);
