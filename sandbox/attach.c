/* The stream to one sandbox's agent: opened when its box is attachable, configured on the first
 * hello, adopted by what the agent kept. Everything here but what begins with sandbox_ runs on the
 * loop thread. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/call.h"
#include "sandbox/lifecycle.h"
#include "sandbox/record.h"

#define CUTS_DEGRADED 3
#define REATTACH_MS 2000 /* after a link that gave up while the box is there still */

static void token_for(const struct sandbox *sandbox, uint8_t ret_token[PROTO_TOKEN_LEN])
{
    const struct str parts[] = {str_of(sandbox->all->config.instance), str_of(sandbox->id),
                                str_of(sandbox->uid), str_of(sandbox->box.box_uid)};
    _Static_assert(CRYPTO_HASH_LEN == PROTO_TOKEN_LEN, "a token is a keyed hash");
    crypto_keyed_hash(&sandbox->all->key, "agent-token", parts, ARRAY_LEN(parts), ret_token);
}

/* --- configuring ----------------------------------------------------------------------------- */

/* Milliseconds from now, at least one: 0 would mean none. -1: leave it as it is. */
static int64_t deadline_to_send_locked(const struct sandbox *sandbox)
{
    int64_t deadline = sandbox->wanted_ms;
    if (!deadline && sandbox->state == SANDBOX_CREATING) {
        deadline = sandbox->deadline_ms;
    }
    int64_t left = deadline - clock_now_ms();
    return !deadline ? -1 : left > 1 ? left : 1;
}

