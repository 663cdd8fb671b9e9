#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

/* The settings, from one table in options.c (flag, environment PODSANDBOX_…, file, default, help):
 * command line over environment over file over default. Const after options_load. */
struct options {
    /* the server */
    const char *listen;
    const char *store;
    const char *key_file; /* NULL: <store>.key */
    const char *api_keys_file;
    const char *admin_key_file;
    const char *driver;
    const char *instance; /* NULL: derived from the key file */
    const char *log_level;
    int64_t workers, queue, connections;
    int64_t stop_timeout_ms;
    int64_t tombstone_ms; /* how long gone records stay */
    int64_t reap_every_ms;
    int64_t output_quota; /* bytes of one stream's journal */
    /* sandboxes: defaults and ceilings */
    const char *image;
    const char *allow_images;        /* comma list of patterns with *; NULL: any, "": the default */
    const char *allow_pull_policies; /* comma list; "": the default */
    const char *allow_users;         /* comma list; NULL: none */
    bool allow_writable_root;
    const char *allow_profiles; /* comma list; NULL: none */
    const char *pull_policy;
    int64_t run_as_user, run_as_group;
    bool read_only_root;
    const char *workdir;
    const char *cpu, *cpu_request, *memory, *memory_request, *storage;
    const char *max_cpu, *max_memory, *max_storage;
    int64_t ready_timeout_ms, max_ready_timeout_ms;
    int64_t ttl_ms, max_lifetime_ms;
    int64_t unschedulable_after_ms; /* how long to hope for a node: 5 s */
    int64_t exec_timeout_ms, max_exec_timeout_ms;
    int64_t max_output;
    int64_t max_sandboxes, max_execs; /* living ones; running ones of one sandbox */
    const char *network;              /* NULL: the driver's own default, as is `image` */
    /* previews */
    const char *preview_mode;
    const char *preview_domain, *preview_scheme, *preview_tls_secret;
    const char *ingress_class; /* "": the cluster's default */
    const char *ingress_from, *ingress_annotations;
    int64_t preview_port;
    /* kubernetes */
    const char *kubeconfig, *context, *namespace_;
    const char *runtime_class, *node_selector, *tolerations, *priority_class, *image_pull_secrets;
    const char *agent_image, *agent_delivery;
    /* docker */
    const char *docker_host, *docker_network;
    int64_t docker_pids;
    /* local */
    const char *local_dir; /* NULL: <store>.local */
    int64_t local_pids, local_without_server_ms, local_image_cache_bytes;
    const char *local_images, *local_image_cache; /* the cache NULL: <store>.images */
    bool allow_host_network;
    const char *local_uids, *bwrap, *agent_program;
};

enum options_result { OPTIONS_RUN, OPTIONS_SHOWN, OPTIONS_BAD };

/* OPTIONS_SHOWN: --help, --version or `hash-key` has been answered on stdout. */
enum options_result options_load(int argc, char **argv, struct options *ret_options,
                                 struct err *err);
void options_done(struct options *options);
