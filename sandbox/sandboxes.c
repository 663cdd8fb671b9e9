#include "sandbox/sandboxes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"
#include "sandbox/preview_access.h"
#include "sandbox/record.h"
#include "sandbox/tunnel.h"

/* Few, since what they do is bounded by one SQLite writer, or by the substrate's own limits. */
#define WORK_THREADS 4
#define SLOW_THREADS 8

int sandboxes_new(const struct sandboxes_config *config, const struct sandboxes_parts *parts,
                  struct sandboxes **ret_all, struct err *err)
{
    struct pool *work = pool_new("domain", WORK_THREADS, 0);
    struct pool *slow = work ? pool_new("driver", SLOW_THREADS, 0) : NULL;
    if (!slow) {
        if (work) {
            pool_stop(work);
        }
        return err_set(err, ERR_INTERNAL, "the domain's threads could not be started");
    }
    struct sandboxes *all = xcalloc(1, sizeof(*all));
    all->config = *config;
    all->key = *parts->key;
    all->driver = parts->driver;
    all->store = parts->store;
    all->loop = parts->loop;
    all->work = work;
    all->slow = slow;
    event_init(&all->idle);
    pthread_mutex_init(&all->intents, NULL);
    pthread_mutex_init(&all->lock, NULL);
    tunnels_init(all);
    preview_memory_init(all);
    sweeper_new(all);
    *ret_all = all;
    return 0;
}

void sandboxes_listens(struct sandboxes *all, int port)
{
    bool https = strcmp(all->config.preview_scheme, "https") == 0;

    if (all->config.preview_port == 0) {
        all->config.preview_port = all->config.proxied ? port : https ? 443 : 80;
    }
}

const struct tally *sandboxes_tally(const struct sandboxes *all)
{
    return &all->tally;
}

const struct sandboxes_config *sandboxes_config(const struct sandboxes *all)
{
    return &all->config;
}

struct store *sandboxes_store(const struct sandboxes *all)
{
    return all->store;
}

/* --- jobs ------------------------------------------------------------------------------------ */

struct job {
    struct sandboxes *all;
    void (*fn)(void *arg);
    void *arg;
};

static void run_job(void *arg)
{
    struct job *job = arg;
    struct sandboxes *all = job->all;
    job->fn(job->arg);
    free(job);
    if (atomic_fetch_sub(&all->jobs, 1) == 1) {
        event_fire(&all->idle);
    }
}

static void submit(struct sandboxes *all, struct pool *pool, void (*fn)(void *arg), void *arg)
{
    struct job *job = xmalloc(sizeof(*job));
    *job = (struct job){.all = all, .fn = fn, .arg = arg};
    atomic_fetch_add(&all->jobs, 1);
    atomic_fetch_add(&all->begun, 1);
    bool taken = pool_resume(pool, run_job, job);
    assert(taken); /* the pools stop when nothing is left that could ask */
    (void)taken;
}

void sandboxes_work(struct sandboxes *all, void (*fn)(void *arg), void *arg)
{
    submit(all, all->work, fn, arg);
}

void sandboxes_ask(struct sandboxes *all, void (*fn)(void *arg), void *arg)
{
    submit(all, all->slow, fn, arg);
}

/* --- the collection -------------------------------------------------------------------------- */

static size_t bucket_of(const char *name)
{
    size_t hash = 5381;
    for (; *name; name++) {
        hash = hash * 33 + (unsigned char)*name;
    }
    return hash % SANDBOX_BUCKETS;
}

struct sandbox *sandboxes_find_locked(const struct sandboxes *all, const char *id)
{
    struct sandbox *sandbox = all->table[bucket_of(id)];
    while (sandbox && strcmp(sandbox->id, id) != 0) {
        sandbox = sandbox->next;
    }
    return sandbox;
}

struct sandbox *sandboxes_lookup(struct sandboxes *all, const char *id)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandboxes_find_locked(all, id);
    if (sandbox) {
        sandbox_ref(sandbox);
    }
    pthread_mutex_unlock(&all->lock);
    return sandbox;
}

