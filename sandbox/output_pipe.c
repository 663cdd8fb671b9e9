/* Raw output of an execution as a body of any length: the journal, piece by piece, into a pipe. */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "driver/driver.h"
#include "sandbox/exec.h"
#include "sandbox/pump.h"

#define FIRST (64 * KIB)

struct output_source {
    struct sandboxes *all;
    char uid[UID_LEN];
    struct exec_key key; /* its uid is the one above */
    int stream;
    uint64_t at, end;
    struct buf first; /* read before the reply began */
    struct event never;
};

static ssize_t give_first(struct output_source *source, void *data, size_t len)
{
    return (ssize_t)buf_take_front(&source->first, data, len);
}

static ssize_t read_output(void *arg, void *data, size_t len, struct err *err)
{
    struct output_source *source = arg;
    if (source->first.len > 0) {
        return give_first(source, data, len);
    }
    if (source->at >= source->end) {
        return 0;
    }
    cleanup_buf struct buf piece = BUF_INIT(len);
    struct exec_reading reading;
    uint64_t left = source->end - source->at;
    const struct exec_range range = {.stream = source->stream,
                                     .offset = source->at,
                                     .length = (int64_t)(left < len ? left : len)};
    if (exec_output(source->all, &source->key, &range, &piece, &reading, err) < 0) {
        bool gap = err->code == ERR_RANGE_NOT_SATISFIABLE;
        err->code = gap ? ERR_NONE : err->code;
        return gap ? 0 : -1; /* up to the part that was dropped */
    }
    memcpy(data, buf_text(&piece), piece.len);
    source->at += piece.len;
    return (ssize_t)piece.len;
}

static struct event *output_event(void *arg)
{
    return &((struct output_source *)arg)->never; /* a journal never makes its reader wait */
}

static void output_free(void *arg)
{
    struct output_source *source = arg;
    buf_done(&source->first);
    event_done(&source->never);
    free(source);
}

static const struct pump_source output_source = {
    .read = read_output,
    .readable = output_event,
    .free = output_free,
};

int exec_output_pipe(struct sandboxes *all, const struct exec_key *key,
                     const struct exec_range *range, struct pipe *pipe,
                     struct exec_reading *ret_reading, struct err *err)
{
    struct output_source *source = xcalloc(1, sizeof(*source));
    uint64_t length = range->length < 0 ? UINT64_MAX : (uint64_t)range->length;
    const struct exec_range first = {.stream = range->stream,
                                     .offset = range->offset,
                                     .length = (int64_t)(length < FIRST ? length : FIRST)};
    source->all = all;
    memcpy(source->uid, key->uid, strnlen(key->uid, UID_LEN - 1));
    source->key = (struct exec_key){.uid = source->uid, .number = key->number};
    source->stream = range->stream;
    event_init(&source->never);
    buf_init(&source->first, FIRST);
    if (exec_output(all, &source->key, &first, &source->first, ret_reading, err) < 0) {
        output_free(source);
        return -1;
    }
    source->at = range->offset + source->first.len;
    uint64_t end = length > UINT64_MAX - range->offset ? UINT64_MAX : range->offset + length;
    source->end = end < ret_reading->total ? end : ret_reading->total;
    const struct pump_range whole = {.length = -1};
    pump_start(all, &output_source, source, NULL, &whole, pipe);
    return 0;
}
