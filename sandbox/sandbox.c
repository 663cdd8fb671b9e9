#include "sandbox/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sandbox/lifecycle.h"
#include "sandbox/pump.h"
#include "sandbox/record.h"

struct sandbox *sandbox_new(struct sandboxes *all, const char *id, const char *uid,
                            const char *owner)
{
    struct sandbox *sandbox = xcalloc(1, sizeof(*sandbox));
    sandbox->all = all;
    atomic_init(&sandbox->refs, 1);
    snprintf(sandbox->id, sizeof(sandbox->id), "%s", id);
    snprintf(sandbox->uid, sizeof(sandbox->uid), "%s", uid);
    snprintf(sandbox->owner, sizeof(sandbox->owner), "%s", owner);
    sandbox->scrubber = scrubber_new(NULL);
    event_init(&sandbox->changed);
    pthread_mutex_lock(&all->lock);
    sandbox->older = all->newest;
    if (all->newest) {
        all->newest->newer = sandbox;
    }
    all->newest = sandbox;
    pthread_mutex_unlock(&all->lock);
    return sandbox;
}

static void leave_list(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    *(sandbox->newer ? &sandbox->newer->older : &all->newest) = sandbox->older;
    if (sandbox->older) {
        sandbox->older->newer = sandbox->newer;
    }
    pthread_mutex_unlock(&all->lock);
}

struct sandbox *sandbox_ref(struct sandbox *sandbox)
{
    atomic_fetch_add(&sandbox->refs, 1);
    return sandbox;
}

void sandbox_unref(struct sandbox *sandbox)
{
    if (!sandbox || atomic_fetch_sub(&sandbox->refs, 1) > 1) {
        return;
    }
    leave_list(sandbox);
    sandbox_spec_done(&sandbox->spec);
    scrubber_unref(sandbox->scrubber);
    history_free(sandbox->history);
    event_done(&sandbox->changed);
    free(sandbox->public_spec);
    shown_record_free(sandbox->shown);
    free(sandbox);
}

void sandbox_unrefp(struct sandbox **sandbox)
{
    sandbox_unref(*sandbox);
}

/* --- on the loop ----------------------------------------------------------------------------- */

struct loop_task {
    struct sandbox *sandbox;
    void (*fn)(struct sandbox *sandbox, void *arg);
    void *arg;
};

static void run_loop_task(void *arg)
{
    struct loop_task *task = arg;
    task->fn(task->sandbox, task->arg);
    sandbox_unref(task->sandbox);
    free(task);
}

void sandbox_on_loop(struct sandbox *sandbox, void (*fn)(struct sandbox *sandbox, void *arg),
                     void *arg)
{
    struct loop_task *task = xmalloc(sizeof(*task));
    atomic_fetch_add(&sandbox->all->begun, 1);
    *task = (struct loop_task){.sandbox = sandbox_ref(sandbox), .fn = fn, .arg = arg};
    loop_post(sandbox->all->loop, run_loop_task, task);
}

/* --- its state ------------------------------------------------------------------------------- */

enum sandbox_state sandbox_state(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    enum sandbox_state state = sandbox->state;
    pthread_mutex_unlock(&sandbox->all->lock);
    return state;
}

bool sandbox_settled(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool settled = !sandbox->dirty && !sandbox->saving && !sandbox->making && !sandbox->removing;
    pthread_mutex_unlock(&sandbox->all->lock);
    return settled;
}

void sandbox_why(struct sandbox *sandbox, struct err *ret_why)
{
    pthread_mutex_lock(&sandbox->all->lock);
    ret_why->code = sandbox->reason;
    snprintf(ret_why->msg, sizeof(ret_why->msg), "%s", sandbox->message);
    pthread_mutex_unlock(&sandbox->all->lock);
}

bool sandbox_delete_error(struct sandbox *sandbox, struct err *ret_err)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool failed = sandbox->removing && sandbox->remove_error.code != ERR_NONE;
    if (failed) {
        *ret_err = sandbox->remove_error;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return failed;
}

bool sandbox_lingers(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool lingers = sandbox->removing && sandbox->remove_tries > 0;
    pthread_mutex_unlock(&sandbox->all->lock);
    return lingers;
}

