/* Following an execution: a source for a pump, woken by output and by a timer. */
#include "sandbox/follow.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/attachment_data.h"
#include "sandbox/call.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"
#include "sandbox/follower.h"

/* A piece in which each byte is a mask of three, or escaped. */
#define READY_MAX (MIB)

bool follow_position_parse(const char *text, struct follow_position *ret_position)
{
    uint64_t numbers[3];
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        size_t len = strcspn(text, ":");
        if (!str_to_u64((struct str){text, len}, INT64_MAX, &numbers[i]) ||
            (text[len] == ':') != (i + 1 < ARRAY_LEN(numbers)))
            return false;
        text += len + 1;
    }
    *ret_position =
        (struct follow_position){.sequence = numbers[0], .offset = {numbers[1], numbers[2]}};
    return true;
}

/* --- what it is made from -----------------------------------------------------------------------
 */

int follower_output(struct follower *follower, int stream, struct output *ret_output,
                    struct err *err)
{
    if (follower->exec)
        return output_of_exec(follower->exec, stream, ret_output, err);
    *ret_output = follower->stored[stream - 1];
    return 0;
}

void follower_output_done(struct follower *follower, struct output *output)
{
    if (follower->exec)
        output_done(output);
}

void follower_cut(struct follower *follower, const struct err *why)
{
    follower->over = true;
    if (!follower->cut)
        follower->cut = xmalloc(sizeof(*follower->cut)); /* else there would be thousands */
    *follower->cut = *why;
}

static int look_at(struct follower *follower, int stream, const struct chunk_wish *wish,
                   struct chunk *ret_chunk, struct follow_look *look, struct err *err)
{
    struct output output;
    if (follower_output(follower, stream, &output, err))
        return -1;
    int rc = chunk_next(&output, follower->position.offset[stream - 1], wish, ret_chunk, err);
    if (rc == 0) {
        look->made = ret_chunk->kind != CHUNK_NONE;
        look->open = look->open || output.open || ret_chunk->again_ms > 0;
        if (ret_chunk->again_ms)
            look->again_ms = ret_chunk->again_ms;
    }
    follower_output_done(follower, &output);
    return rc;
}

int follow_look(struct follower *follower, const struct chunk_wish *wish,
                void (*put)(struct follower *follower, int stream, const struct chunk *chunk),
                struct follow_look *look, struct err *err)
{
    for (int i = 0; i < 2 && !look->made; i++) {
        int stream = follower->turn;
        struct chunk chunk;
        follower->turn = 3 - stream;
        if (look_at(follower, stream, wish, &chunk, look, err))
            return -1;
        if (look->made)
            put(follower, stream, &chunk);
        chunk_done(&chunk);
    }
    return 0;
}

bool follower_broken(struct follower *follower, struct err *ret_why)
{
    if (!follower->exec)
        return false;
    if (follower->paces && exec_reader_slow(follower->exec, &follower->reader)) {
        (void)err_set(ret_why, ERR_SLOW_READER,
                      "the reader stood still for %d s while the command waited for it",
                      EXEC_SLOW_MS / 1000);
        return true;
    }
    if (exec_ended(follower->exec))
        return false;
    if (atomic_load(&follower->all->follows_stopped)) {
        (void)err_set(ret_why, ERR_STOPPING, "the server stops; the command goes on");
        return true;
    }
    if (exec_done(follower->exec) && !exec_ended(follower->exec)) {
        (void)err_set(ret_why, ERR_STREAM_LOST,
                      "the agent has been out of reach for %d s; the result may still come",
                      EXEC_LOST_MS / 1000);
        return true;
    }
    return false;
}

/* --- its life -----------------------------------------------------------------------------------
 */

static void follower_unref(struct follower *follower)
{
    if (atomic_fetch_sub(&follower->refs, 1) > 1)
        return;
    for (int i = 0; i < 2 && follower->stored; i++)
        output_done(&follower->stored[i]);
    free(follower->stored);
    free(follower->cut);
    exec_unref(follower->exec);
    if (follower->attachment)
        attachment_unref(follower->attachment);
    event_done(&follower->never);
    buf_wipe(&follower->ready);
    free(follower);
}

static void on_timer(struct timer *timer)
{
    struct follower *follower = container_of(timer, struct follower, timer);
    atomic_store(&follower->wake_ms, 0);
    event_fire(&follower->exec->output);
}

