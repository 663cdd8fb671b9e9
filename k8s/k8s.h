#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "driver/driver.h"

struct loop;

/* What the operator sets. Plain values; the driver keeps the pointers, so all must outlive it.
 * NULL or empty: not set. */
struct k8s_config {
    /* Where the cluster is: an explicit kubeconfig (a path, or a list separated by ':') or context
     * wins; then the ServiceAccount of the pod we run in, KUBECONFIG, ~/.kube/config. */
    const char *kubeconfig;
    const char *context;
    const char *namespace_; /* default "sandboxes" */
    const char *instance;   /* names what is ours: a label value; required */

    /* Every pod. */
    const char *agent_image;    /* our own image, which carries the agent; required */
    const char *agent_delivery; /* "auto" (default), "image-volume", "init" */
    const char *runtime_class;
    struct text_map node_selector;
    const char *tolerations; /* a JSON array of Kubernetes tolerations */
    const char *priority_class;
    struct text_list image_pull_secrets; /* names of Secrets in the namespace */

    /* Previews. */
    const char *ingress_class; /* default "nginx"; "" leaves the class to the cluster */
    const char *tls_secret;    /* a Secret in the namespace, e.g. a wildcard certificate */
    struct text_map ingress_annotations; /* for the controller; the same on every Ingress */
    /* Who may reach a preview's port: NAMESPACE:KEY=VALUE,… (labels of the controller's pods), or a
     * JSON array of NetworkPolicy peers. Not set: no NetworkPolicy is made. */
    const char *ingress_from;

    bool network_check; /* look whether the namespace denies by default, and warn if not */
};

/* The settings alone: makes and reads nothing. */
int k8s_check_config(const struct k8s_config *config, struct err *err) must_check;
/* Reads the credentials and checks the settings; does not talk to the cluster. LOOP runs the
 * streams and must outlive the driver. */
int k8s_driver_new(const struct k8s_config *config, struct loop *loop, struct driver *ret_driver,
                   struct err *err) must_check;
