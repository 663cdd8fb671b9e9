/* Kubeconfig files. Several are merged by looking each thing up in the order of the list: the first
 * file that has it wins, and relative paths belong to the file they stand in. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/json.h"
#include "k8s/access.h"
#include "k8s/file.h"
#include "k8s/yaml.h"

#define KUBECONFIG_FILES_MAX 32
#define KUBECONFIG_MAX (4 * MIB)

struct source {
    struct json *json;
    char *dir;
    char *path;
};

struct sources {
    struct source items[KUBECONFIG_FILES_MAX];
    size_t count;
};

static void sources_done(struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        json_free(sources->items[i].json);
        free(sources->items[i].dir);
        free(sources->items[i].path);
    }
}

static int source_load(struct sources *sources, const char *path, struct err *err)
{
    cleanup(buf_wipe) struct buf text = BUF_INIT(KUBECONFIG_MAX);
    struct source *source = &sources->items[sources->count];
    const char *slash = strrchr(path, '/');

    if (file_read(path, &text, err) < 0)
        return -1;
    if (yaml_parse(buf_text(&text), text.len, &source->json, err) < 0)
        return err_wrap(err, "kubeconfig %s", path);
    source->dir = slash == NULL ? xstrdup(".") : xstrndup(path, (size_t)(slash - path));
    source->path = xstrdup(path);
    sources->count++;
    return 0;
}

static int sources_load(struct sources *sources, const char *paths, bool missing_ok,
                        struct err *err)
{
    while (*paths != '\0') {
        size_t len = strcspn(paths, ":");
        cleanup_free char *path = xstrndup(paths, len);

        paths += len;
        paths += *paths == ':';
        if (path[0] == '\0' || (missing_ok && access(path, F_OK) != 0))
            continue;
        if (sources->count == KUBECONFIG_FILES_MAX)
            return err_set(err, ERR_CONFIG, "more than %d kubeconfig files", KUBECONFIG_FILES_MAX);
        if (source_load(sources, path, err) < 0)
            return -1;
    }
    if (sources->count == 0)
        return err_set(err, ERR_CONFIG, "no kubeconfig file exists");
    return 0;
}

/* The body (`cluster`, `user`, `context`) of the entry NAME in the list LIST, and where it stands.
 */
static const struct json *find_entry(const struct sources *sources, const char *list,
                                     const char *body, const char *name,
                                     const struct source **ret_source)
{
    for (size_t i = 0; i < sources->count; i++) {
        const struct json *entries = json_get(sources->items[i].json, list);

        for (const struct json *entry = json_first(entries); entry != NULL;
             entry = json_next(entry)) {
            const char *is = json_get_text(entry, "name");

            if (is == NULL || strcmp(is, name) != 0 || !json_is_object(json_get(entry, body)))
                continue;
            *ret_source = &sources->items[i];
            return json_get(entry, body);
        }
    }
    return NULL;
}

static const char *current_context(const struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++) {
        const char *name = json_get_text(sources->items[i].json, "current-context");

        if (name != NULL && name[0] != '\0')
            return name;
    }
    return NULL;
}

