#include "k8s/preview.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "k8s/pod.h"

#define LABEL_NAMESPACE_NAME "kubernetes.io/metadata.name"

void preview_name(const char *id, int64_t port, bool first, char *ret_name)
{
    if (first)
        (void)snprintf(ret_name, 64, "preview-%s", id);
    else
        (void)snprintf(ret_name, 64, "preview%lld-%s", (long long)port, id);
}

/* --- checks -------------------------------------------------------------------------------------
 */

static bool is_host(const char *host)
{
    size_t label = 0;

    if (host == NULL || host[0] == '\0' || strlen(host) > 253)
        return false;
    for (const char *c = host;; c++) {
        if (*c == '.' || *c == '\0') {
            if (label == 0 || label > 63 || c[-1] == '-')
                return false;
            label = 0;
            if (*c == '\0')
                return true;
            continue;
        }
        if (strchr("abcdefghijklmnopqrstuvwxyz0123456789-", *c) == NULL ||
            (label == 0 && *c == '-'))
            return false;
        label++;
    }
}

int preview_check(const struct preview_spec *spec, struct err *err)
{
    if (spec->port < 1 || spec->port > 65535)
        return err_set(err, ERR_INVALID_FIELD, "port: not in 1-65535");
    if (!is_host(spec->host))
        return err_set(err, ERR_INVALID_FIELD, "the preview's host name is not one");
    return 0;
}

/* NAMESPACE:KEY=VALUE,…, or NAMESPACE: for all of it, or labels only for pods beside the sandboxes.
 */
static struct json *parse_labels_peer(const char *text)
{
    cleanup_json struct json *peer = json_new_object();
    const char *colon = strchr(text, ':');
    const char *labels = colon != NULL ? colon + 1 : text;

    if (colon != NULL) {
        cleanup_free char *namespace_ = xstrndup(text, (size_t)(colon - text));
        struct json *match;

        if (namespace_[0] == '\0')
            return NULL;
        match = json_set_object(json_set_object(peer, "namespaceSelector"), "matchLabels");
        json_set_text(match, LABEL_NAMESPACE_NAME, namespace_);
    }
    if (labels[0] != '\0') {
        struct json *match = json_set_object(json_set_object(peer, "podSelector"), "matchLabels");

        while (*labels != '\0') {
            size_t len = strcspn(labels, ",");
            cleanup_free char *pair = xstrndup(labels, len);
            char *equals = strchr(pair, '=');

            labels += len;
            labels += *labels == ',';
            if (equals == NULL || equals == pair)
                return NULL;
            *equals = '\0';
            json_set_text(match, pair, equals + 1);
        }
    }
    return json_count(peer) > 0 ? TAKE_PTR(peer) : NULL;
}

/* The peers of `ingress_from`; NULL with RET_OK false when it cannot be read. */
static struct json *parse_peers(const char *text, bool *ret_ok)
{
    struct json *parsed = NULL;
    struct json *list;

    *ret_ok = true;
    if (text == NULL || text[0] == '\0')
        return NULL;
    if (text[0] != '[' && text[0] != '{') {
        parsed = parse_labels_peer(text);
    } else if (json_parse(text, strlen(text), JSON_STRICT, &parsed, NULL) < 0) {
        parsed = NULL;
    }
    if (parsed == NULL || json_is_array(parsed)) {
        *ret_ok = parsed != NULL && json_count(parsed) > 0;
        return parsed;
    }
    list = json_new_array();
    json_add(list, parsed);
    return list;
}

int preview_check_config(const struct k8s_config *config, struct err *err)
{
    bool ok;

    json_free(parse_peers(config->ingress_from, &ok));
    if (!ok)
        return err_set(err, ERR_CONFIG,
                       "ingress-from: neither NAMESPACE:KEY=VALUE,... nor a JSON array of peers");
    return 0;
}

/* --- manifests ----------------------------------------------------------------------------------
 */

static struct json *new_object(const struct space *space, const struct preview_spec *spec,
                               enum kind kind, const struct text_map *notes)
{
    struct json *object = json_new_object();
    struct json *metadata, *labels, *owner;
    char name[64], port[8], pod[64];

