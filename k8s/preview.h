#pragma once

#include "driver/driver.h"
#include "k8s/k8s.h"
#include "k8s/object.h"

/* What makes a port of a sandbox reachable: a Service, an Ingress and, where the operator says who
 * may come in, a NetworkPolicy. All owned by the pod, so that they go when it goes whatever
 * happens. */

/* "preview-<id>", or "preview<port>-<id>" for a further port. RET_NAME has at least 64 bytes. */
void preview_name(const char *id, int64_t port, bool first, char *ret_name);

/* Nothing is left behind on failure. What is there already and is as wanted stays. */
int preview_publish(const struct space *space, const struct k8s_config *config,
                    const struct preview_spec *spec, struct preview_names *ret_names,
                    struct err *err) must_check;

/* The manifests; borrowed parts only. */
struct json *preview_service(const struct space *space, const struct preview_spec *spec);
struct json *preview_ingress(const struct space *space, const struct k8s_config *config,
                             const struct preview_spec *spec);
/* NULL when `ingress_from` is not set. */
struct json *preview_policy(const struct space *space, const struct k8s_config *config,
                            const struct preview_spec *spec);

/* Refuses hosts and ports that could mean more than they say (B54). */
int preview_check(const struct preview_spec *spec, struct err *err) must_check;
int preview_check_config(const struct k8s_config *config, struct err *err) must_check;