static void set_timer_on_loop(struct sandbox *sandbox, void *arg)
{
    struct follower *follower = arg;
    int64_t at = atomic_load(&follower->wake_ms);
    int64_t now = clock_now_ms();
    if (atomic_load(&follower->gone)) {
        timer_stop(&follower->timer);
    } else if (at) {
        follower->timer.fire = on_timer;
        timer_start(sandbox->all->loop, &follower->timer, at > now ? at - now : 0);
    }
    follower_unref(follower);
}

static void set_timer(struct follower *follower)
{
    atomic_fetch_add(&follower->refs, 1);
    sandbox_on_loop(follower->exec->sandbox, set_timer_on_loop, follower);
}

/* By then at the latest; one that is set for earlier stays, and is set again when it fires. */
static void wake_after(struct follower *follower, int64_t ms)
{
    int64_t at = clock_now_ms() + ms;
    int64_t set = atomic_load(&follower->wake_ms);
    while (set == 0 || at < set) {
        if (atomic_compare_exchange_weak(&follower->wake_ms, &set, at)) {
            set_timer(follower);
            return;
        }
    }
}

/* --- the source ---------------------------------------------------------------------------------
 */

/* Where the range that OFFSET lies in ends. */
static uint64_t behind_lost(const struct ranges *lost, uint64_t offset)
{
    for (size_t i = 0; i < lost->count; i++) {
        if (offset < lost->items[i].to)
            return lost->items[i].to;
    }
    return offset;
}

/* What lies in `ready` has been read from the journal. */
static void tell_place(struct follower *follower)
{
    uint64_t at[2];
    if (!follower->exec)
        return;
    pthread_mutex_lock(&follower->exec->lock);
    for (int i = 0; i < 2; i++) {
        at[i] = EXEC_UNREAD;
        if (follower->stream == 0 || follower->stream == i + 1) {
            const struct ranges *lost = &follower->exec->streams[i].lost;
            uint64_t offset = follower->position.offset[i];
            if (!ranges_squeeze(lost, offset, &at[i]))
                (void)ranges_squeeze(lost, behind_lost(lost, offset), &at[i]);
        }
    }
    pthread_mutex_unlock(&follower->exec->lock);
    exec_reader_move(follower->exec, &follower->reader, at);
}

/* Of those who are attached only the writer is waited for. */
static void set_pace(struct follower *follower)
{
    struct attachment_view view = {.writer = true};
    if (!follower->exec)
        return;
    if (follower->attachment)
        attachment_look(follower->attachment, &view);
    if (view.writer && !follower->paces)
        exec_reader_add(follower->exec, &follower->reader);
    else if (!view.writer && follower->paces)
        exec_reader_remove(follower->exec, &follower->reader);
    follower->paces = view.writer;
    if (follower->paces)
        tell_place(follower);
}

static enum follow_turn next(struct follower *follower, int64_t *ret_again_ms)
{
    if (follower->attachment)
        return follow_next_message(follower, ret_again_ms);
    return follower->stream ? follow_next_bytes(follower, ret_again_ms)
                            : follow_next_event(follower, ret_again_ms);
}

static ssize_t follow_read(void *arg, void *data, size_t len, struct err *err)
{
    struct follower *follower = arg;
    int64_t again_ms = 0;
    while (follower->ready.len == 0) {
        if (follower->over) {
            if (follower->cut)
                *err = *follower->cut;
            return follower->cut ? -1 : 0;
        }
        enum follow_turn turn = next(follower, &again_ms);
        set_pace(follower);
        if (turn == FOLLOW_WAIT) {
            buf_done(&follower->ready); /* there may be thousands who wait */
            if (again_ms)
                wake_after(follower, again_ms);
            return PUMP_WAIT;
        }
    }
    size_t left = follower->ready.len - follower->given;
    size_t take = left < len ? left : len;
    memcpy(data, follower->ready.ptr + follower->given, take);
    follower->given += take;
    if (take == left) {
        follower->given = 0;
        buf_reset(&follower->ready);
    }
    return (ssize_t)take;
}

static struct event *follow_event(void *arg)
{
    struct follower *follower = arg;
    return follower->exec ? &follower->exec->output : &follower->never;
}

