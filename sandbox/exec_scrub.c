/* Secrets registered now are masked in what was written down before, too: replies look for them
 * anyway, but a sandbox that is gone has no list of secrets any more. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/log.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"

#define PAGE 100

struct scrubbing {
    struct sandbox *sandbox;
    struct scrubber *scrubber;
};

/* With the journal's lock held. */
static void note(void *arg, uint64_t from, uint64_t to)
{
    (void)ranges_add(arg, from, to); /* too many: shown as long as the secrets are */
}

static int scrub_journal(const struct scrubbing *scrubbing, struct journal *journal,
                         struct ranges *masks, struct err *err)
{
    struct ranges found = {0};
    const struct journal_masking masking = {
        .scrubber = scrubbing->scrubber, .note = note, .arg = &found};
    int rc = journal_mask(journal, &masking, 0, err);
    ranges_merge(masks, &found);
    ranges_done(&found);
    return rc;
}

/* --- one in memory ---------------------------------------------------------------------------- */

static int scrub_exec(const struct scrubbing *scrubbing, struct exec *exec, struct err *err)
{
    int rc = 0;
    for (int stream = 1; stream <= 2 && rc == 0; stream++) {
        struct exec_stream *out = &exec->streams[stream - 1];
        struct journal *journal = NULL;
        struct ranges found = {0};
        pthread_mutex_lock(&exec->lock);
        journal = out->journal;
        out->scrubbing = journal != NULL;
        pthread_mutex_unlock(&exec->lock);
        if (!journal)
            continue; /* what comes is masked on its way in */
        rc = scrub_journal(scrubbing, journal, &found, err);
        pthread_mutex_lock(&exec->lock);
        ranges_merge(&out->masks, &found);
        out->scrubbing = false;
        pthread_mutex_unlock(&exec->lock);
        event_fire(&exec->output);
        ranges_done(&found);
    }
    return rc;
}

/* --- one in the store ------------------------------------------------------------------------- */

static int scrub_stored_stream(const struct scrubbing *scrubbing, const struct exec_row *row,
                               int stream, const struct json *result, struct ranges *ret_masks,
                               struct err *err)
{
    const char *bytes = stream == 1 ? "stdout_bytes" : "stderr_bytes";
    const char *name = stream == 1 ? "stdout_masks" : "stderr_masks";
    struct journal *journal = NULL;
    if (!ranges_parse(json_get_text(result, name), ret_masks))
        return err_set(err, ERR_STORE, "the record of an execution is damaged");
    if (json_get_int(result, bytes, 0) == 0)
        return 0;
    int rc =
        exec_journal_open(scrubbing->sandbox->all, row->uid, row->number, stream, &journal, err);
    if (rc == 0)
        rc = scrub_journal(scrubbing, journal, ret_masks, err);
    journal_close(journal);
    return rc;
}

static struct json *masked_error(const struct scrubbing *scrubbing, const struct json *error)
{
    const char *message = json_get_text(error, "message");
    if (!message)
        return json_copy(error);
    struct json *masked = json_new_object();
    cleanup_free char *text = scrub_copy(scrubbing->scrubber, message);
    json_set_text(masked, "code", json_get_text(error, "code"));
    json_set_text(masked, "message", text);
    return masked;
}

/* A copy of the facts with the message masked, and with MASKS in place of those it had. */
static struct json *masked_result(const struct scrubbing *scrubbing, const struct json *result,
                                  const struct ranges masks[2])
{
    struct json *masked = json_new_object();
    for (const struct json *item = json_first(result); item; item = json_next(item)) {
        const char *name = json_key(item);
        if (strcmp(name, "error") == 0)
            json_set(masked, name, masked_error(scrubbing, item));
        else if (strcmp(name, "stdout_masks") != 0 && strcmp(name, "stderr_masks") != 0)
            json_set(masked, name, json_copy(item));
    }
    exec_put_ranges(masked, "stdout_masks", &masks[0]);
    exec_put_ranges(masked, "stderr_masks", &masks[1]);
    return masked;
}

static int store_masked(const struct scrubbing *scrubbing, const struct exec_row *row,
                        const struct json *spec, const struct json *result, struct err *err)
{
    cleanup_buf struct buf spec_text = BUF_INIT(CAP_REPLY);
    cleanup_buf struct buf result_text = BUF_INIT(CAP_REPLY);
    if (!json_print(spec, &spec_text) || !json_print(result, &result_text))
        return err_set(err, ERR_TOO_LARGE, "the record of an execution is too large");
    if (strcmp(row->spec, spec_text.ptr) == 0 && strcmp(row->result, result_text.ptr) == 0)
        return 0;
    struct exec_row changed = *row;
    changed.spec = spec_text.ptr;
    changed.result = result_text.ptr;
    return store_put_exec(scrubbing->sandbox->all->store, &changed, err);
}

static int scrub_row(const struct scrubbing *scrubbing, const struct exec_row *row, struct err *err)
{
    cleanup_json struct json *spec = NULL;
    cleanup_json struct json *result = exec_row_result(row);
    struct ranges masks[2] = {0};
    if (!result)
        return 0; /* it runs: not ours to write */
    if (json_parse(row->spec, strlen(row->spec), JSON_LENIENT, &spec, err))
        return -1;
    int rc = scrub_stored_stream(scrubbing, row, 1, result, &masks[0], err);
    if (rc == 0)
        rc = scrub_stored_stream(scrubbing, row, 2, result, &masks[1], err);
    if (rc == 0) {
        cleanup_json struct json *masked_spec = exec_masked_spec(spec, scrubbing->scrubber, false);
        cleanup_json struct json *masked = masked_result(scrubbing, result, masks);
        rc = store_masked(scrubbing, row, masked_spec, masked, err);
    }
    ranges_done(&masks[0]);
    ranges_done(&masks[1]);
    return rc;
}

/* --- all of them --------------------------------------------------------------------------------
 */

static int scrub_one(const struct scrubbing *scrubbing, const struct exec_row *row, struct err *err)
{
    struct exec *exec = exec_find(scrubbing->sandbox, row->number);
    if (!exec)
        return scrub_row(scrubbing, row, err);
    int rc = scrub_exec(scrubbing, exec, err);
    exec_unref(exec);
    return rc;
}

static int scrub_all(const struct scrubbing *scrubbing, struct err *err)
{
    struct sandbox *sandbox = scrubbing->sandbox;
    int64_t before = 0;
    size_t count = PAGE;
    int rc = 0;
    while (count > 0 && rc == 0) {
        struct exec_row *rows = NULL;
        if (store_list_execs(sandbox->all->store, sandbox->uid, before, PAGE, &rows, &count, err))
            return -1;
        for (size_t i = 0; i < count && rc == 0; i++) {
            before = rows[i].number;
            rc = scrub_one(scrubbing, &rows[i], err);
        }
        exec_rows_free(rows, count);
    }
    return rc;
}

static void scrub_job(void *arg)
{
    struct scrubbing scrubbing = {.sandbox = arg, .scrubber = sandbox_scrubber(arg)};
    struct err err;
    if (!scrubber_empty(scrubbing.scrubber) && scrub_all(&scrubbing, &err))
        log_event(LOG_LEVEL_ERROR, "recorded output not masked", "id", scrubbing.sandbox->id,
                  "error", err.msg, NULL);
    scrubber_unref(scrubbing.scrubber);
    sandbox_unref(scrubbing.sandbox);
}

void execs_scrub(struct sandbox *sandbox)
{
    sandboxes_work(sandbox->all, scrub_job, sandbox_ref(sandbox));
}
