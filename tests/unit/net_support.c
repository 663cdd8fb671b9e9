#include "tests/unit/net_support.h"

#include <check.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/http_client.h"

struct pair {
    X509 *cert;
    EVP_PKEY *key;
};

static void pair_done(struct pair *pair)
{
    X509_free(pair->cert);
    EVP_PKEY_free(pair->key);
}

static void add_extension(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    ck_assert_ptr_nonnull(extension);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
}

/* Signed by ISSUER, or by itself as a CA when that is NULL. */
static struct pair make_pair(const char *name, const struct pair *issuer, const char *alt_names)
{
    static long serial = 1;
    struct pair pair = {X509_new(), EVP_EC_gen("P-256")};
    X509_set_version(pair.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(pair.cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(pair.cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(pair.cert), 86400);
    X509_set_pubkey(pair.cert, pair.key);
    X509_NAME *subject = X509_get_subject_name(pair.cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(pair.cert, issuer ? X509_get_subject_name(issuer->cert) : subject);
    add_extension(pair.cert, NID_basic_constraints, issuer ? "CA:FALSE" : "critical,CA:TRUE");
    if (alt_names)
        add_extension(pair.cert, NID_subject_alt_name, alt_names);
    ck_assert_int_gt(X509_sign(pair.cert, issuer ? issuer->key : pair.key, EVP_sha256()), 0);
    return pair;
}

static char *bio_text(BIO *bio)
{
    char *data = NULL;
    long len = BIO_get_mem_data(bio, &data);
    char *text = xstrndup(data, (size_t)len);
    BIO_free(bio);
    return text;
}

static char *cert_text(const struct pair *pair)
{
    BIO *bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, pair->cert);
    return bio_text(bio);
}

static char *key_text(const struct pair *pair)
{
    BIO *bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, pair->key, NULL, NULL, 0, NULL, NULL);
    return bio_text(bio);
}

static void write_file(const char *folder, const char *name, char *text, bool keep)
{
    cleanup_free char *path = xasprintf("%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    if (!keep)
        free(text);
}

void net_certs_make(struct net_certs *ret_certs)
{
    snprintf(ret_certs->folder, sizeof(ret_certs->folder), "/tmp/net-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(ret_certs->folder));
    struct pair ca = make_pair("test CA", NULL, NULL);
    struct pair other = make_pair("other CA", NULL, NULL);
    struct pair server = make_pair("server", &ca, "IP:127.0.0.1,DNS:localhost,DNS:api.test");
    struct pair client = make_pair("client", &ca, NULL);
    ret_certs->ca = cert_text(&ca);
    ret_certs->other_ca = cert_text(&other);
    ret_certs->client_cert = cert_text(&client);
    ret_certs->client_key = key_text(&client);
    write_file(ret_certs->folder, "ca.crt", ret_certs->ca, true);
    write_file(ret_certs->folder, "server.crt", cert_text(&server), false);
    write_file(ret_certs->folder, "server.key", key_text(&server), false);
    pair_done(&ca);
    pair_done(&other);
    pair_done(&server);
    pair_done(&client);
}

void net_certs_done(struct net_certs *certs)
{
    static const char *const names[] = {"ca.crt", "server.crt", "server.key"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        cleanup_free char *path = xasprintf("%s/%s", certs->folder, names[i]);
        unlink(path);
    }
    rmdir(certs->folder);
    free(certs->ca);
    free(certs->other_ca);
    free(certs->client_cert);
    free(certs->client_key);
}

static void exec_server(int input, int output, const struct net_certs *certs)
{
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    execlp("python3", "python3", NET_SERVER, certs ? certs->folder : NULL, NULL);
    _exit(127);
}

void net_server_start(struct net_server *ret_server, const struct net_certs *certs)
{
    int input[2], output[2];
    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(output, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        exec_server(input[0], output[1], certs);
    close(input[0]);
    close(output[1]);
    char line[64];
    size_t len = 0;
    while (len < sizeof(line) - 1 && (len == 0 || line[len - 1] != '\n')) {
        ssize_t got = read(output[0], line + len, sizeof(line) - 1 - len);
        ck_assert_msg(got > 0, "net_server.py did not start");
        len += (size_t)got;
    }
    close(output[0]);
    line[len] = '\0';
    *ret_server = (struct net_server){.pid = pid, .input = input[1]};
    char *at = line;
    ret_server->http = (int)strtoul(at, &at, 10);
    ret_server->https = (int)strtoul(at, &at, 10);
    ret_server->mutual = (int)strtoul(at, &at, 10);
}

void net_server_stop(struct net_server *server)
{
    close(server->input);
    waitpid(server->pid, NULL, 0);
}

char *net_server_log(const struct net_server *server, bool clear)
{
    cleanup_free char *url =
        xasprintf("http://127.0.0.1:%d/log%s", server->http, clear ? "?clear=1" : "");
    struct err err;
    struct http_client *client = http_client_new(NULL, &err);
    ck_assert_ptr_nonnull(client);
    struct http_request request = {.url = url};
    struct http_reply reply;
    ck_assert_msg(http_call(client, &request, &reply, &err) == 0, "%s", err.msg);
    char *text = buf_take(&reply.body, NULL);
    http_reply_done(&reply);
    http_client_free(client);
    return text;
}

static int count_lines(const char *text, const char *line)
{
    size_t len = strlen(line);
    int count = 0;
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, line, len) == 0 && (at[len] == '\n' || at[len] == '\0'))
            count++;
        if (*at == '\0')
            break;
    }
    return count;
}

bool net_server_logged(const struct net_server *server, const char *line, int count)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        cleanup_free char *text = net_server_log(server, false);
        if (count_lines(text, line) >= count)
            return true;
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return false;
}
