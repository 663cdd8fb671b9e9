#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "k8s/access.h"
#include "k8s/k8s.h"
#include "tests/unit/k8s_support.h"

#define SIMPLE                                                                                     \
    "apiVersion: v1\nkind: Config\ncurrent-context: one\n"                                         \
    "clusters: [{name: c1, cluster: {server: 'https://one:6443/'}}]\n"                             \
    "users: [{name: u1, user: {token: secret-one}}]\n"                                             \
    "contexts: [{name: one, context: {cluster: c1, user: u1}}]\n"

static struct access load(const char *path, const char *context)
{
    struct access access;
    struct err err;

    ck_assert_msg(access_from_kubeconfig(path, context, false, &access, &err) == 0, "%s", err.msg);
    return access;
}

START_TEST(test_token)
{
    struct temp_dir dir;
    cleanup_free char *path = (temp_dir_make(&dir), write_file(&dir, "config", SIMPLE, 0600));
    cleanup_access struct access access = load(path, NULL);

    ck_assert_str_eq(access.server, "https://one:6443");
    ck_assert_str_eq(access.token, "secret-one");
    ck_assert_ptr_null(access.ca_data);
    ck_assert(!access.insecure);
    temp_dir_remove(&dir);
}
END_TEST

/* Block style, quotes, data in base64, files relative to the kubeconfig, a JSON file. */
START_TEST(test_certificates)
{
    struct temp_dir dir;
    cleanup_free char *path = NULL, *wanted = NULL;
    cleanup_access struct access access = {.server = NULL};

    temp_dir_make(&dir);
    path = write_file(&dir, "config",
                      "current-context: \"main\"\n"
                      "clusters:\n"
                      "- name: 'c'\n"
                      "  cluster:\n"
                      "    server: https://[::1]:6443\n"
                      "    certificate-authority-data: Q0EgdGV4dA==\n"
                      "    tls-server-name: api.test\n"
                      "    insecure-skip-tls-verify: true\n"
                      "contexts:\n"
                      "- name: main\n"
                      "  context: {cluster: c, user: admin, namespace: x}\n"
                      "users:\n"
                      "- name: admin\n"
                      "  user:\n"
                      "    client-certificate: pki/admin.crt\n"
                      "    client-key: /abs/admin.key\n"
                      "    client-key-data: S0VZ\n"
                      "    tokenFile: token\n",
                      0600);
    access = load(path, NULL);
    ck_assert_str_eq(access.server, "https://[::1]:6443");
    ck_assert_str_eq(access.ca_data, "CA text");
    ck_assert_str_eq(access.server_name, "api.test");
    ck_assert(access.insecure);
    wanted = temp_path(&dir, "pki/admin.crt");
    ck_assert_str_eq(access.cert_file, wanted);
    ck_assert_str_eq(access.key_file, "/abs/admin.key");
    ck_assert_str_eq(access.key_data, "KEY");
    ck_assert(str_ends(access.token_file, "/token"));
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_json_and_no_user)
{
    struct temp_dir dir;
    cleanup_free char *path = NULL;
    cleanup_access struct access access = {.server = NULL};

    temp_dir_make(&dir);
    path = write_file(&dir, "config",
                      "{\"current-context\": \"x\", \"clusters\": [{\"name\": \"c\", \"cluster\": "
                      "{\"server\": \"http://127.0.0.1:8001\"}}], \"contexts\": [{\"name\": \"x\", "
                      "\"context\": {\"cluster\": \"c\"}}]}",
                      0600);
    access = load(path, NULL);
    ck_assert_str_eq(access.server, "http://127.0.0.1:8001");
    ck_assert_ptr_null(access.token);
    temp_dir_remove(&dir);
}
END_TEST

