/* Which cluster to talk to, and as whom: the order is a promise (design/kubernetes.md). */
#include "k8s/access.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "k8s/k8s.h"

#define SERVICE_ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount"

/* Nothing of ours changes the environment, so reading it is safe on any thread. */
static const char *env(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe) */

    return value != NULL && value[0] != '\0' ? value : NULL;
}

static void free_text(char **text)
{
    if (*text != NULL)
        free_secret(*text, strlen(*text));
    *text = NULL;
}

void access_done(struct access *access)
{
    char **texts[] = {
        &access->server,
        &access->ca_file,
        &access->ca_data,
        &access->cert_file,
        &access->cert_data,
        &access->key_file,
        &access->key_data,
        &access->server_name,
        &access->token,
        &access->token_file,
        &access->plugin.command,
        &access->plugin.api_version,
        &access->plugin.cluster_info,
        &access->plugin.install_hint,
    };

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free_text(texts[i]);
    text_list_done(&access->plugin.args);
    text_map_done(&access->plugin.env);
}

bool access_in_cluster(const char *dir)
{
    const char *host = env("KUBERNETES_SERVICE_HOST");
    cleanup_free char *token = xasprintf("%s/token", dir);

    return host != NULL && access(token, R_OK) == 0;
}

int access_from_service_account(const char *dir, struct access *ret_access, struct err *err)
{
    const char *host = env("KUBERNETES_SERVICE_HOST");
    const char *port = env("KUBERNETES_SERVICE_PORT_HTTPS");

    if (port == NULL)
        port = env("KUBERNETES_SERVICE_PORT");
    if (host == NULL || port == NULL)
        return err_set(err, ERR_CONFIG,
                       "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set");
    *ret_access = (struct access){
        .server = strchr(host, ':') != NULL ? xasprintf("https://[%s]:%s", host, port)
                                            : xasprintf("https://%s:%s", host, port),
        .ca_file = xasprintf("%s/ca.crt", dir),
        .token_file = xasprintf("%s/token", dir),
    };
    return 0;
}

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

int access_find(const struct k8s_config *config, struct access *ret_access, struct err *err)
{
    const char *list = env("KUBECONFIG");
    const char *home = env("HOME");
    const char *context = is_set(config->context) ? config->context : NULL;
    cleanup_free char *fallback = NULL;

    if (is_set(config->kubeconfig))
        return access_from_kubeconfig(config->kubeconfig, context, false, ret_access, err);
    if (context == NULL && access_in_cluster(SERVICE_ACCOUNT_DIR))
        return access_from_service_account(SERVICE_ACCOUNT_DIR, ret_access, err);
    if (list != NULL)
        return access_from_kubeconfig(list, context, true, ret_access, err);
    if (home == NULL)
        return err_set(err, ERR_CONFIG,
                       "no cluster: neither a ServiceAccount nor KUBECONFIG nor HOME");
    fallback = xasprintf("%s/.kube/config", home);
    return access_from_kubeconfig(fallback, context, false, ret_access, err);
}