/* A non-empty string member, or NULL. */
static const char *member(const struct json *object, const char *name)
{
    const char *text = json_get_text(object, name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static char *member_copy(const struct json *object, const char *name)
{
    const char *text = member(object, name);

    return text != NULL ? xstrdup(text) : NULL;
}

static char *member_path(const struct json *object, const char *name, const struct source *source)
{
    const char *text = member(object, name);

    if (text == NULL)
        return NULL;
    return text[0] == '/' ? xstrdup(text) : xasprintf("%s/%s", source->dir, text);
}

/* NAME-data: base64 of PEM. */
static int member_data(const struct json *object, const char *name, char **ret_text,
                       struct err *err)
{
    cleanup(buf_wipe) struct buf data = BUF_INIT(KUBECONFIG_MAX);
    const char *text = member(object, name);

    if (text == NULL)
        return 0;
    if (!base64_decode(&data, str_of(text)) || memchr(buf_text(&data), '\0', data.len) != NULL)
        return err_set(err, ERR_CONFIG, "%s is not base64 of a PEM text", name);
    *ret_text = buf_take(&data, NULL);
    return 0;
}

static int read_cluster(const struct json *cluster, const struct source *source,
                        struct access *access, struct err *err)
{
    const char *server = member(cluster, "server");
    size_t len;

    if (server == NULL)
        return err_set(err, ERR_CONFIG, "the cluster has no server");
    if (!str_starts(server, "https://") && !str_starts(server, "http://"))
        return err_set(err, ERR_CONFIG, "the server is neither https:// nor http://");
    if (member(cluster, "proxy-url") != NULL)
        return err_set(err, ERR_CONFIG, "proxy-url is not supported: set HTTPS_PROXY");
    for (len = strlen(server); len > 0 && server[len - 1] == '/'; len--)
        ;
    access->server = xstrndup(server, len);
    access->server_name = member_copy(cluster, "tls-server-name");
    access->insecure = json_get_bool(cluster, "insecure-skip-tls-verify", false);
    access->ca_file = member_path(cluster, "certificate-authority", source);
    return member_data(cluster, "certificate-authority-data", &access->ca_data, err);
}

static int read_env(const struct json *list, struct text_map *map, struct err *err)
{
    for (const struct json *item = json_first(list); item != NULL; item = json_next(item)) {
        const char *name = member(item, "name");
        const char *value = json_get_text(item, "value");

        if (name == NULL || strchr(name, '=') != NULL)
            return err_set(err, ERR_CONFIG, "exec.env has an entry without a proper name");
        text_map_set(map, name, value != NULL ? value : "");
    }
    return 0;
}

static char *cluster_info(const struct json *cluster, const struct access *access)
{
    cleanup_json struct json *info = json_new_object();
    cleanup_buf struct buf out = BUF_INIT(KUBECONFIG_MAX);
    static const char *const same[] = {"server", "tls-server-name", "certificate-authority-data"};

    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        if (member(cluster, same[i]) != NULL)
            json_set_text(info, same[i], member(cluster, same[i]));
    }
    if (access->insecure)
        json_set_bool(info, "insecure-skip-tls-verify", true);
    (void)json_print(info, &out); /* fits: its parts came out of a smaller file */
    return buf_take(&out, NULL);
}

static int read_plugin(const struct json *exec, const struct json *cluster,
                       const struct source *source, struct access *access, struct err *err)
{
    struct exec_plugin *plugin = &access->plugin;
    const char *command = member(exec, "command");
    const char *mode = member(exec, "interactiveMode");

    if (command == NULL)
        return err_set(err, ERR_CONFIG, "exec has no command");
    if (mode != NULL && strcmp(mode, "Always") == 0)
        return err_set(err, ERR_CONFIG, "exec: interactiveMode Always needs a terminal");
    plugin->api_version = member_copy(exec, "apiVersion");
    if (plugin->api_version == NULL ||
        (strcmp(plugin->api_version, "client.authentication.k8s.io/v1") != 0 &&
         strcmp(plugin->api_version, "client.authentication.k8s.io/v1beta1") != 0))
        return err_set(err, ERR_CONFIG, "exec: apiVersion must be %s or %s",
                       "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1");
    /* As kubectl: a relative path with a slash belongs to the file, a bare name to PATH. */
    if (command[0] != '/' && strchr(command, '/') != NULL)
        plugin->command = xasprintf("%s/%s", source->dir, command);
    else
        plugin->command = xstrdup(command);
    plugin->install_hint = member_copy(exec, "installHint");
    for (const struct json *arg = json_first(json_get(exec, "args")); arg != NULL;
         arg = json_next(arg)) {
        if (json_text(arg) == NULL)
            return err_set(err, ERR_CONFIG, "exec.args has something that is not text");
        text_list_add(&plugin->args, json_text(arg));
    }
    if (json_get_bool(exec, "provideClusterInfo", false))
        plugin->cluster_info = cluster_info(cluster, access);
    return read_env(json_get(exec, "env"), &plugin->env, err);
}

static int read_user(const struct json *user, const struct json *cluster,
                     const struct source *source, struct access *access, struct err *err)
{
    static const char *const unsupported[] = {"auth-provider", "username", "password", "as",
                                              "as-uid",        "as-groups"};

    for (size_t i = 0; i < ARRAY_LEN(unsupported); i++) {
        const struct json *value = json_get(user, unsupported[i]);

        if (value != NULL && !json_is_null(value))
            return err_set(err, ERR_CONFIG, "%s is not supported", unsupported[i]);
    }
    access->token = member_copy(user, "token");
    access->token_file = member_path(user, "tokenFile", source);
    access->cert_file = member_path(user, "client-certificate", source);
    access->key_file = member_path(user, "client-key", source);
    if (member_data(user, "client-certificate-data", &access->cert_data, err) < 0 ||
        member_data(user, "client-key-data", &access->key_data, err) < 0)
        return -1;
    if (json_is_object(json_get(user, "exec")))
        return read_plugin(json_get(user, "exec"), cluster, source, access, err);
    return 0;
}

static int resolve(const struct sources *sources, const char *context, struct access *access,
                   struct err *err)
{
    const struct source *source = NULL;
    const char *name = context != NULL ? context : current_context(sources);
    const struct json *entry, *cluster, *user;
    const char *cluster_name, *user_name;

    if (name == NULL)
        return err_set(err, ERR_CONFIG, "the kubeconfig has no current-context");
    entry = find_entry(sources, "contexts", "context", name, &source);
    if (entry == NULL)
        return err_set(err, ERR_CONFIG, "the kubeconfig has no context '%s'", name);
    cluster_name = member(entry, "cluster");
    cluster = cluster_name == NULL
                  ? NULL
                  : find_entry(sources, "clusters", "cluster", cluster_name, &source);
    if (cluster == NULL)
        return err_set(err, ERR_CONFIG, "the cluster of context '%s' is not there", name);
    if (read_cluster(cluster, source, access, err) < 0)
        return err_wrap(err, "kubeconfig %s, cluster '%s'", source->path, cluster_name);
    user_name = member(entry, "user");
    if (user_name == NULL)
        return 0; /* no credentials: a local test server, or a proxy that adds them */
    user = find_entry(sources, "users", "user", user_name, &source);
    if (user == NULL)
        return err_set(err, ERR_CONFIG, "the user of context '%s' is not there", name);
    if (read_user(user, cluster, source, access, err) < 0)
        return err_wrap(err, "kubeconfig %s, user '%s'", source->path, user_name);
    return 0;
}

int access_from_kubeconfig(const char *paths, const char *context, bool missing_ok,
                           struct access *ret_access, struct err *err)
{
    cleanup(sources_done) struct sources sources = {.count = 0};
    struct access found = {.server = NULL};

    if (sources_load(&sources, paths, missing_ok, err) < 0)
        return -1;
    if (resolve(&sources, context, &found, err) < 0) {
        access_done(&found);
        return -1;
    }
    *ret_access = found;
    return 0;
}