    preview_name(spec->id, spec->port, spec->first, name);
    pod_name(spec->id, pod);
    (void)snprintf(port, sizeof(port), "%u", (unsigned)(uint16_t)spec->port);
    json_set_text(object, "apiVersion", kinds[kind].version);
    json_set_text(object, "kind", kinds[kind].name);
    metadata = json_set_object(object, "metadata");
    json_set_text(metadata, "name", name);
    json_set_text(metadata, "namespace", space->namespace_);
    labels = json_set_object(metadata, "labels");
    json_set_text(labels, LABEL_ID, spec->id);
    json_set_text(labels, LABEL_MANAGED_BY, MANAGED_BY);
    json_set_text(labels, LABEL_INSTANCE, space->instance);
    json_set_text(labels, LABEL_PORT, port);
    if (notes != NULL && notes->count > 0) {
        struct json *annotations = json_set_object(metadata, "annotations");

        for (size_t i = 0; i < notes->count; i++)
            json_set_text(annotations, notes->items[i].name, notes->items[i].value);
    }
    owner = json_new_object();
    json_set_text(owner, "apiVersion", "v1");
    json_set_text(owner, "kind", "Pod");
    json_set_text(owner, "name", pod);
    json_set_text(owner, "uid", spec->box_uid);
    json_set_bool(owner, "blockOwnerDeletion", false);
    json_add(json_set_array(metadata, "ownerReferences"), owner);
    return object;
}

static void set_pod_labels(const struct space *space, const struct preview_spec *spec,
                           struct json *labels)
{
    json_set_text(labels, LABEL_ID, spec->id);
    json_set_text(labels, LABEL_INSTANCE, space->instance);
}

struct json *preview_service(const struct space *space, const struct preview_spec *spec)
{
    struct json *service = new_object(space, spec, KIND_SERVICE, NULL);
    struct json *body = json_set_object(service, "spec");
    struct json *port = json_new_object();

    json_set_text(body, "type", "ClusterIP");
    set_pod_labels(space, spec, json_set_object(body, "selector"));
    json_set_text(port, "name", "preview");
    json_set_text(port, "protocol", "TCP");
    json_set_int(port, "port", spec->port);
    json_set_int(port, "targetPort", spec->port);
    json_add(json_set_array(body, "ports"), port);
    /* The kubelet says Ready a second late; whether the port answers is the agent's to know. */
    json_set_bool(body, "publishNotReadyAddresses", true);
    return service;
}

static void add_rule(struct json *body, const struct preview_spec *spec, const char *service_name)
{
    struct json *rule = json_new_object();
    struct json *path = json_new_object();
    struct json *service;

    json_set_text(rule, "host", spec->host);
    json_set_text(path, "path", "/");
    json_set_text(path, "pathType", "Prefix");
    service = json_set_object(json_set_object(path, "backend"), "service");
    json_set_text(service, "name", service_name);
    json_set_int(json_set_object(service, "port"), "number", spec->port);
    json_add(json_set_array(json_set_object(rule, "http"), "paths"), path);
    json_add(json_set_array(body, "rules"), rule);
}

struct json *preview_ingress(const struct space *space, const struct k8s_config *config,
                             const struct preview_spec *spec)
{
    struct json *ingress = new_object(space, spec, KIND_INGRESS, &config->ingress_annotations);
    struct json *body = json_set_object(ingress, "spec");
    char name[64];

    if (config->ingress_class == NULL)
        json_set_text(body, "ingressClassName", "nginx");
    else if (config->ingress_class[0] != '\0')
        json_set_text(body, "ingressClassName", config->ingress_class);
    if (config->tls_secret != NULL && config->tls_secret[0] != '\0') {
        struct json *tls = json_new_object();

        json_add_text(json_set_array(tls, "hosts"), spec->host);
        json_set_text(tls, "secretName", config->tls_secret);
        json_add(json_set_array(body, "tls"), tls);
    }
    preview_name(spec->id, spec->port, spec->first, name);
    add_rule(body, spec, name);
    return ingress;
}

struct json *preview_policy(const struct space *space, const struct k8s_config *config,
                            const struct preview_spec *spec)
{
    bool ok;
    struct json *peers = parse_peers(config->ingress_from, &ok);
    struct json *policy, *body, *rule, *port;

    if (peers == NULL)
        return NULL;
    policy = new_object(space, spec, KIND_NETWORK_POLICY, NULL);
    body = json_set_object(policy, "spec");
    set_pod_labels(space, spec,
                   json_set_object(json_set_object(body, "podSelector"), "matchLabels"));
    json_add_text(json_set_array(body, "policyTypes"), "Ingress");
    rule = json_new_object();
    json_set(rule, "from", peers);
    port = json_new_object();
    json_set_text(port, "protocol", "TCP");
    json_set_int(port, "port", spec->port);
    json_add(json_set_array(rule, "ports"), port);
    json_add(json_set_array(body, "ingress"), rule);
    return policy;
}

