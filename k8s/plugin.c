#include "k8s/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/json.h"

#define PLUGIN_TIMEOUT_MS 60000
#define PLUGIN_OUTPUT_MAX (1 * MIB)
#define PLUGIN_STDERR_MAX 1024

static void wipe(char **text)
{
    if (*text != NULL)
        free_secret(*text, strlen(*text));
    *text = NULL;
}

void plugin_credential_done(struct plugin_credential *credential)
{
    wipe(&credential->token);
    wipe(&credential->cert_data);
    wipe(&credential->key_data);
}

static char *copy_member(const struct json *object, const char *name)
{
    const char *text = json_get_text(object, name);

    return text != NULL && text[0] != '\0' ? xstrdup(text) : NULL;
}

int plugin_parse(const char *text, size_t len, const char *api_version,
                 struct plugin_credential *ret_credential, struct err *err)
{
    cleanup_json struct json *json = NULL;
    const struct json *status;
    struct plugin_credential got = {.token = NULL};
    const char *version, *expires;

    if (json_parse(text, len, JSON_LENIENT, &json, NULL) < 0)
        return err_set(err, ERR_CONFIG, "it printed no JSON");
    version = json_get_text(json, "apiVersion");
    if (version == NULL || strcmp(version, api_version) != 0)
        return err_set(err, ERR_CONFIG, "its apiVersion is not %s", api_version);
    status = json_get(json, "status");
    got.token = copy_member(status, "token");
    got.cert_data = copy_member(status, "clientCertificateData");
    got.key_data = copy_member(status, "clientKeyData");
    expires = json_get_text(status, "expirationTimestamp");
    got.expires_wall_ms = expires != NULL ? time_parse(expires) : 0;
    if ((got.token == NULL && got.cert_data == NULL) ||
        (got.cert_data == NULL) != (got.key_data == NULL) || got.expires_wall_ms < 0) {
        plugin_credential_done(&got);
        return err_set(err, ERR_CONFIG, "it gave neither a token nor a certificate with its key");
    }
    *ret_credential = got;
    return 0;
}

/* Our environment, with the plugin's entries and KUBERNETES_EXEC_INFO instead of what they replace.
 */
static struct text_list make_environment(const struct exec_plugin *plugin)
{
    struct text_list list = {.items = NULL};

    for (char **entry = environ; *entry != NULL; entry++) {
        cleanup_free char *name = xstrndup(*entry, strcspn(*entry, "="));

        if (text_map_get(&plugin->env, name) == NULL && strcmp(name, "KUBERNETES_EXEC_INFO") != 0)
            text_list_add(&list, *entry);
    }
    for (size_t i = 0; i < plugin->env.count; i++) {
        cleanup_free char *entry =
            xasprintf("%s=%s", plugin->env.items[i].name, plugin->env.items[i].value);

        text_list_add(&list, entry);
    }
    return list;
}

static char *exec_info(const struct exec_plugin *plugin)
{
    cleanup_json struct json *info = json_new_object();
    cleanup_buf struct buf out = BUF_INIT(8 * MIB);
    struct json *spec;

    json_set_text(info, "apiVersion", plugin->api_version);
    json_set_text(info, "kind", "ExecCredential");
    spec = json_set_object(info, "spec");
    json_set_bool(spec, "interactive", false);
    if (plugin->cluster_info != NULL) {
        struct json *cluster = NULL;

        if (json_parse(plugin->cluster_info, strlen(plugin->cluster_info), JSON_LENIENT, &cluster,
                       NULL) == 0)
            json_set(spec, "cluster", cluster);
    }
    (void)buf_append_str(&out, "KUBERNETES_EXEC_INFO=");
    (void)json_print(info, &out); /* fits: made of a kubeconfig of at most half of it */
    return buf_take(&out, NULL);
}

static char **make_vector(const char *first, const struct text_list *list, const char *last)
{
    char **vector = xcalloc(list->count + 3, sizeof(*vector));
    size_t n = 0;

    if (first != NULL)
        vector[n++] = xstrdup(first);
    for (size_t i = 0; i < list->count; i++)
        vector[n++] = xstrdup(list->items[i]);
    if (last != NULL)
        vector[n++] = xstrdup(last);
    return vector;
}

static void free_vector(char ***vector)
{
    for (char **entry = *vector; entry != NULL && *entry != NULL; entry++)
        free(*entry);
    free(*vector);
}

