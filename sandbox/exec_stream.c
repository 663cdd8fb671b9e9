/* The loop thread's side of an exec: its channel to the agent, joined again after every cut. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_parts.h"
#include "sandbox/fields.h"
#include "sandbox/session.h"

static struct exec *exec_of(struct channel *channel)
{
    return container_of(channel, struct exec, channel);
}

static bool is_running(struct exec *exec)
{
    return !exec->facts; /* only this thread sets it */
}

/* --- without a stream -------------------------------------------------------------------- */

static void set_lost(struct exec *exec, bool lost)
{
    pthread_mutex_lock(&exec->lock);
    bool changed = exec->lost != lost && !exec->facts;
    exec->lost = lost && !exec->facts;
    pthread_mutex_unlock(&exec->lock);
    if (changed && lost) {
        event_fire(&exec->changed);
        event_fire(&exec->output);
    }
}

static bool waits_for_stream(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool waits = !exec->facts && !exec->lost;
    pthread_mutex_unlock(&exec->lock);
    return waits;
}

static void on_lost_timer(struct timer *timer)
{
    struct sandbox *sandbox = container_of(timer, struct sandbox, lost_timer);
    size_t count;
    timer->fire = NULL;
    struct exec **execs = exec_snapshot(sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        if (is_running(execs[i]))
            set_lost(execs[i], true);
        exec_unref(execs[i]);
    }
    free(execs);
}

void execs_link_down(struct sandbox *sandbox)
{
    struct timer *timer = &sandbox->lost_timer;
    if (timer->fire)
        return; /* it runs */
    size_t count;
    bool any = false;
    struct exec **execs = exec_snapshot(sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        any = any || waits_for_stream(execs[i]);
        exec_unref(execs[i]);
    }
    free(execs);
    if (any) {
        timer->fire = on_lost_timer;
        timer_start(sandbox->all->loop, timer, EXEC_LOST_MS);
    }
}

static void stop_lost_timer(struct sandbox *sandbox)
{
    timer_stop(&sandbox->lost_timer);
    sandbox->lost_timer.fire = NULL;
}

/* --- the end ----------------------------------------------------------------------------- */

static void save_job(void *arg)
{
    struct exec *exec = arg;
    exec_save(exec);
    exec_unref(exec);
}

static void forget(struct exec *exec)
{
    timer_stop(&exec->grace_timer);
    timer_stop(&exec->retry_timer);
    exec_readers_stop(exec);
    channel_close(&exec->channel);
    if (exec->feed)
        feed_stop(exec->feed, NULL); /* it holds the exec while it waits */
    exec_unlist(exec);
}

void exec_conclude(struct exec *exec, struct exec_facts *facts)
{
    struct err over;
    if (!is_running(exec)) {
        exec_facts_free(facts);
        return;
    }
    timer_stop(&exec->grace_timer);
    timer_stop(&exec->retry_timer);
    exec_readers_stop(exec);
    channel_close(&exec->channel);
    exec_pending_done(exec);
    (void)err_set(&over, ERR_CONFLICT, "the execution has ended");
    if (exec->feed)
        feed_stop(exec->feed, &over);
    exec_end(exec, facts);
    sandboxes_work(exec->sandbox->all, save_job, exec_ref(exec));
}

void exec_conclude_error(struct exec *exec, enum err_code code, const char *message)
{
    struct exec_facts *facts = xcalloc(1, sizeof(*facts));
    facts->oom = 2;
    facts->error = code;
    facts->message = xstrdup(message);
    exec_conclude(exec, facts);
}

static void on_retry_timer(struct timer *timer)
{
    struct exec *exec = container_of(timer, struct exec, retry_timer);
    if (exec->unsaved)
        sandboxes_work(exec->sandbox->all, save_job, exec_ref(exec));
    else
        exec_attach(exec);
}