/* --- publishing ---------------------------------------------------------------------------------
 */

struct made {
    enum kind kind;
    char *uid; /* NULL: it was there before */
};

static const char *owner_uid(const struct json *object)
{
    return json_get_text(json_at(json_path(object, "metadata.ownerReferences"), 0), "uid");
}

static bool same_text(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

static const char *label(const struct json *object, const char *name)
{
    return json_get_text(json_path(object, "metadata.labels"), name);
}

static const char *ingress_host(const struct json *object)
{
    return json_get_text(json_at(json_path(object, "spec.rules"), 0), "host");
}

static bool is_as_wanted(const struct json *found, const struct json *wanted)
{
    const char *host = ingress_host(wanted);

    return same_text(owner_uid(found), owner_uid(wanted)) &&
           same_text(label(found, LABEL_PORT), label(wanted, LABEL_PORT)) &&
           (host == NULL || same_text(host, ingress_host(found)));
}

/* The name is taken. Ours and as wanted: good. Ours, but of an earlier life or another port:
 * replaced. Anybody else's is left alone. RET_AGAIN: the name is free now. */
static int settle_conflict(const struct space *space, enum kind kind, const struct json *wanted,
                           bool *ret_again, struct err *err)
{
    cleanup_json struct json *found = NULL;
    const char *name = json_get_text(json_get(wanted, "metadata"), "name");
    struct err why;

    *ret_again = false;
    if (object_get(space, kind, name, &found, &why) < 0) {
        *ret_again = why.code == ERR_BACKEND_NOT_FOUND;
        return *ret_again ? 0 : err_set(err, why.code, "%s", why.msg);
    }
    if (!object_is_ours(space, found) ||
        !same_text(label(found, LABEL_ID), label(wanted, LABEL_ID)))
        return err_set(err, ERR_ALREADY_EXISTS, "a %s named '%s' exists and is not ours",
                       kinds[kind].name, name);
    if (is_as_wanted(found, wanted))
        return 0;
    *ret_again = true;
    return object_delete(space, kind, name, json_get_text(json_get(found, "metadata"), "uid"), err);
}

static int make(const struct space *space, const struct json *wanted, struct made *made,
                struct err *err)
{
    struct err why;

    for (int attempt = 0; attempt < 3; attempt++) {
        cleanup_json struct json *object = NULL;
        bool again;

        if (object_create(space, made->kind, wanted, false, &object, &why) == 0) {
            const char *uid = json_get_text(json_get(object, "metadata"), "uid");

            made->uid = xstrdup(uid != NULL ? uid : "");
            return 0;
        }
        if (why.code != ERR_ALREADY_EXISTS && why.code != ERR_BACKEND_CONFLICT)
            break;
        if (settle_conflict(space, made->kind, wanted, &again, err) < 0)
            return -1;
        if (!again)
            return 0;
    }
    return err_set(err, why.code, "%s", why.msg);
}

static void roll_back(const struct space *space, const char *name, struct made *made, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        /* What cannot be removed now is found by its labels, and goes with the pod at the latest.
         */
        if (made[i].uid != NULL)
            object_discard(space, made[i].kind, name, made[i].uid);
    }
}

int preview_publish(const struct space *space, const struct k8s_config *config,
                    const struct preview_spec *spec, struct preview_names *ret_names,
                    struct err *err)
{
    struct made made[] = {
        {.kind = KIND_SERVICE}, {.kind = KIND_NETWORK_POLICY}, {.kind = KIND_INGRESS}};
    struct json *wanted[ARRAY_LEN(made)];
    char name[64];
    int rc = 0;

    if (preview_check(spec, err) < 0)
        return -1;
    wanted[0] = preview_service(space, spec);
    wanted[1] = preview_policy(space, config, spec);
    wanted[2] = preview_ingress(space, config, spec);
    preview_name(spec->id, spec->port, spec->first, name);
    for (size_t i = 0; i < ARRAY_LEN(made) && rc == 0; i++) {
        if (wanted[i] != NULL)
            rc = make(space, wanted[i], &made[i], err);
        if (rc < 0)
            roll_back(space, name, made, i);
    }
    for (size_t i = 0; i < ARRAY_LEN(made); i++) {
        json_free(wanted[i]);
        free(made[i].uid);
    }
    if (rc < 0)
        return -1;
    (void)snprintf(ret_names->service, sizeof(ret_names->service), "%s", name);
    (void)snprintf(ret_names->ingress, sizeof(ret_names->ingress), "%s", name);
    return 0;
}
