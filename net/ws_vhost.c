#include "net/ws_vhost.h"

#include <libwebsockets.h>
#include <string.h>

#include "net/loop_lws.h"
#include "net/ws_lws.h"

struct ws_vhost {
    struct ws_vhost *next;
    size_t users;
    bool secure;
    char *host;
    struct tls_material material;
    struct ssl_ctx_st *context; /* NULL without TLS */
    struct lws_vhost *lws;
};

static void vhost_free(struct ws_vhost *vhost)
{
    tls_context_free(vhost->context);
    tls_material_done(&vhost->material);
    free(vhost->host);
    free(vhost);
}

void ws_vhosts_free(struct ws_vhost **head)
{
    while (*head) {
        struct ws_vhost *vhost = *head;
        *head = vhost->next;
        vhost_free(vhost);
    }
}

static void drop_unused(struct ws_vhost **head)
{
    while (*head) {
        struct ws_vhost *vhost = *head;
        if (vhost->users > 0) {
            head = &vhost->next;
            continue;
        }
        *head = vhost->next;
        lws_vhost_destroy(vhost->lws);
        vhost_free(vhost);
    }
}

static struct lws_vhost *create(struct loop *loop, const struct ws_vhost *vhost)
{
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        /* without TLS it would load the system's CAs for nothing */
        .options = vhost->secure ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0,
        .vhost_name = "ws",
        .protocols = ws_lws_protocols(),
        .alpn = "http/1.1",
        .provided_client_ssl_ctx = vhost->context,
        .connect_timeout_secs = 600,
        /* else libwebsockets takes $http_proxy, without a look at NO_PROXY */
        .http_proxy_address = "",
    };
    return lws_create_vhost(loop_lws(loop), &info);
}

static struct ws_vhost *add(struct loop *loop, struct ws_vhost *vhost, struct err *err)
{
    if (vhost->secure && loop_is_plain(loop)) {
        err_set(err, ERR_INTERNAL, "the I/O loop was started without TLS");
        return NULL;
    }
    if (vhost->secure) {
        vhost->context = tls_context_new(&vhost->material, vhost->host, err);
        if (!vhost->context)
            return NULL;
    }
    vhost->lws = create(loop, vhost);
    if (!vhost->lws) {
        err_set(err, ERR_INTERNAL, "libwebsockets cannot make a vhost");
        return NULL;
    }
    struct ws_vhost **head = loop_vhosts(loop);
    drop_unused(head);
    vhost->next = *head;
    *head = vhost;
    return vhost;
}

struct ws_vhost *ws_vhost_get(struct loop *loop, bool secure, const struct http_tls *tls,
                              const char *host, struct err *err)
{
    struct tls_material material = {.ca = NULL};
    if (secure && tls_material_load(&material, tls, err) < 0)
        return NULL;
    for (struct ws_vhost *at = *loop_vhosts(loop); at; at = at->next) {
        if (at->secure == secure && strcmp(at->host, host) == 0 &&
            tls_material_equal(&at->material, &material)) {
            tls_material_done(&material);
            at->users++;
            return at;
        }
    }
    struct ws_vhost *vhost = xcalloc(1, sizeof(*vhost));
    vhost->secure = secure;
    vhost->host = xstrdup(host);
    vhost->material = material;
    if (!add(loop, vhost, err)) {
        vhost_free(vhost);
        return NULL;
    }
    vhost->users++;
    return vhost;
}

void ws_vhost_put(struct ws_vhost *vhost)
{
    if (vhost)
        vhost->users--;
}

struct lws_vhost *ws_vhost_lws(const struct ws_vhost *vhost)
{
    return vhost->lws;
}

bool ws_vhost_insecure(const struct ws_vhost *vhost)
{
    return vhost->material.insecure;
}
