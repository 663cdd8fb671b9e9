/* The smallest useful libmicrohttpd server: what previews show in the bench, and what the server's
 * own replies are measured against.
 *
 *     bench_app PORT      on loopback; GET /N answers N bytes, a request with a body how many bytes
 * that had
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 65536

static char filler[BLOCK];

static ssize_t more(void *size, uint64_t at, char *ptr, size_t max)
{
    (void)size;
    (void)at;
    size_t len = max < BLOCK ? max : BLOCK;
    memcpy(ptr, filler, len);
    return (ssize_t)len;
}

static struct MHD_Response *response_of(uint64_t size)
{
    if (size <= BLOCK)
        return MHD_create_response_from_buffer((size_t)size, filler, MHD_RESPMEM_PERSISTENT);
    return MHD_create_response_from_callback(size, BLOCK, more, NULL, NULL);
}

static enum MHD_Result answer(struct MHD_Connection *connection, const char *target,
                              const uint64_t *taken)
{
    char text[24];
    int len = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)*taken);
    struct MHD_Response *response =
        *taken > 0 ? MHD_create_response_from_buffer((size_t)len, text, MHD_RESPMEM_MUST_COPY)
                   : response_of(strtoull(target + 1, NULL, 10));
    if (response == NULL)
        return MHD_NO;
    enum MHD_Result result =
        MHD_add_response_header(response, "Content-Type", "application/octet-stream");
    if (result == MHD_YES)
        result = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *closure, struct MHD_Connection *connection,
                                  const char *target, const char *method, const char *version,
                                  const char *data, size_t *size, void **state)
{
    uint64_t *taken = *state;
    (void)closure, (void)method, (void)version, (void)data;
    if (taken == NULL) {
        *state = calloc(1, sizeof(*taken));
        return *state != NULL ? MHD_YES : MHD_NO;
    }
    if (*size == 0)
        return answer(connection, target, taken);
    *taken += *size;
    *size = 0;
    return MHD_YES;
}

static void on_end(void *closure, struct MHD_Connection *connection, void **state,
                   enum MHD_RequestTerminationCode why)
{
    (void)closure, (void)connection, (void)why;
    free(*state);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sigset_t ends;
    int signal;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: bench_app PORT\n");
        return 2;
    }
    memset(filler, 'x', sizeof(filler));
    address.sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10));
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &ends, NULL);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, NULL, MHD_OPTION_SOCK_ADDR,
        (struct sockaddr *)&address, MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
    if (daemon == NULL) {
        (void)fprintf(stderr, "bench_app: port %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    (void)sigwait(&ends, &signal);
    MHD_stop_daemon(daemon);
    return 0;
}