static void retry_later(struct exec *exec, const struct err *why)
{
    log_event(LOG_LEVEL_WARN, "execution not recorded", "id", exec->sandbox->id, "error", why->msg,
              NULL);
    channel_close(&exec->channel);
    exec->retry_timer.fire = on_retry_timer;
    timer_start(exec->sandbox->all->loop, &exec->retry_timer, EXEC_RETRY_MS);
}

void exec_settle(struct exec *exec, bool saved)
{
    struct link *link = exec->sandbox->link;
    if (!exec->listed)
        return;
    exec->unsaved = !saved;
    if (!saved) {
        exec->retry_timer.fire = on_retry_timer;
        timer_start(exec->sandbox->all->loop, &exec->retry_timer, EXEC_RETRY_MS);
    } else if (exec->owed && link && link_is_up(link) && !channel_commit(link, &exec->channel)) {
        exec->forget = true; /* the result came over another stream */
        exec_attach(exec);
    } else {
        /* Without a link: the agent's next hello names it. */
        forget(exec);
    }
}

static void cancel_unsent(struct exec *exec)
{
    exec_conclude_error(exec, ERR_CANCELLED,
                        exec->kill_reason ? exec->kill_reason : "killed before it had begun");
}

/* --- the RESULT -------------------------------------------------------------------------- */

/* What is answered with a problem instead of a result: the request was at fault, or it may be tried
 * again. */
static bool is_result(enum err_code code)
{
    return code == ERR_NONE || code == ERR_COMMAND_NOT_FOUND || code == ERR_NOT_EXECUTABLE ||
           code == ERR_TIMEOUT || code == ERR_EXEC_FAILED || code == ERR_OOM_KILLED ||
           code == ERR_CANCELLED || code == ERR_STREAM_LOST || code == ERR_SANDBOX_GONE;
}

static int64_t number_field(const void *fields, size_t len, uint16_t tag)
{
    uint64_t value = 0;
    return fields_u64(fields, len, tag, &value) && value <= INT64_MAX ? (int64_t)value : 0;
}

static struct exec_facts *read_facts(const void *fields, size_t len)
{
    struct exec_facts *facts = xcalloc(1, sizeof(*facts));
    uint64_t value;
    struct err err;
    if (fields_error(fields, len, ERR_EXEC_FAILED, &err)) {
        facts->error = err.code;
        facts->message = xstrdup(err.msg);
    }
    facts->timed_out = number_field(fields, len, TAG_TIMED_OUT) != 0;
    if (fields_u64(fields, len, TAG_EXIT_CODE, &value) && value <= 255 && !facts->timed_out) {
        facts->has_exit = true;
        facts->exit_code = (int64_t)value;
    } else if (fields_u64(fields, len, TAG_SIGNAL, &value) && value > 0 && value <= 64) {
        facts->signal = (int)value;
    }
    facts->oom = fields_u64(fields, len, TAG_OOM, &value) && value <= 1 ? (int)value : 2;
    facts->has_usage = fields_u64(fields, len, TAG_WALL_US, &value);
    facts->wall_us = number_field(fields, len, TAG_WALL_US);
    facts->cpu_us = number_field(fields, len, TAG_CPU_US);
    facts->max_rss = number_field(fields, len, TAG_MAX_RSS);
    facts->problem = !is_result(facts->error);
    facts->cwd = fields_text(fields, len, TAG_CWD);
    facts->shell_ended = number_field(fields, len, TAG_SHELL_ENDED) != 0;
    /* An end that names neither is not a success. */
    if (!facts->has_exit && !facts->signal && facts->error == ERR_NONE) {
        facts->error = facts->timed_out ? ERR_TIMEOUT : ERR_EXEC_FAILED;
        facts->message =
            xstrdup(facts->timed_out ? "the time is over" : "the agent did not say how it ended");
    }
    return facts;
}

/* Bytes that the agent counted and did not send are lost. */
static void take_total(struct exec *exec, int stream, uint64_t total)
{
    struct err err;
    if (exec_lost_up_to(exec, stream, total, &err))
        log_event(LOG_LEVEL_WARN, "lost output not recorded", "id", exec->sandbox->id, "error",
                  err.msg, NULL);
}

