#pragma once

#include <stdbool.h>

#include "net/tls.h"

struct loop;
struct lws_vhost;

/* libwebsockets keeps TLS settings in a "vhost". Connections with equal settings to the same name
 * share one; it goes when another is made and nothing uses it any more. Loop thread only. */
struct ws_vhost;

/* TLS is used when SECURE. HOST is the URL's. */
struct ws_vhost *ws_vhost_get(struct loop *loop, bool secure, const struct http_tls *tls,
                              const char *host, struct err *err) must_check;
void ws_vhost_put(struct ws_vhost *vhost); /* NULL is allowed */
struct lws_vhost *ws_vhost_lws(const struct ws_vhost *vhost);
bool ws_vhost_insecure(const struct ws_vhost *vhost);

/* After libwebsockets' context is gone. */
void ws_vhosts_free(struct ws_vhost **head);
