#include "sandbox/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sandbox/client.h"

/* A box that starts answers within tens of milliseconds: the first tries are close together. */
#define PAUSE_MIN_MS 20
#define PAUSE_MAX_MS 1000
#define PAUSE_FAULT_MAX_MS 5000 /* while the substrate refuses for another reason */
#define PAUSE_SUPERSEDED_MS 5000
/* A stream that lived for so long is opened again at once when it breaks. */
#define STABLE_MS 5000
#define HANDSHAKE_MS 10000
#define PING_MS 30000
#define SILENT_PINGS 2

enum link_state {
    LINK_IDLE,
    LINK_PAUSING, /* the timer runs until the next try */
    LINK_QUEUED,  /* waits for other links' handshakes */
    LINK_OPENING, /* up to the agent's hello */
    LINK_UP,
    LINK_ENDED,
};

struct link {
    const struct driver *driver;
    struct loop *loop;
    char *id, *uid, *box_uid;
    uint8_t token[PROTO_TOKEN_LEN];
    struct link_shared *shared;
    const struct link_handler *handler;
    void *arg;

    enum link_state state;
    struct stream *stream; /* NULL: none */
    bool in_open;          /* the driver's open() is running */
    bool opened;           /* the stream takes bytes */
    bool handshaking;      /* counted in shared->handshakes */
    struct err *early;     /* why the stream closed within open() */
    struct client *client; /* NULL: none */
    struct client *dead;   /* closed; freed when nothing of it is on the stack */
    struct timer timer;
    int64_t pause_ms, down_since, up_since;
    unsigned silent;
    bool heard; /* since the last ping */

    uint64_t *configuring; /* SEQs not answered yet */
    size_t configuring_count;

    unsigned depth; /* callbacks of this link on the stack */
    bool stopped, flushing;
    struct link *next, *prev; /* in shared's queue */
};

struct link *link_new(const struct link_target *target, const struct link_handler *handler,
                      void *arg)
{
    struct link *link = xcalloc(1, sizeof(*link));
    link->driver = target->driver;
    link->loop = target->loop;
    link->id = xstrdup(target->id);
    link->uid = xstrdup(target->uid);
    link->box_uid = xstrdup(target->box_uid);
    memcpy(link->token, target->token, sizeof(link->token));
    link->shared = target->shared;
    link->handler = handler;
    link->arg = arg;
    link->down_since = clock_now_ms();
    return link;
}

static void link_free(void *arg)
{
    struct link *link = arg;
    client_free(link->client);
    client_free(link->dead);
    free(link->early);
    free(link->configuring);
    free(link->id);
    free(link->uid);
    free(link->box_uid);
    explicit_bzero(link->token, sizeof(link->token));
    free(link);
}

bool link_is_up(const struct link *link)
{
    return link->state == LINK_UP;
}

int64_t link_down_since(const struct link *link)
{
    return link->state == LINK_UP ? 0 : link->down_since;
}

/* --- nesting ----------------------------------------------------------------------------- */

/* Callbacks may stop this very link: between enter and leave it stays in memory. */
static void enter(struct link *link)
{
    link->depth++;
}

static void cut(struct link *link, const struct err *why);

static void flush(struct link *link)
{
    if (link->flushing || !link->opened)
        return;
    link->flushing = true;
    size_t len;
    while (link->client) {
        const uint8_t *data = client_output(link->client, &len);
        if (len == 0)
            break;
        size_t taken = stream_write(link->stream, data, len);
        if (taken > 0 && link->client)
            client_sent(link->client, taken); /* may cut */
        if (taken < len)
            break;
    }
    link->flushing = false;
}

static void leave(struct link *link)
{
    if (link->depth == 1) {
        flush(link);
        if (link->client && client_overflowed(link->client)) {
            struct err why;
            (void)err_set(&why, ERR_STREAM_LOST, "the agent does not read");
            cut(link, &why);
        }
        client_free(link->dead);
        link->dead = NULL;
    }
    if (--link->depth == 0 && link->stopped)
        loop_post(link->loop, link_free, link);
}

/* --- handshakes, bounded over all links -------------------------------------------------- */

static void queue_up(struct link *link)
{
    struct link_shared *shared = link->shared;
    link->state = LINK_QUEUED;
    link->next = NULL;
    link->prev = shared->last_waiting;
    if (shared->last_waiting)
        shared->last_waiting->next = link;
    else
        shared->first_waiting = link;
    shared->last_waiting = link;
}

static void leave_queue(struct link *link)
{
    struct link_shared *shared = link->shared;
    if (link->prev)
        link->prev->next = link->next;
    else
        shared->first_waiting = link->next;
    if (link->next)
        link->next->prev = link->prev;
    else
        shared->last_waiting = link->prev;
    link->next = link->prev = NULL;
}

