#include "server/upstream.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "server/upstream_parser.h"

#define READ_BLOCK ((size_t)4096)
#define INTERIM_MAX 1000 /* 100, 103 before one answer */

struct upstream {
    struct tunnel *tunnel;
    bool reused;
    bool to_head;
    bool heard;    /* something has come */
    struct buf in; /* read from the tunnel, not used yet */
    struct upstream_parser parser;
    unsigned interim; /* answers before the one that counts */
};

struct upstream *upstream_new(struct tunnel *tunnel, bool reused, bool to_head)
{
    struct upstream *upstream = xcalloc(1, sizeof(*upstream));

    upstream->tunnel = tunnel;
    upstream->reused = reused;
    upstream->to_head = to_head;
    buf_init(&upstream->in, READ_BLOCK);
    upstream_parser_init(&upstream->parser, to_head);
    return upstream;
}

bool upstream_reused(const struct upstream *upstream)
{
    return upstream->reused;
}

const struct upstream_head *upstream_head(const struct upstream *upstream)
{
    return &upstream->parser.head;
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
        upstream->heard = true;
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

int upstream_receive(struct upstream *upstream, bool *ret_silent, struct err *err)
{
    struct upstream_parser *parser = &upstream->parser;
    struct buf *in = &upstream->in;
    bool more = true;

    while (more) {
        size_t used;

        *ret_silent = !upstream->heard;
        int rc = upstream_parse_head(parser, buf_text(in), in->len, &used, err);
        if (rc < 0)
            return -1;
        buf_consume(in, used);
        if (rc > 0 && (parser->head.status >= 200 || parser->head.status == 101))
            return 1;
        if (rc > 0) { /* 100, 103: only for us */
            upstream_parser_done(parser);
            upstream_parser_init(parser, upstream->to_head);
            if (++upstream->interim > INTERIM_MAX)
                return err_set(err, ERR_BAD_ANSWER, "more than %d interim answers came before one",
                               INTERIM_MAX);
            continue;
        }
        if (fill(upstream, &more, err))
            return -1;
    }
    return 0;
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
    struct upstream_parser *parser = &upstream->parser;

    while (!parser->ended && !parser->broken) {
        size_t len = take(upstream, data, max), used;

        if (!len)
            return 0;
        size_t kept = upstream_parse_body(parser, data, len, &used);
        if (used < len) /* nobody asked for more: the tunnel is of no use any longer */
            parser->head.persistent = false;
        if (kept)
            return kept;
    }
    return 0;
}

char *upstream_small_body(struct upstream *upstream, size_t max, size_t *ret_len)
{
    const struct upstream_head *head = &upstream->parser.head;
    size_t there = upstream->in.len + pipe_used(tunnel_in(upstream->tunnel));

    if (head->kind != BODY_LENGTH || head->length > (int64_t)max || head->length > (int64_t)there)
        return NULL;
    size_t want = (size_t)head->length, len = 0;
    char *data = xmalloc(want + 1);
    while (len < want) /* it is there, and nobody else reads it */
        len += upstream_read(upstream, data + len, want - len);
    *ret_len = len;
    return data;
}

enum pipe_state upstream_state(const struct upstream *upstream)
{
    const struct upstream_parser *parser = &upstream->parser;

    if (parser->ended || parser->broken)
        return parser->ended ? PIPE_ENDED : PIPE_FAILED;
    if (upstream->in.len)
        return PIPE_OPEN;
    enum pipe_state state = pipe_state(tunnel_in(upstream->tunnel), NULL);
    return state == PIPE_ENDED && parser->head.kind != BODY_TO_END ? PIPE_FAILED : state;
}

struct event *upstream_readable(const struct upstream *upstream)
{
    return pipe_readable(tunnel_in(upstream->tunnel));
}

void upstream_done(struct upstream *upstream, bool whole)
{
    if (!upstream)
        return;
    const struct upstream_parser *parser = &upstream->parser;
    if (whole && parser->ended && parser->head.persistent && !upstream->in.len &&
        pipe_used(tunnel_out(upstream->tunnel)) == 0)
        tunnel_keep(upstream->tunnel);
    else
        tunnel_close(upstream->tunnel);
    upstream_parser_done(&upstream->parser);
    buf_done(&upstream->in);
    free(upstream);
}

struct tunnel *upstream_take(struct upstream *upstream, char **ret_data, size_t *ret_len)
{
    struct tunnel *tunnel = upstream->tunnel;

    *ret_data = buf_take(&upstream->in, ret_len);
    upstream_parser_done(&upstream->parser);
    free(upstream);
    return tunnel;
}