static void follow_free(void *arg)
{
    struct follower *follower = arg;
    if (follower->exec) {
        if (follower->paces)
            exec_reader_remove(follower->exec, &follower->reader);
        atomic_store(&follower->gone, true);
        set_timer(follower);
    }
    follower_unref(follower);
}

static const struct pump_source source = {
    .read = follow_read,
    .readable = follow_event,
    .free = follow_free,
};

/* --- the start ----------------------------------------------------------------------------------
 */

static struct follower *follower_new(struct sandboxes *all, const struct exec_key *key)
{
    struct follower *follower = xcalloc(1, sizeof(*follower));
    atomic_init(&follower->refs, 1);
    follower->all = all;
    memcpy(follower->uid, key->uid, strnlen(key->uid, UID_LEN - 1));
    follower->number = key->number;
    follower->turn = 1;
    follower->last_ms = clock_now_ms();
    event_init(&follower->never);
    buf_init(&follower->ready, READY_MAX);
    return follower;
}

/* A reader cannot have had what was not there. Before the agent has said where its output goes on,
 * that is not known. */
static int check_position(struct follower *follower, struct err *err)
{
    static const char *const names[] = {"stdout", "stderr"};
    if (follower->exec) {
        pthread_mutex_lock(&follower->exec->lock);
        bool known = follower->exec->begun || follower->exec->facts;
        pthread_mutex_unlock(&follower->exec->lock);
        if (!known)
            return 0;
    }
    for (int stream = 1; stream <= 2; stream++) {
        struct output output;
        if (follower_output(follower, stream, &output, err))
            return -1;
        uint64_t total = output.total;
        follower_output_done(follower, &output);
        if (follower->position.offset[stream - 1] > total)
            return err_set(err, ERR_INVALID_FIELD,
                           "the header Last-Event-ID is not the id of an event of this execution: "
                           "there are %llu bytes of %s",
                           (unsigned long long)total, names[stream - 1]);
    }
    return 0;
}

/* Takes FOLLOWER. */
static int begin(struct follower *follower, struct pipe *pipe, struct err *err)
{
    const struct exec_key key = {.uid = follower->uid, .number = follower->number};
    const struct pump_range whole = {.length = -1};
    follower->exec = exec_lookup(follower->all, follower->uid, follower->number);
    if (!follower->exec)
        follower->stored = xcalloc(2, sizeof(*follower->stored));
    for (int stream = 1; stream <= 2 && follower->stored; stream++) {
        if (output_of_stored(follower->all, &key, stream, &follower->stored[stream - 1], err)) {
            follower_unref(follower);
            return -1;
        }
    }
    if (!follower->stream && check_position(follower, err)) {
        follower_unref(follower);
        return -1;
    }
    set_pace(follower);
    pump_start(follower->all, &source, follower, NULL, &whole, pipe);
    return 0;
}

int follow_events(struct sandboxes *all, const struct exec_key *key, enum follow_format format,
                  const struct follow_position *from, struct pipe *pipe, struct err *err)
{
    struct follower *follower = follower_new(all, key);
    follower->format = format;
    follower->position = *from;
    return begin(follower, pipe, err);
}

int follow_bytes(struct sandboxes *all, const struct exec_key *key, int stream, uint64_t offset,
                 struct pipe *pipe, struct err *err)
{
    struct follower *follower = follower_new(all, key);
    follower->stream = stream;
    follower->position.offset[stream - 1] = offset;
    return begin(follower, pipe, err);
}

int follow_attachment(struct attachment *attachment, const struct follow_position *from,
                      struct pipe *pipe, struct err *err)
{
    struct sandbox *sandbox = attachment->sandbox;
    const struct exec_key key = {.uid = sandbox->uid, .number = attachment->number};
    struct follower *follower = follower_new(sandbox->all, &key);
    follower->attachment = attachment_ref(attachment);
    follower->position = *from;
    return begin(follower, pipe, err);
}

void follows_stop(struct sandboxes *all)
{
    atomic_store(&all->follows_stopped, true);
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->newest; sandbox; sandbox = sandbox->older) {
        for (struct exec *exec = sandbox->execs; exec; exec = exec->next)
            event_fire(&exec->output); /* its waiters only hand over */
        event_fire(&sandbox->changed); /* event_feed.c */
        if (sandbox->state == SANDBOX_RUNNING)
            calls_stop_watches(sandbox);
    }
    pthread_mutex_unlock(&all->lock);
}
