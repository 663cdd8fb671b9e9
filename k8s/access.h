#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

struct k8s_config;

/* A program that prints credentials (the `exec` section of a kubeconfig). */
struct exec_plugin {
    char *command; /* NULL: none. A path, or a name to look up in PATH */
    struct text_list args;
    struct text_map env;
    char *api_version;
    char *cluster_info; /* JSON of the cluster for KUBERNETES_EXEC_INFO, or NULL */
    char *install_hint;
};

/* Where the API server is and how to sign in. Owned strings; NULL: not set. Of each pair, the data
 * (PEM text) wins over the file. */
struct access {
    char *server; /* without a trailing slash */
    char *ca_file, *ca_data;
    char *cert_file, *cert_data;
    char *key_file, *key_data;
    char *server_name;
    bool insecure;
    char *token, *token_file;
    struct exec_plugin plugin;
};

void access_done(struct access *access); /* wipes what is secret */
#define cleanup_access cleanup(access_done)

/* In the order of k8s.h. On failure RET_ACCESS is untouched. */
int access_find(const struct k8s_config *config, struct access *ret_access,
                struct err *err) must_check;

/* From the ServiceAccount mounted at DIR and KUBERNETES_SERVICE_HOST/PORT. */
bool access_in_cluster(const char *dir);
int access_from_service_account(const char *dir, struct access *ret_access,
                                struct err *err) must_check;

/* From kubeconfig files: PATHS is a list separated by ':', merged as kubectl does (the first to set
 * a value wins). CONTEXT NULL: the current one. MISSING_OK: absent files are skipped. */
int access_from_kubeconfig(const char *paths, const char *context, bool missing_ok,
                           struct access *ret_access, struct err *err) must_check;
