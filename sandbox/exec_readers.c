/* Readers of output as it comes. Past the first bytes the journal keeps only the last ones, so the
 * agent gets no more room than the slowest reader leaves there; one that stands still is left
 * behind. */
#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/exec_parts.h"

/* What the agent may send beyond what it was told is stored, with a cut on the way. */
#define UNDER_WAY (2 * CAP_WINDOW_MAX)

/* --- on a worker --------------------------------------------------------------------------------
 */

void exec_reader_add(struct exec *exec, struct exec_reader *reader)
{
    pthread_mutex_lock(&exec->lock);
    reader->moved_ms = clock_now_ms();
    reader->slow = false;
    reader->at[0] = reader->at[1] = EXEC_UNREAD;
    reader->prev = NULL;
    reader->next = exec->readers;
    if (reader->next)
        reader->next->prev = reader;
    exec->readers = reader;
    pthread_mutex_unlock(&exec->lock);
}

static void credit_on_loop(struct sandbox *sandbox, void *arg)
{
    struct exec *exec = arg;
    (void)sandbox;
    exec_credit(exec);
    exec_unref(exec);
}

void exec_reader_move(struct exec *exec, struct exec_reader *reader, const uint64_t at[2])
{
    pthread_mutex_lock(&exec->lock);
    reader->at[0] = at[0];
    reader->at[1] = at[1];
    reader->moved_ms = clock_now_ms();
    bool waits = exec->withheld;
    exec->withheld = false;
    pthread_mutex_unlock(&exec->lock);
    if (waits)
        sandbox_on_loop(exec->sandbox, credit_on_loop, exec_ref(exec));
}

bool exec_reader_slow(struct exec *exec, const struct exec_reader *reader)
{
    pthread_mutex_lock(&exec->lock);
    bool slow = reader->slow;
    pthread_mutex_unlock(&exec->lock);
    return slow;
}

void exec_reader_remove(struct exec *exec, struct exec_reader *reader)
{
    pthread_mutex_lock(&exec->lock);
    if (reader->prev)
        reader->prev->next = reader->next;
    else
        exec->readers = reader->next;
    if (reader->next)
        reader->next->prev = reader->prev;
    bool waits = exec->withheld;
    exec->withheld = false;
    pthread_mutex_unlock(&exec->lock);
    if (waits)
        sandbox_on_loop(exec->sandbox, credit_on_loop, exec_ref(exec));
}

/* --- on the loop thread ------------------------------------------------------------------------
 */

/* Up to where a reader lets the agent go, in the stream's offsets. With the exec's lock held. */
static uint64_t room_for(const struct exec *exec, const struct exec_reader *reader, int stream)
{
    const struct exec_stream *out = &exec->streams[stream - 1];
    uint64_t at = reader->at[stream - 1];
    if (reader->slow || at == EXEC_UNREAD)
        return UINT64_MAX;
    uint64_t keeps = journal_keeps(out->journal, at);
    return ranges_expand(&out->lost, keeps > UNDER_WAY ? keeps - UNDER_WAY : 0, false);
}

static bool withholds(const struct exec *exec, const struct exec_reader *reader)
{
    for (int stream = 1; stream <= 2; stream++) {
        const struct exec_stream *out = &exec->streams[stream - 1];
        if (out->journal && room_for(exec, reader, stream) <
                                ranges_expand(&out->lost, journal_received(out->journal), true))
            return true;
    }
    return false;
}

static void on_slow_timer(struct timer *timer)
{
    struct exec *exec = container_of(timer, struct exec, slow_timer);
    int64_t now = clock_now_ms();
    size_t left = 0;
    timer->fire = NULL;
    pthread_mutex_lock(&exec->lock);
    for (struct exec_reader *reader = exec->readers; reader; reader = reader->next) {
        if (!reader->slow && now - reader->moved_ms >= EXEC_SLOW_MS && withholds(exec, reader)) {
            reader->slow = true;
            left++;
        }
    }
    pthread_mutex_unlock(&exec->lock);
    if (left > 0)
        log_event(LOG_LEVEL_INFO, "a slow reader was left behind", "id", exec->sandbox->id, NULL);
    exec_credit(exec);
}

static void watch_readers(struct exec *exec)
{
    if (exec->slow_timer.fire)
        return; /* it runs */
    exec->slow_timer.fire = on_slow_timer;
    timer_start(exec->sandbox->all->loop, &exec->slow_timer, EXEC_SLOW_MS / 10);
}

void exec_readers_stop(struct exec *exec)
{
    timer_stop(&exec->slow_timer);
    exec->slow_timer.fire = NULL;
}

void exec_credit(struct exec *exec)
{
    uint64_t done[2] = {0, 0};
    bool known[2] = {false, false};
    bool withheld = false;
    if (!channel_is_open(&exec->channel))
        return;
    pthread_mutex_lock(&exec->lock);
    for (int stream = 1; stream <= 2; stream++) {
        const struct exec_stream *out = &exec->streams[stream - 1];
        uint64_t *to = &done[stream - 1];
        known[stream - 1] = out->journal != NULL;
        if (!out->journal)
            continue;
        *to = ranges_expand(&out->lost, journal_received(out->journal), true);
        for (const struct exec_reader *reader = exec->readers; reader; reader = reader->next) {
            uint64_t room = room_for(exec, reader, stream);
            withheld = withheld || room < *to;
            *to = room < *to ? room : *to;
        }
    }
    exec->withheld = withheld;
    pthread_mutex_unlock(&exec->lock);
    for (int stream = 1; stream <= 2; stream++) {
        if (known[stream - 1])
            channel_credit(&exec->channel, stream, done[stream - 1]);
    }
    if (withheld)
        watch_readers(exec);
}
