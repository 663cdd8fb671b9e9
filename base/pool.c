#include "base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct job {
    struct job *next;
    void (*fn)(void *arg);
    void *arg;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first;
    struct job **last; /* where the next job is linked */
    size_t queued;
    size_t queue_max;
    size_t running;
    size_t idle;   /* threads that wait for a job */
    bool stopping; /* pool_submit refuses */
    bool stopped;  /* pool_resume refuses too: nothing queued, nothing running that may resume */
    const char *name;
    size_t count, count_max;
    pthread_t threads[];
};

static struct job *take_job(struct pool *pool)
{
    struct job *job = pool->first;
    pool->first = job->next;
    if (!pool->first)
        pool->last = &pool->first;
    pool->queued--;
    return job;
}

static void run_job(struct pool *pool, struct job *job)
{
    pool->running++;
    pthread_mutex_unlock(&pool->lock);
    job->fn(job->arg);
    free(job);
    pthread_mutex_lock(&pool->lock);
    pool->running--;
}

static void *work(void *arg)
{
    struct pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopped) {
        if (pool->first) {
            run_job(pool, take_job(pool));
        } else if (pool->stopping && pool->running == 0) {
            pool->stopped = true;
            pthread_cond_broadcast(&pool->changed);
        } else {
            pool->idle++;
            pthread_cond_wait(&pool->changed, &pool->lock);
            pool->idle--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Whatever thread asks for it: signals are main's. */
static bool add_thread(struct pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool added = pthread_create(&pool->threads[pool->count], NULL, work, pool) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!added)
        return false;
    char label[16]; /* the kernel's maximum */
    snprintf(label, sizeof(label), "%.10s-%u", pool->name, (unsigned)(pool->count % 1000));
    pthread_setname_np(pool->threads[pool->count], label);
    pool->count++;
    return true;
}

struct pool *pool_new(const char *name, size_t threads, size_t queue_max)
{
    assert(threads > 0);
    struct pool *pool = xcalloc(1, sizeof(*pool) + threads * sizeof(pthread_t));
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->last = &pool->first;
    pool->queue_max = queue_max;
    pool->name = name;
    pool->count_max = threads;
    if (!add_thread(pool)) {
        pool_stop(pool);
        return NULL;
    }
    return pool;
}

static bool add_job(struct pool *pool, void (*fn)(void *arg), void *arg, bool admitted)
{
    struct job *job = xmalloc(sizeof(*job));
    *job = (struct job){.fn = fn, .arg = arg};
    pthread_mutex_lock(&pool->lock);
    bool accepted = admitted ? !pool->stopped : !pool->stopping && pool->queued < pool->queue_max;
    if (accepted) {
        *pool->last = job;
        pool->last = &job->next;
        pool->queued++;
        if (pool->queued > pool->idle && pool->count < pool->count_max && !pool->stopping)
            (void)add_thread(pool); /* else those that are there do it, later */
        pthread_cond_signal(&pool->changed);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!accepted)
        free(job);
    return accepted;
}

bool pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg)
{
    return add_job(pool, fn, arg, false);
}

bool pool_resume(struct pool *pool, void (*fn)(void *arg), void *arg)
{
    return add_job(pool, fn, arg, true);
}

size_t pool_queued(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    size_t queued = pool->queued;
    pthread_mutex_unlock(&pool->lock);
    return queued;
}

void pool_stop(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
