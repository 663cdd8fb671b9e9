#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "net/http_client.h"

struct ssl_ctx_st;

/* What an http_tls says, with the files read: so that two of them compare by value, and a rotated
 * file is a different value. */
struct tls_material {
    char *ca, *cert, *key; /* PEM; NULL: not set */
    char *server_name;
    bool insecure;
};

/* TLS may be NULL (the system's CAs, no client certificate). */
int tls_material_load(struct tls_material *ret_material, const struct http_tls *tls,
                      struct err *err) must_check;
void tls_material_done(struct tls_material *material); /* wipes the key */
bool tls_material_equal(const struct tls_material *a, const struct tls_material *b);

/* A client context that accepts only a certificate for NAME (a host name or an IP address). NAME
 * and MATERIAL are not kept but must outlive neither; free with tls_context_free. NULL and
 * ERR_CONFIG. */
struct ssl_ctx_st *tls_context_new(const struct tls_material *material, const char *name,
                                   struct err *err) must_check;
void tls_context_free(struct ssl_ctx_st *context);

/* Connections of CONTEXT ask for NAME (copied) and accept only a certificate for it. */
void tls_expect_name(struct ssl_ctx_st *context, const char *name);

/* The verdict on a server certificate for the verify callback, which gets OpenSSL's X509_STORE_CTX:
 * true to go on. When false, RET_TEXT (if it was NULL) gets the reason, malloc'd. */
bool tls_accept_server(void *store_context, bool verified, bool insecure, char **ret_text);

/* What to do about a server certificate that is not trusted; ends a message. */
#define TLS_REMEDY                                                                                 \
    "give the CA that signed the server's certificate (certificate-authority in a kubeconfig, "    \
    "ca.crt of the ServiceAccount), or the name in it as tls-server-name"
