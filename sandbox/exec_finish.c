/* The record of an exec in the store, and what follows from its result. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_parts.h"
#include "sandbox/session.h"

void exec_facts_free(struct exec_facts *facts)
{
    if (facts) {
        free(facts->message);
        free(facts->cwd);
    }
    free(facts);
}

static char *signal_name(int number)
{
    const char *name = sigabbrev_np(number);
    if (name)
        return xstrdup(name);
    if (number >= SIGRTMIN && number <= SIGRTMAX)
        return xasprintf("RTMIN+%d", number - SIGRTMIN);
    return xasprintf("%d", number);
}

static void put_seconds(struct json *json, const char *name, bool known, int64_t us)
{
    if (known)
        json_set_number(json, name, (double)us / 1e6);
    else
        json_set_null(json, name);
}

static void put_facts(struct json *json, const struct exec_facts *facts)
{
    cleanup_free char *signal = facts->signal ? signal_name(facts->signal) : NULL;
    if (facts->has_exit)
        json_set_int(json, "exit_code", facts->exit_code);
    else
        json_set_null(json, "exit_code");
    json_set_text(json, "signal", signal);
    json_set_bool(json, "timed_out", facts->timed_out);
    if (facts->oom == 0 || facts->oom == 1)
        json_set_bool(json, "oom_killed", facts->oom == 1);
    else
        json_set_null(json, "oom_killed");
    put_seconds(json, "duration", facts->has_usage, facts->wall_us);
    put_seconds(json, "cpu_time", facts->has_usage, facts->cpu_us);
    if (facts->has_usage && facts->max_rss > 0)
        json_set_int(json, "max_rss", facts->max_rss);
    else
        json_set_null(json, "max_rss");
    if (facts->error == ERR_NONE) {
        json_set_null(json, "error");
    } else {
        struct json *error = json_set_object(json, "error");
        json_set_text(error, "code", err_code_name(facts->error));
        json_set_text(error, "message", facts->message);
    }
}

/* Only in the store: where the journal has no bytes, and where it has masks. */
void exec_put_ranges(struct json *json, const char *name, const struct ranges *ranges)
{
    cleanup_free char *text = ranges->count > 0 ? ranges_text(ranges) : NULL;
    if (text)
        json_set_text(json, name, text);
}

struct json *exec_facts_json(struct exec *exec, struct exec_moment *ret_moment)
{
    static const struct exec_facts unknown = {.oom = 2};
    struct json *json = json_new_object();
    pthread_mutex_lock(&exec->lock);
    *ret_moment = (struct exec_moment){!exec->facts, exec->lost, exec->ended};
    put_facts(json, exec->facts ? exec->facts : &unknown);
    if (exec->facts && exec->facts->problem)
        json_set_bool(json, "problem", true);
    if (exec->kind.is == EXEC_TEXT && exec->facts) {
        json_set_text(json, "cwd", exec->facts->cwd);
        json_set_bool(json, "session_ended", exec->facts->shell_ended);
    }
    exec_put_ranges(json, "stdout_lost", &exec->streams[0].lost);
    exec_put_ranges(json, "stderr_lost", &exec->streams[1].lost);
    exec_put_ranges(json, "stdout_masks", &exec->streams[0].masks);
    exec_put_ranges(json, "stderr_masks", &exec->streams[1].masks);
    if (exec->facts) {
        json_set_int(json, "stdout_bytes", (int64_t)exec->totals[0]);
        json_set_int(json, "stderr_bytes", (int64_t)exec->totals[1]);
    }
    pthread_mutex_unlock(&exec->lock);
    return json;
}

static bool lost_some(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool lost = exec->streams[0].lost.count > 0 || exec->streams[1].lost.count > 0;
    pthread_mutex_unlock(&exec->lock);
    return lost;
}

