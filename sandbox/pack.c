#include "sandbox/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/entries.h"
#include "agent/proto.h"
#include "base/caps.h"
#include "base/json.h"
#include "sandbox/fields.h"
#include "sandbox/pump.h"
#include "sandbox/sandbox.h"

#define PIECE (32 * KIB)

struct pack {
    struct pipe *raw;
    struct scrubber *scrubber;
    struct scrub_stream *scrub; /* NULL: nothing to mask */
    struct tar_writer *tar;
    struct entry_parser parser;
    char input[PIECE];
    const uint8_t *at; /* in `input` */
    size_t left;
    struct buf plain; /* masked content */
    struct buf out;
    bool over;

    /* the file whose content comes */
    char *path;
    uint64_t size, written;
    uint64_t pad_to; /* zeros are due up to here */
    struct tar_extent extents[ENTRY_EXTENTS];
    size_t extent_count;
    struct entry_item pending; /* its data comes after the zeros */
    bool has_pending;
    bool left_out;     /* its content is not wanted */
    uint64_t apparent; /* bytes of all files, holes too */

    struct json *notes; /* of the report */
    size_t note_count, note_bytes, masked;
};

static void pack_free(void *arg)
{
    struct pack *pack = arg;
    pipe_abandon(pack->raw, NULL);
    pipe_unref(pack->raw);
    scrub_stream_free(pack->scrub);
    scrubber_unref(pack->scrubber);
    tar_writer_free(pack->tar);
    buf_wipe(&pack->plain);
    buf_wipe(&pack->out);
    free(pack->path);
    json_free(pack->notes);
    free(pack);
}

/* --- the report ---------------------------------------------------------------------------------
 */

/* PATH is masked already. */
static void note(struct pack *pack, const char *path, const char *why)
{
    pack->note_count++;
    pack->note_bytes += strlen(path);
    /* The report goes out in one piece: as JSON a byte may be six. */
    if (pack->note_count > CAP_ARCHIVE_NOTES || pack->note_bytes > CAP_ARCHIVE_NOTE_BYTES)
        return;
    struct json *item = json_new_object();
    struct buf encoded = BUF_INIT((size_t)2 * CAP_PATH);
    bool text = utf8_valid(path, strlen(path));
    if (!text)
        (void)base64_encode(&encoded, path, strlen(path));
    json_set_text(item, "path", text ? path : buf_text(&encoded));
    if (!text)
        json_set_text(item, "name_encoding", "base64");
    json_set_text(item, "reason", why);
    json_add(pack->notes, item);
    buf_done(&encoded);
}

static int put_report(struct pack *pack, struct err *err)
{
    if (pack->note_count == 0 && pack->masked == 0)
        return 0;
    struct json *json = json_new_object();
    struct buf text = BUF_INIT(CAP_REPLY);
    json_set_int(json, "scrubbed", (int64_t)pack->masked);
    json_set_int(json, "not_as_they_are", (int64_t)pack->note_count);
    json_set(json, "entries", TAKE_PTR(pack->notes));
    bool fits = json_print(json, &text) && buf_append_char(&text, '\n');
    const struct tar_entry entry = {
        .type = 'f', .path = PACK_REPORT, .size = text.len, .mode = 0644};
    json_free(json);
    int rc = fits ? tar_writer_entry(pack->tar, &entry, err)
                  : err_set(err, ERR_INTERNAL, "the report of an archive is too large");
    for (size_t at = 0, len; rc == 0 && at < text.len; at += len) {
        len = text.len - at < PIECE ? text.len - at : PIECE;
        rc = tar_writer_data(pack->tar, text.ptr + at, len, err);
    }
    buf_done(&text);
    return rc;
}

/* --- entries ------------------------------------------------------------------------------------
 */

static char *masked_text(struct pack *pack, const struct field *field)
{
    char *text = xstrndup((const char *)field->data, field->len);
    pack->masked += scrubber_mask(pack->scrubber, text, strlen(text));
    return text;
}

static bool read_extent(struct pack *pack, const struct field *field)
{
    if (field->len != ENTRY_EXTENT_LEN || pack->extent_count == ENTRY_EXTENTS)
        return false;
    struct tar_extent *extent = &pack->extents[pack->extent_count];
    *extent = (struct tar_extent){wire_u64(field->data), wire_u64(field->data + 8)};
    uint64_t before = 0;
    if (pack->extent_count > 0)
        before = extent[-1].offset + extent[-1].length;
    pack->extent_count++;
    return extent->offset >= before && extent->offset <= pack->size &&
           extent->length <= pack->size - extent->offset;
}

