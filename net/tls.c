#include "net/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"

/* libwebsockets could load these itself, but 4.1 takes only the first certificate of a bundle in
 * memory, cuts an IPv6 host at its first colon before it compares names, and shares a context
 * between settings that differ in the key or the name only. */

#define PEM_MAX (1 * MIB) /* one PEM file; the system's whole CA bundle is 220 KiB */

static int read_pem(const char *path, const char *what, char **ret_text, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s '%s'", what, path);
    struct buf text = BUF_INIT(PEM_MAX);
    for (;;) {
        char *at = buf_reserve(&text, 16 * KIB);
        ssize_t got = at ? read(fd, at, 16 * KIB) : -1;
        if (got < 0 && at && errno == EINTR)
            continue;
        if (got < 0) {
            int code = at ? errno : EFBIG;
            buf_wipe(&text);
            return err_errno(err, ERR_CONFIG, code, "%s '%s'", what, path);
        }
        if (got == 0)
            break;
        buf_grew(&text, (size_t)got);
    }
    *ret_text = xstrndup(buf_text(&text), text.len);
    buf_wipe(&text);
    return 0;
}

/* PEM text wins over a file. */
static int load_pem(const char *text, const char *path, const char *what, char **ret_text,
                    struct err *err)
{
    if (text) {
        *ret_text = xstrdup(text);
        return 0;
    }
    return path ? read_pem(path, what, ret_text, err) : 0;
}

int tls_material_load(struct tls_material *ret_material, const struct http_tls *tls,
                      struct err *err)
{
    struct tls_material material = {.ca = NULL};
    if (tls) {
        if (load_pem(tls->ca_pem, tls->ca_file, "CA file", &material.ca, err) < 0 ||
            load_pem(tls->cert_pem, tls->cert_file, "client certificate", &material.cert, err) <
                0 ||
            load_pem(tls->key_pem, tls->key_file, "client key", &material.key, err) < 0) {
            tls_material_done(&material);
            return -1;
        }
        material.server_name = tls->server_name ? xstrdup(tls->server_name) : NULL;
        material.insecure = tls->insecure;
    }
    if (!material.cert != !material.key) {
        tls_material_done(&material);
        return err_set(err, ERR_CONFIG, "a client certificate and its key go together");
    }
    *ret_material = material;
    return 0;
}

void tls_material_done(struct tls_material *material)
{
    free(material->ca);
    free(material->cert);
    free_secret(material->key, material->key ? strlen(material->key) : 0);
    free(material->server_name);
    *material = (struct tls_material){.ca = NULL};
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool tls_material_equal(const struct tls_material *a, const struct tls_material *b)
{
    return same(a->ca, b->ca) && same(a->cert, b->cert) && same(a->key, b->key) &&
           same(a->server_name, b->server_name) && a->insecure == b->insecure;
}

static int openssl_err(struct err *err, const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return err_set(err, ERR_CONFIG, "%s: %s", what, reason ? reason : "malformed");
}

static BIO *memory(const char *text)
{
    return BIO_new_mem_buf(text, (int)strlen(text)); /* at most PEM_MAX, or a kubeconfig's */
}

static int use_ca(SSL_CTX *context, const char *pem, struct err *err)
{
    if (!pem) {
        SSL_CTX_set_default_verify_paths(context);
        return 0;
    }
    BIO *bio = memory(pem);
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    size_t count = 0;
    X509 *cert;
    while (bio && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        count += X509_STORE_add_cert(store, cert) == 1;
        X509_free(cert);
    }
    BIO_free(bio);
    if (count == 0)
        return openssl_err(err, "CA certificates");
    ERR_clear_error(); /* the end of the text */
    return 0;
}

static int use_certificate(SSL_CTX *context, const char *pem, struct err *err)
{
    BIO *bio = memory(pem);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool ok = cert && SSL_CTX_use_certificate(context, cert) == 1;
    X509_free(cert);
    while (ok && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        ok = SSL_CTX_add1_chain_cert(context, cert) == 1;
        X509_free(cert);
    }
    BIO_free(bio);
    if (!ok)
        return openssl_err(err, "client certificate");
    ERR_clear_error();
    return 0;
}

/* A key with a passphrase is refused; without this OpenSSL would ask on the terminal. */
static int no_passphrase(char *text, int size, int for_writing, void *arg)
{
    (void)text, (void)size, (void)for_writing, (void)arg;
    return -1;
}

static int use_key(SSL_CTX *context, const char *pem, struct err *err)
{
    BIO *bio = memory(pem);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    bool ok =
        key && SSL_CTX_use_PrivateKey(context, key) == 1 && SSL_CTX_check_private_key(context) == 1;
    EVP_PKEY_free(key);
    BIO_free(bio);
    return ok ? 0 : openssl_err(err, "client key");
}

/* Corrects the name that the library above sends: that is the URL's host, and with libwebsockets an
 * IP address too, which the standard forbids. */
static void send_name(const SSL *ssl, int where, int value)
{
    (void)value;
    if (!(where & SSL_CB_HANDSHAKE_START))
        return;
    X509_VERIFY_PARAM *param = SSL_get0_param((SSL *)(uintptr_t)ssl);
    char *name = X509_VERIFY_PARAM_get0_host(param, 0);
    SSL_set_tlsext_host_name((SSL *)(uintptr_t)ssl, name);
}

void tls_expect_name(struct ssl_ctx_st *context, const char *name)
{
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(context);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    struct in6_addr address;
    if (inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1)
        X509_VERIFY_PARAM_set1_ip_asc(param, name);
    else
        X509_VERIFY_PARAM_set1_host(param, name, strlen(name));
    SSL_CTX_set_info_callback(context, send_name);
}

struct ssl_ctx_st *tls_context_new(const struct tls_material *material, const char *name,
                                   struct err *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) {
        openssl_err(err, "TLS");
        return NULL;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    tls_expect_name(context, material->server_name ? material->server_name : name);
    if (use_ca(context, material->ca, err) < 0 ||
        (material->cert && (use_certificate(context, material->cert, err) < 0 ||
                            use_key(context, material->key, err) < 0))) {
        SSL_CTX_free(context);
        return NULL;
    }
    return context;
}

void tls_context_free(struct ssl_ctx_st *context)
{
    SSL_CTX_free(context);
}

bool tls_accept_server(void *store_context, bool verified, bool insecure, char **ret_text)
{
    if (verified)
        return true;
    X509_STORE_CTX *context = store_context;
    if (insecure) {
        X509_STORE_CTX_set_error(context, X509_V_OK);
        return true;
    }
    if (!*ret_text)
        *ret_text = xstrdup(X509_verify_cert_error_string(X509_STORE_CTX_get_error(context)));
    return false;
}