static void on_result(struct channel *channel, const void *fields, size_t len)
{
    struct exec *exec = exec_of(channel);
    uint64_t total;
    struct err err = {0};
    if (exec->forget) {
        (void)channel_commit(exec->sandbox->link, channel);
        forget(exec);
        return;
    }
    bool failed = fields_error(fields, len, ERR_EXEC_FAILED, &err);
    if (failed && err.code == ERR_NOT_FOUND) {
        exec->owed = false;
        exec_conclude_error(exec, ERR_STREAM_LOST,
                            "the agent does not know it: it was restarted, or never got it");
        return;
    }
    exec->owed = true;
    if (fields_u64(fields, len, TAG_TOTAL_OUT, &total))
        take_total(exec, 1, total);
    if (fields_u64(fields, len, TAG_TOTAL_ERR, &total))
        take_total(exec, 2, total);
    struct exec_facts *facts = read_facts(fields, len);
    if (exec->kill_reason && facts->error == ERR_NONE) {
        facts->error = ERR_CANCELLED;
        facts->message = xstrdup(exec->kill_reason);
    }
    exec_conclude(exec, facts);
}

/* --- input ------------------------------------------------------------------------------- */

void exec_pump(struct exec *exec)
{
    struct err err = {0};
    if (!exec->feed || !is_running(exec) || !exec->may_feed)
        return;
    if (feed_pump(exec->feed, &exec->channel, &err)) {
        log_event(LOG_LEVEL_DEBUG, "input of an execution broke off", "id", exec->sandbox->id,
                  "error", err.msg, NULL);
        exec_kill_now(exec, EXEC_KILL_GRACE_MS, "its input was cut short");
        return;
    }
    if (feed_all_sent(exec->feed)) {
        pthread_mutex_lock(&exec->lock);
        bool first = !exec->stdin_taken;
        exec->stdin_taken = true;
        pthread_mutex_unlock(&exec->lock);
        if (first)
            event_fire(&exec->changed);
    }
}

static void hold(void *owner)
{
    exec_ref(owner);
}

static void drop(void *owner)
{
    exec_unref(owner);
}

static void ready(void *owner)
{
    exec_pump(owner);
}

const struct feed_owner_ops exec_feed_ops = {hold, drop, ready};

/* --- the channel's callbacks ------------------------------------------------------------- */

/* Of one that only the agent remembered, it alone knows whether it lives on without a client. */
static void take_keep(struct exec *exec, const void *fields, size_t len)
{
    uint64_t keep = 0;
    if (!exec_only_agent_knows(exec) || exec->asked_keep)
        return;
    exec->asked_keep = true;
    if (!fields_u64(fields, len, TAG_KEEP, &keep) || keep == 0) {
        exec_start_grace(exec, EXEC_ADOPTED_GRACE_MS);
        return;
    }
    pthread_mutex_lock(&exec->lock);
    exec->keep = true;
    pthread_mutex_unlock(&exec->lock);
    timer_stop(&exec->grace_timer);
}

static void set_begun(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool first = !exec->begun;
    exec->begun = true;
    pthread_mutex_unlock(&exec->lock);
    if (first)
        event_fire(&exec->output);
}

static void on_started(struct channel *channel, const void *fields, size_t len)
{
    struct exec *exec = exec_of(channel);
    uint64_t stored = 0;
    exec->started = true;
    exec->owed = true;
    if (exec->kind.is == EXEC_SHELL) /* before anybody hears that it is ready */
        session_moved(exec, fields_text(fields, len, TAG_CWD), false);
    set_begun(exec);
    exec_pending_done(exec);
    take_keep(exec, fields, len);
    if (!exec_take_terminal(exec, fields, len)) {
        exec_kill_now(exec, 0, "its agent is older than terminals are");
        return;
    }
    (void)fields_u64(fields, len, TAG_STDIN_DONE, &stored);
    if (exec->feed && !exec->may_feed) {
        if (!feed_resume(exec->feed, stored)) {
            log_event(LOG_LEVEL_WARN, "input of an execution cannot go on", "id", exec->sandbox->id,
                      NULL);
            exec_kill_now(exec, EXEC_KILL_GRACE_MS, "its input was lost");
            return;
        }
        exec->may_feed = true;
    }
    exec_pump(exec);
}

