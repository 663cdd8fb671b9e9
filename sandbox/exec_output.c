/* Output on its way out of the journals: the part that is asked for, masked by the secrets of now,
 * and with a look beyond its ends so that a secret across them is seen. */
#include "sandbox/exec_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"
#include "sandbox/exec_piece.h"
#include "sandbox/lifecycle.h"

uint64_t output_received(const struct output *output)
{
    return output->journal ? journal_received(output->journal) : 0;
}

/* BYTES: of the whole stream, when it has ended; below 0: not known. What the journal lacks of
 * them, such as after a restore of the store alone, is lost. */
static void add_missing(struct output *output, int64_t bytes)
{
    struct ranges lost;
    if (bytes < 0 || (uint64_t)bytes <= output->total)
        return;
    ranges_clip(&output->lost, 0, output->total, &lost);
    if (ranges_add(&lost, output->total, (uint64_t)bytes)) {
        ranges_done(&output->lost);
        output->lost = lost;
        output->total = (uint64_t)bytes;
    } else {
        ranges_done(&lost);
    }
}

int output_of_exec(struct exec *exec, int stream, struct output *ret_output, struct err *err)
{
    struct output output = {0};
    struct exec_stream *out = &exec->streams[stream - 1];
    pthread_mutex_lock(&exec->lock);
    bool nothing = out->fresh;
    pthread_mutex_unlock(&exec->lock);
    if (!nothing && exec_journal(exec, stream, &output.journal, err))
        return -1;
    pthread_mutex_lock(&exec->lock);
    output.open = !exec->facts;
    int64_t bytes = exec->facts ? (int64_t)exec->totals[stream - 1] : -1;
    output.live = out;
    output.lock = &exec->lock;
    output.changed_ms = out->changed_ms;
    ranges_copy(&output.lost, &out->lost);
    ranges_copy(&output.masks, &out->masks);
    pthread_mutex_unlock(&exec->lock);
    output.total = ranges_expand(&output.lost, output_received(&output), true);
    add_missing(&output, bytes);
    output.scrubber = sandbox_scrubber(exec->sandbox);
    *ret_output = output;
    return 0;
}

int output_of_row(struct sandboxes *all, const struct exec_row *row, int stream,
                  const struct json *result, struct output *ret_output, struct err *err)
{
    struct output output = {.own = true};
    const char *lost = json_get_text(result, stream == 1 ? "stdout_lost" : "stderr_lost");
    const char *masks = json_get_text(result, stream == 1 ? "stdout_masks" : "stderr_masks");
    if (!ranges_parse(lost, &output.lost) || !ranges_parse(masks, &output.masks)) {
        ranges_done(&output.lost);
        return err_set(err, ERR_STORE, "the record of execution %lld is damaged",
                       (long long)row->number);
    }
    /* Where it is known that there is none, a file is of another life of the number. */
    int64_t bytes = json_get_int(result, stream == 1 ? "stdout_bytes" : "stderr_bytes", -1);
    if (bytes != 0 && exec_journal_open(all, row->uid, row->number, stream, &output.journal, err)) {
        output_done(&output);
        return -1;
    }
    output.total = ranges_expand(&output.lost, output_received(&output), true);
    add_missing(&output, bytes);
    struct sandbox *sandbox = sandboxes_lookup_uid(all, row->uid);
    output.scrubber = sandbox ? sandbox_scrubber(sandbox) : scrubber_new(NULL);
    if (sandbox)
        sandbox_unref(sandbox);
    *ret_output = output;
    return 0;
}

void output_done(struct output *output)
{
    if (output->own)
        journal_close(output->journal);
    ranges_done(&output->lost);
    ranges_done(&output->masks);
    scrubber_unref(output->scrubber);
    *output = (struct output){0};
}

/* --- reading a piece --------------------------------------------------------------------- */

void piece_done(struct piece *piece)
{
    free(piece->memory);
    piece->memory = piece->data = NULL;
    ranges_done(&piece->masks);
}