struct sandbox *sandboxes_lookup_uid(struct sandboxes *all, const char *uid)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = all->by_uid[bucket_of(uid)];
    while (sandbox && strcmp(sandbox->uid, uid) != 0) {
        sandbox = sandbox->next_by_uid;
    }
    if (sandbox) {
        sandbox_ref(sandbox);
    }
    pthread_mutex_unlock(&all->lock);
    return sandbox;
}

void sandboxes_recount_locked(struct sandbox *sandbox)
{
    bool living = sandbox->in_table && (sandbox->state != SANDBOX_FAILED || sandbox->removing);
    sandbox->all->living += living - sandbox->living;
    sandbox->living = living;
}

void sandboxes_insert_locked(struct sandboxes *all, struct sandbox *sandbox)
{
    struct sandbox **by_id = &all->table[bucket_of(sandbox->id)];
    struct sandbox **by_uid = &all->by_uid[bucket_of(sandbox->uid)];
    sandbox->next = *by_id;
    *by_id = sandbox_ref(sandbox);
    sandbox->next_by_uid = *by_uid;
    *by_uid = sandbox;
    all->count++;
    sandbox->in_table = true;
    sandboxes_recount_locked(sandbox);
}

void sandboxes_remove(struct sandboxes *all, struct sandbox *sandbox)
{
    pthread_mutex_lock(&all->lock);
    bool found = sandbox->in_table;
    if (found) {
        struct sandbox **by_id = &all->table[bucket_of(sandbox->id)];
        while (*by_id != sandbox) {
            by_id = &(*by_id)->next;
        }
        *by_id = sandbox->next;
        struct sandbox **by_uid = &all->by_uid[bucket_of(sandbox->uid)];
        while (*by_uid != sandbox) {
            by_uid = &(*by_uid)->next_by_uid;
        }
        *by_uid = sandbox->next_by_uid;
        all->count--;
        sandbox->in_table = false;
        sandboxes_recount_locked(sandbox);
    }
    pthread_mutex_unlock(&all->lock);
    if (found) {
        sandbox_unref(sandbox);
    }
}

struct sandbox **sandboxes_snapshot(struct sandboxes *all, size_t *ret_count)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox **list = xcalloc(all->count + 1, sizeof(struct sandbox *));
    size_t count = 0;
    for (size_t i = 0; i < SANDBOX_BUCKETS; i++) {
        for (struct sandbox *sandbox = all->table[i]; sandbox; sandbox = sandbox->next) {
            list[count++] = sandbox_ref(sandbox);
        }
    }
    pthread_mutex_unlock(&all->lock);
    *ret_count = count;
    return list;
}

/* Unless it is just being freed. */
static bool ref_if_held(struct sandbox *sandbox)
{
    unsigned refs = atomic_load(&sandbox->refs);
    while (refs > 0) {
        if (atomic_compare_exchange_weak(&sandbox->refs, &refs, refs + 1)) {
            return true;
        }
    }
    return false;
}

/* Gone ones, too, that an execution or a timer still holds. */
static void leave_everyone(struct sandboxes *all)
{
    size_t room = 0, count = 0;
    pthread_mutex_lock(&all->lock);
    for (const struct sandbox *at = all->newest; at; at = at->older) {
        room++;
    }
    cleanup_free struct sandbox **held = xcalloc(room + 1, sizeof(struct sandbox *));
    for (struct sandbox *at = all->newest; at; at = at->older) {
        if (ref_if_held(at)) {
            held[count++] = at;
        }
    }
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; i < count; i++) {
        sandbox_leave(held[i]);
        sandbox_unref(held[i]);
    }
}

static void for_each(struct sandboxes *all, void (*fn)(struct sandbox *sandbox))
{
    size_t count = 0;
    struct sandbox **sandboxes = sandboxes_snapshot(all, &count);
    for (size_t i = 0; i < count; i++) {
        fn(sandboxes[i]);
        sandbox_unref(sandboxes[i]);
    }
    free(sandboxes);
}

/* --- starting -------------------------------------------------------------------------------- */

static int load_row(struct sandboxes *all, const struct sandbox_row *row, struct err *err)
{
    cleanup(sandbox_unrefp) struct sandbox *sandbox = record_load(all, row);
    pthread_mutex_lock(&all->lock);
    sandboxes_insert_locked(all, sandbox);
    pthread_mutex_unlock(&all->lock);
    return execs_adopt(sandbox, err);
}