/* The fields of an entry; texts are malloc'd. */
static bool read_entry(struct pack *pack, struct field_reader fields, struct tar_entry *entry,
                       char **ret_path, char **ret_link)
{
    struct field field;
    uint64_t value = 0;
    bool good = true;
    pack->extent_count = 0;
    while (good && field_next(&fields, &field)) {
        if (field.tag == TAG_PATH && !*ret_path)
            *ret_path = masked_text(pack, &field);
        else if (field.tag == TAG_LINK && !*ret_link)
            *ret_link = masked_text(pack, &field);
        else if (field.tag == TAG_TYPE)
            entry->type = field.len == 1 ? (char)field.data[0] : '\0';
        else if (field.tag == TAG_EXTENT)
            good = read_extent(pack, &field);
        else if (!field_u64(&field, &value))
            continue;
        else if (field.tag == TAG_SIZE)
            pack->size = value;
        else if (field.tag == TAG_MODE)
            entry->mode = (unsigned)(value & 07777);
        else if (field.tag == TAG_MTIME_S)
            entry->mtime_s = (int64_t)value;
        else if (field.tag == TAG_MTIME_NS)
            entry->mtime_ns = (uint32_t)(value % 1000000000);
    }
    char plain[CAP_PATH];
    return good && *ret_path && entry_path(*ret_path, strlen(*ret_path), plain) == NULL &&
           plain[0] != '\0' && pack->size <= INT64_MAX;
}

static int begin_file(struct pack *pack, struct tar_entry *entry, struct err *err)
{
    pack->left_out = pack->size > CAP_ARCHIVE_APPARENT - pack->apparent;
    if (pack->left_out) {
        note(pack, pack->path, err_code_name(ERR_TOO_LARGE));
        return 0;
    }
    pack->apparent += pack->size;
    entry->size = pack->size;
    entry->extents = pack->extents;
    entry->extent_count = pack->extent_count;
    pack->written = pack->pad_to = 0;
    return tar_writer_entry(pack->tar, entry, err);
}

static int begin_entry(struct pack *pack, struct field_reader fields, struct err *err)
{
    struct tar_entry entry = {.type = '\0'};
    char error[64] = "file_io";
    cleanup_free char *link = NULL;
    struct field field;
    free(pack->path);
    pack->path = NULL;
    pack->size = 0;
    if (!read_entry(pack, fields, &entry, &pack->path, &link))
        return err_set(err, ERR_AGENT_FAILED, "the agent sent an entry that makes no sense");
    entry.path = pack->path;
    entry.link = link ? link : "";
    switch (entry.type) {
    case 'n':
        if (fields_find(fields.ptr, fields.left, TAG_ERROR, &field))
            snprintf(error, sizeof(error), "%.*s", (int)field.len, (const char *)field.data);
        note(pack, pack->path, err_code_name(err_code_from_name(error)));
        return 0;
    case 'f':
        return begin_file(pack, &entry, err);
    case 'd':
    case 'l':
    case 'h':
        return tar_writer_entry(pack->tar, &entry, err);
    default:
        return err_set(err, ERR_AGENT_FAILED, "the agent sent an entry of an unknown type");
    }
}

/* --- content ------------------------------------------------------------------------------------
 */

static int put_plain(struct pack *pack, struct err *err)
{
    int rc = tar_writer_data(pack->tar, buf_text(&pack->plain), pack->plain.len, err);
    buf_reset(&pack->plain);
    return rc;
}

/* LAST: what follows, if anything, is not connected. */
static int put_content(struct pack *pack, const void *data, size_t len, bool last, struct err *err)
{
    pack->written += len;
    pack->pad_to = pack->written;
    if (!pack->scrub)
        return len ? tar_writer_data(pack->tar, data, len, err) : 0;
    if (!scrub_stream_push(pack->scrub, data, len, &pack->plain, last))
        return err_set(err, ERR_INTERNAL, "a piece of a file does not fit");
    return pack->plain.len ? put_plain(pack, err) : 0;
}

/* Of what lies at `written`: how much is all hole, or all not. */
static uint64_t same_kind(const struct pack *pack, bool *ret_hole)
{
    for (size_t i = 0; i < pack->extent_count; i++) {
        const struct tar_extent *extent = &pack->extents[i];
        if (pack->written < extent->offset) {
            *ret_hole = true;
            return extent->offset - pack->written;
        }
        if (pack->written < extent->offset + extent->length) {
            *ret_hole = false;
            return extent->offset + extent->length - pack->written;
        }
    }
    *ret_hole = pack->extent_count > 0;
    return pack->size - pack->written;
}

static int put_zeros(struct pack *pack, struct err *err)
{
    bool hole = false;
    uint64_t len = same_kind(pack, &hole);
    uint64_t most = hole ? TAR_WRITER_HOLE : TAR_WRITER_ZEROS;
    if (len > pack->pad_to - pack->written)
        len = pack->pad_to - pack->written;
    if (len > most)
        len = most;
    pack->written += len;
    return tar_writer_zeros(pack->tar, (size_t)len, err) < 0 ? -1 : PUMP_AGAIN;
}

