/* Who is attached to an execution: coming, going, and who of them writes. */
#include "sandbox/attachment.h"

#include <stdlib.h>

#include "sandbox/attachment_data.h"
#include "sandbox/exec_parts.h"

struct attachment *attachment_ref(struct attachment *attachment)
{
    atomic_fetch_add(&attachment->refs, 1);
    return attachment;
}

void attachment_unref(struct attachment *attachment)
{
    if (atomic_fetch_sub(&attachment->refs, 1) > 1)
        return;
    for (size_t i = 0; i < CAP_SIGNALS; i++)
        call_unref(attachment->signals[i]);
    exec_unref(attachment->exec);
    sandbox_unref(attachment->sandbox);
    free(attachment);
}

void attachment_look(struct attachment *attachment, struct attachment_view *ret_view)
{
    struct exec *exec = attachment->exec;
    *ret_view = (struct attachment_view){.columns = attachment->columns, .rows = attachment->rows};
    if (!exec)
        return;
    pthread_mutex_lock(&exec->lock);
    ret_view->writer = exec->writer == attachment;
    ret_view->columns = exec->columns;
    ret_view->rows = exec->rows;
    pthread_mutex_unlock(&exec->lock);
}

/* --- the seat ----------------------------------------------------------------------------------
 */

/* False: it has ended, and has no writer. */
static bool set_writer(struct attachment *attachment, bool takeover)
{
    struct exec *exec = attachment->exec;
    pthread_mutex_lock(&exec->lock);
    bool running = exec->facts == NULL;
    bool changes = running && exec->writer != attachment && (takeover || !exec->writer);
    if (changes)
        exec->writer = attachment;
    pthread_mutex_unlock(&exec->lock);
    if (changes)
        event_fire(&exec->output);
    return running;
}

int attachment_take_over(struct attachment *attachment, struct err *err)
{
    if (!attachment->exec || !set_writer(attachment, true))
        return err_set(err, ERR_CONFLICT, "execution %lld has ended",
                       (long long)attachment->number);
    return 0;
}

static bool leave_seat(struct attachment *attachment)
{
    struct exec *exec = attachment->exec;
    pthread_mutex_lock(&exec->lock);
    bool was = exec->writer == attachment;
    if (was)
        exec->writer = NULL;
    pthread_mutex_unlock(&exec->lock);
    return was;
}

void attachment_release(struct attachment *attachment)
{
    struct exec *exec = attachment->exec;
    if (exec && leave_seat(attachment))
        event_fire(&exec->output);
}

/* --- coming and going ---------------------------------------------------------------------------
 */

static int find_offset(struct attachment *attachment, int stream, int64_t wish,
                       uint64_t *ret_offset, struct err *err)
{
    struct sandbox *sandbox = attachment->sandbox;
    const struct exec_key key = {.uid = sandbox->uid, .number = attachment->number};
    struct output output;
    if (attachment->exec && wish >= 0) {
        *ret_offset = (uint64_t)wish;
        return 0;
    }
    if (attachment->exec ? output_of_exec(attachment->exec, stream, &output, err)
                         : output_of_stored(sandbox->all, &key, stream, &output, err))
        return -1;
    uint64_t last = wish < 0 ? 0 - (uint64_t)wish : 0;
    *ret_offset = wish >= 0 ? (uint64_t)wish : output.total > last ? output.total - last : 0;
    output_done(&output);
    return 0;
}

/* Of one that is in the store only. */
static int find_size(struct attachment *attachment, struct err *err)
{
    const struct sandbox *sandbox = attachment->sandbox;
    struct json *record = NULL;
    if (exec_json(sandbox->all, sandbox->uid, attachment->number, false, &record, err))
        return -1;
    attachment->columns = (unsigned)json_get_int(record, "cols", 0);
    attachment->rows = (unsigned)json_get_int(record, "rows", 0);
    json_free(record);
    return 0;
}

static int begin(struct attachment *attachment, const struct attachment_wish *wish,
                 struct pipe *pipe, struct err *err)
{
    struct follow_position from = {.sequence = 0};
    for (int i = 0; i < 2; i++) {
        if (find_offset(attachment, i + 1, wish->offset[i], &from.offset[i], err))
            return -1;
    }
    if (!attachment->exec && find_size(attachment, err))
        return -1;
    if (attachment->exec) {
        exec_join(attachment->exec);
        attachment->joined = true;
        if (wish->write || wish->takeover)
            (void)set_writer(attachment, wish->takeover); /* ended: then it only shows */
    }
    return follow_attachment(attachment, &from, pipe, err);
}

int attachment_open(struct sandbox *sandbox, const struct attachment_wish *wish, struct pipe *pipe,
                    struct attachment **ret_attachment, struct err *err)
{
    struct attachment *attachment = xcalloc(1, sizeof(*attachment));
    atomic_init(&attachment->refs, 1);
    attachment->sandbox = sandbox_ref(sandbox);
    attachment->number = wish->number;
    attachment->exec = exec_find(sandbox, wish->number);
    if (begin(attachment, wish, pipe, err)) {
        attachment_close(attachment);
        return -1;
    }
    *ret_attachment = attachment;
    return 0;
}

void attachment_close(struct attachment *attachment)
{
    if (!attachment)
        return;
    if (attachment->joined) {
        (void)leave_seat(attachment);
        exec_leave(attachment->exec);
    }
    attachment_unref(attachment);
}