static int load_rows(struct sandboxes *all, struct err *err)
{
    cleanup_free char *cursor = NULL;
    do {
        struct sandbox_row *rows = NULL;
        size_t count = 0;
        char *next = NULL;
        int failed = 0;
        const struct sandbox_filter filter = {.limit = CAP_LIST_LIMIT, .cursor = cursor};
        if (store_list_sandboxes(all->store, &filter, &rows, &count, &next, err) < 0) {
            return -1;
        }
        for (size_t i = 0; i < count && !failed; i++) {
            failed = load_row(all, &rows[i], err);
        }
        sandbox_rows_free(rows, count);
        free(cursor);
        cursor = next;
        if (failed) {
            return -1;
        }
    } while (cursor);
    return 0;
}

static void begin(struct sandbox *sandbox)
{
    sandbox_attach(sandbox); /* starts the ready timer */
    sandbox_settle(sandbox);
}

int sandboxes_start(struct sandboxes *all, struct err *err)
{
    if (load_rows(all, err) < 0) {
        return err_wrap(err, "read the records");
    }
    execs_sweep(all);
    for_each(all, begin);
    struct box_observer observer = sandboxes_observer;
    observer.arg = all;
    if (all->driver->ops->start(all->driver->self, &observer, err) < 0) {
        return err_wrap(err, "start the %s driver", all->driver->ops->name);
    }
    sweeper_start(all);
    return 0;
}

/* --- stopping -------------------------------------------------------------------------------- */

static void fire(void *arg)
{
    event_fire(arg);
}

/* Everything posted to the loop before has run when it returns. */
static void loop_barrier(struct sandboxes *all)
{
    struct event passed;
    event_init(&passed);
    loop_post(all->loop, fire, &passed);
    (void)event_block(&passed, 0, INT64_MAX);
    (void)event_count(&passed); /* its lock is free again */
    event_done(&passed);
}

static void wait_for_jobs(struct sandboxes *all)
{
    for (;;) {
        uint64_t seen = event_count(&all->idle);
        if (atomic_load(&all->jobs) == 0) {
            return;
        }
        (void)event_block(&all->idle, seen, INT64_MAX);
    }
}

/* Jobs post tasks to the loop and tasks submit jobs, until neither does. */
static void quiesce(struct sandboxes *all)
{
    size_t before;
    do {
        wait_for_jobs(all);
        before = atomic_load(&all->begun);
        loop_barrier(all);
    } while (atomic_load(&all->begun) != before);
}

static void forget(struct sandbox *sandbox)
{
    sandboxes_remove(sandbox->all, sandbox);
}

/* The other way round than they began: what makes work stops before what does it. */
void sandboxes_stop(struct sandboxes *all)
{
    pthread_mutex_lock(&all->lock);
    all->stopping = true; /* nothing attaches any more, nothing is owed to the substrate */
    pthread_mutex_unlock(&all->lock);
    sweeper_stop(all);
    all->driver->ops->stop(all->driver->self);
    tunnels_close(all);
    leave_everyone(all);
    quiesce(all);
    leave_everyone(all); /* executions that were just being found */
    quiesce(all);
    pool_stop(all->slow);
    pool_stop(all->work);
    for_each(all, forget);
    tunnels_done(all);
    preview_memory_done(all);
    sweeper_free(all);
    event_done(&all->idle);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->intents);
    explicit_bzero(&all->key, sizeof(all->key));
    free(all);
}

bool sandboxes_ready(struct sandboxes *all, struct err *ret_why)
{
    pthread_mutex_lock(&all->lock);
    bool ready = all->lists > 0 && all->outage.code == ERR_NONE;
    if (!ready && all->outage.code != ERR_NONE) {
        *ret_why = all->outage;
    } else if (!ready) {
        (void)err_set(ret_why, ERR_BACKEND_UNAVAILABLE,
                      "the server has not yet heard from its substrate");
    }
    pthread_mutex_unlock(&all->lock);
    return ready;
}