/* In its own process group and with the default signal state (ours blocks everything). */
static int spawn(char *const *argv, char *const *envp, int out_fd, int err_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
    posix_spawn_file_actions_adddup2(&actions, err_fd, 2);
    rc = posix_spawnp(ret_pid, argv[0], &actions, &attr, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return rc;
}

/* Reads both pipes to their end. Of too much output the rest is dropped; `overflow` tells. */
static bool read_outputs(int fds[2], struct buf *bufs[2], int64_t deadline_ms)
{
    struct pollfd polled[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};

    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
        int64_t left = deadline_ms - clock_now_ms();

        if (left <= 0)
            return false;
        if (poll(polled, 2, (int)left) < 0 && errno != EINTR)
            return false;
        for (int i = 0; i < 2; i++) {
            char chunk[4096];
            ssize_t got;

            if (polled[i].fd < 0 || polled[i].revents == 0)
                continue;
            got = read(polled[i].fd, chunk, sizeof(chunk));
            if (got > 0)
                (void)buf_append(bufs[i], chunk, (size_t)got);
            else if (got == 0 || (errno != EINTR && errno != EAGAIN))
                polled[i].fd = -1;
            explicit_bzero(chunk, sizeof(chunk));
        }
    }
    return true;
}

/* The status of the process, or -1 when it had to be killed. */
static int collect(pid_t pid, bool finished, int64_t deadline_ms)
{
    int status = 0;
    pid_t got;

    while (finished) {
        struct timespec pause = {.tv_nsec = 2000000};

        got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return status;
        if ((got < 0 && errno != EINTR) || clock_now_ms() >= deadline_ms)
            break;
        nanosleep(&pause, NULL);
    }
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return -1;
}

static int judge(const struct exec_plugin *plugin, int status, const struct buf *out,
                 const struct buf *said, struct plugin_credential *ret_credential, struct err *err)
{
    if (status == -1)
        return err_set(err, ERR_CONFIG, "it did not end within %d s", PLUGIN_TIMEOUT_MS / 1000);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(err, ERR_CONFIG, "it failed (status %d): %s",
                       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                       buf_text(said));
    if (out->overflow)
        return err_set(err, ERR_CONFIG, "it printed more than %zu bytes", out->max);
    return plugin_parse(buf_text(out), out->len, plugin->api_version, ret_credential, err);
}

static int run(const struct exec_plugin *plugin, struct plugin_credential *ret_credential,
               struct err *err)
{
    struct text_list env = make_environment(plugin);
    cleanup_free char *info = exec_info(plugin);
    cleanup(free_vector) char **envp = make_vector(NULL, &env, info);
    cleanup(free_vector) char **argv = make_vector(plugin->command, &plugin->args, NULL);
    cleanup(buf_wipe) struct buf out = BUF_INIT(PLUGIN_OUTPUT_MAX);
    cleanup_buf struct buf said = BUF_INIT(PLUGIN_STDERR_MAX);
    int64_t deadline_ms = clock_now_ms() + PLUGIN_TIMEOUT_MS;
    int out_pipe[2], err_pipe[2], rc;
    bool finished;
    pid_t pid;

    text_list_done(&env);
    if (pipe2(out_pipe, O_CLOEXEC) < 0)
        return err_errno(err, ERR_INTERNAL, errno, "cannot make a pipe");
    if (pipe2(err_pipe, O_CLOEXEC) < 0) {
        rc = errno;
        close(out_pipe[0]);
        close(out_pipe[1]);
        return err_errno(err, ERR_INTERNAL, rc, "cannot make a pipe");
    }
    rc = spawn(argv, envp, out_pipe[1], err_pipe[1], &pid);
    close(out_pipe[1]);
    close(err_pipe[1]);
    if (rc == 0) {
        finished = read_outputs((int[2]){out_pipe[0], err_pipe[0]}, (struct buf *[2]){&out, &said},
                                deadline_ms);
        rc = judge(plugin, collect(pid, finished, deadline_ms), &out, &said, ret_credential, err);
    } else {
        rc = err_errno(err, ERR_CONFIG, rc, "it cannot be run%s%s",
                       plugin->install_hint != NULL ? " " : "",
                       plugin->install_hint != NULL ? plugin->install_hint : "");
    }
    close(out_pipe[0]);
    close(err_pipe[0]);
    return rc;
}

int plugin_run(const struct exec_plugin *plugin, struct plugin_credential *ret_credential,
               struct err *err)
{
    if (run(plugin, ret_credential, err) < 0)
        return err_wrap(err, "credential plugin %s", plugin->command);
    return 0;
}