static void handshake_over(struct link *link)
{
    if (!link->handshaking)
        return;
    link->handshaking = false;
    link->shared->handshakes--;
    struct link *next = link->shared->first_waiting;
    if (next) {
        /* By its timer and not from here: the depth of the stack stays that of one link. */
        leave_queue(next);
        next->state = LINK_PAUSING;
        timer_start(next->loop, &next->timer, 0);
    }
}

/* --- the end of a stream ----------------------------------------------------------------- */

static void fail_configurations(struct link *link, const struct err *why)
{
    uint64_t *seqs = TAKE_PTR(link->configuring);
    size_t count = link->configuring_count;
    link->configuring_count = 0;
    for (size_t i = 0; i < count && !link->stopped; i++)
        link->handler->configured(link->arg, seqs[i], 0, why);
    free(seqs);
}

static void drop_stream(struct link *link, const struct err *why)
{
    struct stream *stream = TAKE_PTR(link->stream);
    struct client *client = TAKE_PTR(link->client);
    link->opened = false;
    timer_stop(&link->timer);
    if (stream)
        stream_close(stream);
    if (client) {
        client_close(client, why);
        assert(!link->dead);
        link->dead = client;
    }
    handshake_over(link);
    fail_configurations(link, why);
}

static int64_t next_pause(struct link *link, const struct err *why, bool was_up)
{
    if (was_up && clock_now_ms() - link->up_since >= STABLE_MS)
        link->pause_ms = 0;
    int64_t pause = link->pause_ms;
    if (!was_up && pause < PAUSE_MIN_MS)
        pause = PAUSE_MIN_MS;
    int64_t max = was_up || why->code == ERR_NOT_READY ? PAUSE_MAX_MS : PAUSE_FAULT_MAX_MS;
    link->pause_ms = pause < PAUSE_MIN_MS ? PAUSE_MIN_MS : pause * 3 / 2;
    if (link->pause_ms > max)
        link->pause_ms = max;
    return pause;
}

enum outcome { TRY_AGAIN, TRY_SLOWLY, GIVE_UP };

/* The stream is over, or could not be opened: the driver or the agent said so, or the agent
 * misbehaved. */
static void end_stream(struct link *link, const struct err *why, enum outcome outcome)
{
    bool was_up = link->state == LINK_UP;
    if (was_up)
        link->down_since = clock_now_ms();
    link->state = LINK_IDLE;
    enter(link);
    drop_stream(link, why);
    if (link->stopped) {
        link->state = LINK_ENDED;
    } else if (outcome == GIVE_UP) {
        link->state = LINK_ENDED;
        link->handler->ended(link->arg, why);
    } else {
        int64_t pause = outcome == TRY_SLOWLY ? PAUSE_SUPERSEDED_MS : next_pause(link, why, was_up);
        link->state = LINK_PAUSING;
        timer_start(link->loop, &link->timer, pause);
        link->handler->down(link->arg, why);
    }
    leave(link);
}

static void cut(struct link *link, const struct err *why)
{
    bool final = why->code == ERR_SANDBOX_GONE || why->code == ERR_GONE;
    end_stream(link, why, final ? GIVE_UP : TRY_AGAIN);
}

/* --- the client's callbacks -------------------------------------------------------------- */

static void client_hello(void *arg, const struct link_hello *hello)
{
    struct link *link = arg;
    link->state = LINK_UP;
    link->up_since = clock_now_ms();
    link->silent = 0;
    link->heard = true;
    timer_start(link->loop, &link->timer, PING_MS);
    handshake_over(link);
    link->handler->up(link->arg, hello);
}

static void client_refused(void *arg, const struct err *why)
{
    struct err final = *why;
    if (why->code != ERR_FORBIDDEN && why->code != ERR_UNAUTHENTICATED) {
        end_stream(arg, why, TRY_AGAIN);
        return;
    }
    final.code = ERR_UNAUTHENTICATED;
    end_stream(arg, &final, GIVE_UP);
}

static void client_bye(void *arg, const struct err *why, enum client_bye kind)
{
    static const enum outcome outcomes[] = {
        [BYE_CUT] = TRY_AGAIN,
        [BYE_SUPERSEDED] = TRY_SLOWLY,
        [BYE_ENDED] = GIVE_UP,
    };
    end_stream(arg, why, outcomes[kind]);
}

static void client_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    struct link *link = arg;
    for (size_t i = 0; i < link->configuring_count; i++) {
        if (link->configuring[i] == seq) {
            link->configuring[i] = link->configuring[--link->configuring_count];
            link->handler->configured(link->arg, seq, deadline_ms, why);
            return;
        }
    }
}

static void client_has_output(void *arg)
{
    struct link *link = arg;
    if (link->depth > 0)
        return; /* leave() sends it, together with what else comes up */
    enter(link);
    leave(link);
}

static const struct client_handler client_callbacks = {
    .hello = client_hello,
    .refused = client_refused,
    .bye = client_bye,
    .configured = client_configured,
    .output = client_has_output,
};

/* --- the stream's callbacks -------------------------------------------------------------- */

