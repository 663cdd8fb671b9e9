/* Output on its way out of the journals: the part that is asked for, masked by the secrets of now,
 * and with a look beyond its ends so that a secret across them is seen. */
#include "sandbox/exec_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "sandbox/exec_lookup.h"
#include "sandbox/exec_parts.h"

/* The beginning of a secret at the end of what there is so far is held back; a short one, which may
 * well be something else, only for so long. */
#define HOLD_MS 50
#define HOLD_SHORT 4
#define READ_TRIES 4

static uint64_t received(const struct output *output)
{
    return output->journal ? journal_received(output->journal) : 0;
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
    output.changed_ms = out->changed_ms;
    ranges_copy(&output.lost, &out->lost);
    ranges_copy(&output.masks, &out->masks);
    pthread_mutex_unlock(&exec->lock);
    output.total = ranges_expand(&output.lost, received(&output), true);
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
    bool nothing = json_get_int(result, stream == 1 ? "stdout_bytes" : "stderr_bytes", -1) == 0;
    if (!nothing && exec_journal_open(all, row->uid, row->number, stream, &output.journal, err)) {
        output_done(&output);
        return -1;
    }
    output.total = ranges_expand(&output.lost, received(&output), true);
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

/* Bytes [from, to) of the journal, masked byte by byte; `masks` says where, in its offsets. */
struct piece {
    uint64_t from, to;
    char *data;
    struct ranges masks;
};

static void piece_done(struct piece *piece)
{
    free(piece->data);
    piece->data = NULL;
    ranges_done(&piece->masks);
}

static void clip(const struct ranges *ranges, uint64_t from, uint64_t to, struct ranges *ret_ranges)
{
    *ret_ranges = (struct ranges){0};
    for (size_t i = 0; i < ranges->count; i++) {
        uint64_t begin = ranges->items[i].from > from ? ranges->items[i].from : from;
        uint64_t end = ranges->items[i].to < to ? ranges->items[i].to : to;
        if (begin < end)
            (void)ranges_add(ret_ranges, begin, end); /* no more than there */
    }
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

/* The part of the journal around FROM that has no gap. */
static void region_of(const struct output *output, uint64_t from, uint64_t *ret_begin,
                      uint64_t *ret_end)
{
    uint64_t gap_from, gap_to;
    *ret_begin = 0;
    *ret_end = received(output);
    if (!output->journal || !journal_has_gap(output->journal, &gap_from, &gap_to))
        return;
    if (from < gap_from)
        *ret_end = gap_from;
    else
        *ret_begin = gap_to;
}

static int read_piece(const struct output *output, uint64_t from, uint64_t to,
                      struct piece *ret_piece, struct err *err)
{
    uint64_t begin, end;
    size_t longest = scrubber_longest(output->scrubber);
    uint64_t beyond = longest > 0 ? longest - 1 : 0;
    region_of(output, from, &begin, &end);
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
    ranges_copy(&masks, &output->masks);
    mask(output, data, len, begin, &masks);
    clip(&masks, from, to, &ret_piece->masks);
    ranges_done(&masks);
    memmove(data, data + (from - begin), (size_t)(to - from));
    data[to - from] = '\0';
    ret_piece->data = data;
    ret_piece->from = from;
    ret_piece->to = to;
    return 0;
}

/* How many bytes before the end of what there is so far may be the beginning of a secret. */
static int held(const struct output *output, uint64_t end, size_t *ret_held, struct err *err)
{
    size_t longest = scrubber_longest(output->scrubber);
    uint64_t begin, region_end;
    *ret_held = 0;
    if (!output->open || longest < 2 || end == 0)
        return 0;
    region_of(output, end - 1, &begin, &region_end);
    if (end - begin > longest - 1)
        begin = end - (longest - 1);
    size_t len = (size_t)(end - begin), got = 0;
    char *data = xmalloc(len);
    struct buf out = BUF_INIT(len);
    int rc = journal_read(output->journal, begin, data, len, &got, err);
    if (rc == 0) {
        struct scrub_stream *stream = scrub_stream_new(output->scrubber);
        (void)scrub_stream_push(stream, data, got, &out, false); /* it fits: as long as DATA */
        *ret_held = scrub_stream_held(stream);
        scrub_stream_free(stream);
    }
    buf_wipe(&out);
    free_secret(data, len);
    size_t few = longest / 4 > HOLD_SHORT ? longest / 4 : HOLD_SHORT;
    if (*ret_held <= few && clock_now_ms() - output->changed_ms >= HOLD_MS)
        *ret_held = 0;
    return rc;
}

/* --- raw --------------------------------------------------------------------------------- */

/* The journal's range for LEN bytes from stream offset OFFSET, without a hole in it. */
static int raw_range(const struct output *output, uint64_t offset, size_t len, uint64_t *ret_from,
                     uint64_t *ret_to, struct err *err)
{
    uint64_t from, begin, end;
    size_t back = 0;
    if (!ranges_squeeze(&output->lost, offset, &from))
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu on are lost: the agent had no room for them",
                       (unsigned long long)offset);
    region_of(output, from, &begin, &end);
    if (from < begin)
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu on were dropped: more output than is kept",
                       (unsigned long long)offset);
    if (end == received(output) && held(output, end, &back, err))
        return -1;
    end -= back;
    uint64_t to = len < end - from ? from + len : end;
    if (to < from)
        to = from;
    for (size_t i = 0; i < output->lost.count; i++) { /* a lost range ends the piece */
        uint64_t at;
        uint64_t before = output->lost.items[i].from;
        if (before > offset && ranges_squeeze(&output->lost, before - 1, &at) && at + 1 < to)
            to = at + 1;
    }
    *ret_from = from;
    *ret_to = to;
    return 0;
}

