#include "server/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/pipe.h"
#include "sandbox/tunnel.h"
#include "server/sessions.h"

#define BLOCK (16 * KIB)
/* For the client to close, when the program has and all was sent. */
#define LINGER_MS 5000

struct relay {
    struct session session;
    struct tunnel *tunnel;
    struct waiter on_in, on_out;
    char *held; /* for the client, not sent yet */
    size_t held_at, held_len;
    bool client_ended, program_ended;
    int64_t linger_until_ms;
};

static void in_moved(struct waiter *waiter)
{
    session_wake(&container_of(waiter, struct relay, on_in)->session);
}

static void out_moved(struct waiter *waiter)
{
    session_wake(&container_of(waiter, struct relay, on_out)->session);
}

static void wait_no_more(struct relay *relay)
{
    (void)event_cancel(pipe_readable(tunnel_in(relay->tunnel)), &relay->on_in);
    (void)event_cancel(pipe_writable(tunnel_out(relay->tunnel)), &relay->on_out);
}

/* --- bytes -------------------------------------------------------------------------------------
 */

/* From the client. False: it has gone. */
static bool pull(struct relay *relay)
{
    struct pipe *out = tunnel_out(relay->tunnel);
    char block[BLOCK];

    while (!relay->client_ended) {
        uint64_t seen = event_count(pipe_writable(out));
        size_t space = pipe_space(out);

        if (!space) {
            if (pipe_state(out, NULL) != PIPE_OPEN ||
                event_wait(pipe_writable(out), seen, &relay->on_out))
                return true; /* where it is over, the other pipe says why */
            continue;
        }
        ssize_t len = recv(relay->session.fd, block, space < BLOCK ? space : BLOCK, MSG_DONTWAIT);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return errno == EAGAIN;
        if (len == 0) {
            relay->client_ended = true;
            pipe_finish(out, NULL);
        }
        (void)pipe_write(out, block, (size_t)len); /* it has the space, this is its only writer */
    }
    return true;
}

/* True when all that was held is sent; else there is no room now, or the client has gone. */
static bool send_held(struct relay *relay, bool *ret_gone)
{
    while (relay->held_at < relay->held_len) {
        ssize_t len = send(relay->session.fd, relay->held + relay->held_at,
                           relay->held_len - relay->held_at, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0) {
            *ret_gone = errno != EAGAIN;
            return false;
        }
        relay->held_at += (size_t)len;
    }
    free(relay->held);
    relay->held = NULL;
    relay->held_at = relay->held_len = 0;
    return true;
}

static void program_is_through(struct relay *relay)
{
    relay->program_ended = true;
    relay->linger_until_ms = clock_now_ms() + LINGER_MS;
    session_look(&relay->session, relay->linger_until_ms);
    (void)shutdown(relay->session.fd, SHUT_WR); /* fails only when the client has gone: seen next */
}

/* To the client. False: it has gone, or the tunnel broke. */
static bool push(struct relay *relay)
{
    struct pipe *in = tunnel_in(relay->tunnel);
    bool gone = false;

    while (!relay->program_ended) {
        if (!send_held(relay, &gone))
            return !gone;
        uint64_t seen = event_count(pipe_readable(in));
        char *block = xmalloc(BLOCK);
        size_t len = pipe_read(in, block, BLOCK);
        if (len) {
            relay->held = block;
            relay->held_len = len;
            continue;
        }
        free(block);
        enum pipe_state state = pipe_state(in, NULL);
        if (state == PIPE_ENDED)
            program_is_through(relay);
        else if (state != PIPE_OPEN)
            return false;
        else if (event_wait(pipe_readable(in), seen, &relay->on_in))
            return true;
    }
    return true;
}

/* --- life --------------------------------------------------------------------------------------
 */

static bool relay_step(struct session *session)
{
    struct relay *relay = container_of(session, struct relay, session);

    wait_no_more(relay);
    if (!pull(relay) || !push(relay) || (relay->client_ended && relay->program_ended))
        return false;
    return !relay->program_ended || clock_now_ms() < relay->linger_until_ms;
}

static bool relay_stop(struct session *session)
{
    (void)session;
    return false;
}

static void relay_free(struct session *session)
{
    struct relay *relay = container_of(session, struct relay, session);

    wait_no_more(relay);
    tunnel_close(relay->tunnel);
    free(relay->held);
    free(relay);
}

static const struct session_ops relay_ops = {NULL, relay_step, relay_stop, relay_free};

void relay_begin(struct sessions *sessions, const struct relay_ends *ends)
{
    struct relay *relay = xcalloc(1, sizeof(*relay));

    *relay = (struct relay){
        .session = {.ops = &relay_ops, .fd = ends->fd, .urh = ends->urh},
        .tunnel = ends->tunnel,
        .on_in.wake = in_moved,
        .on_out.wake = out_moved,
        .held = ends->to_client,
        .held_len = ends->to_client_len,
    };
    /* At most what libmicrohttpd has room for; only the request's head went before it. */
    (void)pipe_write(tunnel_out(ends->tunnel), ends->to_program, ends->to_program_len);
    sessions_begin(sessions, &relay->session);
}
