/* What attachments do to an execution: type, end the input, resize, signal. */
#include <signal.h>

#include "base/caps.h"
#include "sandbox/attachment_data.h"
#include "sandbox/exec_parts.h"
#include "sandbox/fields.h"

/* A terminal takes what is typed at once, or never. */
#define TYPED_MAX (64 * KIB)
#define END_OF_INPUT "\004" /* as terminals are set up (VEOF) */

/* --- the terminal ------------------------------------------------------------------------------
 */

void exec_make_terminal(struct exec *exec, unsigned columns, unsigned rows, bool anew)
{
    if (!exec->feed) {
        exec->feed = xcalloc(1, sizeof(*exec->feed));
        feed_init(exec->feed, &exec_feed_ops, exec, exec->sandbox->all->loop, true);
    }
    exec->feed->anywhere = anew;
    struct pipe *typed = pipe_new(TYPED_MAX);
    feed_pipe(exec->feed, pipe_ref(typed));
    pthread_mutex_lock(&exec->lock);
    exec->fed = true;
    exec->typed = typed;
    exec->columns = columns;
    exec->rows = rows;
    exec->sized = !anew;
    pthread_mutex_unlock(&exec->lock);
}

static void send_size(struct exec *exec)
{
    struct buf fields = BUF_INIT(64);
    pthread_mutex_lock(&exec->lock);
    fields_put_u64(&fields, TAG_COLUMNS, exec->columns);
    fields_put_u64(&fields, TAG_ROWS, exec->rows);
    exec->resizing = false;
    pthread_mutex_unlock(&exec->lock);
    if (exec->started) /* else STARTED follows, with the size that is to be changed */
        channel_resize(&exec->channel, fields.ptr, fields.len);
    buf_done(&fields);
}

bool exec_take_terminal(struct exec *exec, const void *fields, size_t len)
{
    uint64_t columns = 0, rows = 0;
    bool known = fields_u64(fields, len, TAG_COLUMNS, &columns) &&
                 fields_u64(fields, len, TAG_ROWS, &rows) && columns > 0 && columns <= UINT16_MAX &&
                 rows > 0 && rows <= UINT16_MAX;
    if (!known)
        return !exec_has_terminal(exec);
    if (!exec->feed)
        exec_make_terminal(exec, (unsigned)columns, (unsigned)rows, true);
    pthread_mutex_lock(&exec->lock);
    bool takes = !exec->sized;
    bool differs = exec->columns != columns || exec->rows != rows;
    if (takes) {
        exec->columns = (unsigned)columns;
        exec->rows = (unsigned)rows;
        exec->sized = true;
    }
    pthread_mutex_unlock(&exec->lock);
    if (takes)
        event_fire(&exec->output);
    else if (differs)
        send_size(exec);
    return true;
}

bool exec_has_terminal(struct exec *exec)
{
    pthread_mutex_lock(&exec->lock);
    bool has = exec->columns > 0;
    pthread_mutex_unlock(&exec->lock);
    return has;
}

void exec_put_size(struct exec *exec, struct json *record)
{
    pthread_mutex_lock(&exec->lock);
    unsigned columns = exec->columns, rows = exec->rows;
    pthread_mutex_unlock(&exec->lock);
    if (columns) {
        json_set_int(record, "cols", columns);
        json_set_int(record, "rows", rows);
    }
}

static void resize_on_loop(struct sandbox *sandbox, void *arg)
{
    struct exec *exec = arg;
    (void)sandbox;
    send_size(exec);
    exec_unref(exec);
}

int exec_resize(struct exec *exec, unsigned columns, unsigned rows, struct err *err)
{
    pthread_mutex_lock(&exec->lock);
    bool has = exec->columns > 0, ended = exec->facts != NULL;
    bool first = has && !ended && !exec->resizing;
    if (has && !ended) {
        exec->columns = columns;
        exec->rows = rows;
        exec->sized = exec->resizing = true;
    }
    pthread_mutex_unlock(&exec->lock);
    if (!has || ended)
        return err_set(err, ERR_CONFLICT, "execution %lld %s", (long long)exec->number,
                       has ? "has ended" : "has no terminal");
    event_fire(&exec->output);
    if (first)
        sandbox_on_loop(exec->sandbox, resize_on_loop, exec_ref(exec));
    return 0;
}

/* --- the writer ---------------------------------------------------------------------------------
 */