static void on_data(struct channel *channel, int stream, uint64_t offset, const void *data,
                    size_t len)
{
    struct exec *exec = exec_of(channel);
    struct err err;
    if (!exec->forget && exec_append(exec, stream, offset, data, len, &err)) {
        /* The agent keeps what is not credited: it is asked for again. */
        retry_later(exec, &err);
        return;
    }
    if (exec->forget) {
        channel_credit(channel, stream, offset + len);
        return;
    }
    exec_credit(exec);
    event_fire(&exec->output);
}

static void on_credit(struct channel *channel, uint64_t done, uint64_t limit)
{
    struct exec *exec = exec_of(channel);
    (void)limit;
    if (exec->feed)
        feed_stored(exec->feed, done);
    exec_pump(exec);
}

static void on_lost(struct channel *channel, const struct err *why)
{
    struct exec *exec = exec_of(channel);
    (void)why;
    exec->may_feed = false; /* execs_link_up joins it again */
}

static void on_writable(struct channel *channel)
{
    struct exec *exec = exec_of(channel);
    if (channel_is_open(channel))
        exec_pump(exec);
    else
        exec_attach(exec);
}

static const struct channel_handler handler = {
    .started = on_started,
    .data = on_data,
    .credit = on_credit,
    .result = on_result,
    .lost = on_lost,
    .writable = on_writable,
};

/* --- opening ----------------------------------------------------------------------------- */

static bool open_joining(struct exec *exec, struct link *link, const uint64_t offsets[2])
{
    struct buf fields = BUF_INIT(1024);
    cleanup_free char *id = xasprintf("%lld", (long long)exec->number);
    fields_put_u64(&fields, TAG_OP, OP_EXEC);
    fields_put_text(&fields, TAG_EXEC_ID, id);
    fields_put_u64(&fields, TAG_JOIN, 1);
    fields_put_u64(&fields, TAG_OFFSET_OUT, offsets[0]);
    fields_put_u64(&fields, TAG_OFFSET_ERR, offsets[1]);
    bool opened = channel_open(link, &exec->channel, fields.ptr, fields.len, offsets);
    buf_done(&fields);
    return opened;
}

static int resume_offsets(struct exec *exec, uint64_t ret_offsets[2], struct err *err)
{
    if (exec->forget) {
        memcpy(ret_offsets, exec->totals, sizeof(exec->totals));
        return 0;
    }
    if (exec_received(exec, 1, &ret_offsets[0], err) ||
        exec_received(exec, 2, &ret_offsets[1], err))
        return -1;
    return 0;
}

static void send_kill(struct exec *exec)
{
    struct buf fields = BUF_INIT(64);
    fields_put_u64(&fields, TAG_GRACE_MS, (uint64_t)exec->kill_grace_ms);
    channel_signal(&exec->channel, fields.ptr, fields.len);
    buf_done(&fields);
}

static void wait_for_link(struct exec *exec)
{
    struct err err;
    if (sandbox_check_running(exec->sandbox, &err) && err.code == ERR_GONE)
        exec_conclude_error(exec, ERR_SANDBOX_GONE, err.msg);
    else
        execs_link_down(exec->sandbox);
}