/* Content that begins behind a gap waits until the gap is written. */
static int take_data(struct pack *pack, const struct entry_item *item, struct err *err)
{
    if (pack->left_out)
        return 0;
    if (item->offset < pack->written || item->offset > pack->size ||
        item->len > pack->size - item->offset)
        return err_set(err, ERR_AGENT_FAILED, "the agent sent content that makes no sense");
    if (item->offset == pack->written)
        return put_content(pack, item->data, item->len, false, err);
    pack->pending = *item;
    pack->has_pending = true;
    int rc = put_content(pack, "", 0, true, err);
    pack->pad_to = item->offset;
    return rc;
}

static int take_end(struct pack *pack, uint64_t end, struct err *err)
{
    if (pack->left_out)
        return 0;
    if (end != ENTRY_WHOLE)
        note(pack, pack->path, end == ENTRY_CHANGED ? "changed" : "file_io");
    int rc = put_content(pack, "", 0, true, err);
    pack->pad_to = pack->size;
    return rc;
}

/* --- the source of a pump -----------------------------------------------------------------------
 */

static int finish(struct pack *pack, struct err *err)
{
    pack->over = true;
    if (!entry_parser_between(&pack->parser))
        return err_set(err, ERR_AGENT_FAILED, "the agent's entries are not whole");
    if (pack->scrub)
        pack->masked += scrub_stream_matches(pack->scrub);
    return put_report(pack, err) < 0 ? -1 : tar_writer_finish(pack->tar, err);
}

/* 0, -1, PUMP_WAIT or PUMP_AGAIN. */
static int refill(struct pack *pack, struct err *err)
{
    size_t got = pipe_read(pack->raw, pack->input, sizeof(pack->input));
    pack->at = (const uint8_t *)pack->input;
    pack->left = got;
    if (got > 0)
        return PUMP_AGAIN;
    switch (pipe_state(pack->raw, err)) {
    case PIPE_OPEN:
        return PUMP_WAIT;
    case PIPE_ENDED:
        return finish(pack, err);
    case PIPE_FAILED:
    case PIPE_ABANDONED:
        break;
    }
    return -1;
}

static int step(struct pack *pack, struct err *err)
{
    struct entry_item item;
    if (pack->written < pack->pad_to)
        return put_zeros(pack, err);
    if (pack->has_pending) {
        pack->has_pending = false;
        return put_content(pack, pack->pending.data, pack->pending.len, false, err);
    }
    switch (entry_parse(&pack->parser, &pack->at, &pack->left, &item)) {
    case ENTRY_MORE:
        return refill(pack, err);
    case ENTRY_BEGIN:
        return begin_entry(pack, item.fields, err);
    case ENTRY_DATA:
        return take_data(pack, &item, err);
    case ENTRY_END:
        return take_end(pack, item.end, err);
    case ENTRY_BROKEN:
        break;
    }
    return err_set(err, ERR_AGENT_FAILED, "the agent's entries make no sense");
}

static ssize_t pack_read(void *arg, void *data, size_t len, struct err *err)
{
    struct pack *pack = arg;
    while (pack->out.len == 0) {
        if (pack->over)
            return 0;
        int rc = step(pack, err);
        if (rc < 0 && (rc != PUMP_AGAIN || pack->out.len == 0))
            return rc;
    }
    return (ssize_t)buf_take_front(&pack->out, data, len);
}

static struct event *pack_event(void *arg)
{
    return pipe_readable(((struct pack *)arg)->raw);
}

static const struct pump_source source = {
    .read = pack_read,
    .readable = pack_event,
    .free = pack_free,
};

int pack_start(struct sandbox *sandbox, struct pipe *raw, enum tar_filter filter, struct pipe *out,
               struct err *err)
{
    const struct pump_range whole = {.length = -1};
    struct pack *pack = xcalloc(1, sizeof(*pack));
    pack->raw = pipe_ref(raw);
    pack->scrubber = sandbox_scrubber(sandbox);
    pack->notes = json_new_array();
    entry_parser_init(&pack->parser);
    buf_init(&pack->out, 2 * TAR_WRITER_ROOM);
    buf_init(&pack->plain, scrubber_longest(pack->scrubber) + 2 * PIECE);
    if (!scrubber_empty(pack->scrubber))
        pack->scrub = scrub_stream_new(pack->scrubber);
    pack->tar = tar_writer_new(filter, &pack->out, err);
    if (!pack->tar) {
        pack_free(pack);
        return -1;
    }
    pump_start(sandbox->all, &source, pack, NULL, &whole, out);
    return 0;
}