/* RET_TYPED: borrowed, NULL when nobody has typed yet. */
static int check_writer(struct attachment *attachment, struct pipe **ret_typed, struct err *err)
{
    struct exec *exec = attachment->exec;
    bool writer = false, ended = true;
    if (exec) {
        pthread_mutex_lock(&exec->lock);
        writer = exec->writer == attachment;
        ended = exec->facts != NULL;
        *ret_typed = exec->typed;
        pthread_mutex_unlock(&exec->lock);
    }
    if (ended)
        return err_set(err, ERR_CONFLICT, "execution %lld has ended",
                       (long long)attachment->number);
    return writer ? 0
                  : err_set(err, ERR_NOT_WRITER,
                            "another is the writer, or none is: take over to become it");
}

/* What goes to a command without a terminal is its input as of PUT …/stdin: whoever comes first. */
static int check_input(struct attachment *attachment, struct pipe **ret_typed, struct err *err)
{
    struct exec *exec = attachment->exec;
    if (check_writer(attachment, ret_typed, err))
        return -1;
    if (*ret_typed)
        return 0;
    struct pipe *typed = pipe_new(TYPED_MAX);
    if (exec_feed(exec, typed, err)) {
        pipe_unref(typed);
        return -1;
    }
    pthread_mutex_lock(&exec->lock);
    exec->typed = typed; /* who has fed it is the only one to come here */
    pthread_mutex_unlock(&exec->lock);
    *ret_typed = typed;
    return 0;
}

int attachment_write(struct attachment *attachment, const void *data, size_t len, size_t *ret_took,
                     struct err *err)
{
    struct pipe *typed = NULL;
    if (check_input(attachment, &typed, err))
        return -1;
    size_t took = pipe_write(typed, data, len);
    if (took == 0 && len > 0 && pipe_state(typed, NULL) == PIPE_ABANDONED)
        return err_set(err, ERR_CONFLICT, "execution %lld takes no input any more",
                       (long long)attachment->number);
    *ret_took = took;
    return 0;
}

struct event *attachment_writable(struct attachment *attachment)
{
    struct exec *exec = attachment->exec;
    pthread_mutex_lock(&exec->lock);
    struct pipe *typed = exec->typed;
    pthread_mutex_unlock(&exec->lock);
    return pipe_writable(typed);
}

int attachment_end_input(struct attachment *attachment, bool *ret_done, struct err *err)
{
    struct pipe *typed = NULL;
    size_t took = 1;
    if (check_input(attachment, &typed, err))
        return -1;
    if (exec_has_terminal(attachment->exec)) {
        if (attachment_write(attachment, END_OF_INPUT, 1, &took, err))
            return -1;
    } else {
        pipe_finish(typed, NULL);
    }
    *ret_done = took > 0;
    return 0;
}

int attachment_resize(struct attachment *attachment, unsigned columns, unsigned rows,
                      struct err *err)
{
    struct pipe *typed = NULL;
    if (check_writer(attachment, &typed, err))
        return -1;
    return exec_resize(attachment->exec, columns, rows, err);
}

/* NULL: all are under way. */
static struct call **free_place(struct attachment *attachment)
{
    for (size_t i = 0; i < CAP_SIGNALS; i++) {
        struct call **place = &attachment->signals[i];
        enum call_state state = *place ? call_state(*place, NULL) : CALL_DONE;
        if (state == CALL_DONE || state == CALL_FAILED) {
            call_unref(*place);
            *place = NULL;
            return place;
        }
    }
    return NULL;
}

int attachment_signal(struct attachment *attachment, int number, bool tree, struct err *err)
{
    struct pipe *typed = NULL;
    if (check_writer(attachment, &typed, err))
        return -1;
    struct call **place = free_place(attachment);
    if (!place)
        return err_set(err, ERR_BUSY, "%d signals are on their way already", CAP_SIGNALS);
    cleanup_free char *id = xasprintf("%lld", (long long)attachment->number);
    struct call *call = call_new(OP_KILL);
    call_put_text(call, TAG_EXEC_ID, id);
    call_put_u64(call, TAG_SIGNAL, (uint64_t)number);
    call_put_u64(call, TAG_SCOPE, tree ? SCOPE_TREE : SCOPE_PROCESS);
    *place = call; /* nobody waits for the answer: an exit tells */
    return call_start(attachment->sandbox, call, err);
}