static void configure_now(struct sandbox *sandbox, void *arg)
{
    (void)arg;
    if (!sandbox->link || !link_is_up(sandbox->link)) {
        return; /* it is sent when the link is up */
    }
    cleanup_buf struct buf blob = BUF_INIT(CAP_STATE_BLOB);
    struct link_configuration configuration = {0};
    struct err err = {0};
    if (record_seal_blob(sandbox, &blob, &configuration.seq, &err) < 0) {
        log_event(LOG_LEVEL_ERROR, "state not sealed", "id", sandbox->id, "error", err.msg, NULL);
        return;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    bool first = sandbox->state == SANDBOX_CREATING;
    configuration.deadline_ms = deadline_to_send_locked(sandbox);
    cleanup_json struct json *info = first ? record_info_locked(sandbox) : NULL;
    pthread_mutex_unlock(&sandbox->all->lock);
    cleanup_buf struct buf info_text = BUF_INIT(CAP_SMALL);
    bool told = info && json_print(info, &info_text) && buf_append_char(&info_text, '\n');
    configuration.info = told ? info_text.ptr : NULL;
    configuration.env = first ? &sandbox->spec.env : NULL;
    configuration.workdir = first ? sandbox->spec.workdir : NULL;
    configuration.blob = blob.ptr;
    configuration.blob_len = blob.len;
    configuration.blob_version = configuration.seq;
    link_configure(sandbox->link, &configuration);
}

void sandbox_configure(struct sandbox *sandbox)
{
    sandbox_on_loop(sandbox, configure_now, NULL);
}

/* What the agent says of its deadline is true; 0: it has none. */
static void take_deadline_locked(struct sandbox *sandbox, int64_t left_ms)
{
    if (left_ms <= 0) {
        return;
    }
    int64_t deadline = clock_wall_ms() + left_ms, moved = deadline - sandbox->deadline;
    sandbox->deadline_ms = clock_now_ms() + left_ms;
    sandbox->deadline_guessed = false;
    if (moved > 1000 || moved < -1000) { /* else it is the same one, after two roundings */
        sandbox->deadline = deadline;
        sandbox->dirty = true;
    }
}

static void not_configured(struct sandbox *sandbox, const struct err *why)
{
    bool refused = sandbox->link && link_is_up(sandbox->link);
    log_event(refused ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG, "configuration not acknowledged", "id",
              sandbox->id, "error", why->msg, NULL);
    pthread_mutex_lock(&sandbox->all->lock);
    bool creating = sandbox->state == SANDBOX_CREATING;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (refused && creating) { /* else it is sent again when the link is up */
        sandbox_fail(sandbox, ERR_AGENT_FAILED, why->msg);
    }
}

static void link_configured(void *arg, uint64_t seq, int64_t deadline_ms, const struct err *why)
{
    struct sandbox *sandbox = arg;
    if (why) {
        not_configured(sandbox, why);
        return;
    }
    pthread_mutex_lock(&sandbox->all->lock);
    bool newest = seq == sandbox->blob_version;
    sandbox->blob_acked = seq > sandbox->blob_acked ? seq : sandbox->blob_acked;
    if (sandbox_state_lives(sandbox->state)) {
        take_deadline_locked(sandbox, deadline_ms);
    }
    if (newest) {
        sandbox->wanted_ms = 0;
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    if (newest) {
        sandbox_made_running(sandbox);
    }
    sandbox_settle(sandbox);
    event_fire(&sandbox->changed);
}

/* --- the agent's hello ----------------------------------------------------------------------- */

enum meeting {
    MEETING_NEW,    /* to be configured for the first time */
    MEETING_BEHIND, /* has an older configuration than ours */
    MEETING_SAME,
    MEETING_ORPHAN,     /* found, and never configured */
    MEETING_UNREADABLE, /* found, and what it keeps cannot be opened */
    MEETING_RESTARTED,  /* does not know what it was told before */
};

static void take_facts_locked(struct sandbox *sandbox, const struct link_hello *hello)
{
    sandbox->memory_limit = hello->memory_limit;
    sandbox->pids_limit = hello->pids_limit;
    sandbox->cpu_milli = hello->cpu_milli;
    if (hello->uptime_ms > 0) { /* the age by a clock that nobody sets */
        sandbox->lifetime_ms =
            clock_now_ms() - hello->uptime_ms + sandbox->all->config.policy.max_lifetime_ms;
    }
}

/* An agent that has been configured before. BLOB is what it keeps when that is newer than our
 * record, NULL when it could not be opened: then our record counts. */
static enum meeting meet_known_locked(struct sandbox *sandbox, const struct link_hello *hello,
                                      struct blob *blob)
{
    if (hello->blob_version > sandbox->blob_version) {
        if (blob) {
            record_take_blob_locked(sandbox, blob);
        }
        sandbox->blob_version = hello->blob_version + !blob;
        sandbox->dirty = true;
    }
    sandbox->blob_acked = hello->blob_version;
    take_deadline_locked(sandbox, hello->deadline_ms);
    if (sandbox->blob_acked < sandbox->blob_version) {
        return MEETING_BEHIND;
    }
    sandbox->wanted_ms = 0;
    return MEETING_SAME;
}

static enum meeting meet(struct sandbox *sandbox, const struct link_hello *hello)
{
    struct sandboxes *all = sandbox->all;
    struct err err = {0};
    pthread_mutex_lock(&all->lock);
    take_facts_locked(sandbox, hello);
    bool adopting = sandbox->adopting, running = sandbox->state == SANDBOX_RUNNING;
    bool newer = hello->blob_version > sandbox->blob_version;
    pthread_mutex_unlock(&all->lock);
    if (!hello->configured) {
        return adopting ? MEETING_ORPHAN : running ? MEETING_RESTARTED : MEETING_NEW;
    }
    cleanup(blob_done) struct blob blob = {0};
    bool opened =
        newer && record_open_blob(sandbox, hello->blob, hello->blob_len, &blob, &err) == 0;
    if (adopting && !opened) {
        return MEETING_UNREADABLE;
    }
    if (newer && !opened) {
        log_event(LOG_LEVEL_WARN, "the agent's state cannot be opened", "id", sandbox->id, "error",
                  err.msg, NULL);
    }
    pthread_mutex_lock(&all->lock);
    enum meeting meeting = meet_known_locked(sandbox, hello, opened ? &blob : NULL);
    pthread_mutex_unlock(&all->lock);
    return meeting;
}

/* False: it is over with this sandbox. */
static bool accept(struct sandbox *sandbox, enum meeting meeting)
{
    switch (meeting) {
    case MEETING_ORPHAN:
        sandbox_fail(sandbox, ERR_LOST, "found without a record, and it was never configured");
        return false;
    case MEETING_UNREADABLE:
        sandbox_give_up(sandbox, ERR_LOST,
                        "the state that its agent keeps cannot be opened: was the key file "
                        "replaced?");
        return false;
    case MEETING_RESTARTED:
        sandbox_fail(sandbox, ERR_AGENT_FAILED,
                     "its agent was started again: what ran in it is lost");
        return false;
    case MEETING_NEW:
    case MEETING_BEHIND:
        configure_now(sandbox, NULL);
        return true;
    case MEETING_SAME:
        break;
    }
    return true;
}

static void link_up(void *arg, const struct link_hello *hello)
{
    struct sandbox *sandbox = arg;
    pthread_mutex_lock(&sandbox->all->lock);
    bool adopted = sandbox->adopting;
    pthread_mutex_unlock(&sandbox->all->lock);
    enum meeting meeting = meet(sandbox, hello);
    sandbox->connected = true;
    sandbox->lost_at_ms = 0;
    if (!accept(sandbox, meeting)) {
        return;
    }
    execs_link_up(sandbox, hello);
    calls_link_up(sandbox);
    if (adopted) {
        sandbox_event(sandbox, "adopted", NULL);
    }
    if (meeting == MEETING_SAME) {
        sandbox_made_running(sandbox);
    }
    if (adopted) {
        sweeper_wake(sandbox->all); /* it looks up what is published */
    }
    sandbox_settle(sandbox);
    event_fire(&sandbox->changed);
}

/* --- the end of a stream --------------------------------------------------------------------- */

static bool hopeless(enum err_code code)
{
    return code == ERR_BACKEND_FORBIDDEN || code == ERR_BACKEND_UNAUTHORIZED ||
           code == ERR_NOT_SUPPORTED || code == ERR_CONTAINER_START;
}

/* The third cut, the sixth, the twelfth: a stream that breaks all day must not fill the events. */
static bool count_cut(struct sandbox *sandbox)
{
    size_t cuts = ++sandbox->cuts, parts = cuts / CUTS_DEGRADED;
    return cuts % CUTS_DEGRADED == 0 && (parts & (parts - 1)) == 0;
}

static void tell_degraded(struct sandbox *sandbox, const struct err *why)
{
    struct json *detail = json_new_object();
    cleanup_free char *message = sandbox_mask_text(sandbox, why->msg, strlen(why->msg));
    json_set_int(detail, "cuts", (int64_t)sandbox->cuts);
    json_set_text(detail, "message", message);
    sandbox_event(sandbox, "degraded", detail);
}

static void link_down(void *arg, const struct err *why)
{
    struct sandbox *sandbox = arg;
    pthread_mutex_lock(&sandbox->all->lock);
    bool making = sandbox->state == SANDBOX_CREATING && !sandbox->adopting;
    pthread_mutex_unlock(&sandbox->all->lock);
    bool cut = sandbox->connected;
    sandbox->connected = false;
    log_event(cut ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "stream down", "id", sandbox->id, "code",
              err_code_name(why->code), "error", why->msg, NULL);
    if (making && hopeless(why->code)) {
        sandbox_fail(sandbox, why->code, why->msg);
        return;
    }
    if (cut && count_cut(sandbox)) {
        tell_degraded(sandbox, why);
    }
    execs_link_down(sandbox);
}

static void drop_link(struct sandbox *sandbox)
{
    struct link *link = TAKE_PTR(sandbox->link);
    sandbox->connected = false;
    if (link) {
        link_stop(link);
        sandbox_unref(sandbox); /* the link's */
    }
}

static void ready_timer_fired(struct timer *timer);

/* The box may be there all the same: if so, a new link is tried a little later. */
static void link_lost(struct sandbox *sandbox)
{
    drop_link(sandbox);
    sandbox->lost_at_ms = clock_now_ms();
    sandbox->ready_timer.fire = ready_timer_fired;
    timer_start(sandbox->all->loop, &sandbox->ready_timer, REATTACH_MS);
    execs_link_down(sandbox);
    sandbox_verify(sandbox);
}

static void link_ended(void *arg, const struct err *why)
{
    struct sandbox *sandbox = sandbox_ref(arg);
    log_event(LOG_LEVEL_INFO, "agent ended", "id", sandbox->id, "error", why->msg, NULL);
    pthread_mutex_lock(&sandbox->all->lock);
    bool adopting = sandbox->adopting;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (why->code == ERR_TTL || sandbox_due(sandbox)) {
        sandbox_delete(sandbox, ERR_TTL);
    } else if (why->code == ERR_UNAUTHENTICATED && adopting) {
        sandbox_give_up(sandbox, ERR_LOST,
                        "its agent obeys another server: was the key file replaced?");
    } else if (why->code == ERR_UNAUTHENTICATED) {
        sandbox_fail(sandbox, ERR_AGENT_FAILED, why->msg);
    } else {
        link_lost(sandbox);
    }
    sandbox_unref(sandbox);
}

static const struct link_handler handler = {
    .up = link_up,
    .down = link_down,
    .ended = link_ended,
    .configured = link_configured,
};

/* --- opening --------------------------------------------------------------------------------- */

static void attach_now(struct sandbox *sandbox, void *arg);

/* How long a sandbox may take to become ready: less while no node has room. */
static int64_t patience_locked(const struct sandbox *sandbox)
{
    int64_t until = sandbox->ready_deadline_ms;
    if (sandbox->waiting_since_ms) {
        int64_t hope =
            sandbox->waiting_since_ms + sandbox->all->config.policy.unschedulable_after_ms;
        until = hope < until ? hope : until;
    }
    return until - clock_now_ms();
}

static void give_up_waiting(struct sandbox *sandbox, bool adopting, const struct box_info *box)
{
    if (adopting) {
        sandbox_give_up(sandbox, ERR_LOST, "found without a record, and its agent does not answer");
    } else if (box->waiting && box->reason) {
        sandbox_fail(sandbox, box->reason, box->message);
    } else {
        sandbox_fail(sandbox, ERR_READY_TIMEOUT,
                     *box->message ? box->message : "its agent did not answer in time");
    }
}

static void ready_timer_fired(struct timer *timer)
{
    struct sandbox *sandbox = container_of(timer, struct sandbox, ready_timer);
    pthread_mutex_lock(&sandbox->all->lock);
    bool creating = sandbox->state == SANDBOX_CREATING, adopting = sandbox->adopting;
    struct box_info box = sandbox->box;
    int64_t left = patience_locked(sandbox);
    pthread_mutex_unlock(&sandbox->all->lock);
    if (creating && left <= 0) {
        give_up_waiting(sandbox, adopting, &box);
    } else {
        attach_now(sandbox, NULL); /* starts the timer again while it is not ready */
    }
}

static void start_ready_timer(struct sandbox *sandbox, int64_t left_ms)
{
    if (sandbox->lost_at_ms && left_ms > REATTACH_MS) {
        left_ms = REATTACH_MS;
    }
    sandbox->ready_timer.fire = ready_timer_fired;
    timer_start(sandbox->all->loop, &sandbox->ready_timer, left_ms > 1 ? left_ms : 1);
}

static void attach_now(struct sandbox *sandbox, void *arg)
{
    struct sandboxes *all = sandbox->all;
    char box_uid[UID_LEN];
    struct link_target target = {
        .driver = all->driver,
        .loop = all->loop,
        .id = sandbox->id,
        .uid = sandbox->uid,
        .box_uid = box_uid,
        .shared = &all->link_shared,
    };
    (void)arg;
    pthread_mutex_lock(&all->lock);
    bool lives = sandbox_state_lives(sandbox->state) && !all->stopping;
    bool waits = lives && sandbox->state == SANDBOX_CREATING;
    bool there = lives && sandbox->box.state == BOX_ATTACHABLE && *sandbox->box.box_uid;
    int64_t left = patience_locked(sandbox);
    memcpy(box_uid, sandbox->box.box_uid, sizeof(box_uid));
    token_for(sandbox, target.token);
    pthread_mutex_unlock(&all->lock);
    if (waits) {
        start_ready_timer(sandbox, left);
    }
    bool again = clock_now_ms() >= sandbox->lost_at_ms + REATTACH_MS;
    if (there && !sandbox->link && (again || !sandbox->lost_at_ms)) {
        sandbox->link = link_new(&target, &handler, sandbox_ref(sandbox));
        link_start(sandbox->link);
    }
    explicit_bzero(target.token, sizeof(target.token));
}

void sandbox_attach(struct sandbox *sandbox)
{
    sandbox_on_loop(sandbox, attach_now, NULL);
}

/* --- closing --------------------------------------------------------------------------------- */

static void detach_now(struct sandbox *sandbox, void *arg)
{
    struct err *why = arg;
    timer_stop(&sandbox->ready_timer);
    drop_link(sandbox);
    execs_sandbox_ended(sandbox, why);
    calls_sandbox_ended(sandbox, why);
    free(why);
}

void sandbox_detach(struct sandbox *sandbox, const struct err *why)
{
    struct err *copy = xmalloc(sizeof(*copy));
    *copy = *why;
    sandbox_on_loop(sandbox, detach_now, copy);
}

static void leave_now(struct sandbox *sandbox, void *arg)
{
    struct err why;
    (void)arg;
    (void)err_set(&why, ERR_STOPPING, "the server is stopping");
    timer_stop(&sandbox->ready_timer);
    timer_stop(&sandbox->settle_timer);
    timer_stop(&sandbox->lost_timer);
    drop_link(sandbox);
    execs_release(sandbox);
    calls_sandbox_ended(sandbox, &why);
    if (sandbox->settle_armed) {
        sandbox->settle_armed = false;
        sandbox_unref(sandbox);
    }
}

void sandbox_leave(struct sandbox *sandbox)
{
    sandbox_on_loop(sandbox, leave_now, NULL);
}
