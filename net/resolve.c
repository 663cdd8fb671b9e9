#include "net/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"

/* getaddrinfo() can neither be stopped nor given a deadline, so each lookup has a detached thread
 * and whoever waits has a timer. The resolver outlives the loop as long as a lookup runs. */
#define LOOKUPS_MAX 64
#define ADDRESSES_MAX 8
#define LOOKUP_STACK (256 * KIB)

struct resolver {
    pthread_mutex_t lock;
    struct loop *loop; /* NULL once stopped */
    size_t running;
};

struct lookup {
    struct resolver *resolver;
    char *host;
    /* the loop thread's: NULL when cancelled */
    void (*done)(void *arg, const struct text_list *addresses, const struct err *why);
    void *arg;
    /* the lookup thread's until it posts */
    struct text_list addresses;
    int code;
};

bool resolve_literal(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

struct resolver *resolver_new(struct loop *loop)
{
    struct resolver *resolver = xcalloc(1, sizeof(*resolver));
    pthread_mutex_init(&resolver->lock, NULL);
    resolver->loop = loop;
    return resolver;
}

static void resolver_free(struct resolver *resolver)
{
    pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}

static void lookup_free(struct lookup *lookup)
{
    text_list_done(&lookup->addresses);
    free(lookup->host);
    free(lookup);
}

void resolver_stop(struct resolver *resolver)
{
    pthread_mutex_lock(&resolver->lock);
    resolver->loop = NULL;
    bool last = resolver->running == 0;
    pthread_mutex_unlock(&resolver->lock);
    if (last)
        resolver_free(resolver);
}

static void look_up(struct lookup *lookup)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    lookup->code = getaddrinfo(lookup->host, NULL, &hints, &found);
    if (lookup->code != 0)
        return;
    for (struct addrinfo *at = found; at && lookup->addresses.count < ADDRESSES_MAX;
         at = at->ai_next) {
        char text[NI_MAXHOST];
        if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) ==
            0)
            text_list_add(&lookup->addresses, text);
    }
    freeaddrinfo(found);
}

static void deliver(void *arg)
{
    struct lookup *lookup = arg;
    if (lookup->done) {
        struct err why = {.code = ERR_NONE};
        if (lookup->addresses.count == 0)
            err_set(&why, ERR_BACKEND_UNAVAILABLE, "cannot resolve host '%s': %s", lookup->host,
                    lookup->code ? gai_strerror(lookup->code) : "no address");
        lookup->done(lookup->arg, &lookup->addresses, &why);
    }
    lookup_free(lookup);
}

static void *lookup_thread(void *arg)
{
    struct lookup *lookup = arg;
    struct resolver *resolver = lookup->resolver;
    look_up(lookup);
    pthread_mutex_lock(&resolver->lock);
    resolver->running--;
    bool stopped = !resolver->loop;
    bool last = stopped && resolver->running == 0;
    if (!stopped)
        loop_post(resolver->loop, deliver, lookup); /* under the lock: the loop cannot go away */
    pthread_mutex_unlock(&resolver->lock);
    if (stopped)
        lookup_free(lookup);
    if (last)
        resolver_free(resolver);
    return NULL;
}

static int start_detached(struct lookup *lookup)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, LOOKUP_STACK);
    pthread_t thread;
    int code = pthread_create(&thread, &attr, lookup_thread, lookup);
    pthread_attr_destroy(&attr);
    return code;
}

struct lookup *resolve_start(struct resolver *resolver, const char *host,
                             void (*done)(void *arg, const struct text_list *addresses,
                                          const struct err *why),
                             void *arg, struct err *err)
{
    pthread_mutex_lock(&resolver->lock);
    bool admitted = resolver->running < LOOKUPS_MAX;
    if (admitted)
        resolver->running++;
    pthread_mutex_unlock(&resolver->lock);
    if (!admitted) {
        err_set(err, ERR_BUSY, "%d lookups of host names are running already", LOOKUPS_MAX);
        return NULL;
    }
    struct lookup *lookup = xcalloc(1, sizeof(*lookup));
    lookup->resolver = resolver;
    lookup->host = xstrdup(host);
    lookup->done = done;
    lookup->arg = arg;
    int code = start_detached(lookup);
    if (code == 0)
        return lookup;
    pthread_mutex_lock(&resolver->lock);
    resolver->running--;
    pthread_mutex_unlock(&resolver->lock);
    lookup_free(lookup);
    err_errno(err, ERR_INTERNAL, code, "thread to look up '%s'", host);
    return NULL;
}

void resolve_cancel(struct lookup *lookup)
{
    if (lookup)
        lookup->done = NULL;
}
