/* What holds on this cluster, asked of it now and then. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "k8s/driver_impl.h"

#define KEPT_FOR_MS 30000

static void warn(struct json *warnings, const char *text)
{
    if (text[0] != '\0')
        json_add_text(warnings, text);
}

static bool has_type(const struct json *spec, const char *type)
{
    const struct json *types = json_get(spec, "policyTypes");

    for (const struct json *item = json_first(types); item != NULL; item = json_next(item)) {
        if (json_text(item) != NULL && strcmp(json_text(item), type) == 0)
            return true;
    }
    return false;
}

struct denies {
    bool in, out;
};

/* A policy for every pod of the namespace that allows nothing in a direction. */
static void look_at_policy(void *arg, const struct json *policy)
{
    struct denies *denies = arg;
    const struct json *spec = json_get(policy, "spec");

    if (json_count(json_get(spec, "podSelector")) > 0)
        return;
    if (has_type(spec, "Ingress") && json_count(json_get(spec, "ingress")) == 0)
        denies->in = true;
    if (has_type(spec, "Egress") && json_count(json_get(spec, "egress")) == 0)
        denies->out = true;
}

static void add_network(struct k8s *k8s, struct json *kubernetes, struct json *warnings)
{
    struct denies denies = {.in = false};
    struct object_sink sink = {.add = look_at_policy, .arg = &denies};
    struct json *network = json_set_object(kubernetes, "network_policy");
    struct err why;

    if (object_list(&k8s->space, KIND_NETWORK_POLICY, (struct selector){NULL, NULL}, &sink, NULL,
                    &why) < 0) {
        json_set_null(network, "default_deny_ingress");
        json_set_null(network, "default_deny_egress");
        warn(warnings, why.msg);
        return;
    }
    json_set_bool(network, "default_deny_ingress", denies.in);
    json_set_bool(network, "default_deny_egress", denies.out);
    if (k8s->config->network_check && !(denies.in && denies.out))
        warn(warnings, "the namespace has no NetworkPolicy that denies all traffic by default: "
                       "sandboxes can reach each other and the cluster");
}

static void add_version(struct k8s *k8s, struct json *kubernetes, struct json *warnings)
{
    cleanup_json struct json *version = NULL;
    struct api_request request = {.path = "/version", .about = {"get", "version", NULL}};
    struct err why;

    if (api_call(k8s->space.api, &request, &version, &why) < 0)
        warn(warnings, why.msg);
    json_set_text(kubernetes, "server_version", json_get_text(version, "gitVersion"));
}

/* Needs a right that the Role does not give; where an operator adds it, the level is shown. */
static void add_pod_security(struct k8s *k8s, struct json *kubernetes)
{
    cleanup_json struct json *found = NULL;
    cleanup_free char *path = xasprintf("/api/v1/namespaces/%s", k8s->space.namespace_);
    struct api_request request = {.path = path, .about = {"get", "namespaces", NULL}};

    if (api_call(k8s->space.api, &request, &found, NULL) < 0)
        found = NULL;
    json_set_text(
        kubernetes, "pod_security",
        json_get_text(json_path(found, "metadata.labels"), "pod-security.kubernetes.io/enforce"));
}

static struct json *ask(struct k8s *k8s)
{
    struct json *all = json_new_object();
    struct json *kubernetes = json_set_object(all, "kubernetes");
    struct json *warnings = json_set_array(all, "warnings");

    json_set_text(kubernetes, "namespace", k8s->space.namespace_);
    json_set_text(kubernetes, "instance", k8s->space.instance);
    add_version(k8s, kubernetes, warnings);
    add_pod_security(k8s, kubernetes);
    add_network(k8s, kubernetes, warnings);
    return all;
}

/* What we know without asking. */
static void add_known(struct k8s *k8s, struct json *kubernetes, struct json *warnings)
{
    struct json *agent = json_set_object(kubernetes, "agent_delivery");
    const char *class = k8s->config->runtime_class;
    char why[512];

    if (class != NULL && class[0] == '\0')
        class = NULL;
    json_set_text(agent, "mode", delivery_describe(k8s->delivery, class, why, sizeof(why)));
    json_set_text(agent, "reason", why[0] != '\0' ? why : NULL);
    runtimes_problem(k8s->runtimes, why, sizeof(why));
    warn(warnings, why);
    if (k8s->watch != NULL) {
        watch_events_problem(k8s->watch, why, sizeof(why));
        warn(warnings, why);
    }
}

/* A copy of what the cluster said, asked again when it is old: by one thread, which holds no lock
 * meanwhile; others get the old answer, or NULL when there is none yet. */
static struct json *asked(struct k8s *k8s)
{
    struct json *fresh, *copy;
    bool must_ask;

    pthread_mutex_lock(&k8s->lock);
    must_ask =
        !k8s->asking && (k8s->capabilities == NULL || clock_now_ms() >= k8s->capabilities_until_ms);
    k8s->asking = k8s->asking || must_ask;
    pthread_mutex_unlock(&k8s->lock);
    fresh = must_ask ? ask(k8s) : NULL;
    pthread_mutex_lock(&k8s->lock);
    if (must_ask) {
        json_free(k8s->capabilities);
        k8s->capabilities = fresh;
        k8s->capabilities_until_ms = clock_now_ms() + KEPT_FOR_MS;
        k8s->asking = false;
    }
    copy = k8s->capabilities != NULL ? json_copy(k8s->capabilities) : NULL;
    pthread_mutex_unlock(&k8s->lock);
    return copy;
}

void k8s_capabilities(void *self, struct json *object)
{
    struct k8s *k8s = self;
    cleanup_json struct json *all = asked(k8s);
    struct json *kubernetes =
        all != NULL ? json_copy(json_get(all, "kubernetes")) : json_new_object();
    struct json *warnings = all != NULL ? json_copy(json_get(all, "warnings")) : json_new_array();

    add_known(k8s, kubernetes, warnings);
    json_set(object, "kubernetes", kubernetes);
    json_set(object, "warnings", warnings);
}