/* --- its secrets ----------------------------------------------------------------------------- */

struct scrubber *sandbox_scrubber(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct scrubber *scrubber = scrubber_ref(sandbox->scrubber);
    pthread_mutex_unlock(&sandbox->all->lock);
    return scrubber;
}

/* A text of our own size; what does not fit behind its masks is cut. */
static void mask_text(const struct scrubber *scrubber, const char *text, char *ret_text,
                      size_t size)
{
    cleanup_buf struct buf masked = BUF_INIT(3 * strlen(text) + 16);
    bool fits = scrubber_text(scrubber, text, strlen(text), &masked);
    snprintf(ret_text, size, "%s", fits ? buf_text(&masked) : "***");
}

void sandbox_mask_locked(const struct sandbox *sandbox, const char *text, char *ret_text,
                         size_t size)
{
    mask_text(sandbox->scrubber, text, ret_text, size);
}

void sandbox_scrub_err(struct sandbox *sandbox, struct err *err)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    if (!scrubber_empty(scrubber)) {
        char masked[sizeof(err->msg)];
        mask_text(scrubber, err->msg, masked, sizeof(masked));
        memcpy(err->msg, masked, sizeof(masked));
    }
    scrubber_unref(scrubber);
}

size_t sandbox_mask(struct sandbox *sandbox, char *data, size_t len)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    size_t masked = scrubber_mask(scrubber, data, len);
    scrubber_unref(scrubber);
    return masked;
}

char *sandbox_mask_text_len(struct sandbox *sandbox, const char *data, size_t len, size_t *ret_len)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    cleanup_buf struct buf text = BUF_INIT(3 * len + 16); /* a secret of one byte becomes three */
    if (!scrubber_text(scrubber, data, len, &text)) {
        (void)buf_append_str(&text, "***"); /* cannot be: it has the room */
    }
    scrubber_unref(scrubber);
    return buf_take(&text, ret_len);
}

char *sandbox_mask_text(struct sandbox *sandbox, const char *data, size_t len)
{
    return sandbox_mask_text_len(sandbox, data, len, NULL);
}

bool sandbox_has_secrets(struct sandbox *sandbox)
{
    return sandbox_longest_secret(sandbox) > 0;
}

size_t sandbox_longest_secret(struct sandbox *sandbox)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    size_t longest = scrubber_longest(scrubber);
    scrubber_unref(scrubber);
    return longest;
}

void sandbox_pump(struct sandbox *sandbox, struct pipe *from, const struct pump_range *range,
                  struct pipe *out)
{
    struct scrubber *scrubber = sandbox_scrubber(sandbox);
    pump_start(sandbox->all, &pump_pipe_source, from, scrubber, range, out);
    scrubber_unref(scrubber);
}

int sandbox_check_running(struct sandbox *sandbox, struct err *err)
{
    int result = 0;
    pthread_mutex_lock(&sandbox->all->lock);
    if (sandbox->state == SANDBOX_CREATING) {
        result = err_set(err, ERR_NOT_READY, "sandbox '%s' is still being created", sandbox->id);
    } else if (sandbox->state != SANDBOX_RUNNING) {
        result = sandbox_dead_error_locked(sandbox, err);
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    return result;
}

/* --- what never changes ---------------------------------------------------------------------- */

struct event *sandbox_changed(struct sandbox *sandbox)
{
    return &sandbox->changed;
}

const char *sandbox_id(const struct sandbox *sandbox)
{
    return sandbox->id;
}

const char *sandbox_uid(const struct sandbox *sandbox)
{
    return sandbox->uid;
}

const char *sandbox_owner(const struct sandbox *sandbox)
{
    return sandbox->owner;
}

/* The text never changes; the struct around it may, while the sandbox is being adopted. */
bool sandbox_began_empty(const struct sandbox *sandbox)
{
    const char *profile = sandbox->spec.profile;
    return !profile || strcmp(profile, PROFILE_COMPAT) != 0;
}

const char *sandbox_workdir(const struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    const char *workdir = sandbox->spec.workdir;
    pthread_mutex_unlock(&sandbox->all->lock);
    return workdir;
}

int64_t sandbox_ready_deadline(const struct sandbox *sandbox)
{
    return sandbox->ready_deadline_ms;
}