/* Runs that begin and end with a byte that masking changed. */
static void find_masks(const char *plain, const char *masked, size_t len, uint64_t offset,
                       struct ranges *ranges)
{
    for (size_t at = 0; at < len; at++) {
        if (plain[at] == masked[at])
            continue;
        size_t end = at + 1;
        for (size_t i = end; i < len && masked[i] == '*'; i++) {
            if (plain[i] != masked[i])
                end = i + 1;
        }
        (void)ranges_add(ranges, offset + at, offset + end);
        at = end - 1;
    }
}

/* Masks DATA of LEN bytes from journal offset BASE on; adds where to MASKS. */
static void mask(const struct output *output, char *data, size_t len, uint64_t base,
                 struct ranges *masks)
{
    struct ranges found = {0};
    if (scrubber_empty(output->scrubber))
        return;
    char *plain = xmalloc(len);
    memcpy(plain, data, len);
    if (scrubber_mask(output->scrubber, data, len) > 0)
        find_masks(plain, data, len, base, &found);
    free_secret(plain, len);
    ranges_merge(masks, &found);
    ranges_done(&found);
}

void output_region(const struct output *output, uint64_t from, uint64_t *ret_begin,
                   uint64_t *ret_end)
{
    uint64_t gap_from, gap_to;
    *ret_begin = 0;
    *ret_end = output_received(output);
    if (!output->journal || !journal_has_gap(output->journal, &gap_from, &gap_to))
        return;
    if (from < gap_from)
        *ret_end = gap_from;
    else
        *ret_begin = gap_to;
}

/* Those of now: the bytes were read before. True when some of those below TO are not known yet. */
static bool copy_masks(const struct output *output, uint64_t to, struct ranges *ret_masks)
{
    if (!output->live) {
        ranges_copy(ret_masks, &output->masks);
        return false;
    }
    pthread_mutex_lock(output->lock);
    ranges_copy(ret_masks, &output->live->masks);
    bool unsettled = output->live->scrubbing || output->live->unsettled < to;
    pthread_mutex_unlock(output->lock);
    return unsettled;
}

int piece_read(const struct output *output, uint64_t from, uint64_t to, struct piece *ret_piece,
               struct err *err)
{
    uint64_t begin, end;
    size_t longest = scrubber_longest(output->scrubber);
    bool masked = longest > 0 && output->journal &&
                  journal_is_masked(output->journal, output->scrubber, from, to);
    uint64_t beyond = longest > 0 && !masked ? longest - 1 : 0;
    output_region(output, from, &begin, &end);
    if (from > begin + beyond)
        begin = from - beyond;
    if (end > to + beyond)
        end = to + beyond;
    if (from < begin || to > end)
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu on were dropped: more output than is kept",
                       (unsigned long long)from);
    size_t len = (size_t)(end - begin), got = 0;
    char *data = malloc(len + 1);
    if (!data)
        return err_set(err, ERR_BUSY, "no memory for %zu bytes of output", len);
    int rc = len > 0 ? journal_read(output->journal, begin, data, len, &got, err) : 0;
    if (rc == 0 && got < len)
        rc = err_set(err, ERR_RANGE_NOT_SATISFIABLE, "the output was dropped meanwhile");
    if (rc) {
        free_secret(data, len);
        return -1;
    }
    struct ranges masks;
    ret_piece->unsettled = copy_masks(output, to, &masks);
    if (!masked)
        mask(output, data, len, begin, &masks);
    ranges_clip(&masks, from, to, &ret_piece->masks);
    ranges_done(&masks);
    data[to - begin] = '\0';
    ret_piece->memory = data;
    ret_piece->data = data + (from - begin);
    ret_piece->from = from;
    ret_piece->to = to;
    return 0;
}

static void set_held(const struct output *output, size_t held, size_t firmly, size_t *ret_held,
                     bool *ret_short)
{
    bool waited = clock_now_ms() - output->changed_ms >= OUTPUT_HOLD_MS;
    *ret_held = waited ? firmly : held;
    if (ret_short)
        *ret_short = *ret_held > firmly;
}