static int read_raw(const struct output *output, const struct exec_range *range, struct buf *out,
                    size_t *ret_scrubbed, struct err *err)
{
    struct piece piece = {0};
    uint64_t from = 0, to = 0;
    size_t room = out->max - out->len;
    size_t len = range->length < 0 || (uint64_t)range->length > room ? room : (size_t)range->length;
    *ret_scrubbed = 0;
    if (range->offset >= output->total)
        return 0;
    if (raw_range(output, range->offset, len, &from, &to, err))
        return -1;
    if (from == to)
        return 0;
    if (read_piece(output, from, to, &piece, err))
        return -1;
    bool fits = buf_append(out, piece.data, (size_t)(to - from));
    *ret_scrubbed = piece.masks.count;
    piece_done(&piece);
    return fits ? 0 : err_set(err, ERR_BUSY, "no memory for the output");
}

static int output_of_key(struct sandboxes *all, const struct exec_key *key, int stream,
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
                  : output_of_key(all, key, range->stream, &output, err);
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

/* --- text -------------------------------------------------------------------------------- */

static size_t continuation_bytes(const char *data, size_t len)
{
    size_t count = 0;
    while (count < len && count < 3 && ((unsigned char)data[count] & 0xc0) == 0x80)
        count++;
    return count;
}

/* Cuts off what the cut left of a character, if the piece is text then. True when it is. */
static bool trim(const struct piece *piece, bool front, bool back, size_t *ret_skip,
                 size_t *ret_len)
{
    size_t len = (size_t)(piece->to - piece->from);
    size_t skip = front ? continuation_bytes(piece->data, len) : 0;
    size_t rest = len - skip;
    if (back)
        rest -= utf8_partial_tail(piece->data + skip, rest);
    *ret_skip = skip;
    *ret_len = rest;
    return utf8_valid(piece->data + skip, rest);
}

static void shorten(struct piece *piece, size_t skip, size_t len)
{
    struct ranges masks;
    if (skip > 0 && len > 0)
        memmove(piece->data, piece->data + skip, len);
    piece->from += skip;
    piece->to = piece->from + len;
    clip(&piece->masks, piece->from, piece->to, &masks);
    ranges_done(&piece->masks);
    piece->masks = masks;
}

static bool append_masked_text(struct buf *text, const struct piece *piece)
{
    uint64_t at = piece->from;
    bool fits = true;
    for (size_t i = 0; i < piece->masks.count; i++) {
        const struct range *mask = &piece->masks.items[i];
        fits =
            fits && buf_append(text, piece->data + (at - piece->from), (size_t)(mask->from - at));
        fits = fits && buf_append_str(text, "***");
        at = mask->to;
    }
    return fits && buf_append(text, piece->data + (at - piece->from), (size_t)(piece->to - at));
}

static bool append_plain(struct buf *bytes, const struct piece *piece)
{
    return buf_append(bytes, piece->data, (size_t)(piece->to - piece->from));
}

struct kept {
    struct piece head, tail; /* tail: empty unless something is left out between them */
    bool cut;
    bool is_text;
};

static void kept_done(struct kept *kept)
{
    piece_done(&kept->head);
    piece_done(&kept->tail);
}

static void choose_encoding(const struct output *output, struct kept *kept)
{
    size_t head_skip, head_len, tail_skip = 0, tail_len = 0;
    bool text = trim(&kept->head, false, kept->cut || output->open, &head_skip, &head_len);
    if (text && kept->cut)
        text = trim(&kept->tail, true, output->open, &tail_skip, &tail_len);
    kept->is_text = text;
    if (!text)
        return;
    shorten(&kept->head, head_skip, head_len);
    if (kept->cut)
        shorten(&kept->tail, tail_skip, tail_len);
}

/* Everything, or the first and the last half of MAX. */
static int read_kept(const struct output *output, size_t max, struct kept *kept, struct err *err)
{
    uint64_t end = received(output), gap_from = end, gap_to = 0;
    uint64_t half = max / 2, rest = max - max / 2;
    size_t back;
    bool gap = output->journal && journal_has_gap(output->journal, &gap_from, &gap_to);
    if (held(output, end, &back, err))
        return -1;
    end -= back;
    uint64_t head = gap_from < half ? gap_from : half;
    uint64_t tail = end > rest ? end - rest : 0;
    if (tail < gap_to)
        tail = gap_to;
    kept->cut = gap || end > max;
    if (!kept->cut || head >= tail) {
        kept->cut = false;
        head = end;
    }
    if (read_piece(output, 0, head, &kept->head, err))
        return -1;
    return kept->cut ? read_piece(output, tail, end, &kept->tail, err) : 0;
}

static void add_encoded(const struct kept *kept, const char *name, struct json *record)
{
    cleanup_free char *encoding = xasprintf("%s_encoding", name);
    struct buf bytes = BUF_INIT(CAP_JSON_OUTPUT);
    struct buf text = BUF_INIT(CAP_REPLY / 3);
    bool masked = kept->is_text && append_masked_text(&text, &kept->head) &&
                  append_masked_text(&text, &kept->tail);
    (void)append_plain(&bytes, &kept->head); /* both fit: max_output is at most that */
    (void)append_plain(&bytes, &kept->tail);
    if (masked) {
        json_set_textn(record, name, buf_text(&text), text.len);
    } else if (kept->is_text) { /* so many masks that they would not fit: as long as the secrets */
        json_set_textn(record, name, buf_text(&bytes), bytes.len);
    } else {
        buf_reset(&text);
        (void)base64_encode(&text, buf_text(&bytes), bytes.len);
        json_set_textn(record, name, buf_text(&text), text.len);
    }
    json_set_text(record, encoding, kept->is_text ? "utf-8" : "base64");
    buf_done(&bytes);
    buf_done(&text);
}

/* What lies between the pieces, else what the agent lost: offsets of the stream. */
static bool omitted(const struct output *output, const struct kept *kept, uint64_t *ret_from,
                    uint64_t *ret_to)
{
    if (kept->cut) {
        *ret_from = ranges_expand(&output->lost, kept->head.to, false);
        *ret_to = ranges_expand(&output->lost, kept->tail.from, true);
        return true;
    }
    if (output->lost.count == 0)
        return false;
    *ret_from = output->lost.items[0].from;
    *ret_to = output->lost.items[0].to;
    return true;
}

int output_add_text(const struct output *output, const char *name, size_t max, struct json *record,
                    bool *ret_truncated, struct err *err)
{
    struct kept kept = {0};
    struct err why = {0};
    cleanup_free char *member = xasprintf("%s_omitted", name);
    uint64_t from, to;
    int rc = read_kept(output, max, &kept, &why);
    /* The tail of a running one moves on while it is read. */
    for (int i = 1; rc && why.code == ERR_RANGE_NOT_SATISFIABLE && output->open && i < READ_TRIES;
         i++) {
        kept_done(&kept);
        rc = read_kept(output, max, &kept, &why);
    }
    if (rc) {
        kept_done(&kept);
        return err_set(err, why.code, "%s", why.msg);
    }
    choose_encoding(output, &kept);
    add_encoded(&kept, name, record);
    if (omitted(output, &kept, &from, &to)) {
        struct json *range = json_set_object(record, member);
        json_set_int(range, "offset", (int64_t)from);
        json_set_int(range, "bytes", (int64_t)(to - from));
        *ret_truncated = true;
    } else {
        json_set_null(record, member);
    }
    kept_done(&kept);
    return 0;
}
