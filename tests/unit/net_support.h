#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Certificates made for one run, PEM; `folder` has ca.crt, server.crt and server.key. The server's
 * is for 127.0.0.1, localhost and api.test. `other_ca` signed nothing. */
struct net_certs {
    char folder[64];
    char *ca, *client_cert, *client_key, *other_ca;
};
void net_certs_make(struct net_certs *ret_certs);
void net_certs_done(struct net_certs *certs); /* removes the folder too */

/* net_server.py; CERTS may be NULL. */
struct net_server {
    pid_t pid;
    int input; /* the server ends when it is closed */
    int http, https, mutual;
};
void net_server_start(struct net_server *ret_server, const struct net_certs *certs);
void net_server_stop(struct net_server *server);

/* What the server has logged, a line each, malloc'd. */
char *net_server_log(const struct net_server *server, bool clear);
/* Waits (at most 10 s) until LINE is among them COUNT times at least. */
bool net_server_logged(const struct net_server *server, const char *line, int count);
