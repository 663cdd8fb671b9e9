#pragma once

#include "base/err.h"
#include "net/http_client.h"

/* Where the engine answers. */
struct place {
    char *url;             /* scheme, host and port, without a slash at its end */
    char *unix_socket;     /* NULL: by `url` */
    char *ca, *cert, *key; /* files; NULL without TLS */
    bool insecure;         /* TLS without a look at the engine's certificate */
};

/* HOST (NULL or "": DOCKER_HOST, else the first usual socket that is there), with DOCKER_TLS_VERIFY
 * and DOCKER_CERT_PATH as the docker command takes them. */
int place_find(const char *host, struct place *ret_place, struct err *err) must_check;
void place_done(struct place *place);
