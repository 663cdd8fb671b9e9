#include "server/upstream.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define READ_BLOCK ((size_t)4096)

struct upstream {
    struct tunnel *tunnel;
    bool reused;
    struct buf in; /* read from the tunnel, not used yet */
    struct upstream_head head;
    struct upstream_body body;
    unsigned interim; /* answers before the one that counts */
};

struct upstream *upstream_new(struct tunnel *tunnel, bool reused)
{
    struct upstream *upstream = xcalloc(1, sizeof(*upstream));

    upstream->tunnel = tunnel;
    upstream->reused = reused;
    buf_init(&upstream->in, UPSTREAM_HEAD_MAX + READ_BLOCK);
    return upstream;
}

bool upstream_reused(const struct upstream *upstream)
{
    return upstream->reused;
}

const struct upstream_head *upstream_head(const struct upstream *upstream)
{
    return &upstream->head;
}

/* Whether there may be more to read now; the end without a head is an error. */
static int fill(struct upstream *upstream, bool *ret_read, struct err *err)
{
    struct pipe *in = tunnel_in(upstream->tunnel);
    char *at = buf_reserve(&upstream->in, READ_BLOCK);
    size_t len = at ? pipe_read(in, at, READ_BLOCK) : 0;

    *ret_read = len > 0;
    if (len) {
        buf_grew(&upstream->in, len);
        return 0;
    }
    switch (pipe_state(in, err)) {
    case PIPE_OPEN:
        return 0;
    case PIPE_ENDED:
        return err_set(err, ERR_BAD_ANSWER, "the program closed the connection without an answer");
    default:
        return -1;
    }
}

int upstream_receive(struct upstream *upstream, bool to_head, bool *ret_silent, struct err *err)
{
    struct buf *in = &upstream->in;
    bool more = true;
    size_t len = 0;

    for (;;) {
        *ret_silent = in->len == 0;
        if (upstream_head_parse(buf_text(in), in->len, to_head, &upstream->head, &len, err))
            return -1;
        if (len) {
            buf_consume(in, len);
            int status = upstream->head.status;
            if (status >= 200 || status == 101)
                break;
            upstream_head_done(&upstream->head); /* 100, 103: only for us */
            if (++upstream->interim > UPSTREAM_INTERIM_MAX)
                return err_set(err, ERR_BAD_ANSWER, "more than %d interim answers came before one",
                               UPSTREAM_INTERIM_MAX);
            continue;
        }
        if (fill(upstream, &more, err))
            return -1;
        if (!more)
            return 0;
    }
    upstream_body_init(&upstream->body, &upstream->head);
    return 1;
}

/* Raw bytes of the answer. */
static size_t take(struct upstream *upstream, char *data, size_t max)
{
    struct buf *in = &upstream->in;

    if (!in->len)
        return pipe_read(tunnel_in(upstream->tunnel), data, max);
    size_t len = in->len < max ? in->len : max;
    memcpy(data, in->ptr, len);
    buf_consume(in, len);
    if (!in->len)
        buf_done(in);
    return len;
}

size_t upstream_read(struct upstream *upstream, void *data, size_t max)
{
    struct upstream_body *body = &upstream->body;

    while (!body->ended && !body->broken) {
        size_t want = max, used;

        if (body->kind == BODY_LENGTH && want > body->left)
            want = (size_t)body->left;
        size_t len = take(upstream, data, want);
        if (!len)
            return 0;
        size_t kept = upstream_body_decode(body, data, len, &used);
        if (used < len) /* nobody asked for more: the tunnel is of no use any longer */
            upstream->head.persistent = false;
        if (kept)
            return kept;
    }
    return 0;
}

char *upstream_small_body(struct upstream *upstream, size_t max, size_t *ret_len)
{
    const struct upstream_body *body = &upstream->body;
    size_t there = upstream->in.len + pipe_used(tunnel_in(upstream->tunnel));

    if (body->kind != BODY_LENGTH || body->left > max || body->left > there)
        return NULL;
    size_t want = (size_t)body->left, len = 0;
    char *data = xmalloc(want + 1);
    while (len < want) /* it is there, and nobody else reads it */
        len += upstream_read(upstream, data + len, want - len);
    *ret_len = len;
    return data;
}

enum pipe_state upstream_state(const struct upstream *upstream)
{
    const struct upstream_body *body = &upstream->body;

    if (body->ended || body->broken)
        return body->ended ? PIPE_ENDED : PIPE_FAILED;
    if (upstream->in.len)
        return PIPE_OPEN;
    enum pipe_state state = pipe_state(tunnel_in(upstream->tunnel), NULL);
    return state == PIPE_ENDED && body->kind != BODY_TO_END ? PIPE_FAILED : state;
}

struct event *upstream_readable(const struct upstream *upstream)
{
    return pipe_readable(tunnel_in(upstream->tunnel));
}

void upstream_done(struct upstream *upstream, bool whole)
{
    if (!upstream)
        return;
    if (whole && upstream->body.ended && upstream->head.persistent && !upstream->in.len &&
        pipe_used(tunnel_out(upstream->tunnel)) == 0)
        tunnel_keep(upstream->tunnel);
    else
        tunnel_close(upstream->tunnel);
    upstream_head_done(&upstream->head);
    buf_done(&upstream->in);
    free(upstream);
}

struct tunnel *upstream_take(struct upstream *upstream, char **ret_data, size_t *ret_len)
{
    struct tunnel *tunnel = upstream->tunnel;

    *ret_data = buf_take(&upstream->in, ret_len);
    upstream_head_done(&upstream->head);
    free(upstream);
    return tunnel;
}
