#include "tests/unit/domain_double.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sandbox/decoy.h"
#include "sandbox/lifecycle.h"

struct job {
    void (*fn)(void *arg);
    void *arg;
    struct job *next;
};

static struct job *jobs, **last_job = &jobs;

/* No sandbox here has one. */
void decoy_seen(struct sandbox *sandbox, int64_t exec, int stream)
{
    (void)sandbox;
    ck_abort_msg("execution %lld has a decoy in stream %d", (long long)exec, stream);
}

void sandboxes_work(struct sandboxes *all, void (*fn)(void *arg), void *arg)
{
    if (all->work) {
        ck_assert(pool_resume(all->work, fn, arg));
        return;
    }
    struct job *job = xcalloc(1, sizeof(*job));
    job->fn = fn;
    job->arg = arg;
    *last_job = job;
    last_job = &job->next;
}

bool domain_run_job(void)
{
    struct job *job = jobs;
    if (!job)
        return false;
    jobs = job->next;
    if (!jobs)
        last_job = &jobs;
    job->fn(job->arg);
    free(job);
    return true;
}

struct sandbox *sandbox_ref(struct sandbox *sandbox)
{
    atomic_fetch_add(&sandbox->refs, 1);
    return sandbox;
}

void sandbox_unref(struct sandbox *sandbox)
{
    if (atomic_fetch_sub(&sandbox->refs, 1) > 1)
        return;
    ck_assert_ptr_null(sandbox->execs);
    ck_assert_ptr_null(sandbox->calls);
    event_done(&sandbox->changed);
    scrubber_unref(sandbox->scrubber);
    free(sandbox);
}

const char *sandbox_workdir(const struct sandbox *sandbox)
{
    (void)sandbox;
    return "/workspace";
}

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
    *task = (struct loop_task){sandbox_ref(sandbox), fn, arg};
    loop_post(sandbox->all->loop, run_loop_task, task);
}

int sandbox_check_running(struct sandbox *sandbox, struct err *err)
{
    pthread_mutex_lock(&sandbox->all->lock);
    enum sandbox_state state = sandbox->state;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (state == SANDBOX_RUNNING)
        return 0;
    return err_set(err, state == SANDBOX_CREATING ? ERR_NOT_READY : ERR_GONE,
                   "sandbox '%s' is not running: %s", sandbox->id, sandbox->message);
}

struct scrubber *sandbox_scrubber(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct scrubber *scrubber = scrubber_ref(sandbox->scrubber);
    pthread_mutex_unlock(&sandbox->all->lock);
    return scrubber;
}

struct sandbox *sandboxes_lookup_uid(struct sandboxes *all, const char *uid)
{
    struct sandbox *only = all->by_uid[0];
    return strcmp(only->uid, uid) == 0 ? sandbox_ref(only) : NULL;
}

static void open_store(struct sandbox *sandbox, const char *directory)
{
    struct err err;
    cleanup_free char *path = xasprintf("%s/store.db", directory);
    ck_assert_msg(store_open(path, &sandbox->all->store, &err) == 0, "%s", err.msg);
    struct sandbox_row row = {.uid = sandbox->uid,
                              .id = sandbox->id,
                              .owner = sandbox->owner,
                              .state = (char[]){"running"},
                              .image = (char[]){"image"},
                              .spec = (char[]){"{}"},
                              .labels = (char[]){"{}"},
                              .digest = (char[]){"d"},
                              .created = clock_wall_ms()};
    ck_assert_msg(store_put_sandbox(sandbox->all->store, &row, false, &err) == 0, "%s", err.msg);
}

struct sandbox *domain_new(const char *directory, struct loop *loop, const struct driver *driver)
{
    struct sandboxes *all = xcalloc(1, sizeof(*all));
    struct sandbox *sandbox = xcalloc(1, sizeof(*sandbox));
    pthread_mutex_init(&all->lock, NULL);
    all->config = (struct sandboxes_config){
        .data_dir = directory, .max_output = 1 << 20, .output_quota = 16 << 20, .max_execs = 5000};
    all->loop = loop;
    all->driver = driver;
    sandbox->all = all;
    atomic_init(&sandbox->refs, 1);
    snprintf(sandbox->id, sizeof(sandbox->id), "%s", "box");
    snprintf(sandbox->uid, sizeof(sandbox->uid), "%s", "u-1");
    snprintf(sandbox->owner, sizeof(sandbox->owner), "%s", "local");
    sandbox->state = SANDBOX_RUNNING;
    sandbox->scrubber = scrubber_new(NULL);
    event_init(&sandbox->changed);
    all->by_uid[0] = sandbox;
    open_store(sandbox, directory);
    return sandbox;
}

void domain_free(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    ck_assert_uint_eq(atomic_load(&sandbox->refs), 1);
    ck_assert_uint_eq(atomic_load(&all->pending_bytes), 0);
    ck_assert_uint_eq(all->link_shared.window_bytes, 0);
    ck_assert_uint_eq(all->link_shared.handshakes, 0);
    store_close(all->store);
    sandbox_unref(sandbox);
    pthread_mutex_destroy(&all->lock);
    free(all);
}
