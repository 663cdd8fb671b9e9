#include "tests/unit/k8s_peer.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/http_client.h"

static void read_line(int fd, char *line, size_t size)
{
    size_t len = 0;

    while (len < size - 1 && (len == 0 || line[len - 1] != '\n')) {
        ssize_t got = read(fd, line + len, size - 1 - len);

        ck_assert_msg(got > 0, "k8s_server.py did not start");
        len += (size_t)got;
    }
    line[len] = '\0';
}

void peer_start(struct k8s_peer *ret_peer)
{
    int input[2], output[2];
    char line[32] = "";
    cleanup_free char *text = NULL;
    pid_t pid;

    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(output, O_CLOEXEC), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        execlp("python3", "python3", K8S_SERVER, NULL);
        _exit(127);
    }
    close(input[0]);
    close(output[1]);
    read_line(output[0], line, sizeof(line));
    close(output[0]);
    *ret_peer =
        (struct k8s_peer){.pid = pid, .input = input[1], .port = (int)strtoul(line, NULL, 10)};
    temp_dir_make(&ret_peer->dir);
    free(write_file(&ret_peer->dir, "token", "T1\n", 0600));
    text = xasprintf("current-context: x\n"
                     "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:%d'}}]\n"
                     "users: [{name: u, user: {tokenFile: token}}]\n"
                     "contexts: [{name: x, context: {cluster: c, user: u}}]\n",
                     ret_peer->port);
    ret_peer->kubeconfig = write_file(&ret_peer->dir, "config", text, 0600);
}

void peer_stop(struct k8s_peer *peer)
{
    close(peer->input);
    waitpid(peer->pid, NULL, 0);
    temp_dir_remove(&peer->dir);
    free(peer->kubeconfig);
}

static char *ask(const struct k8s_peer *peer, const char *method, const char *path,
                 const char *body)
{
    cleanup_free char *url = xasprintf("http://127.0.0.1:%d%s", peer->port, path);
    struct http_tls plain = {.insecure = false};
    struct http_request request = {.method = method, .url = url, .body = str_of(body)};
    struct http_reply reply;
    struct http_client *client;
    struct err err;
    char *text;

    if (body == NULL)
        request.body.ptr = NULL;
    client = http_client_new(&plain, &err);
    ck_assert_ptr_nonnull(client);
    ck_assert_msg(http_call(client, &request, &reply, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(reply.status, 200);
    text = buf_take(&reply.body, NULL);
    http_reply_done(&reply);
    http_client_free(client);
    return text;
}

void peer_script(const struct k8s_peer *peer, const char *rules)
{
    cleanup_json struct json *json = json_of(rules);
    cleanup_buf struct buf text = BUF_INIT(1 << 20);

    ck_assert(json_print(json, &text));
    free(ask(peer, "POST", "/script", buf_text(&text)));
}

char *peer_log(const struct k8s_peer *peer)
{
    return ask(peer, "GET", "/log", NULL);
}

int peer_count(const struct k8s_peer *peer, const char *start)
{
    cleanup_free char *text = peer_log(peer);
    int count = 0;

    for (const char *line = text; line != NULL && *line != '\0';) {
        count += strncmp(line, start, strlen(start)) == 0;
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return count;
}

bool peer_await(const struct k8s_peer *peer, const char *start, int count)
{
    int64_t deadline_ms = clock_now_ms() + 20000;

    while (peer_count(peer, start) < count) {
        struct timespec moment = {.tv_nsec = 5000000};

        if (clock_now_ms() >= deadline_ms)
            return false;
        nanosleep(&moment, NULL);
    }
    return true;
}
