/* Output as text in a record: up to so many bytes, `***` for each secret, base64 when it is none.
 */
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "sandbox/exec_piece.h"

#define READ_TRIES 4

static size_t continuation_bytes(const char *data, size_t len)
{
    size_t count = 0;
    while (count < len && count < 3 && ((unsigned char)data[count] & 0xc0) == 0x80)
        count++;
    return count;
}

bool piece_trim(const struct piece *piece, bool front, bool back, size_t *ret_skip, size_t *ret_len)
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

void piece_shorten(struct piece *piece, size_t skip, size_t len)
{
    struct ranges masks;
    piece->data += skip;
    piece->from += skip;
    piece->to = piece->from + len;
    ranges_clip(&piece->masks, piece->from, piece->to, &masks);
    ranges_done(&piece->masks);
    piece->masks = masks;
}

bool piece_text(const struct piece *piece, struct buf *text)
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
    bool text = piece_trim(&kept->head, false, kept->cut || output->open, &head_skip, &head_len);
    if (text && kept->cut)
        text = piece_trim(&kept->tail, true, output->open, &tail_skip, &tail_len);
    kept->is_text = text;
    if (!text)
        return;
    piece_shorten(&kept->head, head_skip, head_len);
    if (kept->cut)
        piece_shorten(&kept->tail, tail_skip, tail_len);
}

/* Everything, or the first and the last half of MAX. */
static int read_kept(const struct output *output, size_t max, struct kept *kept, struct err *err)
{
    uint64_t end = output_received(output), gap_from = end, gap_to = 0;
    uint64_t half = max / 2, rest = max - max / 2;
    size_t back;
    bool gap = output->journal && journal_has_gap(output->journal, &gap_from, &gap_to);
    if (output_held(output, end, &back, NULL, err))
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
    if (piece_read(output, 0, head, &kept->head, err))
        return -1;
    return kept->cut ? piece_read(output, tail, end, &kept->tail, err) : 0;
}

static void add_encoded(const struct kept *kept, const char *name, struct json *record)
{
    cleanup_free char *encoding = xasprintf("%s_encoding", name);
    struct buf bytes = BUF_INIT(CAP_JSON_OUTPUT);
    struct buf text = BUF_INIT(CAP_REPLY / 3);
    bool masked = kept->is_text && piece_text(&kept->head, &text) && piece_text(&kept->tail, &text);
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