/* The first file that has a thing wins; relative paths belong to the file they stand in. */
START_TEST(test_list)
{
    struct temp_dir dir, other;
    cleanup_free char *first = NULL, *second = NULL, *both = NULL, *ca = NULL;
    cleanup_access struct access current = {.server = NULL}, named = {.server = NULL};
    struct access none;
    struct err err;

    temp_dir_make(&dir);
    temp_dir_make(&other);
    first = write_file(&dir, "a",
                       "current-context: two\n"
                       "contexts: [{name: one, context: {cluster: c1, user: u2}}]\n",
                       0600);
    second = write_file(
        &other, "b",
        "current-context: one\n"
        "clusters: [{name: c1, cluster: {server: 'https://one', certificate-authority: ca.crt}},\n"
        "           {name: c2, cluster: {server: 'https://two'}}]\n"
        "users: [{name: u1, user: {token: t1}}, {name: u2, user: {token: t2}}]\n"
        "contexts: [{name: one, context: {cluster: c1, user: u1}},\n"
        "           {name: two, context: {cluster: c2, user: u1}}]\n",
        0600);
    both = xasprintf("/does/not/exist:%s::%s", first, second);
    ck_assert_int_eq(access_from_kubeconfig(both, NULL, true, &current, &err), 0);
    ck_assert_str_eq(current.server, "https://two");
    ck_assert_str_eq(current.token, "t1");
    ck_assert_int_eq(access_from_kubeconfig(both, "one", true, &named, &err), 0);
    ck_assert_str_eq(named.token, "t2");
    ca = temp_path(&other, "ca.crt");
    ck_assert_str_eq(named.ca_file, ca);
    ck_assert_int_eq(access_from_kubeconfig(both, NULL, false, &none, &err), -1);
    ck_assert_int_eq(err.code, ERR_CONFIG);
    temp_dir_remove(&dir);
    temp_dir_remove(&other);
}
END_TEST

#define HEAD                                                                                       \
    "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"                  \
    "clusters: [{name: c, cluster: {server: 'https://h'}}]\n"

START_TEST(test_refusals)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"a: [1", "not YAML"},
        {"a: *nowhere\n", "not YAML"},
        {"", "no current-context"},
        {"current-context: y\n", "no context 'y'"},
        {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n",
         "cluster of context"},
        {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: 'ftp://h'}}]\n",
         "neither https"},
        {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: 'https://h', proxy-url: 'http://p'}}]\n",
         "proxy-url"},
        {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
         "clusters: [{name: c, cluster: {server: 'https://h', certificate-authority-data: '@'}}]\n",
         "certificate-authority-data"},
        {HEAD, "user of context"},
        {HEAD "users: [{name: u, user: {username: me, password: pw}}]\n", "username"},
        {HEAD "users: [{name: u, user: {auth-provider: {name: gcp}}}]\n", "auth-provider"},
        {HEAD "users: [{name: u, user: {as: root, token: t}}]\n", "as is not"},
        {HEAD "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1}}}]\n",
         "no command"},
        {HEAD "users: [{name: u, user: {exec: {command: x, apiVersion: v9}}}]\n", "apiVersion"},
        {HEAD "users: [{name: u, user: {exec: {command: x, interactiveMode: Always,\n"
              "  apiVersion: client.authentication.k8s.io/v1}}}]\n",
         "terminal"},
    };
    struct temp_dir dir;

    temp_dir_make(&dir);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cleanup_free char *path = write_file(&dir, "config", rows[i].text, 0600);
        struct access access = {.server = NULL};
        struct err err = {.code = ERR_NONE};

        ck_assert_int_eq(access_from_kubeconfig(path, NULL, false, &access, &err), -1);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        ck_assert_msg(strstr(err.msg, rows[i].words) != NULL, "row %zu: %s", i, err.msg);
        ck_assert_ptr_null(access.server);
    }
    temp_dir_remove(&dir);
}
END_TEST