int output_held(const struct output *output, uint64_t end, size_t *ret_held, bool *ret_short,
                struct err *err)
{
    size_t longest = scrubber_longest(output->scrubber);
    uint64_t begin, region_end;
    *ret_held = 0;
    if (ret_short)
        *ret_short = false;
    if (!output->open || longest < 2 || end == 0)
        return 0;
    size_t held, firmly;
    if (journal_held(output->journal, output->scrubber, end, &held, &firmly)) {
        set_held(output, held, firmly, ret_held, ret_short);
        return 0;
    }
    output_region(output, end - 1, &begin, &region_end);
    if (end - begin > longest - 1)
        begin = end - (longest - 1);
    size_t len = (size_t)(end - begin), got = 0;
    char *data = xmalloc(len);
    struct buf out = BUF_INIT(len);
    int rc = journal_read(output->journal, begin, data, len, &got, err);
    if (rc == 0) {
        struct scrub_stream *stream = scrub_stream_new(output->scrubber);
        (void)scrub_stream_push(stream, data, got, &out, false); /* it fits: as long as DATA */
        set_held(output, scrub_stream_held(stream), scrub_stream_held_firmly(stream), ret_held,
                 ret_short);
        scrub_stream_free(stream);
    }
    buf_wipe(&out);
    free_secret(data, len);
    return rc;
}

/* --- raw --------------------------------------------------------------------------------- */

int output_range(const struct output *output, uint64_t offset, size_t len,
                 struct journal_range *ret_range, struct err *err)
{
    struct journal_range range = {0};
    uint64_t begin, end;
    size_t back = 0;
    if (!ranges_squeeze(&output->lost, offset, &range.from))
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu on are lost: the agent had no room for them, or their "
                       "file is not there any more",
                       (unsigned long long)offset);
    output_region(output, range.from, &begin, &end);
    if (range.from < begin)
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu on were dropped: more output than is kept",
                       (unsigned long long)offset);
    bool newest = end == output_received(output);
    if (newest && output_held(output, end, &back, &range.briefly, err))
        return -1;
    end -= back;
    range.to = end > range.from && len < end - range.from ? range.from + len : end;
    if (range.to < range.from)
        range.to = range.from;
    range.grows = range.to < end || (newest && output->open);
    for (size_t i = 0; i < output->lost.count; i++) { /* a lost range ends the piece */
        uint64_t at;
        uint64_t before = output->lost.items[i].from;
        if (before > offset && ranges_squeeze(&output->lost, before - 1, &at) &&
            at + 1 < range.to) {
            range.to = at + 1;
            range.grows = false;
        }
    }
    *ret_range = range;
    return 0;
}

static int read_raw(const struct output *output, const struct exec_range *range, struct buf *out,
                    size_t *ret_scrubbed, struct err *err)
{
    struct piece piece = {0};
    struct journal_range at = {0};
    size_t room = out->max - out->len;
    size_t len = range->length < 0 || (uint64_t)range->length > room ? room : (size_t)range->length;
    *ret_scrubbed = 0;
    if (range->offset >= output->total)
        return 0;
    if (output_range(output, range->offset, len, &at, err))
        return -1;
    if (at.from == at.to)
        return 0;
    if (piece_read(output, at.from, at.to, &piece, err))
        return -1;
    bool fits = buf_append(out, piece.data, (size_t)(at.to - at.from));
    *ret_scrubbed = piece.masks.count;
    piece_done(&piece);
    return fits ? 0 : err_set(err, ERR_BUSY, "no memory for the output");
}

int output_of_stored(struct sandboxes *all, const struct exec_key *key, int stream,
                     struct output *ret_output, struct err *err)
{
    struct exec_row row = {0};
    if (store_get_exec(all->store, key->uid, key->number, &row, err))
        return -1;
    struct json *result = exec_row_result(&row);
    int rc = output_of_row(all, &row, stream, result, ret_output, err);
    json_free(result);
    exec_row_done(&row);
    return rc;
}

int exec_output(struct sandboxes *all, const struct exec_key *key, const struct exec_range *range,
                struct buf *out, struct exec_reading *ret_reading, struct err *err)
{
    struct output output = {0};
    struct exec_reading reading = {0};
    struct exec *exec = exec_lookup(all, key->uid, key->number);
    int rc = exec ? output_of_exec(exec, range->stream, &output, err)
                  : output_of_stored(all, key, range->stream, &output, err);
    if (rc == 0) {
        reading.total = output.total;
        rc = read_raw(&output, range, out, &reading.scrubbed, err);
        output_done(&output);
    }
    if (rc == 0)
        *ret_reading = reading;
    exec_unref(exec);
    return rc;
}