void exec_attach(struct exec *exec)
{
    struct link *link = exec->sandbox->link;
    uint64_t offsets[2] = {0, 0};
    struct err err;
    if (channel_is_open(&exec->channel) || (!is_running(exec) && !exec->forget))
        return;
    if (exec->kill_grace_ms >= 0 && !exec->sent) {
        cancel_unsent(exec);
        return;
    }
    if (!link || !link_is_up(link)) {
        wait_for_link(exec);
        return;
    }
    exec->channel.handler = &handler;
    bool join = exec->started || exec->forget;
    if (join && resume_offsets(exec, offsets, &err)) {
        retry_later(exec, &err);
        return;
    }
    bool opened = join ? open_joining(exec, link, offsets)
                       : channel_open(link, &exec->channel, exec->open.ptr, exec->open.len, NULL);
    if (!opened)
        return; /* `writable` follows */
    /* Whether the agent has it from before, and how much of the input, is told by STARTED. */
    exec->may_feed = !exec->sent;
    exec->sent = true;
    set_lost(exec, false);
    if (exec->kill_grace_ms >= 0)
        send_kill(exec);
    exec_pump(exec);
}

/* --- killing ----------------------------------------------------------------------------- */

void exec_kill_now(struct exec *exec, int64_t grace_ms, const char *why)
{
    if (!is_running(exec))
        return;
    if (!exec->kill_reason)
        exec->kill_reason = why;
    if (exec->kill_grace_ms < 0 || grace_ms < exec->kill_grace_ms)
        exec->kill_grace_ms = grace_ms;
    if (!exec->sent)
        cancel_unsent(exec);
    else
        send_kill(exec); /* and again when it is joined, if there is no stream now */
}

static void on_grace_timer(struct timer *timer)
{
    struct exec *exec = container_of(timer, struct exec, grace_timer);
    pthread_mutex_lock(&exec->lock);
    bool alone = exec->waiters == 0 && !exec->facts;
    pthread_mutex_unlock(&exec->lock);
    if (alone)
        exec_kill_now(exec, EXEC_KILL_GRACE_MS, "nobody waited for it any more");
}

void exec_start_grace(struct exec *exec, int64_t after_ms)
{
    if (!is_running(exec) || exec->keep)
        return;
    exec->grace_timer.fire = on_grace_timer;
    timer_start(exec->sandbox->all->loop, &exec->grace_timer, after_ms);
}

/* --- what lifecycle.c tells -------------------------------------------------------------- */

static void raise_last_exec(struct sandbox *sandbox, const struct link_hello *hello)
{
    pthread_mutex_lock(&sandbox->all->lock);
    for (size_t i = 0; i < hello->exec_count; i++) {
        if (hello->exec_ids[i] <= EXEC_NUMBER_MAX &&
            (int64_t)hello->exec_ids[i] > sandbox->last_exec)
            sandbox->last_exec = (int64_t)hello->exec_ids[i];
    }
    pthread_mutex_unlock(&sandbox->all->lock);
}

void execs_link_up(struct sandbox *sandbox, const struct link_hello *hello)
{
    size_t count;
    stop_lost_timer(sandbox);
    raise_last_exec(sandbox, hello);
    struct exec **execs = exec_snapshot(sandbox, &count);
    exec_adopt_known(sandbox, hello, execs, count);
    for (size_t i = 0; i < count; i++) {
        exec_attach(execs[i]);
        exec_unref(execs[i]);
    }
    free(execs);
}

void execs_sandbox_ended(struct sandbox *sandbox, const struct err *why)
{
    size_t count;
    stop_lost_timer(sandbox);
    struct exec **execs = exec_snapshot(sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        if (is_running(execs[i]))
            exec_conclude_error(execs[i], ERR_SANDBOX_GONE, why->msg);
        else if (execs[i]->forget)
            forget(execs[i]);
        exec_unref(execs[i]);
    }
    free(execs);
}

void execs_release(struct sandbox *sandbox)
{
    size_t count;
    stop_lost_timer(sandbox);
    struct exec **execs = exec_snapshot(sandbox, &count);
    for (size_t i = 0; i < count; i++) {
        forget(execs[i]);
        exec_unref(execs[i]);
    }
    free(execs);
}