static void say_hello(struct link *link)
{
    enter(link);
    link->opened = true;
    link->client = client_new((uint64_t)clock_now_us(), link->shared, &client_callbacks, link);
    client_say_hello(link->client, link->token, link->uid);
    leave(link);
}

static void on_opened(void *arg)
{
    struct link *link = arg;
    if (link->in_open)
        link->opened = true;
    else if (link->stream)
        say_hello(link);
}

static void on_received(void *arg, const uint8_t *data, size_t len)
{
    struct link *link = arg;
    struct err err;
    if (!link->client)
        return;
    link->heard = true;
    enter(link);
    if (client_receive(link->client, data, len, &err))
        cut(link, &err);
    leave(link);
}

static void on_writable(void *arg)
{
    struct link *link = arg;
    enter(link);
    leave(link);
}

static void on_closed(void *arg, const struct err *why)
{
    struct link *link = arg;
    struct err end = *why;
    if (end.code == ERR_NONE)
        (void)err_set(&end, ERR_STREAM_LOST, "the stream to the agent ended");
    if (link->in_open) {
        if (!link->early)
            link->early = xmalloc(sizeof(*link->early));
        *link->early = end;
        return;
    }
    link->stream = NULL;
    cut(link, &end);
}

static const struct stream_handler stream_callbacks = {
    .opened = on_opened,
    .received = on_received,
    .writable = on_writable,
    .closed = on_closed,
};

/* --- opening ----------------------------------------------------------------------------- */

static void try_open(struct link *link)
{
    struct link_shared *shared = link->shared;
    if (shared && shared->handshakes >= CAP_HANDSHAKES) {
        queue_up(link);
        return;
    }
    if (shared) {
        shared->handshakes++;
        link->handshaking = true;
    }
    enter(link);
    link->state = LINK_OPENING;
    timer_start(link->loop, &link->timer, HANDSHAKE_MS);
    link->opened = false;
    link->in_open = true;
    struct stream *stream = link->driver->ops->open(link->driver->self, link->id, link->box_uid,
                                                    &stream_callbacks, link);
    link->in_open = false;
    struct err *early = TAKE_PTR(link->early);
    if (early) {
        cut(link, early);
        free(early);
    } else if (!stream) {
        struct err why;
        (void)err_set(&why, ERR_NOT_READY, "no stream to the agent");
        cut(link, &why);
    } else {
        link->stream = stream;
        if (link->opened)
            say_hello(link);
    }
    leave(link);
}

static void ping(struct link *link)
{
    link->silent = link->heard ? 0 : link->silent + 1;
    link->heard = false;
    if (link->silent >= SILENT_PINGS) {
        struct err why;
        (void)err_set(&why, ERR_STREAM_LOST, "the agent has been silent for %d s",
                      SILENT_PINGS * PING_MS / 1000);
        cut(link, &why);
        return;
    }
    timer_start(link->loop, &link->timer, PING_MS);
    client_ping(link->client);
}

static void on_timer(struct timer *timer)
{
    struct link *link = container_of(timer, struct link, timer);
    struct err why;
    enter(link);
    if (link->state == LINK_PAUSING) {
        try_open(link);
    } else if (link->state == LINK_OPENING) {
        (void)err_set(&why, ERR_NOT_READY, "the agent did not answer within %d s",
                      HANDSHAKE_MS / 1000);
        cut(link, &why);
    } else if (link->state == LINK_UP) {
        ping(link);
    }
    leave(link);
}

void link_start(struct link *link)
{
    assert(link->state == LINK_IDLE);
    link->timer.fire = on_timer;
    try_open(link);
}

void link_stop(struct link *link)
{
    struct err why;
    if (!link)
        return;
    enter(link);
    (void)err_set(&why, ERR_STREAM_LOST, "the connection to the agent was closed");
    link->stopped = true;
    if (link->state == LINK_QUEUED)
        leave_queue(link);
    link->state = LINK_ENDED;
    drop_stream(link, &why);
    leave(link);
}

/* --- what the owner asks ----------------------------------------------------------------- */

void link_configure(struct link *link, const struct link_configuration *configuration)
{
    struct err why;
    if (link->state != LINK_UP || !link->client) {
        (void)err_set(&why, ERR_NOT_READY, "the agent is not connected");
        link->handler->configured(link->arg, configuration->seq, 0, &why);
        return;
    }
    link->configuring =
        xrealloc(link->configuring, (link->configuring_count + 1) * sizeof(link->configuring[0]));
    link->configuring[link->configuring_count++] = configuration->seq;
    enter(link);
    client_configure(link->client, configuration);
    leave(link);
}

bool channel_open(struct link *link, struct channel *channel, const void *fields, size_t len,
                  const uint64_t out_offset[2])
{
    if (link->state != LINK_UP || !link->client)
        return false;
    return client_open(link->client, channel, fields, len, out_offset);
}

bool channel_commit(struct link *link, const struct channel *channel)
{
    return link->state == LINK_UP && link->client && client_commit(link->client, channel);
}