int exec_store(struct exec *exec, struct err *err)
{
    struct buf spec = BUF_INIT(CAP_REPLY), result = BUF_INIT(CAP_REPLY);
    char running[] = "running", exited[] = "exited";
    struct exec_moment moment;
    struct json *facts = exec_facts_json(exec, &moment);
    struct scrubber *scrubber = sandbox_scrubber(exec->sandbox);
    struct json *masked = exec_masked_spec(exec->spec, scrubber, exec_kept(exec));
    exec_put_size(exec, masked);
    bool fits = json_print(masked, &spec);
    json_free(masked);
    scrubber_unref(scrubber);
    if (!moment.running || lost_some(exec))
        fits = fits && json_print(facts, &result);
    json_free(facts);
    struct exec_row row = {
        .uid = exec->sandbox->uid,
        .number = exec->number,
        .state = moment.running ? running : exited,
        .spec = spec.ptr,
        .result = result.ptr,
        .created = exec->created,
        .ended = moment.ended,
        .committed = !moment.running,
        .session = exec->kind.is == EXEC_SHELL ? exec->number : exec->kind.session,
    };
    int rc = fits ? store_put_exec(exec->sandbox->all->store, &row, err)
                  : err_set(err, ERR_TOO_LARGE, "the record of the execution is too large");
    buf_done(&spec);
    buf_done(&result);
    return rc;
}

/* --- the result -------------------------------------------------------------------------- */

static char *scrub(struct sandbox *sandbox, const char *message)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    size_t len = strlen(message);
    struct buf text = BUF_INIT(3 * len + 16);
    bool fits = scrubber_text(scrubber, message, len, &text);
    char *masked = fits ? buf_take(&text, NULL) : xstrdup("***");
    buf_done(&text);
    scrubber_unref(scrubber);
    return masked;
}

static uint64_t total_of(struct exec *exec, int stream)
{
    struct err err;
    uint64_t total = 0;
    if (exec_received(exec, stream, &total, &err))
        log_event(LOG_LEVEL_WARN, "journal not readable", "id", exec->sandbox->id, "error", err.msg,
                  NULL);
    return total;
}

/* Before anybody hears of the text's end. */
static void tell_session(struct exec *exec, struct exec_facts *facts)
{
    struct exec *session = exec_find(exec->sandbox, exec->kind.session);
    char *cwd = TAKE_PTR(facts->cwd);
    if (cwd) {
        facts->cwd = scrub(exec->sandbox, cwd);
        free(cwd);
    }
    if (session)
        session_moved(session, facts->cwd ? xstrdup(facts->cwd) : NULL, facts->shell_ended);
    exec_unref(session);
}

void exec_end(struct exec *exec, struct exec_facts *facts)
{
    uint64_t totals[2] = {total_of(exec, 1), total_of(exec, 2)};
    if (facts->message) {
        char *message = facts->message;
        facts->message = scrub(exec->sandbox, message);
        free(message);
    }
    if (facts->has_usage && exec->kind.is != EXEC_SHELL)
        histogram_add(&exec->sandbox->all->tally.exec, facts->wall_us);
    if (exec->kind.is == EXEC_TEXT)
        tell_session(exec, facts);
    exec_not_running(exec);
    pthread_mutex_lock(&exec->lock);
    memcpy(exec->totals, totals, sizeof(totals));
    exec->facts = facts;
    exec->ended = clock_wall_ms();
    exec->lost = false;
    pthread_mutex_unlock(&exec->lock);
    event_fire(&exec->changed);
    event_fire(&exec->output);
}

struct settling {
    struct exec *exec;
    bool saved;
};

static void settle_on_loop(struct sandbox *sandbox, void *arg)
{
    struct settling *settling = arg;
    (void)sandbox;
    exec_settle(settling->exec, settling->saved);
    exec_unref(settling->exec);
    free(settling);
}

void exec_save(struct exec *exec)
{
    struct err err;
    bool saved = exec_store(exec, &err) == 0;
    if (!saved)
        log_event(LOG_LEVEL_ERROR, "result of an execution not stored", "id", exec->sandbox->id,
                  "error", err.msg, NULL);
    struct settling *settling = xmalloc(sizeof(*settling));
    *settling = (struct settling){exec_ref(exec), saved};
    sandbox_on_loop(exec->sandbox, settle_on_loop, settling);
}
