/* Output on its way in: into the journal, scrubbed in place. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/decoy.h"
#include "sandbox/exec_parts.h"

static char *journal_directory(const struct sandboxes *all, const char *uid)
{
    return xasprintf("%s/%s", all->config.data_dir, uid);
}

static char *journal_path(const struct sandboxes *all, const char *uid, int64_t number, int stream)
{
    return xasprintf("%s/%s/%lld.%s", all->config.data_dir, uid, (long long)number,
                     stream == 1 ? "out" : "err");
}

int exec_journal_open(struct sandboxes *all, const char *uid, int64_t number, int stream,
                      struct journal **ret_journal, struct err *err)
{
    cleanup_free char *path = journal_path(all, uid, number, stream);
    /* Whatever the quota, a reply can have what it may hold. */
    int64_t quota = all->config.output_quota;
    if (quota < (int64_t)CAP_JSON_OUTPUT)
        quota = CAP_JSON_OUTPUT;
    return journal_open(path, (uint64_t)quota / 2, (uint64_t)(quota - quota / 2), ret_journal, err);
}

static int open_locked(struct exec *exec, int stream, struct err *err)
{
    struct sandbox *sandbox = exec->sandbox;
    struct exec_stream *out = &exec->streams[stream - 1];
    if (out->journal)
        return 0;
    out->fresh = false;
    return exec_journal_open(sandbox->all, sandbox->uid, exec->number, stream, &out->journal, err);
}

int exec_begin_journals(struct exec *exec, struct err *err)
{
    struct sandbox *sandbox = exec->sandbox;
    for (int stream = 1; stream <= 2; stream++) {
        cleanup_free char *path = journal_path(sandbox->all, sandbox->uid, exec->number, stream);
        if (journal_remove(path, err))
            return -1;
        exec->streams[stream - 1].fresh = true;
    }
    return 0;
}

int exec_journal(struct exec *exec, int stream, struct journal **ret_journal, struct err *err)
{
    pthread_mutex_lock(&exec->lock);
    int rc = open_locked(exec, stream, err);
    if (rc == 0)
        *ret_journal = exec->streams[stream - 1].journal;
    pthread_mutex_unlock(&exec->lock);
    return rc;
}

int exec_received(struct exec *exec, int stream, uint64_t *ret_offset, struct err *err)
{
    struct exec_stream *out = &exec->streams[stream - 1];
    int rc = 0;
    pthread_mutex_lock(&exec->lock);
    if (!out->fresh)
        rc = open_locked(exec, stream, err);
    if (rc == 0)
        *ret_offset =
            ranges_expand(&out->lost, out->journal ? journal_received(out->journal) : 0, true);
    pthread_mutex_unlock(&exec->lock);
    return rc;
}

/* --- masking ----------------------------------------------------------------------------- */

/* Called with the journal's lock held. Too many: shown as long as the secrets are. */
static void note_mask(void *arg, uint64_t from, uint64_t to)
{
    (void)ranges_add(arg, from, to);
}

/* Once for each command. */
static void tell_decoy(struct exec *exec, int stream, struct journal *journal)
{
    if (exec->streams[0].decoy_told || exec->streams[1].decoy_told || !journal_saw_decoy(journal))
        return;
    exec->streams[stream - 1].decoy_told = true;
    decoy_seen(exec->sandbox, exec->number, stream);
}

/* Where masks lie is kept, so that a reply in text can have `***` there. */
static int append(struct exec *exec, int stream, struct journal *journal, struct str data,
                  struct err *err)
{
    uint64_t at = journal_received(journal);
    struct scrubber *scrubber = sandbox_scrubber(exec->sandbox);
    struct exec_stream *out = &exec->streams[stream - 1];
    struct ranges masks = {0};
    const struct journal_masking masking = {.scrubber = scrubber, .note = note_mask, .arg = &masks};
    size_t longest = scrubber_longest(scrubber);
    pthread_mutex_lock(&exec->lock);
    out->unsettled = at > longest ? at - longest : 0;
    pthread_mutex_unlock(&exec->lock);
    int rc = journal_append_masked(journal, at, data.ptr, data.len, &masking, err);
    pthread_mutex_lock(&exec->lock);
    for (size_t i = 0; i < masks.count; i++)
        (void)ranges_add(&out->masks, masks.items[i].from, masks.items[i].to);
    out->unsettled = UINT64_MAX;
    out->changed_ms = clock_now_ms();
    pthread_mutex_unlock(&exec->lock);
    if (masks.count > 0 && exec->sandbox->spec.decoy_env)
        tell_decoy(exec, stream, journal);
    ranges_done(&masks);
    scrubber_unref(scrubber);
    return rc;
}

/* --- appending --------------------------------------------------------------------------- */

/* Stored at once: without it a restarted server would take the journal's end for another offset. */
static int note_lost(struct exec *exec, int stream, uint64_t from, uint64_t to, struct err *err)
{
    struct exec_stream *out = &exec->streams[stream - 1];
    pthread_mutex_lock(&exec->lock);
    bool fits = ranges_add(&out->lost, from, to);
    pthread_mutex_unlock(&exec->lock);
    if (!fits)
        return err_set(err, ERR_AGENT_FAILED, "the agent lost output too often");
    return exec_store(exec, err);
}

int exec_lost_up_to(struct exec *exec, int stream, uint64_t total, struct err *err)
{
    uint64_t received;
    if (exec_received(exec, stream, &received, err))
        return -1;
    return total > received ? note_lost(exec, stream, received, total, err) : 0;
}

int exec_append(struct exec *exec, int stream, uint64_t offset, const void *data, size_t len,
                struct err *err)
{
    struct journal *journal;
    uint64_t received;
    if (exec_journal(exec, stream, &journal, err) || exec_received(exec, stream, &received, err))
        return -1;
    if (offset > received && note_lost(exec, stream, received, offset, err))
        return -1;
    size_t known = offset < received ? (size_t)(received - offset) : 0;
    if (known >= len)
        return 0;
    if (journal_received(journal) == 0) {
        struct sandbox *sandbox = exec->sandbox;
        cleanup_free char *directory = journal_directory(sandbox->all, sandbox->uid);
        if (mkdir(directory, 0700) < 0 && errno != EEXIST)
            return err_errno(err, ERR_STORE, errno, "make the directory of journals");
    }
    return append(exec, stream, journal, (struct str){(const char *)data + known, len - known},
                  err);
}
