#include "sandbox/event_feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/pump.h"
#include "sandbox/sandbox.h"

#define BATCH 50

struct event_feed {
    atomic_uint refs; /* the pump's, and one of the loop while the timer may run */
    struct sandboxes *all;
    struct sandbox *sandbox; /* NULL: it is gone */
    char uid[UID_LEN];
    int64_t after;
    enum follow_format format;
    struct buf ready;
    bool over;
    int64_t last_ms;    /* when something was said */
    struct event awake; /* what the pump waits for */
    struct waiter on_change;
    struct timer timer; /* the loop's */
};

static void feed_unref(struct event_feed *feed)
{
    if (atomic_fetch_sub(&feed->refs, 1) > 1)
        return;
    sandbox_unref(feed->sandbox);
    event_done(&feed->awake);
    buf_done(&feed->ready);
    free(feed);
}

/* --- waking ---------------------------------------------------------------------------------- */

static void changed(struct waiter *waiter)
{
    event_fire(&container_of(waiter, struct event_feed, on_change)->awake);
}

static void timer_fired(struct timer *timer)
{
    struct event_feed *feed = container_of(timer, struct event_feed, timer);
    event_fire(&feed->awake);
    timer_start(feed->all->loop, timer, FOLLOW_HEARTBEAT_MS);
}

static void begin_on_loop(struct sandbox *sandbox, void *arg)
{
    struct event_feed *feed = arg;
    (void)sandbox;
    feed->timer.fire = timer_fired;
    timer_start(feed->all->loop, &feed->timer, FOLLOW_HEARTBEAT_MS);
}

static void end_on_loop(struct sandbox *sandbox, void *arg)
{
    struct event_feed *feed = arg;
    (void)sandbox;
    timer_stop(&feed->timer);
    feed_unref(feed);
}

static void feed_free(void *arg)
{
    struct event_feed *feed = arg;
    if (feed->sandbox) {
        (void)event_cancel(&feed->sandbox->changed, &feed->on_change);
        sandbox_on_loop(feed->sandbox, end_on_loop, feed);
    }
    feed_unref(feed);
}

/* --- what is said ---------------------------------------------------------------------------- */

/* Takes EVENT; ID 0: none. */
static bool put(struct event_feed *feed, struct json *event, int64_t id)
{
    bool sse = feed->format == FOLLOW_SSE;
    bool fits = !sse || id == 0 || buf_printf(&feed->ready, "id: %lld\n", (long long)id);
    fits = fits && (!sse || buf_append_str(&feed->ready, "data: ")) &&
           json_print(event, &feed->ready) && buf_append_str(&feed->ready, sse ? "\n\n" : "\n");
    json_free(event);
    feed->last_ms = clock_now_ms();
    return fits;
}

static bool put_plain(struct event_feed *feed, const char *type, const struct err *why)
{
    struct json *event = json_new_object();
    json_set_text(event, "type", type);
    if (why) {
        struct json *error = json_set_object(event, "error");
        json_set_text(error, "code", err_code_name(why->code));
        json_set_text(error, "message", why->msg);
    }
    return put(feed, event, 0);
}

/* The next events of the store, if there are any. */
static int put_recorded(struct event_feed *feed, bool *ret_some, struct err *err)
{
    cleanup_json struct json *page = NULL;
    if (sandbox_events(feed->all, feed->uid, feed->after, BATCH, &page, err) < 0)
        return -1;
    bool fits = true;
    for (const struct json *item = json_first(json_get(page, "items")); item && fits;
         item = json_next(item)) {
        const char *type = json_get_text(item, "type");
        feed->after = json_get_int(item, "id", feed->after);
        feed->over = feed->over || (type && strcmp(type, "gone") == 0);
        fits = put(feed, json_copy(item), feed->after);
        *ret_some = true;
    }
    return fits ? 0 : err_set(err, ERR_INTERNAL, "the events do not fit");
}

/* Something to say, PUMP_WAIT, or the end. */
static int refill(struct event_feed *feed, struct err *err)
{
    static const struct err stopping = {ERR_STOPPING, "the server is stopping; ask the next one"};
    uint64_t seen = feed->sandbox ? event_count(&feed->sandbox->changed) : 0;
    bool some = false;
    if (put_recorded(feed, &some, err) < 0)
        return -1;
    if (some)
        return 0;
    if (!feed->sandbox) {
        feed->over = true;
        return 0;
    }
    bool said = true;
    if (atomic_load(&feed->all->follows_stopped)) {
        feed->over = true;
        said = put_plain(feed, "error", &stopping);
    } else if (clock_now_ms() - feed->last_ms >= FOLLOW_HEARTBEAT_MS) {
        said = put_plain(feed, "heartbeat", NULL);
    } else {
        (void)event_cancel(&feed->sandbox->changed, &feed->on_change);
        return event_wait(&feed->sandbox->changed, seen, &feed->on_change) ? PUMP_WAIT : 0;
    }
    return said ? 0 : err_set(err, ERR_INTERNAL, "an event does not fit");
}

static ssize_t feed_read(void *arg, void *data, size_t len, struct err *err)
{
    struct event_feed *feed = arg;
    while (feed->ready.len == 0) {
        if (feed->over)
            return 0;
        int rc = refill(feed, err);
        if (rc < 0)
            return rc;
    }
    return (ssize_t)buf_take_front(&feed->ready, data, len);
}

static struct event *feed_awake(void *arg)
{
    return &((struct event_feed *)arg)->awake;
}

static const struct pump_source source = {
    .read = feed_read,
    .readable = feed_awake,
    .free = feed_free,
};

void event_feed_start(struct sandboxes *all, struct sandbox *sandbox, const char *uid,
                      int64_t after, enum follow_format format, struct pipe *out)
{
    const struct pump_range whole = {.length = -1};
    struct event_feed *feed = xcalloc(1, sizeof(*feed));
    atomic_init(&feed->refs, sandbox ? 2 : 1);
    feed->all = all;
    feed->sandbox = sandbox ? sandbox_ref(sandbox) : NULL;
    (void)snprintf(feed->uid, sizeof(feed->uid), "%s", uid);
    feed->after = after;
    feed->format = format;
    feed->last_ms = clock_now_ms();
    feed->on_change.wake = changed;
    event_init(&feed->awake);
    buf_init(&feed->ready, (size_t)2 * BATCH * CAP_SMALL);
    if (sandbox)
        sandbox_on_loop(sandbox, begin_on_loop, feed);
    pump_start(all, &source, feed, NULL, &whole, out);
}
