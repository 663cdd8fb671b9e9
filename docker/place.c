#include "docker/place.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

#define USUAL_SOCKET "/var/run/docker.sock"

void place_done(struct place *place)
{
    free(place->url);
    free(place->unix_socket);
    free(place->ca);
    free(place->cert);
    free(place->key);
    *place = (struct place){.url = NULL};
}

/* NULL when it is not set or empty. */
static const char *setting(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets it */

    return value && value[0] != '\0' ? value : NULL;
}

static char *usual_socket(void)
{
    const char *own = setting("XDG_RUNTIME_DIR");
    char *const places[] = {
        xstrdup(USUAL_SOCKET),
        own ? xasprintf("%s/docker.sock", own) : NULL,
        xstrdup("/run/podman/podman.sock"),
        own ? xasprintf("%s/podman/podman.sock", own) : NULL,
    };
    char *found = NULL;

    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        if (!found && places[i] && access(places[i], F_OK) == 0)
            found = places[i];
        else
            free(places[i]);
    }
    return found ? found : xstrdup(USUAL_SOCKET);
}

static char *certificate_folder(const char *given)
{
    const char *home = setting("HOME");

    return given ? xstrdup(given) : xasprintf("%s/.docker", home ? home : "");
}

/* tcp://HOST:PORT, with TLS when the environment says so. */
static int find_tcp(const char *address, bool tls, struct place *ret_place, struct err *err)
{
    const char *folder = setting("DOCKER_CERT_PATH");
    bool verify = setting("DOCKER_TLS_VERIFY") != NULL;

    if (address[0] == '\0' || strcspn(address, "/?#@ ") != strlen(address))
        return err_set(err, ERR_CONFIG, "the engine's host 'tcp://%s' must be tcp://HOST:PORT",
                       address);
    tls = tls || verify || folder;
    ret_place->url = xasprintf("%s://%s", tls ? "https" : "http", address);
    if (!tls)
        return 0;
    cleanup_free char *where = certificate_folder(folder);
    ret_place->ca = xasprintf("%s/ca.pem", where);
    ret_place->cert = xasprintf("%s/cert.pem", where);
    ret_place->key = xasprintf("%s/key.pem", where);
    ret_place->insecure = !verify;
    return 0;
}

int place_find(const char *host, struct place *ret_place, struct err *err)
{
    if (!host || host[0] == '\0')
        host = setting("DOCKER_HOST");
    *ret_place = (struct place){.url = NULL};
    if (host && (str_starts(host, "tcp://") || str_starts(host, "http://")))
        return find_tcp(strstr(host, "://") + 3, false, ret_place, err);
    if (host && str_starts(host, "https://"))
        return find_tcp(strstr(host, "://") + 3, true, ret_place, err);
    if (host && !str_starts(host, "unix:///"))
        return err_set(err, ERR_CONFIG,
                       "the engine's host '%s' must be unix:///PATH or tcp://HOST:PORT", host);
    ret_place->unix_socket = host ? xstrdup(host + strlen("unix://")) : usual_socket();
    ret_place->url = xstrdup("http://docker");
    return 0;
}
