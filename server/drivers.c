#include "server/drivers.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/json.h"
#include "server/options.h"

/* KEY=VALUE,… */
static int parse_pairs(const char *flag, const char *text, struct text_map *map, struct err *err)
{
    while (text && *text) {
        size_t len = strcspn(text, ",");
        const char *equals = memchr(text, '=', len);
        if (!equals || equals == text) {
            return err_set(err, ERR_CONFIG, "--%s must be KEY=VALUE, several separated by commas",
                           flag);
        }
        cleanup_free char *name = xstrndup(text, (size_t)(equals - text));
        cleanup_free char *value = xstrndup(equals + 1, (size_t)(text + len - equals - 1));
        text_map_set(map, name, value);
        text += len + (text[len] == ',');
    }
    return 0;
}

static void parse_names(const char *text, struct text_list *list)
{
    while (text && *text) {
        size_t len = strcspn(text, ",");
        cleanup_free char *name = xstrndup(text, len);
        if (*name) {
            text_list_add(list, name);
        }
        text += len + (text[len] == ',');
    }
}

static int parse_annotations(const char *text, struct text_map *map, struct err *err)
{
    cleanup_json struct json *json = NULL;
    if (!text) {
        return 0;
    }
    if (json_parse(text, strlen(text), JSON_STRICT, &json, err) < 0 || !json_is_object(json)) {
        return err_set(err, ERR_CONFIG, "--ingress-annotations must be a JSON object of texts");
    }
    for (const struct json *item = json_first(json); item; item = json_next(item)) {
        if (!json_text(item)) {
            return err_set(err, ERR_CONFIG, "--ingress-annotations: '%s' must be a text",
                           json_key(item));
        }
        text_map_set(map, json_key(item), json_text(item));
    }
    return 0;
}

static int kubernetes_settings(const struct options *options, const char *instance,
                               struct k8s_config *config, struct err *err)
{
    *config = (struct k8s_config){
        .kubeconfig = options->kubeconfig,
        .context = options->context,
        .namespace_ = options->namespace_,
        .instance = instance,
        .agent_image = options->agent_image,
        .agent_delivery = options->agent_delivery,
        .runtime_class = options->runtime_class,
        .tolerations = options->tolerations,
        .priority_class = options->priority_class,
        .ingress_class = options->ingress_class,
        .tls_secret = options->preview_tls_secret,
        .ingress_from = options->ingress_from,
        .network_check = true,
    };
    parse_names(options->image_pull_secrets, &config->image_pull_secrets);
    if (parse_pairs("node-selector", options->node_selector, &config->node_selector, err) < 0) {
        return -1;
    }
    return parse_annotations(options->ingress_annotations, &config->ingress_annotations, err);
}

static void local_settings(const struct options *options, const char *instance,
                           struct driver_settings *settings)
{
    if (!options->local_dir) {
        settings->local_dir = xasprintf("%s.local", options->store);
    }
    if (!options->local_image_cache) {
        settings->image_cache = xasprintf("%s.images", options->store);
    }
    parse_names(options->local_images, &settings->image_folders);
    settings->local = (struct local_config){
        .dir = options->local_dir ? options->local_dir : settings->local_dir,
        .instance = instance,
        .bwrap = options->bwrap,
        .agent = options->agent_program,
        .image_folders = &settings->image_folders,
        .image_cache =
            options->local_image_cache ? options->local_image_cache : settings->image_cache,
        .image_cache_bytes = (uint64_t)options->local_image_cache_bytes,
        .without_server_ms = options->local_without_server_ms,
        .host_network = options->allow_host_network,
        .pids = options->local_pids,
        .uids = options->local_uids,
    };
}

static void docker_settings(const struct options *options, const char *instance,
                            struct docker_config *config)
{
    *config = (struct docker_config){
        .host = options->docker_host,
        .instance = instance,
        .agent = options->agent_program,
        .runtime = options->runtime_class,
        .network = options->docker_network,
        .pids = options->docker_pids,
    };
}

void driver_fill_defaults(struct options *options)
{
    bool local = strcmp(options->driver, "local") == 0;
    if (!options->network) {
        options->network = xstrdup(local ? "none" : "internet");
    }
    if (!options->image && local) {
        options->image = xstrdup("host");
    }
    if (!options->image && strcmp(options->driver, "fake") == 0) {
        options->image = xstrdup("fake");
    }
}

void driver_settings_done(struct driver_settings *settings)
{
    text_map_done(&settings->k8s.node_selector);
    text_map_done(&settings->k8s.ingress_annotations);
    text_list_done(&settings->k8s.image_pull_secrets);
    free(settings->local_dir);
    free(settings->image_cache);
    text_list_done(&settings->image_folders);
}

static int check_kubernetes(const struct options *options, struct err *err)
{
    struct driver_settings settings = {.local_dir = NULL};
    const char *instance = options->instance ? options->instance : "derived";
    int result = kubernetes_settings(options, instance, &settings.k8s, err);
    if (result == 0) {
        result = k8s_check_config(&settings.k8s, err);
    }
    driver_settings_done(&settings);
    return result;
}

int driver_check(const struct options *options, struct err *err)
{
    bool docker = strcmp(options->driver, "docker") == 0;
    if (!docker && options->allow_profiles && *options->allow_profiles) {
        return err_set(err, ERR_CONFIG, "--allow-profiles: the driver '%s' has no profiles",
                       options->driver);
    }
    if (strcmp(options->driver, "kubernetes") == 0) {
        return check_kubernetes(options, err);
    }
    if (docker || strcmp(options->driver, "local") == 0 || strcmp(options->driver, "fake") == 0) {
        return 0;
    }
    return err_set(err, ERR_CONFIG,
                   "there is no driver '%s'; this server has: kubernetes, docker, local, fake",
                   options->driver);
}

bool driver_is_plain(const struct options *options)
{
    return strcmp(options->driver, "local") == 0 || strcmp(options->driver, "fake") == 0;
}

int driver_open(const struct options *options, const char *instance, struct loop *loop,
                struct driver_settings *settings, struct driver *ret_driver, struct err *err)
{
    if (strcmp(options->driver, "kubernetes") == 0) {
        if (kubernetes_settings(options, instance, &settings->k8s, err) < 0) {
            return -1;
        }
        return k8s_driver_new(&settings->k8s, loop, ret_driver, err);
    }
    if (strcmp(options->driver, "local") == 0) {
        local_settings(options, instance, settings);
        return local_driver_new(&settings->local, loop, ret_driver, err);
    }
    if (strcmp(options->driver, "docker") == 0) {
        docker_settings(options, instance, &settings->docker);
        return docker_driver_new(&settings->docker, loop, ret_driver, err);
    }
    return fake_driver_new(loop, ret_driver, err);
}
