#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Worker threads over one bounded queue of jobs. */
struct pool;

/* At most THREADS, at least 1, each started when a job finds no other idle. NAME must outlive the
 * pool. NULL when the first could not be started. */
struct pool *pool_new(const char *name, size_t threads, size_t queue_max);

/* False when the queue is full or the pool is stopping; FN then never runs. */
bool pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg);
/* Like pool_submit but ignores the maximum: for work that was admitted before (a resumed request,
 * the next step of a create). False only when the pool has stopped. */
bool pool_resume(struct pool *pool, void (*fn)(void *arg), void *arg);

size_t pool_queued(struct pool *pool);

/* Refuses new work, runs what is queued and what that resumes, then joins the threads and frees.
 * Nobody but a job may use the pool from then on; never called by a job. */
void pool_stop(struct pool *pool);