/* Aliases that unfold without end, and depth without end, are refused. */
START_TEST(test_hostile_yaml)
{
    struct temp_dir dir;
    cleanup_buf struct buf text = BUF_INIT(1 << 20);
    cleanup_free char *path = NULL;
    struct access access;
    struct err err;

    temp_dir_make(&dir);
    ck_assert(buf_append_str(&text, "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"));
    for (int i = 1; i < 10; i++)
        ck_assert(buf_printf(&text, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i,
                             i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1));
    path = write_file(&dir, "config", buf_text(&text), 0600);
    ck_assert_int_eq(access_from_kubeconfig(path, NULL, false, &access, &err), -1);
    ck_assert(strstr(err.msg, "too large") != NULL);
    buf_reset(&text);
    ck_assert(buf_append_str(&text, "a: "));
    for (int i = 0; i < 200; i++)
        ck_assert(buf_append_char(&text, '['));
    for (int i = 0; i < 200; i++)
        ck_assert(buf_append_char(&text, ']'));
    free(path);
    path = write_file(&dir, "config", buf_text(&text), 0600);
    ck_assert_int_eq(access_from_kubeconfig(path, NULL, false, &access, &err), -1);
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_plugin_section)
{
    struct temp_dir dir;
    cleanup_free char *path = NULL, *command = NULL;
    cleanup_access struct access access = {.server = NULL};

    temp_dir_make(&dir);
    path = write_file(&dir, "config",
                      HEAD "users:\n- name: u\n  user:\n    exec:\n"
                           "      apiVersion: client.authentication.k8s.io/v1beta1\n"
                           "      command: bin/login\n"
                           "      args: [--for, 'a b', \"true\"]\n"
                           "      env: [{name: A, value: \"1\"}, {name: B, value: ''}]\n"
                           "      installHint: get it\n"
                           "      provideClusterInfo: true\n",
                      0600);
    access = load(path, NULL);
    command = temp_path(&dir, "bin/login");
    ck_assert_str_eq(access.plugin.command, command);
    ck_assert_uint_eq(access.plugin.args.count, 3);
    ck_assert_str_eq(access.plugin.args.items[1], "a b");
    ck_assert_str_eq(access.plugin.args.items[2], "true");
    ck_assert_str_eq(text_map_get(&access.plugin.env, "A"), "1");
    ck_assert_str_eq(text_map_get(&access.plugin.env, "B"), "");
    ck_assert_str_eq(access.plugin.cluster_info, "{\"server\":\"https://h\"}");
    temp_dir_remove(&dir);
}
END_TEST

START_TEST(test_service_account)
{
    struct temp_dir dir;
    cleanup_free char *token = NULL;
    cleanup_access struct access access = {.server = NULL}, six = {.server = NULL};
    struct err err;

    temp_dir_make(&dir);
    unsetenv("KUBERNETES_SERVICE_HOST");
    ck_assert(!access_in_cluster(dir.path));
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
    unsetenv("KUBERNETES_SERVICE_PORT_HTTPS");
    ck_assert(!access_in_cluster(dir.path));
    token = write_file(&dir, "token", "t", 0600);
    ck_assert(access_in_cluster(dir.path));
    ck_assert_int_eq(access_from_service_account(dir.path, &access, &err), 0);
    ck_assert_str_eq(access.server, "https://10.0.0.1:443");
    ck_assert_str_eq(access.token_file, token);
    ck_assert(str_ends(access.ca_file, "/ca.crt"));
    setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
    setenv("KUBERNETES_SERVICE_PORT_HTTPS", "6443", 1);
    ck_assert_int_eq(access_from_service_account(dir.path, &six, &err), 0);
    ck_assert_str_eq(six.server, "https://[fd00::1]:6443");
    temp_dir_remove(&dir);
}
END_TEST

/* The flag before KUBECONFIG before HOME. */
START_TEST(test_order)
{
    struct temp_dir dir;
    cleanup_free char *flag = NULL, *env = NULL;
    struct k8s_config config = {.kubeconfig = NULL};
    struct err err;

    temp_dir_make(&dir);
    unsetenv("KUBERNETES_SERVICE_HOST");
    flag = write_file(&dir, "flag",
                      "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
                      "clusters: [{name: c, cluster: {server: 'https://flag'}}]\n",
                      0600);
    env = write_file(&dir, "env", SIMPLE, 0600);
    for (int i = 0; i < 3; i++) {
        static const char *const wanted[] = {"https://flag", "https://one:6443", NULL};
        cleanup_access struct access access = {.server = NULL};
        int rc;

        config.kubeconfig = i == 0 ? flag : "";
        setenv("KUBECONFIG", i == 2 ? "" : env, 1);
        setenv("HOME", dir.path, 1);
        rc = access_find(&config, &access, &err);
        ck_assert_int_eq(rc, wanted[i] != NULL ? 0 : -1);
        if (wanted[i] != NULL)
            ck_assert_str_eq(access.server, wanted[i]);
        else
            ck_assert(strstr(err.msg, "/.kube/config") != NULL);
    }
    temp_dir_remove(&dir);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {
        test_token,        test_certificates,   test_json_and_no_user, test_list,  test_refusals,
        test_hostile_yaml, test_plugin_section, test_service_account,  test_order, NULL};

    return run_tests("kubeconfig", all);
}
